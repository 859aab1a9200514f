"""Choosing a backend by name: the order of those who may ask, and errors where the name cannot be had."""

from __future__ import annotations

from typing import Any

import pytest

from selection_world import NOTHING, World
from spikecore.backend import BackendStatus, BackendUnavailable, UnknownBackend
from spikecore.plugins import selection
from spikecore.plugins.selection import Request, backends, capture, resolve, use_backend


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Each test has its own."""
    return World(monkeypatch)


class TestRequest:
    @pytest.fixture(autouse=True)
    def _known(self, world: World) -> None:
        """Names are checked where they are given, against this world."""

    @pytest.mark.parametrize("give", [capture, use_backend])
    def test_a_name_is_checked_when_it_is_given(self, world: World, give: Any) -> None:
        """A name that nobody has and one that is blocked raise at once, with who asked; nothing is imported for it."""
        who = r"\((from )?(argument|use_backend\(\))\)"
        with pytest.raises(UnknownBackend, match=rf"^unknown backend 'numbra' {who}; did you mean 'numba'\? Known: "):
            give("numbra")
        world.environ["SPIKECORE_BLOCK"] = "numba"
        with pytest.raises(BackendUnavailable, match=rf"^backend 'numba' {who} is blocked by SPIKECORE_BLOCK"):
            give("numba")
        text = (
            rf"^(backend|name)='' {who} is no backend's name; None leaves the choice to context, environment and auto"
        )
        with pytest.raises(UnknownBackend, match=text):
            give("")
        begun = [give(name) for name in ("broken", "auto", None)]
        for block in begun if give is use_backend else ():
            with block:
                pass
        plugins = [row for row in world.registry.status() if row.name in ("broken", "numba", "triton")]
        assert [row.state for row in plugins] == ["installed", "blocked", "installed"]

    def test_contexts_nest_and_end(self) -> None:
        """The innermost block counts, and each block ends where it ends, by an error too."""

        def broken_block() -> None:
            with use_backend("triton"):
                assert capture(None).name == "triton"
                raise ZeroDivisionError

        with use_backend("numba"):
            with pytest.raises(ZeroDivisionError):
                broken_block()
            assert capture(None).name == "numba"
        assert capture(None) == NOTHING

    @pytest.mark.parametrize("name", [3, b"torch", ["torch"], True, 0])
    def test_name_must_be_a_string(self, name: Any) -> None:
        """Something else is a TypeError at once, with argument and value."""
        with pytest.raises(TypeError, match=r"^backend must be a backend's name, 'auto' or None, got "):
            capture(name)
        with pytest.raises(TypeError, match=r"^name must be a backend's name, 'auto' or None, got ") as caught:
            use_backend(name)
        assert str(caught.value).endswith(repr(name))


class TestPrecedence:
    def test_captured_then_context_then_environment_then_auto(self, world: World) -> None:
        """Each of the four is asked when those before it said nothing, and the answer says who chose."""
        world.environ["SPIKECORE_BACKEND"] = "numba"
        with use_backend("torch"):
            argument = world.resolve(Request("cupy", "argument"), "cuda")
            context = world.resolve(capture(None))
        environment = world.resolve()
        world.environ["SPIKECORE_BACKEND"] = ""
        auto = world.resolve()
        chosen = [(r.backend.name, r.source, r.reason) for r in (argument, context, environment, auto)]
        assert chosen == [
            ("cupy", "argument", "asked for by argument"),
            ("torch", "use_backend()", "asked for by use_backend()"),
            ("numba", "SPIKECORE_BACKEND", "asked for by SPIKECORE_BACKEND"),
            ("torch", "auto", "auto: the built-in for cpu tensors"),
        ]

    def test_environment_is_the_process_environment_of_now(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without ``environ`` the variable is read at each call, and blanks around the name do not count."""
        monkeypatch.setenv("SPIKECORE_BACKEND", " numba ")
        assert resolve(NOTHING, "cpu", world.registry).backend.name == "numba"
        monkeypatch.setenv("SPIKECORE_BACKEND", "torch")
        assert resolve(NOTHING, "cpu", world.registry).source == "SPIKECORE_BACKEND"
        monkeypatch.delenv("SPIKECORE_BACKEND")
        assert resolve(NOTHING, "cpu", world.registry).source == "auto"


class TestExplicit:
    @pytest.mark.parametrize(
        ("name", "device", "text"),
        [
            (
                "cupy",
                "cpu",
                "backend 'cupy' (from argument) computes on cuda; the input is on cpu: "
                "move it (x.to('cuda')) or choose another backend",
            ),
            (
                "triton",
                "mps",
                "backend 'triton' (from argument) computes on cuda, xpu; the input is on mps: "
                "move it (x.to('cuda')) or choose another backend",
            ),
        ],
    )
    def test_wrong_device_names_backend_and_device(self, world: World, name: str, device: str, text: str) -> None:
        """A tensor on a device that the chosen backend does not take is an error with both and the way out."""
        with pytest.raises(BackendUnavailable) as caught:
            world.resolve(capture(name), device)
        assert str(caught.value) == text


def test_backends_lists_the_default_registry(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """``backends()`` imports nothing and ``backends(probe=True)`` tries each."""
    monkeypatch.setattr(selection, "default_registry", lambda: world.registry)
    assert {row.state for row in backends()} == {"installed"}
    rows = backends(probe=True)
    assert all(isinstance(row, BackendStatus) for row in rows)
    assert [(row.name, row.state, row.automatic) for row in rows] == [
        ("absent", "failed", ()),
        ("broken", "failed", ()),
        ("cupy", "ready", ("cuda",)),
        ("numba", "ready", ()),
        ("torch", "ready", ("cpu", "cuda", "*")),
        ("triton", "ready", ()),
    ]
