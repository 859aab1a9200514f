"""From an entry point to a backend: what each step of loading takes, and with what sentence it refuses the rest."""

from __future__ import annotations

import types
from typing import Any, Callable, Dict

import pytest

from registry_world import Point, World, hooked, states
from spikecore.backend import BACKEND_API, OLDEST_API, Api, BackendError, BackendLoadError, Capabilities


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Each test has its own."""
    return World(monkeypatch)


class TestDescription:
    @pytest.mark.parametrize(
        ("make", "text"),
        [
            (lambda w: hooked(lambda: None), r"TypeError: spikecore_backends\(\) must return .* got None"),
            (lambda w: hooked(lambda: "foo"), r"must return BackendInfo objects in a list or tuple, got 'foo'"),
            (lambda w: hooked(lambda: w.info("foo")), r"in a list or tuple, got BackendInfo\(name='foo'"),
            (lambda w: hooked(lambda: [1]), r"must return BackendInfo objects, got 1"),
            (lambda w: hooked(list), r"must describe 'foo' once; it describes none"),
            (lambda w: hooked(lambda: [w.info("bar")]), r"must describe 'foo' once; it describes 'bar'"),
            (lambda w: hooked(lambda: [w.info("foo")] * 2), r"must describe 'foo' once; it describes 'foo', 'foo'"),
            (lambda w: hooked(lambda: 1 / 0), r"ZeroDivisionError: division by zero"),
            (lambda w: hooked(list, "spikecore_backend"), r"PluginValidationError: unknown hook 'spikecore_backend'"),
            (lambda w: types.ModuleType("empty"), r"TypeError: plugin_foo implements no hook; mark spikecore_backends"),
        ],
    )
    def test_garbage_from_a_hook_is_a_load_error(
        self, world: World, make: Callable[[World], object], text: str
    ) -> None:
        """A result other than one BackendInfo of the entry point's name is refused in words; others go on working."""
        registry = world.registry(Point("foo", make(world)), Point("bar", world.plugin("bar")))
        with pytest.raises(BackendLoadError, match=text) as caught:
            registry.get("foo", "argument")
        assert str(caught.value).startswith("backend 'foo' (spikecore-foo 1.0) failed to load: ")
        assert caught.value.__cause__ is not None
        assert registry.get("bar", "argument").name == "bar"

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"factory": "fake_foo.Fake"}, "factory must be 'package.module:Class', got 'fake_foo.Fake'"),
            ({"factory": None}, "factory must be 'package.module:Class', got None"),
            ({"devices": "cuda"}, "devices must be a tuple of device types, got 'cuda'"),
            ({"devices": ()}, r"devices must be a tuple of device types, got \(\)"),
            ({"capabilities": {"float32": True}}, "capabilities must be a Capabilities, got {'float32': True}"),
            ({"probe": None}, "probe must be callable, got None"),
            ({"never": ["mps"]}, r"never must be a tuple of device types, got \['mps'\]"),
            ({"note": "an emulator"}, "note must be callable or None, got 'an emulator'"),
            ({"install_hint": None}, "install_hint must be a string, got None"),
            ({"api": "1"}, r"api must be an integer or two, \(major, minor\), got '1'"),
            ({"api": (1, 0, 2)}, r"api must be an integer or two, \(major, minor\), got \(1, 0, 2\)"),
            ({"api": True}, r"api must be an integer or two, \(major, minor\), got True"),
        ],
    )
    def test_ill_typed_description_is_a_load_error(self, world: World, changes: Dict[str, Any], text: str) -> None:
        """A field of BackendInfo that is not what it must be is named with its value."""
        registry = world.registry(Point("foo", world.plugin("foo", **changes)))
        with pytest.raises(BackendLoadError, match=text):
            registry.info("foo", "argument")

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"factory": "absent_module:Foo"}, "ModuleNotFoundError: No module named 'absent_module'"),
            ({"factory": "fake_foo:Missing"}, "AttributeError: .*'Missing'"),
            ({"factory": "fake_foo:fails"}, "OSError: libpoptorch.so: undefined symbol"),
            ({"factory": "fake_foo:NotABackend"}, "TypeError: fake_foo:NotABackend made a dict, not a spikecore"),
            ({"factory": "fake_foo:Renamed"}, "ValueError: fake_foo:Renamed made a backend named '', not 'foo'"),
            ({"capabilities": Capabilities()}, "ValueError: fake_foo:Fake has other capabilities than its BackendInfo"),
        ],
    )
    def test_misbuilt_backend_is_a_load_error(self, world: World, changes: Dict[str, Any], text: str) -> None:
        """A factory that fails, or makes something else than was described, is refused in words, with the cause."""
        registry = world.registry(Point("foo", world.plugin("foo", **changes)))
        with pytest.raises(BackendLoadError, match=text) as caught:
            registry.get("foo", "argument")
        assert caught.value.__cause__ is not None
        assert states(registry)["foo"] == "failed"

    @pytest.mark.parametrize(
        ("api", "shown", "upgrade"),
        [
            (OLDEST_API[0] - 1, str(OLDEST_API[0] - 1), "spikecore-foo"),
            ((OLDEST_API[0] - 1, 9), f"{OLDEST_API[0] - 1}.9", "spikecore-foo"),
            (BACKEND_API[0] + 1, str(BACKEND_API[0] + 1), "spikecore"),
            ((BACKEND_API[0], BACKEND_API[1] + 1), f"{BACKEND_API[0]}.{BACKEND_API[1] + 1}", "spikecore"),
        ],
    )
    def test_version_skew_is_refused(self, world: World, api: Api, shown: str, upgrade: str) -> None:
        """A plugin for another major version, or for a newer minor one, is refused, and the older is to be upgraded."""
        # a newer contract may have another idea of a field; the version is what the message must be about
        registry = world.registry(Point("foo", world.plugin("foo", api=api, devices="cuda"), version="0.1"))
        with pytest.raises(BackendLoadError) as caught:
            registry.get("foo", "argument")
        assert str(caught.value) == (
            f"backend 'foo' (spikecore-foo 0.1) speaks backend API {shown}; "
            f"this spikecore speaks {OLDEST_API[0]}.{OLDEST_API[1]} to {BACKEND_API[0]}.{BACKEND_API[1]}; "
            f"upgrade {upgrade}"
        )

    @pytest.mark.parametrize("api", [1, OLDEST_API, BACKEND_API])
    def test_every_version_up_to_this_one_is_taken(self, world: World, api: Api) -> None:
        """A plugin of an older minor version is taken; an integer, as plugins stated it at first, means minor 0."""
        registry = world.registry(Point("foo", world.plugin("foo", api=api)))
        assert registry.get("foo", "argument").name == "foo"
        assert {row.name: row.api for row in registry.status()}["foo"] == api


