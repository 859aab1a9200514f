"""Which backend computes a neuron: automatic choice goes on to the next one, a choice by name raises."""

from __future__ import annotations

import sys
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest
import torch

import spikecore as sc
from plain_loop import EVERYTHING, Loop
from spikecore.backend import (
    Backend,
    BackendError,
    BackendInfo,
    BackendUnavailable,
    Capabilities,
    Unsupported,
    hookimpl,
)
from spikecore.kernels import KernelBackend
from spikecore.plugins import selection
from spikecore.plugins.registry import BUILTINS, Registry, default_registry, replace_default

X = torch.full((4, 3), 1.7)


class Quick(Backend):
    """A backend that automatic choice prefers. ``refuse`` is called with a program, ``answer`` before every call."""

    name = "quick"
    capabilities = EVERYTHING
    refuse: Callable[[Any], None] = staticmethod(lambda program: None)
    answer: Callable[[], None] = staticmethod(lambda: None)
    calls: List[str] = []

    def compile(self, program: Any, spec: Any) -> Any:
        self.refuse(program)
        loop = Loop(program, spec)

        def runner(*arguments: Any) -> Any:
            type(self).answer()
            self.calls.append(program.name)
            return loop(*arguments)

        return runner


class Kernels(KernelBackend):
    """A kernel backend that automatic choice prefers, whose backward kernel cannot be had.

    ``lazily``: only the first launch finds that out, as where a driver loads what was compiled.
    """

    name = "quick"
    capabilities = EVERYTHING
    error: BackendError = BackendError("the backward kernel cannot be compiled")
    lazily = False
    asked: List[str] = []

    def forward(self, plan: Any) -> Any:
        loop = Loop(plan.program, plan.spec)

        def launch(geometry: Any, inputs: Any, state: Any, params: Any, *groups: Any) -> None:
            self.asked.append("forward")
            given = tuple(state) if plan.has_initial_state else None
            results = loop(tuple(inputs), given, tuple(params), plan.record)
            for there, found in zip(groups, results):
                for memory, values in zip(there, found):
                    memory.copy_(values)

        return launch

    def backward(self, plan: Any) -> Any:
        def launch(*_: Any) -> Any:
            self.asked.append("backward")
            raise self.error

        return launch if self.lazily else launch()


class World:
    """Makes the class of the preferred backend, and installs it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def prefer(self, can: Capabilities = EVERYTHING, **members: Any) -> Any:
        """From now on CPU tensors go to such a backend, then to the reference."""
        functions = {name: staticmethod(member) for name, member in members.items()}
        return self.install(type("Quick", (Quick,), {"capabilities": can, "calls": [], **functions}))

    def install(self, made: Any) -> Any:
        """The same with a backend of its own class."""
        can = made.capabilities
        module: Any = types.ModuleType("fake_quick")
        module.Quick = made
        module.spikecore_backends = hookimpl(
            lambda: [BackendInfo("quick", "fake_quick:Quick", ("cpu",), can, lambda: None)]
        )
        module.spikecore_backends.__name__ = "spikecore_backends"
        self.monkeypatch.setitem(sys.modules, "fake_quick", module)
        replace_default(Registry({**BUILTINS, "quick": "fake_quick"}, entry_points=[]))
        self.monkeypatch.setattr(selection, "AUTO", {"cpu": ("quick", "torch")})
        return made


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Each test has its own."""
    monkeypatch.delenv("SPIKECORE_BACKEND", raising=False)
    before = default_registry()
    yield World(monkeypatch)
    replace_default(before)


def refusing(error: BaseException) -> Callable[..., None]:
    def step(*_: Any) -> None:
        raise error

    return step


def test_what_it_does_not_declare_the_reference_computes(world: World) -> None:
    """With one warning that says what is missing; the values are the reference's; other calls stay where they were."""
    made = world.prefer(replace(EVERYTHING, float64=False, record=False))
    lif = sc.LIF()
    with pytest.warns(RuntimeWarning) as caught:
        found = [lif(X.double()), lif(X.double()), sc.LIF()(X.double())]
    assert all(torch.equal(one, sc.LIF(backend="torch")(X.double())) for one in found)
    assert [str(warning.message) for warning in caught] == [
        "backend 'torch' computes instead of 'quick', which was chosen automatically: backend 'quick' (from auto) does "
        "not support float64, which this call of LIF needs; of those loaded, torch could"
    ]
    with pytest.warns(RuntimeWarning, match="does not support record"):
        trace = lif.run(X, record=("v",))[2]["v"]
    assert torch.equal(trace, sc.LIF(backend="torch").run(X, record=("v",))[2]["v"])
    assert made.calls == []
    lif(X)
    assert made.calls == ["LIF"]
    assert repr(lif).endswith("backend=auto (quick on cpu))")


TRANSFORMS: Dict[str, Callable[[Any], Any]] = {
    "vmap": lambda lif: torch.func.vmap(lif)(torch.stack([X, X + 1])),
    "grad": lambda lif: torch.func.grad(lambda x: lif(x).sum())(X),
    "jvp": lambda lif: torch.func.jvp(lif, (X,), (X * X,))[1],
    "jacrev": lambda lif: torch.func.jacrev(lif)(X),
    "vmap of a parameter": lambda lif: torch.func.vmap(lambda tau: torch.func.functional_call(lif, {"tau": tau}, (X,)))(
        torch.tensor([2.0, 3.0])
    ),
}


