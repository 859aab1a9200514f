"""Choosing a backend: who asked first, strict when asked, and what automatic choice takes."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
import types
import warnings
from typing import Any, Dict, List, Optional

import pytest

from spikecore import selection
from spikecore.backend import Backend, BackendInfo, BackendLoadError, BackendUnavailable, Capabilities, UnknownBackend
from spikecore.hookspecs import hookimpl
from spikecore.registry import BackendStatus, Registry
from spikecore.selection import Request, backends, capture, resolve, use_backend

NOTHING = Request(None, "")


class Point:
    """An entry point that leads to a plugin."""

    dist = None

    def __init__(self, name: str, plugin: object) -> None:
        self.name, self.value, self.plugin = name, name, plugin

    def load(self) -> object:
        """The plugin."""
        if isinstance(self.plugin, Exception):
            raise self.plugin
        return self.plugin


class World:
    """Built-ins torch (every device) and cupy (cuda), plugins numba (cpu) and triton (cuda, xpu), and a broken one.

    ``reasons`` makes each of them unusable.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.environ: Dict[str, str] = {}
        self.reasons: Dict[str, str] = {}
        devices = {"torch": ("*",), "cupy": ("cuda",), "numba": ("cpu",), "triton": ("cuda", "xpu")}
        plugins = {name: self.plugin(name, devices[name]) for name in devices}
        for name, plugin in plugins.items():
            monkeypatch.setitem(sys.modules, f"fake_{name}", plugin)
        points = [Point(name, plugins[name]) for name in ("numba", "triton")]
        points.append(Point("broken", ImportError("no libbroken")))
        table = {"torch": "fake_torch", "cupy": "fake_cupy"}
        self.registry = Registry(table, entry_points=points, environ=self.environ)

    def plugin(self, name: str, devices: Any) -> types.ModuleType:
        """A module that describes a backend and has its factory."""
        info = BackendInfo(name, f"fake_{name}:Fake", devices, Capabilities(), lambda: self.reasons.get(name))

        def spikecore_backends() -> List[BackendInfo]:
            return [info]

        module = types.ModuleType(name)
        vars(module).update(Fake=type("Fake", (Backend,), {"name": name}))
        module.spikecore_backends = hookimpl(spikecore_backends)  # type: ignore[attr-defined]
        return module

    def resolve(self, request: Request = NOTHING, device_type: str = "cpu", **auto: str) -> selection.Resolved:
        """The choice in this world; ``auto`` is the table of preferred built-ins."""
        return resolve(request, device_type, self.registry, self.environ, auto)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Each test has its own."""
    return World(monkeypatch)


class TestRequest:
    def test_nothing_asked_is_no_request(self) -> None:
        """Without argument and context there is no request."""
        assert capture(None) == NOTHING
        assert capture("") == NOTHING

    def test_argument_wins_over_context(self) -> None:
        """The argument is the request; the context is taken when the argument is None or empty."""
        with use_backend("cupy"):
            assert capture("torch") == Request("torch", "argument")
            assert capture(None) == Request("cupy", "use_backend()")
            assert capture("") == Request("cupy", "use_backend()")

    def test_contexts_nest_and_end(self) -> None:
        """The innermost block counts, and each block ends where it ends, by an error too."""

        def broken_block() -> None:
            with use_backend("b"):
                assert capture(None).name == "b"
                raise ZeroDivisionError

        with use_backend("a"):
            with pytest.raises(ZeroDivisionError):
                broken_block()
            assert capture(None).name == "a"
        assert capture(None) == NOTHING

    @pytest.mark.parametrize("empty", [None, ""])
    def test_empty_context_is_no_request(self, empty: Optional[str]) -> None:
        """``use_backend(None)`` takes back what the block around asked for."""
        with use_backend("a"), use_backend(empty):
            assert capture(None) == NOTHING

    def test_context_holds_from_entering(self) -> None:
        """Making the object changes nothing, and what it restores is what held when it was entered."""
        block = use_backend("late")
        assert capture(None) == NOTHING
        with use_backend("outer"):
            with block:
                assert capture(None).name == "late"
            assert capture(None).name == "outer"

    def test_one_object_serves_one_block(self) -> None:
        """Entering the same object again is an error that says what to write; the first block is not harmed."""
        block = use_backend("a")
        with block:
            with pytest.raises(RuntimeError) as caught:
                block.__enter__()
            assert str(caught.value) == "this use_backend('a') was entered before; write use_backend(...) anew"
            assert capture(None).name == "a"
        assert capture(None) == NOTHING

    @pytest.mark.parametrize("name", [3, b"torch", ["torch"], True, 0])
    def test_name_must_be_a_string(self, name: Any) -> None:
        """Something else is a TypeError at once, with argument and value."""
        with pytest.raises(TypeError, match=r"^backend must be a backend's name, 'auto' or None, got "):
            capture(name)
        with pytest.raises(TypeError, match=r"^name must be a backend's name, 'auto' or None, got ") as caught:
            use_backend(name)
        assert str(caught.value).endswith(repr(name))

    def test_context_belongs_to_its_thread_and_task(self) -> None:
        """Another thread and another task do not see the block; a copied context does."""
        seen: List[Request] = []

        async def inside(name: str) -> Request:
            with use_backend(name):
                await asyncio.sleep(0)
                return capture(None)

        async def both() -> List[Request]:
            return list(await asyncio.gather(inside("a"), inside("b")))

        assert [request.name for request in asyncio.run(both())] == ["a", "b"]
        with use_backend("a"):
            # an empty context, because a thread of Python 3.14 may start with a copy of its parent's
            thread = threading.Thread(target=contextvars.Context().run, args=(lambda: seen.append(capture(None)),))
            thread.start()
            thread.join()
            copied = contextvars.copy_context().run(capture, None)
        assert seen == [NOTHING]
        assert copied.name == "a"


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

    def test_captured_context_outlives_its_block(self, world: World) -> None:
        """A request taken inside a block holds after it, against another block."""
        with use_backend("numba"):
            request = capture(None)
        with use_backend("torch"):
            assert world.resolve(request).backend.name == "numba"

    def test_a_block_does_not_reach_what_was_made_before(self, world: World) -> None:
        """A request that was captured outside a block is not changed by it."""
        request = capture(None)
        with use_backend("numba"):
            assert world.resolve(request).source == "auto"

    def test_auto_ends_the_search(self, world: World) -> None:
        """``"auto"`` as argument, context or environment keeps what comes after it from being asked."""
        world.environ["SPIKECORE_BACKEND"] = "numba"
        assert world.resolve(capture("auto")).source == "auto"
        with use_backend("auto"):
            assert world.resolve(capture(None)).backend.name == "torch"
        world.environ["SPIKECORE_BACKEND"] = "auto"
        assert world.resolve().backend.name == "torch"

    def test_environment_is_the_process_environment_of_now(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without ``environ`` the variable is read at each call, and blanks around the name do not count."""
        monkeypatch.setenv("SPIKECORE_BACKEND", " numba ")
        assert resolve(NOTHING, "cpu", world.registry).backend.name == "numba"
        monkeypatch.setenv("SPIKECORE_BACKEND", "torch")
        assert resolve(NOTHING, "cpu", world.registry).source == "SPIKECORE_BACKEND"
        monkeypatch.delenv("SPIKECORE_BACKEND")
        assert resolve(NOTHING, "cpu", world.registry).source == "auto"