# -- whatever a plugin does while it loads


class Escape(BaseException):
    """An error that is no Exception, as a test framework's Skipped or a library's time limit."""


STEPS = ["load", "hook", "probe", "make"]
ERRORS = [SystemExit(3), GeneratorExit(), Escape("skipped"), pytest.skip.Exception("no")]


def acting(world: World, name: str, step: str, act: Callable[[], Any]) -> Point:
    """An entry point of a good backend that does something in one step of loading."""
    info = world.info(
        name, making=act if step == "make" else lambda: None, probe=lambda: act() if step == "probe" else None
    )
    module = hooked(lambda: (act() if step == "hook" else None) or [info])
    return Point(name, module, during=act if step == "load" else lambda: None)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_whatever_a_plugin_raises_is_its_own_error(world: World, step: str, error: BaseException) -> None:
    """No exception ends the list of backends or reaches another backend; asked for by name it is the cause."""

    def fail() -> None:
        raise error

    registry = world.registry(acting(world, "bad", step, fail), Point("good", world.plugin("good")))
    rows = {row.name: row for row in registry.status(probe=True)}
    assert rows["bad"].state == ("unavailable" if step == "probe" else "failed")
    assert type(error).__name__ in rows["bad"].detail
    assert rows["good"].state == "ready"
    with pytest.raises(BackendError, match=rf"backend 'bad' .*{type(error).__name__}") as caught:
        registry.get("bad", "argument")
    assert caught.value.__cause__ is error