@pytest.mark.parametrize(("name", "backend"), [*((name, None) for name in TRANSFORMS), ("vmap", "quick")])
def test_what_a_transform_follows_the_reference_computes(world: World, name: str, backend: Optional[str]) -> None:
    """Whatever backend was asked for, and without a word; the next call is the backend's again."""
    made, transform = world.prefer(), TRANSFORMS[name]
    lif = sc.LIF(learn=("tau",), backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert torch.equal(transform(lif), transform(sc.LIF(learn=("tau",), backend="torch")))
    assert made.calls == []
    lif(X)
    assert made.calls == ["LIF"]


@pytest.mark.parametrize("backend", [None, "quick"])
@pytest.mark.parametrize("lazily", [False, True])
def test_a_backward_kernel_that_cannot_be_compiled_raises(world: World, lazily: bool, backend: Optional[str]) -> None:
    """In backward, with the error of the backend; nothing computes in its place."""
    world.install(type("Quick", (Kernels,), {"lazily": lazily, "asked": []}))
    out = sc.LIF(backend=backend)(X.clone().requires_grad_())
    with pytest.raises(BackendError, match="^the backward kernel cannot be compiled$"):
        out.sum().backward()


def test_a_program_that_its_compile_does_not_support_goes_on(world: World) -> None:
    """A limit within a declared capability, which is known before anything runs."""
    world.prefer(refuse=refusing(Unsupported("this one not")))
    with pytest.warns(RuntimeWarning, match="chosen automatically: this one not$"):
        assert torch.equal(sc.LIF()(X), sc.LIF(backend="torch")(X))


@pytest.mark.parametrize("when", ["answer", "refuse"])
@pytest.mark.parametrize("error", [BackendUnavailable("no driver"), ValueError("of the user"), KeyboardInterrupt()])
def test_other_errors_are_the_callers(world: World, error: BaseException, when: str) -> None:
    """While it is compiled or runs: in every call, and nothing computes in its place."""
    world.prefer(**{when: refusing(error)})
    lif = sc.LIF()
    for _ in range(2):
        with pytest.raises(type(error)):
            lif(X)


def test_what_a_running_backend_does_not_support_is_the_callers(world: World) -> None:
    """The next call is the backend's again."""
    refused = [Unsupported("too many neurons")] * 2
    made = world.prefer(answer=lambda: refusing(refused.pop())() if refused else None)
    lif = sc.LIF()
    for _ in range(2):
        with pytest.raises(Unsupported, match="^too many neurons$"):
            lif(X)
    assert torch.equal(lif(X), sc.LIF(backend="torch")(X))
    assert made.calls == ["LIF"]


@pytest.mark.parametrize("how", ["argument", "context", "environment"])
def test_asked_for_by_name_it_raises(world: World, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """An explicit choice is never replaced, whichever way it was made."""
    world.prefer(replace(EVERYTHING, float64=False), answer=refusing(Unsupported("not this")))
    if how == "environment":
        monkeypatch.setenv("SPIKECORE_BACKEND", "quick")
    with sc.use_backend("quick" if how == "context" else None):
        lif = sc.LIF(backend="quick" if how == "argument" else None)
    with pytest.raises(Unsupported, match="does not support float64"):
        lif(X.double())
    with pytest.raises(Unsupported, match="not this"):
        lif(X)


class TestRepr:
    """``repr`` says who asked and what computes."""

    def test_argument_and_auto(self, world: World) -> None:
        """An argument stands alone, automatic choice as auto; after a call what computes."""
        world.prefer()
        asked, auto = sc.LIF(backend="torch"), sc.LIF()
        assert (repr(asked)[-15:], repr(auto)[-14:]) == (" backend=torch)", " backend=auto)")
        asked(X), auto(X)
        assert repr(asked).endswith("backend=torch (torch on cpu))")
        assert repr(auto).endswith("backend=auto (quick on cpu))")

    def test_environment_and_context(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """The variable and the block are named; what is bound counts, and not the environment of later."""
        world.prefer()
        with sc.use_backend("torch"):
            inside = sc.LIF()
        outside = sc.LIF()
        monkeypatch.setenv("SPIKECORE_BACKEND", "quick")
        assert repr(inside).endswith("backend=torch from use_backend())")
        assert repr(outside).endswith("backend=quick from SPIKECORE_BACKEND)")
        outside(X)
        assert repr(outside).endswith("backend=quick from SPIKECORE_BACKEND (quick on cpu))")
        monkeypatch.setenv("SPIKECORE_BACKEND", "torch")
        assert repr(outside).endswith("backend=quick from SPIKECORE_BACKEND (quick on cpu))")
        monkeypatch.delenv("SPIKECORE_BACKEND")
        assert repr(outside).endswith("backend=quick from SPIKECORE_BACKEND (quick on cpu))")


def test_neurons_of_one_program_share_their_runner(world: World) -> None:
    """Compiled code is there once, whichever neuron asked for it first, and from whichever thread."""
    compiled: List[Any] = []
    world.prefer(EVERYTHING, refuse=compiled.append)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda neuron: neuron(X), [sc.LIF(tau=2.0 + k) for k in range(8)]))
    assert len(compiled) == 1