class TestExplicit:
    def test_unknown_name_raises(self, world: World) -> None:
        """A misspelt environment variable is an error with a close match, not a fallback."""
        world.environ["SPIKECORE_BACKEND"] = "cudda"
        expected = (
            r"^unknown backend 'cudda' \(from SPIKECORE_BACKEND\); did you mean 'cupy'\? "
            r"Known: broken, cupy, numba, torch, triton$"
        )
        with pytest.raises(UnknownBackend, match=expected):
            world.resolve()

    def test_unusable_backend_raises(self, world: World) -> None:
        """What does not work here raises with the reason, for the context as for the argument."""
        world.reasons["cupy"] = "cupy is not installed"
        with use_backend("cupy"), pytest.raises(BackendUnavailable, match=r"\(from use_backend\(\)\) is not usable"):
            world.resolve(capture(None), "cuda")

    def test_broken_backend_raises_its_cause(self, world: World) -> None:
        """The import error of the plugin is chained."""
        with pytest.raises(BackendLoadError, match="ImportError: no libbroken") as caught:
            world.resolve(capture("broken"))
        assert isinstance(caught.value.__cause__, ImportError)

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

    def test_reference_takes_every_device(self, world: World) -> None:
        """A backend of devices ``("*",)`` takes what comes."""
        assert world.resolve(capture("torch"), "mps").backend.name == "torch"

    def test_explicit_choice_is_silent(self, world: World) -> None:
        """Asking for the reference on cuda warns of nothing, even where the preferred backend is unusable."""
        world.reasons["cupy"] = "cupy is not installed"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert world.resolve(capture("torch"), "cuda", cuda="cupy").backend.name == "torch"


