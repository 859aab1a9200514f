"""Names in the registry: unknown, ill-formed, duplicate and blocked ones, and those of installed packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import places
from registry_world import Point, World, states
from spikecore.backend import BackendLoadError, BackendUnavailable, UnknownBackend
from spikecore.plugins.registry import AUTO, PLUGINS, REFERENCE, Registry

DEVICE = (
    "that is a device: a backend computes where the tensors are, so move the network, net.to({!r}), and leave backend "
    "out, or ask for one that computes there: {}. "
)
PLUGIN = "that is the plugin {0}, which is not installed: pip install ./plugins/{0}, in a clone of spikecore. "


def device(name: str) -> str:
    """The sentence on a device, with the backends that automatic choice tries there."""
    return DEVICE.format(name, ", ".join(AUTO.get(name, (REFERENCE,))))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Each test has its own."""
    return World(monkeypatch)


class TestNames:
    @pytest.mark.parametrize(
        ("asked", "guess"),
        [
            ("cudda", "did you mean 'cupy'? "),
            ("cuda", device("cuda")),
            ("cuppy", "did you mean 'cupy'? "),
            ("Torch", "did you mean 'torch'? "),
            ("pytorch", "did you mean 'torch'? "),
            ("mind", ""),
            ("cpu", device("cpu")),
            ("CPU", device("cpu")),
            ("gpu", device("cuda")),
            ("mps", device("mps")),
            ("xpu", device("xpu")),
            ("triton", PLUGIN.format("spikecore-triton")),
            ("cuda:1", device("cuda")),
            (" ROCm", device("cuda")),
            ("Auto", "did you mean 'auto'? "),
            ("spikecore-numba", PLUGIN.format("spikecore-numba")),
            ("spikecore_triton", PLUGIN.format("spikecore-triton")),
            ("JAX", PLUGIN.format("spikecore-jax")),
            ("zebra", ""),
        ],
    )
    def test_unknown_name_lists_the_known(self, world: World, asked: str, guess: str) -> None:
        """The message has what was asked, by whom, a close match by name or built-in's device, and all names."""
        ipu = world.plugin("ipu", devices=("cpu",))
        registry = world.registry(cupy=world.plugin("cupy", devices=("cuda",)), ipu=ipu)
        with pytest.raises(UnknownBackend) as caught:
            registry.get(asked, "SPIKECORE_BACKEND")
        expected = f"unknown backend {asked!r} (from SPIKECORE_BACKEND); {guess}Known: cupy, ipu, torch"
        assert str(caught.value) == expected

    def test_a_plugin_that_is_installed_is_not_said_to_be_missing(self, world: World) -> None:
        """Another spelling of its name is a misspelt name; blocked, it has the sentence on that."""
        registry = world.registry(Point("triton", world.plugin("triton")))
        with pytest.raises(UnknownBackend, match=r"\(from argument\); did you mean 'triton'\? "):
            registry.get("Triton", "argument")
        world.environ["SPIKECORE_BLOCK"] = "triton"
        with pytest.raises(BackendUnavailable, match="is blocked by SPIKECORE_BLOCK"):
            registry.get("triton", "argument")

    def test_the_plugins_of_the_repository_are_known(self) -> None:
        """Each by the name of its backend."""
        assert {f"spikecore-{name}" for name in PLUGINS} == {package.parent.name for package in places.PLUGINS}

    @pytest.mark.parametrize("name", ["Foo", "foo-bar", "1foo", "", "föö"])
    def test_ill_formed_name_is_reported(self, world: World, name: str) -> None:
        """A name that is not a lower-case identifier is listed as failed, cannot be asked for, and is not imported."""
        point = Point(name, world.plugin("foo"), "spikecore-foo")
        registry = world.registry(point)
        assert registry.names() == ["torch"]
        assert states(registry, probe=True)[name] == "failed"
        with pytest.raises(BackendLoadError) as caught:
            registry.get(name, "argument")
        assert str(caught.value) == (
            f"backend name {name!r} (spikecore-foo 1.0) is not a lower-case identifier; "
            "spikecore-foo 1.0 must choose another"
        )
        assert point.loads == 0

    def test_duplicate_is_an_error_for_that_name_only(self, world: World) -> None:
        """Both distributions are named with their versions, neither is loaded, and other names work."""
        a, b = Point("dup", world.plugin("dup"), "spikecore-a", "1.0"), Point("dup", None, "spikecore-b", "2.1")
        registry = world.registry(b, a, Point("foo", world.plugin("foo")))
        with pytest.raises(BackendLoadError) as caught:
            registry.get("dup", "argument")
        assert str(caught.value) == (
            "backend name 'dup' is provided by spikecore-a 1.0 and spikecore-b 2.1; uninstall one, "
            "or set SPIKECORE_BLOCK=spikecore-b"
        )
        rows = [row for row in registry.status(probe=True) if row.name == "dup"]
        assert [(row.state, row.distribution) for row in rows] == [("failed", "spikecore-a"), ("failed", "spikecore-b")]
        assert registry.names() == ["foo", "torch"]
        assert registry.get("foo", "argument").name == "foo"
        assert (a.loads, b.loads) == (0, 0)

    def test_built_in_cannot_be_shadowed(self, world: World) -> None:
        """A plugin named as a built-in is listed as shadowed, is never imported, and the built-in is what one gets."""
        point = Point("torch", ImportError("never"), "spikecore-evil")
        registry = world.registry(point)
        detail = "'torch' is a built-in backend and stays so; spikecore-evil 1.0 must choose another name"
        ours, theirs = registry.status(probe=True)
        assert (ours.distribution, ours.state) == ("spikecore", "ready")
        assert (theirs.distribution, theirs.state) == ("spikecore-evil", "shadowed")
        assert theirs.detail == detail
        assert type(registry.get("torch", "argument")).__name__ == "Fake"
        assert point.loads == 0


