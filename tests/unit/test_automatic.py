"""What an automatically chosen backend refuses, the next one computes; what was asked for by name raises."""

from __future__ import annotations

import sys
import types
import warnings
from dataclasses import replace
from typing import Any, Callable, Iterator, List

import pytest
import torch

import spikecore as sc
from spikecore import registry, selection
from spikecore.backend import Backend, BackendInfo, BackendUnavailable, Capabilities, Unsupported
from spikecore.hookspecs import hookimpl
from spikecore.registry import BUILTINS, Registry
from spikecore.testing.loopback import EVERYTHING, Loop

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


class World:
    """Makes the class of the preferred backend, and installs it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def prefer(self, can: Capabilities = EVERYTHING, **members: Any) -> Any:
        """From now on CPU tensors go to such a backend, then to the reference."""
        functions = {name: staticmethod(member) for name, member in members.items()}
        made = type("Quick", (Quick,), {"capabilities": can, "calls": [], **functions})
        module: Any = types.ModuleType("fake_quick")
        module.Quick = made
        module.spikecore_backends = hookimpl(
            lambda: [BackendInfo("quick", "fake_quick:Quick", ("cpu",), can, lambda: None)]
        )
        module.spikecore_backends.__name__ = "spikecore_backends"
        self.monkeypatch.setitem(sys.modules, "fake_quick", module)
        self.monkeypatch.setattr(registry, "_default", Registry({**BUILTINS, "quick": "fake_quick"}, entry_points=[]))
        self.monkeypatch.setattr(selection, "AUTO", {"cpu": ("quick", "torch")})
        return made


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Each test has its own."""
    monkeypatch.delenv("SPIKECORE_BACKEND", raising=False)
    return World(monkeypatch)


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


def test_a_call_that_it_refuses_goes_on_and_the_next_is_its_own_again(world: World) -> None:
    """Unsupported from a runner is about this call: transforms of torch, for one."""
    refused = [Unsupported("torch.func cannot look through this")]
    made = world.prefer(answer=lambda: refusing(refused.pop())() if refused else None)
    lif = sc.LIF()
    with pytest.warns(RuntimeWarning, match="chosen automatically: torch.func cannot look through this$"):
        first = lif(X)
    assert made.calls == []
    assert torch.equal(first, lif(X))
    assert made.calls == ["LIF"]


def test_a_broken_backend_is_left_for_good(world: World) -> None:
    """Another of its errors, such as a compiler that cannot be loaded, is met once."""
    asked: List[int] = []

    def answer() -> None:
        asked.append(1)
        raise BackendUnavailable("the compiler cannot be loaded")

    world.prefer(answer=answer)
    lif = sc.LIF()
    with pytest.warns(RuntimeWarning, match="chosen automatically: the compiler cannot be loaded$"):
        found = [lif(X) for _ in range(3)]
    assert all(torch.equal(one, sc.LIF(backend="torch")(X)) for one in found)
    assert len(asked) == 1


def test_a_program_that_it_cannot_compile_goes_on(world: World) -> None:
    """A limit within a declared capability is no error of a program that named no backend."""
    world.prefer(refuse=lambda program: refusing(Unsupported(f"{program.name} is too long"))())
    with pytest.warns(RuntimeWarning, match="LIF is too long"):
        assert torch.equal(sc.LIF()(X), sc.LIF(backend="torch")(X))


@pytest.mark.parametrize("error", [ValueError("of the user"), KeyboardInterrupt()])
def test_other_errors_are_the_callers(world: World, error: BaseException) -> None:
    """Only what a backend says of itself moves a call."""
    world.prefer(answer=refusing(error))
    with pytest.raises(type(error)):
        sc.LIF()(X)


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


def test_where_no_backend_can_the_error_is_the_first_ones(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to go on to."""
    world.prefer(replace(EVERYTHING, float64=False))
    monkeypatch.setattr(selection, "AUTO", {"cpu": ("quick",)})
    with pytest.raises(Unsupported, match=r"backend 'quick' \(from auto\) does not support float64"):
        sc.LIF()(X.double())


def test_a_blocked_backend_is_not_chosen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And copies and pickles of a neuron choose again."""
    made = world.prefer()
    lif = sc.LIF()
    lif(X)
    assert made.calls == ["LIF"]
    monkeypatch.setattr(selection, "AUTO", {"cpu": ("torch",)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sc.LIF()(X)
    assert made.calls == ["LIF"]


class TestRepr:
    """``repr`` says who asked and what computes."""

    @pytest.mark.parametrize(
        ("request_", "before", "after"),
        [
            ({"backend": "torch"}, "backend=torch)", "backend=torch (torch on cpu))"),
            ({}, "backend=auto)", "backend=auto (quick on cpu))"),
        ],
    )
    def test_argument_and_auto(self, world: World, request_: Any, before: str, after: str) -> None:
        """An argument stands alone, automatic choice as auto."""
        world.prefer()
        lif = sc.LIF(**request_)
        assert repr(lif).endswith(before)
        lif(X)
        assert repr(lif).endswith(after)

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
