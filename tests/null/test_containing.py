"""Plugins are contained whatever they raise, wait for, or are interrupted by."""

from __future__ import annotations

import os
import signal
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterator, List

import pytest

import warm
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


@pytest.fixture(autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Python's own handler of Ctrl-C, which a shell's background job begins without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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


def test_a_real_ctrl_c_while_a_plugin_loads_is_the_users(registry: Callable[..., Registry]) -> None:
    """KeyboardInterrupt passes, and nothing is held against the plugin."""
    pressed: List[Callable[[], Any]] = [lambda: signal.raise_signal(signal.SIGINT)]
    made = registry(Plugin("slow", load=lambda: pressed.pop()() if pressed else None))
    with pytest.raises(KeyboardInterrupt):
        made.get("slow", "argument")
    assert made.get("slow", "argument").name == "slow"


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


def test_two_plugins_that_load_each_other_get_an_error(registry: Callable[..., Registry]) -> None:
    """The error names both."""
    made = registry(
        Plugin("a", load=lambda: made.get("b", "argument")), Plugin("b", load=lambda: made.get("a", "argument"))
    )
    with pytest.raises(BackendLoadError, match="backend 'a' .*failed to load: BackendLoadError: backend 'b'"):
        made.get("a", "argument")


def test_lists_do_not_wait_for_a_plugin_that_loads(registry: Callable[..., Registry]) -> None:
    """Its module or probe may wait for a thread that lists backends."""
    with ThreadPoolExecutor(1) as pool:
        made = registry(Plugin("slow", probe=lambda: pool.submit(made.status).result(timeout=60) and None))
        assert made.names() == ["slow"]
        assert made.get("slow", "argument").name == "slow"


FORKED = """
import os, sys, threading, types
from spikecore.backend import Backend, BackendError, BackendInfo, Capabilities
from spikecore._plugins.registry import Registry, hookimpl

inside, go = threading.Event(), threading.Event()

class Fake(Backend):
    name = "slow"

class Plugin:
    name = value = "slow"
    dist = None
    def load(self):
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            go.wait()
        return self
    @hookimpl
    def spikecore_backends(self):
        return [BackendInfo("slow", "fake_slow:Fake", ("cpu",), Capabilities(), lambda: None)]

module = types.ModuleType("fake_slow")
module.Fake = Fake
sys.modules["fake_slow"] = module
registry = Registry({"torch": "spikecore_torch"}, entry_points=[Plugin()], environ={})
loader = threading.Thread(target=registry.get, args=("slow", "argument"))
loader.start()
inside.wait()
child = os.fork()
if child == 0:
    print(registry.get("torch", "argument").name, flush=True)
    try:
        registry.get("slow", "argument")
    except BackendError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
go.set()
loader.join()
print(registry.get("slow", "argument").name)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_while_another_thread_loads_leaves_the_child_able_to_ask() -> None:
    """In the child other backends load, and the half loaded one is an error in words; the parent goes on."""
    done = warm.run("-c", FORKED, timeout=120)
    assert done.stdout.splitlines() == [
        "torch",
        f"backend 'slow' {LOADING}",
        "slow",
    ], done.stderr