class TestBlocking:
    @pytest.mark.parametrize("word", ["foo", "spikecore-foo", "Spikecore_Foo", " ipu , spikecore.foo,"])
    def test_blocked_by_backend_or_distribution_name_before_import(self, world: World, word: str) -> None:
        """Either name in any spelling of a distribution's name keeps the plugin from being imported."""
        world.environ["SPIKECORE_BLOCK"] = word
        point = Point("foo", world.plugin("foo"))
        registry = world.registry(point)
        assert states(registry, probe=True) == {"foo": "blocked", "torch": "ready"}
        assert registry.names() == ["torch"]
        with pytest.raises(BackendUnavailable, match=r"'foo' \(from argument\) is blocked by SPIKECORE_BLOCK; "):
            registry.get("foo", "argument")
        assert point.loads == 0

    def test_no_plugins_leaves_the_built_ins(self, world: World) -> None:
        """SPIKECORE_NO_PLUGINS=1 blocks every plugin before import and says so; built-ins work."""
        world.environ["SPIKECORE_NO_PLUGINS"] = "1"
        point = Point("foo", world.plugin("foo"))
        registry = world.registry(point)
        assert states(registry, probe=True) == {"foo": "blocked", "torch": "ready"}
        with pytest.raises(BackendUnavailable, match="blocked by SPIKECORE_NO_PLUGINS; unset it to use this backend"):
            registry.get("foo", "argument")
        assert point.loads == 0


class TestInstalled:
    """Against real metadata, in a folder on ``sys.path``."""

    @staticmethod
    def install(folder: Path, distribution: str, version: str, entry_points: str) -> None:
        """Put the metadata of a distribution into a folder."""
        info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(entry_points)

    def test_refresh_finds_what_was_installed_meanwhile(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World
    ) -> None:
        """A distribution that arrives is seen after ``refresh``, with name and version, and can be loaded."""
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setitem(sys.modules, "plugin_late", world.plugin("late"))
        registry = Registry({}, environ={})
        before = registry.names()
        self.install(tmp_path, "spikecore-late", "0.2", "[spikecore.backends]\nlate = plugin_late\n")
        assert registry.names() == before
        registry.refresh()
        assert registry.names() == sorted([*before, "late"])
        row = next(row for row in registry.status() if row.name == "late")
        assert (row.distribution, row.version, row.state) == ("spikecore-late", "0.2", "installed")
        assert registry.get("late", "argument").name == "late"
