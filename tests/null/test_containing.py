"""Plugins are contained whatever they raise, wait for, or are interrupted by."""

from __future__ import annotations

import sys
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, List

import pytest

from spikecore._plugins.registry import Registry, hookimpl
from spikecore.backend import Backend, BackendError, BackendInfo, BackendLoadError, Capabilities

CAN = Capabilities(float32=True)


class Escape(BaseException):
    """What a test framework's Skipped or a library's time limit is: no Exception."""


class Plugin:
    """An entry point and the plugin behind it; each step of loading calls what it is given."""

    dist = None

    def __init__(self, name: str, **steps: Callable[[], Any]) -> None:
        self.name = self.value = name
        self.steps = steps

    def step(self, which: str) -> Any:
        return self.steps.get(which, lambda: None)()

    def load(self) -> Plugin:
        """Be imported."""
        self.step("load")
        return self

    @hookimpl
    def spikecore_backends(self) -> List[BackendInfo]:
        """Describe the backend."""
        self.step("hook")
        return [BackendInfo(self.name, f"fake_{self.name}:make", ("cpu",), CAN, lambda: self.step("probe"))]

    def make(self) -> Backend:
        """Make the backend."""
        self.step("make")
        return type("Fake", (Backend,), {"name": self.name, "capabilities": CAN})()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """Makes a registry of these plugins."""

    def make(*plugins: Plugin) -> Registry:
        for plugin in plugins:
            module = types.ModuleType(f"fake_{plugin.name}")
            vars(module).update(make=plugin.make)
            monkeypatch.setitem(sys.modules, module.__name__, module)
        return Registry({}, entry_points=plugins, environ={})

    return make


def raises(error: BaseException) -> Callable[[], Any]:
    def step() -> Any:
        raise error

    return step


ERRORS = [SystemExit(3), GeneratorExit(), Escape("skipped"), pytest.skip.Exception("no")]
#: Behind the name of a backend that is asked for while it loads.
LOADING = (
    "is being loaded already: its own module, probe or factory asks for it, or this process was forked while another "
    "thread loaded it"
)


@pytest.mark.parametrize("step", ["load", "hook", "probe", "make"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_whatever_a_plugin_raises_is_its_own_error(
    registry: Callable[..., Registry], step: str, error: BaseException
) -> None:
    """No exception ends the list of backends or reaches another backend; asked for by name it is the cause."""
    made = registry(Plugin("bad", **{step: raises(error)}), Plugin("good"))
    states = {row.name: row for row in made.status(probe=True)}
    assert states["bad"].state == ("unavailable" if step == "probe" else "failed")
    assert type(error).__name__ in states["bad"].detail
    assert states["good"].state == "ready"
    with pytest.raises(BackendError, match=rf"backend 'bad' .*{type(error).__name__}") as caught:
        made.get("bad", "argument")
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("step", ["load", "hook", "probe", "make"])
def test_a_plugin_that_asks_for_itself_gets_an_error(registry: Callable[..., Registry], step: str) -> None:
    """Neither endless recursion nor waiting for itself: a sentence, in the plugin's hands."""
    seen: List[str] = []

    def asks() -> None:
        with pytest.raises(BackendLoadError) as caught:
            made.get("me", "argument")
        seen.append(str(caught.value))

    made = registry(Plugin("me", **{step: asks}))
    assert made.get("me", "argument").name == "me"
    assert seen == [f"backend 'me' {LOADING}"]


def test_lists_do_not_wait_for_a_plugin_that_loads(registry: Callable[..., Registry]) -> None:
    """Its module or probe may wait for a thread that lists backends."""
    with ThreadPoolExecutor(1) as pool:
        made = registry(Plugin("slow", probe=lambda: pool.submit(made.status).result(timeout=60) and None))
        assert made.names() == ["slow"]
        assert made.get("slow", "argument").name == "slow"
