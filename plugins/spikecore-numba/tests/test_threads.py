"""Threads: kernels run side by side, and how many do changes nothing."""

from __future__ import annotations

import os
import threading
from typing import Iterator, List

import pytest
import torch

import spikecore as sc
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


def test_an_error_in_a_share_of_the_work_is_raised() -> None:
    """What goes wrong on another thread is raised on the caller's."""
    torch.set_num_threads(2)

    def work(begin: int, end: int) -> None:
        raise KeyError(begin)

    with pytest.raises(KeyError):
        threads.over_blocks(work, 100, threads.WORTHWHILE)


def test_shares_cover_all_blocks_once() -> None:
    """Every block is in exactly one range, whatever the number of blocks and threads."""
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        for blocks in (1, 2, 3, 7, 100):
            seen: List[int] = []
            threads.over_blocks(lambda a, b: seen.extend(range(a, b)), blocks, threads.WORTHWHILE)  # noqa: B023
            assert sorted(seen) == list(range(blocks))
