"""Threads: kernels run side by side, and how many do changes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Iterator, List

import pytest
import torch

import spikecore as sc
import warm
from spikecore_numba import threads


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Leave torch's number of threads as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def train(neuron: sc.Neuron, x: torch.Tensor) -> List[torch.Tensor]:
    x = x.clone().requires_grad_()
    y = neuron(x)
    y.backward(torch.linspace(-1, 1, y.numel()).view_as(y))
    return [y.detach(), x.grad, neuron.tau.grad.clone()]


@pytest.mark.parametrize(("steps", "neurons"), [(16, 100_003), (1000, 600)])
def test_number_of_threads_changes_nothing(steps: int, neurons: int) -> None:
    """One thread or several: the same bits, parameter sums of full shape included."""
    x = torch.randn(steps, neurons, generator=torch.Generator().manual_seed(0)) + 0.5
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        neuron = sc.LIF(torch.full((neurons,), 2.5), learn=("tau",), backend="numba")
        found.append(train(neuron, x))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other))


def test_calls_from_many_threads() -> None:
    """Threads that call the same and different neurons at once each get their own results."""
    kinds = [sc.LIF, sc.ALIF]
    xs = [torch.randn(16, 20_000, generator=torch.Generator().manual_seed(k)) + 0.5 for k in range(4)]

    def make(k: int) -> sc.Neuron:
        return kinds[k % 2](2.5, learn=("tau",), backend="numba")

    expected = [train(make(k), x) for k, x in enumerate(xs)]
    wrong: List[int] = []

    def work(k: int) -> None:
        found = [train(make(k), xs[k]) for _ in range(5)]
        wrong.extend(k for each in found if not all(map(torch.equal, each, expected[k])))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own() -> None:
    """After a fork the child computes, too, though its parent's threads are not there."""
    torch.set_num_threads(2)
    x = torch.randn(16, 100_000)
    neuron = sc.LIF(backend="numba")
    expected = neuron(x).numpy()
    child = os.fork()
    if child == 0:
        # NumPy compares, as torch's own threads do not survive a fork
        os._exit(0 if (neuron(x).numpy() == expected).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


COMPILING = """
import os, threading, torch, spikecore as sc
from spikecore_numba import compiler

inside, compile_ = threading.Event(), compiler.compile_source

def announced(*arguments):
    inside.set()
    return compile_(*arguments)

compiler.compile_source = announced
x = torch.rand(3, 5)
other = threading.Thread(target=sc.ALIF(backend="numba"), args=(x,))
lif = sc.LIF(backend="numba")
other.start()
inside.wait()
child = os.fork()
if child == 0:
    os._exit(0 if lif(x).shape == x.shape else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
other.join()
print("whole", lif(x).shape == x.shape)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_while_another_thread_compiles(tmp_path: Path) -> None:
    """The child compiles its own first kernel: no lock, ours or Numba's, is left shut in it."""
    environ = {**os.environ, "SPIKECORE_CACHE_DIR": str(tmp_path)}
    done = warm.run("-c", COMPILING, timeout=120, env=environ)
    assert done.stdout.split() == ["whole", "True"], done.stderr


def test_an_error_in_a_share_of_the_work_is_raised() -> None:
    """An error on another thread is raised on the caller's."""
    torch.set_num_threads(2)

    def work(begin: int, end: int) -> None:
        raise KeyError(begin)

    with pytest.raises(KeyError):
        threads.over_blocks(work, 100, threads.WORTHWHILE)


def test_ctrl_c_while_a_call_waits_changes_nothing() -> None:
    """Three interrupts while the call waits for the other thread do not make it return early."""
    torch.set_num_threads(2)
    main, inside = threading.get_ident(), threading.Event()
    handled = threading.Semaphore(0)
    ended: List[int] = []

    def handler(number: int, frame: Any) -> None:
        handled.release()
        raise KeyboardInterrupt

    def work(begin: int, end: int) -> None:
        if threading.get_ident() == main:
            inside.wait()
            raise MemoryError
        inside.set()
        for _ in range(3):
            signal.pthread_kill(main, signal.SIGINT)
            handled.acquire()
        ended.append(begin)

    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises((KeyboardInterrupt, MemoryError)):
            threads.over_blocks(work, 100, threads.WORTHWHILE)
        assert len(ended) == 1
    finally:
        signal.signal(signal.SIGINT, before)


def test_interrupted_calls_write_nowhere_afterwards() -> None:
    """A process whose calls are interrupted at any moment, hundreds of times, goes on with its memory as it was."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["sound"]


INTERRUPTED = """
import itertools, signal, torch, spikecore as sc
torch.set_num_threads(2)
steps, neurons = 64, 1 << 16
x = torch.rand(steps, neurons) * 2
lif = sc.LIF(backend="numba")
expected = lif(x).clone()

def handler(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, handler)
interrupted = 0
for k in itertools.count():
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0003 + 0.0001 * (k % 40))
        lif(x)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
    # takes the memory that the interrupted call had, if it gave it back too early
    watched = torch.full((steps, neurons), 7.0)
    total = watched.sum()
    assert (watched == 7.0).all(), "another thread has written here"
    if interrupted >= 100 or k >= 1000:
        break
assert interrupted > 20, interrupted
assert torch.equal(lif(x), expected)
print("sound")
"""


@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_the_default_device_is_for_others(device: str) -> None:
    """``torch.set_default_device`` moves no memory of kernels: forward and backward stay on the CPU."""
    code = f"""
import torch, spikecore as sc
x = torch.full((4, 3), 1.7)
expected = sc.ALIF(backend="torch")(x).tolist()
torch.set_default_device({device!r})
x.requires_grad_()
y = sc.ALIF(backend="numba")(x)
y.backward(torch.ones(4, 3, device="cpu"))
assert y.tolist() == expected and x.grad.device.type == "cpu"
"""
    done = warm.run("-c", code)
    assert done.returncode == 0, done.stderr
