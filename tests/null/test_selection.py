"""Choosing a backend: who asked first, strict when asked, and what automatic choice takes."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
import types
import warnings
from typing import Any, Dict, List, Sequence

import pytest

from spikecore import selection
from spikecore.backend import Backend, BackendInfo, BackendLoadError, BackendUnavailable, Capabilities, UnknownBackend
from spikecore.hookspecs import hookimpl
from spikecore.registry import BackendStatus, Registry
from spikecore.selection import Request, backends, capture, resolve, use_backend

NOTHING = Request(None, "")
#: As it is before the tests' own configuration takes the plugins out of it.
REAL_AUTO = selection.AUTO


class Point:
    """An entry point that leads to a plugin."""

    def __init__(self, name: str, plugin: object, distribution: str = "", module: str = "") -> None:
        self.name, self.value, self.plugin = name, module or name, plugin
        self.dist = types.SimpleNamespace(metadata={"Name": distribution}, version="1.0") if distribution else None

    def load(self) -> object:
        """The plugin."""
        if isinstance(self.plugin, Exception):
            raise self.plugin
        return self.plugin


class World:
    """Built-ins torch (every device) and cupy (cuda), plugins numba (cpu) and triton (cuda, xpu), and two broken ones,
    of which one is a built-in.

    ``reasons`` makes each of them unusable; those in ``ours`` are installed by the project's own distributions. It is
    the default registry, too.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ours: Sequence[str] = ()) -> None:
        self.environ: Dict[str, str] = {}
        self.reasons: Dict[str, str] = {}
        devices = {"torch": ("*",), "cupy": ("cuda",), "numba": ("cpu",), "triton": ("cuda", "xpu")}
        plugins = {name: self.plugin(name, devices[name]) for name in devices}
        for name, plugin in plugins.items():
            monkeypatch.setitem(sys.modules, f"fake_{name}", plugin)
        points = [
            Point(name, plugins[name], *(f"spikecore{mark}{name}" for mark in "-_") if name in ours else ())
            for name in ("numba", "triton")
        ]
        points.append(Point("broken", ImportError("no libbroken")))
        table = {"torch": "fake_torch", "cupy": "fake_cupy", "absent": "no_such_module"}
        self.registry = Registry(table, entry_points=points, environ=self.environ)
        monkeypatch.setattr(selection, "default_registry", lambda: self.registry)

    def plugin(self, name: str, devices: Any) -> types.ModuleType:
        """A module that describes a backend and has its factory."""
        info = BackendInfo(name, f"fake_{name}:Fake", devices, Capabilities(), lambda: self.reasons.get(name))

        def spikecore_backends() -> List[BackendInfo]:
            return [info]

        module = types.ModuleType(name)
        vars(module).update(Fake=type("Fake", (Backend,), {"name": name}))
        vars(module).update(spikecore_backends=hookimpl(spikecore_backends))
        return module

    def resolve(self, request: Request = NOTHING, device_type: str = "cpu", **auto: str) -> selection.Resolved:
        """The choice in this world; ``auto`` has the backends to try before the reference, in one string."""
        table = {device: (*names.split(), "torch") for device, names in auto.items()}
        return resolve(request, device_type, self.registry, self.environ, table)


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
        give("broken"), give("auto"), give(None)
        plugins = [row for row in world.registry.status() if row.name in ("broken", "numba", "triton")]
        assert [row.state for row in plugins] == ["installed", "blocked", "installed"]

    def test_nothing_asked_is_no_request(self) -> None:
        """Without argument and context there is no request."""
        assert capture(None) == NOTHING

    def test_argument_wins_over_context(self) -> None:
        """The argument is the request; the context is taken when the argument is None."""
        with use_backend("cupy"):
            assert capture("torch") == Request("torch", "argument")
            assert capture(None) == Request("cupy", "use_backend()")

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

    def test_empty_context_is_no_request(self) -> None:
        """``use_backend(None)`` takes back what the block around asked for."""
        with use_backend("numba"), use_backend(None):
            assert capture(None) == NOTHING

    def test_context_holds_from_entering(self) -> None:
        """Making the object changes nothing, and what it restores is what held when it was entered."""
        block = use_backend("cupy")
        assert capture(None) == NOTHING
        with use_backend("numba"):
            with block:
                assert capture(None).name == "cupy"
            assert capture(None).name == "numba"

    def test_one_object_serves_one_block(self) -> None:
        """Entering the same object again is an error that says what to write; the first block is not harmed."""
        block = use_backend("numba")
        with block:
            with pytest.raises(RuntimeError) as caught:
                block.__enter__()
            assert str(caught.value) == "this use_backend('numba') was entered before; write use_backend(...) anew"
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

    def test_context_belongs_to_its_thread_and_task(self) -> None:
        """Another thread and another task do not see the block; a copied context does."""
        seen: List[Request] = []

        async def inside(name: str) -> Request:
            with use_backend(name):
                await asyncio.sleep(0)
                return capture(None)

        async def both() -> List[Request]:
            return list(await asyncio.gather(inside("numba"), inside("triton")))

        assert [request.name for request in asyncio.run(both())] == ["numba", "triton"]
        with use_backend("numba"):
            # an empty context, because a thread of Python 3.14 may start with a copy of its parent's
            thread = threading.Thread(target=contextvars.Context().run, args=(lambda: seen.append(capture(None)),))
            thread.start()
            thread.join()
            copied = contextvars.copy_context().run(capture, None)
        assert seen == [NOTHING]
        assert copied.name == "numba"


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
            r"Known: absent, broken, cupy, numba, torch, triton$"
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

    def test_broken_preferred_backend_is_a_fallback_too(self, world: World) -> None:
        """Automatic choice never raises for the preferred backend's sake."""
        with pytest.warns(
            RuntimeWarning, match="failed to load: ModuleNotFoundError: No module named 'no_such_module'"
        ):
            assert world.resolve(device_type="cuda", cuda="absent").backend.name == "torch"

    def test_plugins_of_others_are_never_chosen(self, world: World) -> None:
        """Not even where the table names them: the name of an entry point alone could be anybody's."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for name in ("numba", "broken"):
                assert world.resolve(device_type="cpu", cpu=name).backend.name == "torch"

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


class TestOurOwn:
    """Plugins of this project are chosen by themselves, where they are installed and work."""

    @pytest.fixture
    def ours(self, monkeypatch: pytest.MonkeyPatch) -> World:
        """A world where spikecore-numba and spikecore-triton are what the names say."""
        return World(monkeypatch, ours=("numba", "triton"))

    def test_the_first_that_works_is_taken(self, ours: World) -> None:
        """In the order of the table, without a warning, and the reason says what it is."""
        assert ours.resolve(cpu="numba").backend.name == "numba"
        assert ours.resolve(cpu="numba").reason == "auto: the project's own plugin for cpu tensors"
        assert ours.resolve(device_type="cuda", cuda="cupy triton").backend.name == "cupy"

    def test_the_real_table_has_an_order_for_each_device(self) -> None:
        """CPU: numba, torch. CUDA: cupy, triton, torch. IPU: ipu alone, as the reference cannot be compiled for it."""
        assert REAL_AUTO == {"cpu": ("numba", "torch"), "cuda": ("cupy", "triton", "torch"), "ipu": ("ipu",)}

    @pytest.mark.parametrize(
        ("distribution", "module"), [("numba-kernels", "spikecore_numba"), ("spikecore-numba", "other"), ("", "")]
    )
    def test_an_impostor_is_not_chosen(self, monkeypatch: pytest.MonkeyPatch, distribution: str, module: str) -> None:
        """Name of the distribution and module must both be the project's; one of them is anybody's."""
        world = World(monkeypatch)
        world.registry._entry_points = (Point("numba", None, distribution, module),)
        assert world.resolve(cpu="numba").backend.name == "torch"

    def test_the_distributions_name_may_be_spelt_in_any_way(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As package indexes compare names."""
        world = World(monkeypatch, ours=("numba",))
        (point,) = [point for point in world.registry._entry_points or () if point.name == "numba"]
        point.dist.metadata["Name"] = "Spikecore_Numba"
        assert world.resolve(cpu="numba").backend.name == "numba"

    def test_one_that_does_not_work_is_passed_over_with_a_warning(self, ours: World) -> None:
        """Once, with the reason and how to silence it; the next in the order computes."""
        ours.reasons["numba"] = "numba 0.1 is too old"
        with pytest.warns(RuntimeWarning) as caught:
            chosen = [ours.resolve(cpu="numba") for _ in range(2)]
        assert [one.backend.name for one in chosen] == ["torch", "torch"]
        assert [str(warning.message) for warning in caught] == [
            "cpu tensors run on the reference backend 'torch', which is slow: backend 'numba' (from auto) is not "
            "usable here: numba 0.1 is too old; SPIKECORE_BACKEND=torch makes this a choice and silences the warning"
        ]

    def test_the_second_choice_says_why_it_is_not_the_first(self, ours: World) -> None:
        """CUDA without CuPy and with spikecore-triton runs on triton."""
        ours.reasons["cupy"] = "CuPy is not installed"
        with pytest.warns(RuntimeWarning) as caught:
            assert ours.resolve(device_type="cuda", cuda="cupy triton").backend.name == "triton"
        assert [str(warning.message) for warning in caught] == [
            "cuda tensors run on backend 'triton': backend 'cupy' (from auto) is not usable here: CuPy is not "
            "installed; SPIKECORE_BACKEND=triton makes this a choice and silences the warning"
        ]

    def test_one_that_computes_elsewhere_today_is_passed_over(self, ours: World) -> None:
        """As triton does, whose interpreter is for the CPU."""
        with pytest.warns(RuntimeWarning, match=r"backend 'numba' \(from auto\) does not compute on cuda here"):
            assert ours.resolve(device_type="cuda", cuda="numba").backend.name == "torch"

    @pytest.mark.parametrize("environ", [{"SPIKECORE_BLOCK": "numba"}, {"SPIKECORE_NO_PLUGINS": "1"}])
    def test_blocking_overrules_in_silence(self, ours: World, environ: Dict[str, str]) -> None:
        """Who blocks a plugin has chosen; there is nothing to warn of."""
        ours.environ.update(environ)
        assert ours.resolve(cpu="numba").backend.name == "torch"

    def test_an_argument_and_the_environment_overrule(self, ours: World) -> None:
        """As they overrule every automatic choice."""
        assert ours.resolve(Request("torch", "argument"), cpu="numba").backend.name == "torch"
        ours.environ["SPIKECORE_BACKEND"] = "torch"
        assert ours.resolve(cpu="numba").backend.name == "torch"

    def test_a_name_that_two_provide_is_not_chosen(self, ours: World) -> None:
        """The project's plugin beside an impostor: nobody knows which is meant, and the warning names both."""
        ours.registry._entry_points = (*(ours.registry._entry_points or ()), Point("numba", None, "evil", "evil"))
        with pytest.warns(RuntimeWarning, match="'numba' is provided by evil 1.0 and spikecore-numba 1.0"):
            assert ours.resolve(cpu="numba").backend.name == "torch"


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
