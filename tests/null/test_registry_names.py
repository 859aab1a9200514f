"""Names in the registry: unknown, ill-formed, duplicate and blocked ones, and those of installed packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from registry_world import Point, World, hooked, states
from spikecore._plugins.registry import AUTO, BUILTINS, PLUGINS, REFERENCE, Registry
from spikecore.backend import BackendError, BackendLoadError, BackendUnavailable, UnknownBackend

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
        folders = (Path(__file__).parents[2] / "plugins").glob("spikecore-*")
        assert {f"spikecore-{name}" for name in PLUGINS} == {folder.name for folder in folders}

    def test_guessing_survives_a_broken_built_in(self, world: World) -> None:
        """The list of known names comes even when a built-in fails to describe itself; plugins are not loaded."""
        point = Point("foo", world.plugin("foo"))
        registry = world.registry(point, cupy=hooked(lambda: 1 / 0))
        with pytest.raises(UnknownBackend, match="did you mean 'foo'"):
            registry.get("fooo", "argument")
        assert point.loads == 0

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

    def test_auto_is_reserved(self, world: World) -> None:
        """A plugin cannot take the word that asks for automatic choice."""
        registry = world.registry(Point("auto", world.plugin("auto")))
        assert "(spikecore-auto 1.0) is reserved" in registry.status()[0].detail
        assert registry.names() == ["torch"]

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

    def test_way_out_of_a_duplicate_works(self, world: World) -> None:
        """Blocking the distribution that the message names leaves the other."""
        registry = world.registry(
            Point("dup", world.plugin("dup"), "spikecore-a"), Point("dup", ImportError("b"), "spikecore-b")
        )
        world.environ["SPIKECORE_BLOCK"] = "spikecore-b"
        assert registry.get("dup", "argument").name == "dup"

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

    def test_blocked_name_says_how_to_unblock(self, world: World) -> None:
        """The message quotes the word that blocks, as it was written."""
        world.environ["SPIKECORE_BLOCK"] = "ipu,Spikecore_Foo"
        with pytest.raises(BackendUnavailable) as caught:
            world.registry(Point("foo", None)).info("foo", "use_backend()")
        assert str(caught.value) == (
            "backend 'foo' (from use_backend()) is blocked by SPIKECORE_BLOCK; "
            "take 'Spikecore_Foo' out of it to use this backend"
        )

    def test_built_in_can_be_blocked(self, world: World) -> None:
        """A built-in is blocked by its name as a plugin is."""
        world.environ["SPIKECORE_BLOCK"] = "cupy"
        registry = world.registry(cupy=hooked(lambda: 1 / 0))
        assert states(registry, probe=True) == {"cupy": "blocked", "torch": "ready"}

    def test_no_plugins_leaves_the_built_ins(self, world: World) -> None:
        """SPIKECORE_NO_PLUGINS=1 blocks every plugin before import and says so; built-ins work."""
        world.environ["SPIKECORE_NO_PLUGINS"] = "1"
        point = Point("foo", world.plugin("foo"))
        registry = world.registry(point)
        assert states(registry, probe=True) == {"foo": "blocked", "torch": "ready"}
        with pytest.raises(BackendUnavailable, match="blocked by SPIKECORE_NO_PLUGINS; unset it to use this backend"):
            registry.get("foo", "argument")
        assert point.loads == 0

    @pytest.mark.parametrize("value", ["", "0"])
    def test_no_plugins_can_be_off(self, world: World, value: str) -> None:
        """An empty value and 0 mean that plugins are welcome."""
        world.environ["SPIKECORE_NO_PLUGINS"] = value
        assert world.registry(Point("foo", world.plugin("foo"))).names() == ["foo", "torch"]

    @pytest.mark.parametrize("value", ["false", "yes", "2"])
    def test_no_plugins_is_1_or_0(self, world: World, value: str) -> None:
        """Any other value is refused, by whoever asks for a backend: "false" must not block, nor be ignored."""
        world.environ["SPIKECORE_NO_PLUGINS"] = value
        registry = world.registry(Point("foo", world.plugin("foo")))
        text = f"^SPIKECORE_NO_PLUGINS='{value}' must be 1, which blocks plugins, or 0, empty or unset$"
        for ask in (registry.names, lambda: registry.get("torch", "argument"), lambda: registry.offers("foo")):
            with pytest.raises(BackendError, match=text):
                ask()

    def test_environment_is_read_at_time_of_use(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """A change of the environment holds from the next call on, without a refresh."""
        point = Point("foo", world.plugin("foo"))
        registry = Registry({}, entry_points=[point])
        monkeypatch.setenv("SPIKECORE_BLOCK", "foo")
        assert registry.names() == []
        monkeypatch.delenv("SPIKECORE_BLOCK")
        monkeypatch.delenv("SPIKECORE_NO_PLUGINS", raising=False)
        assert registry.names() == ["foo"]


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

    def test_refresh_keeps_backends_in_use(self, world: World) -> None:
        """A backend that works is the same object after a refresh: neurons are bound to it."""
        registry = world.registry(Point("foo", world.plugin("foo")))
        backend = registry.get("foo", "argument")
        registry.refresh()
        assert registry.get("foo", "argument") is backend

    def test_one_distribution_twice_on_the_path_is_no_duplicate(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of two copies of one distribution the first on the path counts, as it does for import."""
        for folder, distribution, version in (("old", "Spikecore_Foo", "1.0"), ("new", "spikecore-foo", "2.0")):
            self.install(tmp_path / folder, distribution, version, "[spikecore.backends]\nfoo = plugin_foo\n")
            monkeypatch.syspath_prepend(str(tmp_path / folder))
        rows = [row for row in Registry({}, environ={}).status() if row.name == "foo"]
        assert [(row.version, row.state) for row in rows] == [("2.0", "installed")]

    def test_unreadable_metadata_of_others_is_passed_over(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A distribution whose metadata cannot be read hides nobody else's."""
        self.install(tmp_path, "spikecore-foo", "1.0", "[spikecore.backends]\nfoo = plugin_foo\n")
        self.install(tmp_path, "garbled", "1.0", "[spikecore.backends]\nbar = plugin_bar\n")
        (tmp_path / "garbled-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe\x00")
        monkeypatch.syspath_prepend(str(tmp_path))
        assert "foo" in Registry({}, environ={}).names()


def test_a_rival_of_the_projects_own_plugin_is_the_one_to_block(world: World) -> None:
    """Whatever their names are."""
    ours, rival = Point("numba", None, "spikecore-numba"), Point("numba", None, "a-rival")
    ours.value = "spikecore_numba"
    with pytest.raises(BackendLoadError, match="or set SPIKECORE_BLOCK=a-rival$"):
        world.registry(ours, rival).check("numba", "argument")


def test_half_an_uninstall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry point is left: with its metadata or its package gone it is listed, and says what fails."""
    info = tmp_path / "spikecore_half-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[spikecore.backends]\nhalf = spikecore_half\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = Registry(BUILTINS)
    assert "half" in registry.names()
    with pytest.raises(BackendLoadError, match=r"backend 'half' \(.*\) failed to load: ModuleNotFoundError"):
        registry.get("half", "argument")
