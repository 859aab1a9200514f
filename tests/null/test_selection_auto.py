"""Automatic choice: the order of the project's own backends, and the warning where the first is passed over."""

from __future__ import annotations

import logging
from typing import Dict

import pytest

from selection_world import REAL_AUTO, Point, World
from spikecore.backend import BackendUnavailable


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Each test has its own."""
    return World(monkeypatch)


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

    def test_fallback_warns_once_with_reason(self, world: World) -> None:
        """The reference serves when the preferred one cannot; one warning says why."""
        world.reasons["cupy"] = "cupy is not installed"
        with pytest.warns(RuntimeWarning) as caught:
            chosen, again = (world.resolve(device_type="cuda", cuda="cupy") for _ in range(2))
        assert [str(warning.message) for warning in caught] == [
            "cuda tensors run on the reference backend 'torch', which is slow: "
            "backend 'cupy' (from auto) is not usable here: cupy is not installed; "
            "SPIKECORE_BACKEND=torch makes this a choice and silences the warning"
        ]
        assert chosen == again
        assert (chosen.backend.name, chosen.source) == ("torch", "auto")
        assert chosen.reason.startswith("auto: the reference, for cuda tensors; backend 'cupy' (from auto) is not")

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
        world = World(monkeypatch, points=[Point("numba", None, distribution, module)])
        assert world.resolve(cpu="numba").backend.name == "torch"

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
        """Triton is such a backend: its interpreter is for the CPU."""
        with pytest.warns(RuntimeWarning, match=r"backend 'numba' \(from auto\) does not compute on cuda here"):
            assert ours.resolve(device_type="cuda", cuda="numba").backend.name == "torch"

    @pytest.mark.parametrize("environ", [{"SPIKECORE_BLOCK": "numba"}, {"SPIKECORE_NO_PLUGINS": "1"}])
    def test_blocking_overrules_in_silence(self, ours: World, environ: Dict[str, str]) -> None:
        """Who blocks a plugin has chosen; there is nothing to warn of."""
        ours.environ.update(environ)
        assert ours.resolve(cpu="numba").backend.name == "torch"

    def test_a_name_that_two_provide_is_not_chosen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The project's plugin beside an impostor: nobody knows which is meant, and the warning names both."""
        ours = World(monkeypatch, ours=("numba",), points=[Point("numba", None, "evil", "evil")])
        with pytest.warns(
            RuntimeWarning,
            match="'numba' is provided by spikecore-numba 1.0 and evil 1.0; uninstall one, or set SPIKECORE_BLOCK=evil",
        ):
            assert ours.resolve(cpu="numba").backend.name == "torch"
