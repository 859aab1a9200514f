"""Compiled once, kept on disk, loaded anywhere: what the cache promises."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

import warm
from spikecore_numba import compiler

CALL = """
import sys, time, torch, spikecore as sc
neuron = sc.LIF(tau={tau}, surrogate=sc.surrogate.{surrogate}(), backend="numba")
x = torch.full((6, 5), 1.7, requires_grad=True)
begin = time.perf_counter()
y = neuron(x)
y.sum().backward()
print("took", time.perf_counter() - begin)
print("numba" in sys.modules, y.sum().item(), round(x.grad.sum().item(), 4))
"""


def run(folder: Path, surrogate: str = "ATan", tau: str = "2.0", **environ: str) -> List[str]:
    """The output of a new process that calls a neuron and has its kernels in ``folder``."""
    done = start(folder, surrogate, tau, **environ)
    out, err = done.communicate()
    assert done.returncode == 0, err
    return out.splitlines()


def start(folder: Path, surrogate: str = "ATan", tau: str = "2.0", **environ: str) -> Any:
    env = {**os.environ, "SPIKECORE_CACHE_DIR": str(folder), **environ}
    return warm.start("-c", CALL.format(surrogate=surrogate, tau=tau), env=env)


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Tuple[Path, List[str]]:
    """The folder in which a process has compiled the kernels of :data:`CALL`, and what it said."""
    folder = tmp_path_factory.mktemp("kernels")
    return folder, run(folder)


@pytest.fixture
def first(compiled_once: Tuple[Path, List[str]], tmp_path: Path) -> List[str]:
    """Output of the process that compiled first. ``tmp_path`` is a copy of its folder, which the test may change."""
    folder, said = compiled_once
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return said


def files(folder: Path) -> Dict[str, bytes]:
    found = (folder / "compiled-kernels").glob("numba.*")
    return {path.name: path.read_bytes() for path in found}


def test_second_process_loads_without_numba(first: List[str], tmp_path: Path) -> None:
    """The first process compiles and keeps the code; the next one does not even import Numba."""
    kept = files(tmp_path)
    assert first[1].startswith("True")
    assert sorted(name.partition("-")[0] + Path(name).suffix for name in kept) == [
        "numba.lif_backward.o",
        "numba.lif_forward.o",
    ]
    second = run(tmp_path)
    assert second[1].replace("False", "True") == first[1]
    assert second[1].startswith("False")
    assert files(tmp_path) == kept


@pytest.mark.usefixtures("first")
def test_other_numbers_are_the_same_kernel(tmp_path: Path) -> None:
    """Numbers are arguments of a kernel; another formula is another kernel."""
    kept = set(files(tmp_path))
    run(tmp_path, tau="3.0")
    assert set(files(tmp_path)) == kept
    run(tmp_path, surrogate="Sigmoid")
    assert set(files(tmp_path)) > kept


@pytest.mark.parametrize("where", ["a file", "read-only"])
def test_a_folder_that_takes_nothing_costs_only_the_cache(tmp_path: Path, where: str) -> None:
    """Where nothing can be written, kernels are compiled in every process, and work."""
    folder = tmp_path / "cache"
    if where == "a file":
        folder.write_text("")
    else:
        folder.mkdir()
        folder.chmod(0o500)
    assert run(folder)[1].startswith("True")


def test_processes_that_start_together(tmp_path: Path) -> None:
    """Several processes that compile the same kernel at the same time all get it, and leave one whole entry."""
    together = [start(tmp_path) for _ in range(3)]
    said = {process.communicate()[0].splitlines()[1].split(" ", 1)[1] for process in together}
    assert len(said) == 1
    assert all(process.returncode == 0 for process in together)
    assert len(files(tmp_path)) == 2
    assert run(tmp_path)[1].startswith("False")


def test_key_knows_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another processor or another version of the compiler is another key."""
    import torch

    import spikecore as sc
    from spikecore.backend import Spec
    from spikecore.kernels import ForwardPlan
    from spikecore_numba.source import print_kernel

    source = print_kernel(ForwardPlan(sc.LIF().program, Spec(torch.float32, None, ("number",) * 3)))
    key = compiler.kernel_key(source, ("int64",))
    assert key == compiler.kernel_key(source, ("int64",))
    assert key != compiler.kernel_key(source, ("float64",))
    for name in ("get_host_cpu_name", "get_process_triple"):
        for cached in (compiler.environment, compiler.processor):
            cached.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(compiler.llvm, name, lambda: "other")
            assert key != compiler.kernel_key(source, ("int64",))
    for cached in (compiler.environment, compiler.processor):
        cached.cache_clear()


def test_annealing_compiles_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A surrogate with another number, a class of another name and a forward kernel of another surrogate are the same
    machine code.
    """
    import torch

    import spikecore as sc

    monkeypatch.setenv("SPIKECORE_CACHE_DIR", str(tmp_path))
    made: List[str] = []
    compile_ = compiler.compile_source
    monkeypatch.setattr(
        compiler, "compile_source", lambda source, types: made.append(source.name) or compile_(source, types)
    )

    class Annealed(sc.LIF):
        """With a name of its own, so that no other test has compiled it."""

    def run(neuron: sc.Neuron) -> None:
        x = torch.rand(5, 7, requires_grad=True)
        neuron(x).sum().backward()

    neuron = Annealed(backend="numba")
    run(neuron)
    assert made == ["annealed_forward", "annealed_backward"]
    for k in range(20):
        neuron.surrogate = sc.surrogate.ATan(alpha=1.0 + k / 3)
        run(neuron)
    run(type("Other", (sc.LIF,), {})(backend="numba", surrogate=sc.surrogate.ATan(9.0)))
    assert len(made) == 2
    neuron.surrogate = sc.surrogate.Sigmoid()
    run(neuron)
    assert made[2:] == ["annealed_backward"]
