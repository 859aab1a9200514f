"""Discovery and loading: what is listed, what is imported when, and how a broken plugin is contained."""

from __future__ import annotations

import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import List, Optional

import pytest

import spikecore
from registry_world import Point, World, states
from spikecore.backend import BACKEND_API, Backend, BackendLoadError, BackendUnavailable


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Each test has its own."""
    return World(monkeypatch)


class TestListing:
    def test_listing_imports_nothing(self, world: World) -> None:
        """Names and states come from metadata alone, with distribution and version."""
        point = Point("foo", world.plugin("foo"), "spikecore-foo", "0.3.1")
        registry = world.registry(point)
        assert registry.names() == ["foo", "torch"]
        foo, torch = registry.status()
        assert (foo.name, foo.state, foo.distribution, foo.version) == ("foo", "installed", "spikecore-foo", "0.3.1")
        assert (foo.api, foo.devices, foo.capabilities, foo.detail) == (None, (), (), "")
        assert (torch.name, torch.distribution, torch.version) == ("torch", "spikecore", spikecore.__version__)
        assert point.loads == 0
        assert world.made == []

    def test_listing_shows_what_is_known_of_a_loaded_backend(self, world: World) -> None:
        """After a backend was got, the plain list has its API, devices and capabilities, and says ready."""
        registry = world.registry(Point("foo", world.plugin("foo", devices=("cpu", "cuda"))))
        registry.get("foo", "argument")
        foo = registry.status()[0]
        assert (foo.state, foo.api, foo.devices) == ("ready", BACKEND_API, ("cpu", "cuda"))
        assert foo.capabilities == ("float32", "gradients")

    def test_a_built_in_without_its_library_is_not_installed(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Is not installed, and says what it needs. A probe says more."""
        registry = world.registry()
        library = {"builtin_torch": ("no_such_library",)}
        monkeypatch.setattr("spikecore.plugins.registry.LIBRARIES", library)
        (row,) = registry.status()
        assert (row.state, row.detail) == (
            "not installed",
            "it needs no_such_library: spikecore backends --probe says how to install it",
        )
        monkeypatch.setattr("spikecore.plugins.registry.LIBRARIES", {"builtin_torch": ("no_such_library", "json")})
        assert states(registry) == {"torch": "installed"}
        assert states(registry, probe=True) == {"torch": "ready"}

    def test_probing_tries_every_backend_and_is_contained(self, world: World) -> None:
        """One list shows good, unusable, broken, misbuilt and blocked backends beside each other."""
        world.environ["SPIKECORE_BLOCK"] = "e"
        blocked = Point("e", ImportError("never"))
        registry = world.registry(
            Point("a", world.plugin("a")),
            Point("b", world.plugin("b", probe=lambda: "no device", install_hint="buy one")),
            Point("c", ImportError("no libc")),
            Point("d", world.plugin("d", factory="fake_d:fails")),
            blocked,
        )
        rows = {row.name: row for row in registry.status(probe=True)}
        assert {name: row.state for name, row in rows.items()} == {
            "a": "ready",
            "b": "unavailable",
            "c": "failed",
            "d": "failed",
            "e": "blocked",
            "torch": "ready",
        }
        assert rows["b"].detail == "no device (buy one)"
        assert "ImportError: no libc" in rows["c"].detail
        assert "OSError: libpoptorch.so" in rows["d"].detail
        assert blocked.loads == 0


class TestLoading:
    def test_threads_get_one_object(self, world: World) -> None:
        """Sixteen threads that ask at once load once and share one backend."""
        point = Point("foo", world.plugin("foo"))
        registry = world.registry(point)
        together = threading.Barrier(16)

        def ask(_: int) -> Backend:
            together.wait()
            return registry.get("foo", "argument")

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # so that threads are in each other's way
        try:
            with ThreadPoolExecutor(16) as pool:
                got = list(pool.map(ask, range(16)))
        finally:
            sys.setswitchinterval(interval)
        assert len({id(backend) for backend in got}) == 1
        assert (point.loads, world.made) == (1, ["foo"])

    def test_broken_import_harms_only_itself(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        """The error is a sentence with the cause chained and one warning; other backends work; it is tried once."""
        cause = OSError("libpoptorch.so: undefined symbol")
        broken = Point("bad", cause, "spikecore-bad", "0.3.1")
        registry = world.registry(broken, Point("foo", world.plugin("foo")))
        errors = []
        for _ in range(3):
            with pytest.raises(BackendLoadError) as caught:
                registry.get("bad", "argument")
            errors.append(caught.value)
        assert str(errors[0]) == (
            "backend 'bad' (spikecore-bad 0.3.1) failed to load: OSError: libpoptorch.so: undefined symbol; "
            "SPIKECORE_BLOCK=bad skips it"
        )
        assert all(error.__cause__ is cause for error in errors)
        assert len({id(error) for error in errors}) == 3
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert broken.loads == 1
        assert registry.get("foo", "argument").name == "foo"
        assert states(registry)["bad"] == "failed"


class TestProbe:
    def test_unusable_says_why_and_what_to_do(self, world: World) -> None:
        """The message has who asked, the reason, the hint, and that nothing else was tried."""
        probe = {"probe": lambda: "cupy is not installed", "install_hint": "pip install 'spikecore[cuda12]'"}
        registry = world.registry(cupy=world.plugin("cupy", **probe))
        with pytest.raises(BackendUnavailable) as caught:
            registry.get("cupy", "argument")
        assert str(caught.value) == (
            "backend 'cupy' (from argument) is not usable here: cupy is not installed "
            "(pip install 'spikecore[cuda12]'); no other backend was tried because the choice was explicit: "
            "'auto' takes one that works here"
        )
        assert world.made == []
        assert registry.probe("cupy", "argument") == "cupy is not installed"

    def test_probe_runs_once_until_refresh(self, world: World) -> None:
        """A driver is asked once; after ``refresh`` it is asked again, and the backend works when it is there."""
        answers: List[Optional[str]] = ["no device", None]
        asked: List[Optional[str]] = []

        def probe() -> Optional[str]:
            asked.append(answers.pop(0))
            return asked[-1]

        registry = world.registry(Point("foo", world.plugin("foo", probe=probe)))
        for _ in range(2):
            with pytest.raises(BackendUnavailable, match="no device"):
                registry.get("foo", "argument")
        assert asked == ["no device"]
        registry.refresh()
        assert registry.get("foo", "argument").name == "foo"