class TestAuto:
    def test_preferred_built_in_is_taken(self, world: World) -> None:
        """The table's built-in is taken where it is usable, and the reference for other devices."""
        chosen = world.resolve(device_type="cuda", cuda="cupy")
        assert (chosen.backend.name, chosen.reason) == ("cupy", "auto: the built-in for cuda tensors")
        assert world.resolve(device_type="mps", cuda="cupy").backend.name == "torch"

    def test_installing_a_plugin_changes_nothing(self, world: World) -> None:
        """A plugin is never chosen by itself, not for a device that it alone lists, nor as a fallback."""
        for device in ("cpu", "cuda", "xpu"):
            assert world.resolve(device_type=device).backend.name == "torch"

    def test_fallback_warns_once_with_reason_and_able_plugins(self, world: World) -> None:
        """The reference serves when the preferred one cannot; one warning says why and who could, if asked."""
        world.reasons["cupy"] = "cupy is not installed"
        with pytest.warns(RuntimeWarning) as caught:
            chosen, again = (world.resolve(device_type="cuda", cuda="cupy") for _ in range(2))
        assert [str(warning.message) for warning in caught] == [
            "cuda tensors run on the reference backend 'torch', which is slow: "
            "backend 'cupy' (from auto) is not usable here: cupy is not installed; "
            "installed plugins that could, if asked for: triton; "
            "SPIKECORE_BACKEND=torch makes this a choice and silences the warning"
        ]
        assert chosen == again
        assert (chosen.backend.name, chosen.source) == ("torch", "auto")
        assert chosen.reason.startswith("auto: the reference, for cuda tensors; backend 'cupy' (from auto) is not")

    def test_fallback_names_no_plugin_that_could_not(self, world: World) -> None:
        """A plugin for the device that does not work here is not recommended."""
        world.reasons.update(cupy="cupy is not installed", triton="no driver")
        with pytest.warns(RuntimeWarning, match="cupy is not installed; SPIKECORE_BACKEND=torch"):
            world.resolve(device_type="cuda", cuda="cupy")

    @pytest.mark.parametrize(
        ("preferred", "text"), [("broken", "failed to load: ImportError: no libbroken"), ("absent", "unknown backend")]
    )
    def test_broken_preferred_backend_is_a_fallback_too(self, world: World, preferred: str, text: str) -> None:
        """Automatic choice never raises for the preferred backend's sake."""
        with pytest.warns(RuntimeWarning, match=text):
            assert world.resolve(device_type="cuda", cuda=preferred).backend.name == "torch"

    def test_blocked_preferred_backend_is_a_fallback_too(self, world: World) -> None:
        """SPIKECORE_BLOCK takes a built-in out of automatic choice."""
        world.environ["SPIKECORE_BLOCK"] = "cupy"
        with pytest.warns(RuntimeWarning, match="is blocked by SPIKECORE_BLOCK"):
            assert world.resolve(device_type="cuda", cuda="cupy").backend.name == "torch"

    def test_unusable_reference_raises(self, world: World) -> None:
        """Where the reference itself is out there is nothing left, and the error says why."""
        world.environ["SPIKECORE_BLOCK"] = "torch"
        with pytest.raises(BackendUnavailable, match=r"backend 'torch' \(from auto\) is blocked by SPIKECORE_BLOCK"):
            world.resolve()

    def test_choice_is_logged_once_per_device(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        """One INFO record per device type says what was taken and why."""
        caplog.set_level(logging.INFO, "spikecore")
        for device in ("cpu", "cuda", "cpu", "cuda"):
            world.resolve(device_type=device, cuda="cupy")
        assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
            ("spikecore", "INFO", "backend 'torch' chosen for cpu tensors (auto: the built-in for cpu tensors)"),
            ("spikecore", "INFO", "backend 'cupy' chosen for cuda tensors (auto: the built-in for cuda tensors)"),
        ]


def test_backends_lists_the_default_registry(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """``backends()`` imports nothing and ``backends(probe=True)`` tries each."""
    monkeypatch.setattr(selection, "default_registry", lambda: world.registry)
    assert {row.state for row in backends()} == {"installed"}
    rows = backends(probe=True)
    assert all(isinstance(row, BackendStatus) for row in rows)
    assert [(row.name, row.state) for row in rows] == [
        ("broken", "failed"),
        ("cupy", "ready"),
        ("numba", "ready"),
        ("torch", "ready"),
        ("triton", "ready"),
    ]
