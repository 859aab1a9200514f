"""Networks that NIR cannot express are refused, or kept as metadata with a warning where that is asked for."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
from spikecore.layers import TimeBatched

nir = pytest.importorskip("nir", reason="the package nir, which needs Python 3.10, is not installed")


class Mine(sc.Surrogate):
    """A surrogate that no file can name."""

    def derivative(self, u):
        return 1.0 - u


#: What is lossy -> neuron, name, words.
LOSSY = {
    "soft": (lambda: sc.LIF(reset="soft"), "soft_reset", "resets by subtraction (reset='soft'), NIR resets to v_reset"),
    "late": (lambda: sc.Leaky(0.9, reset="hard"), "delayed_reset", "is reset one step after it fired"),
    "surrogate": (
        lambda: sc.LIF(surrogate=sc.surrogate.FastSigmoid(slope=10.0)),
        "surrogate",
        "has surrogate=FastSigmoid(slope=10.0), which NIR has no word for",
    ),
    "start": (lambda: sc.Synaptic(v_reset=0.5), "initial_state", "starts at v_reset and leaks to 0"),
    "many": (lambda: sc.nir.NIRLIF(reset="soft", many=True), "many_spikes", "may fire several spikes in a step"),
    "detach": (lambda: sc.Recurrent(sc.LIF(), nn.Linear(4, 4), detach=True), "detach", "feeds back with detach=True"),
    "threshold": (
        lambda: sc.nir.Threshold(surrogate=sc.surrogate.Sigmoid()),
        "surrogate",
        "has surrogate=Sigmoid(alpha=4.0)",
    ),
}


@pytest.mark.parametrize("what", LOSSY)
def test_what_is_lost_is_refused_or_kept(what: str, tmp_path) -> None:
    """The error names the module, what is lost and the way out; keep= warns, and it comes back."""
    make, name, words = LOSSY[what]
    torch.manual_seed(0)
    net, file = nn.Sequential(nn.Linear(3, 4), make()), tmp_path / "net.nir"
    with pytest.raises(ValueError, match=re.escape(f"'1' {words}")) as refused:
        sc.nir.save(net, file, dt=1e-3)
    assert name in str(refused.value).rpartition("keep=")[2]
    assert not file.exists()
    every = re.findall(r"'(\w+)'", str(refused.value).rpartition("keep=")[2])
    with pytest.warns(UserWarning, match="the graph is written without this, which is kept as metadata") as told:
        sc.nir.save(net, file, dt=1e-3, keep=every)
    assert f"'1' {words}" in str(told[0].message)
    assert told[0].filename == __file__
    loaded = sc.nir.load(file).get_submodule("1")
    assert repr(loaded) == repr(net[1])


def saved(net, dt=1e-3, **options) -> None:
    """A file, of which nothing is written where it is refused."""
    with tempfile.TemporaryDirectory() as place:
        try:
            sc.nir.save(net, Path(place) / "net.nir", dt=dt, **options)
        finally:
            assert not (Path(place) / "net.nir").exists()


def _calls(forward):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.lif = nn.Linear(3, 3), sc.LIF()

    Net.forward = forward
    return Net()


def test_without_the_package(monkeypatch, tmp_path) -> None:
    """ImportError says what to install."""
    monkeypatch.setitem(sys.modules, "nir", None)
    for call in (lambda: sc.nir.save(nn.Linear(1, 1), tmp_path / "n.nir", dt=1.0), lambda: sc.nir.load("n.nir")):
        with pytest.raises(ImportError, match=r"not installed: pip install 'spikecore\[nir\]'"):
            call()


def _watched(path: str, how: str) -> nn.Module:
    net = nn.Sequential(TimeBatched(nn.Linear(3, 3)), sc.Recurrent(sc.LIF(), nn.Linear(3, 3)), nn.Identity())
    if how == "hook":
        net.get_submodule(path).register_forward_hook(lambda module, given, out: 2 * out)
    else:
        net.get_submodule(path).forward = lambda x: 2 * x
    return net


test_refused = refusals.table(__file__, globals())
