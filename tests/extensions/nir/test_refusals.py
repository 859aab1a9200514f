"""What NIR cannot say is refused, or kept as metadata with a warning where that is asked for."""

from __future__ import annotations

import re
import sys

import pytest
import torch
from torch import nn

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


REFUSED = {
    "neuron": (sc.ALIF, "ALIF at '1' is no node of NIR; what can be saved: AvgPool2d, Conv1d,"),
    "norm": (lambda: nn.BatchNorm1d(4), "BatchNorm1d at '1' is no node of NIR; fold it into the layer before it"),
    "dropout": (lambda: nn.Dropout(0.2), "Dropout at '1': a network is saved as it infers, where dropout does nothing"),
    "encoder": (lambda: sc.encode.Constant(3), "Constant at '1' is no node of NIR; a graph begins behind the encoder"),
    "surrogate": (lambda: sc.LIF(surrogate=Mine()), "is not one of sc.surrogate, so a file cannot name it"),
    "mixed": (lambda: sc.Leaky(torch.tensor([0.5, 1, 1, 1.0]), reset="hard", reset_delay=False), "keeps 1 of itself"),
    "connections": (
        lambda: sc.Delay(nn.Linear(4, 4), 3, delay=1.0, learn=()),
        "Delay at '1': has a delay for each connection, NIR's Delay one for each input; use per=",
    ),
    "feedback": (
        lambda: sc.Recurrent(sc.LIF(), nn.Sequential(nn.Linear(4, 4))),
        "Recurrent at '1': its feedback, Sequential, is no node of NIR; give one layer",
    ),
    "width": (lambda: nn.Linear(5, 4), "Linear at '1' does not take samples of shape [4]"),
    "both": (lambda: sc.LIF(step="single"), "neurons with step='multi' and with step='single'; make them one"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_node_is_refused_by_name(what: str, tmp_path) -> None:
    """Nothing is written then."""
    make, words = REFUSED[what]
    with pytest.raises(ValueError, match=re.escape(words)):
        sc.nir.save(nn.Sequential(nn.Linear(3, 4), make(), sc.LI()), tmp_path / "net.nir", dt=1e-3)
    assert not (tmp_path / "net.nir").exists()


def test_pooling_and_padding_that_nir_has_not(tmp_path) -> None:
    """Options of layers that are nodes."""
    for layer, words in (
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), "padding_mode='circular', NIR pads with zeros"),
        (nn.AvgPool2d(3, ceil_mode=True), "ceil_mode for a size that is not divided, divisor_override and count_"),
        (nn.AvgPool2d(3, padding=1, count_include_pad=False), "count_include_pad=False"),
        (nn.Linear(8, 8), "its input has samples of shape [2, 8, 8], NIR's Affine takes [N]; flatten"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            sc.nir.save(TimeBatched(layer), tmp_path / "net.nir", dt=1e-3, input_shape=(2, 8, 8))
    with pytest.raises(ValueError, match=r"Conv2d at '0': takes \[B, ...\], its input is \[T, B, ...\]; place"):
        sc.nir.save(nn.Sequential(nn.Conv2d(2, 2, 3), sc.LIF()), tmp_path / "n.nir", dt=1e-3, input_shape=(2, 8, 8))


def _calls(forward):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.lif = nn.Linear(3, 3), sc.LIF()

    Net.forward = forward
    return Net()


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda self, x: self.lif(self.fc(x)) * 2, "forward calls mul, which is no node of NIR; it may call modules"),
        (lambda self, x: x + x, "adds the output of 'input' to itself; NIR has one edge from it"),
        (lambda self, x: self.lif(self.fc(self.fc(x))), "Linear at 'fc' is called 2 times; make a layer for each call"),
        (lambda self, x: self.lif(x) + self.fc.bias, "forward reads the attribute 'fc.bias', which is no node of NIR"),
        (lambda self, x, y: self.fc(x), "Net has 2 inputs; NIR is saved with one"),
        (lambda self, x: (self.fc(x), x), "Net must return one tensor, to be saved with one output"),
        (lambda self, x: self.fc(x) if x.sum() > 0 else x, "forward of Net cannot be followed: "),
        (
            lambda self, x: self.fc(x) if isinstance(x, torch.Tensor) else x,
            "Net computes something else when it runs than",
        ),
        (
            lambda self, x: x if hasattr(x, "mask") else self.fc(x),
            "Net computes something else when it runs than",
        ),
        (lambda self, x: x if self.training else self.fc(x), "Net computes something else when it runs than"),
    ],
)
def test_a_forward_that_is_no_graph_of_nodes(forward, words: str, tmp_path) -> None:
    """The message says what a forward may do."""
    with pytest.raises(ValueError, match=re.escape(words)):
        sc.nir.save(_calls(forward), tmp_path / "net.nir", dt=1e-3, input_shape=(3,))


def test_arguments_of_save(tmp_path) -> None:
    """Each by name, with what would be right."""
    net, file = nn.Sequential(nn.Linear(3, 4), sc.LIF(1.0)), tmp_path / "net.nir"
    for options, kind, words in (
        ({"dt": 0}, ValueError, "dt=0 must be above 0 and finite: the time step in seconds"),
        ({"dt": "1ms"}, TypeError, "dt='1ms' must be a number, the time step in seconds, such as 1e-3"),
        ({"dt": 1e-3, "discretization": "midpoint"}, ValueError, "discretization='midpoint' must be 'euler'"),
        ({"dt": 1e-3, "keep": "soft_reset"}, ValueError, "keep='soft_reset' must be a tuple of some of soft_reset"),
        ({"dt": 1e-3, "keep": ("ties",)}, ValueError, "keep=('ties',) must be a tuple of some of"),
        ({"dt": 1e-3, "input_shape": (0,)}, ValueError, "input_shape=(0,) must be sizes without time and batch"),
        ({"dt": 1e-3, "discretization": "exp"}, ValueError, "keeps nothing of itself in a step, which no"),
    ):
        with pytest.raises(kind, match=re.escape(words)):
            sc.nir.save(net, file, **options)
    with pytest.raises(TypeError, match="net=3 must be an nn.Module"):
        sc.nir.save(3, file, dt=1e-3)
    with pytest.raises(ValueError, match=r"the shape of a sample does not follow from no layer; give it"):
        sc.nir.save(nn.Sequential(), file, dt=1e-3)
    with pytest.raises(ValueError, match=r"does not follow from the first layer, LIF; give it without time and batch"):
        sc.nir.save(sc.LIF(), file, dt=1e-3)


def test_without_the_package(monkeypatch, tmp_path) -> None:
    """ImportError says what to install."""
    monkeypatch.setitem(sys.modules, "nir", None)
    for call in (lambda: sc.nir.save(nn.Linear(1, 1), tmp_path / "n.nir", dt=1.0), lambda: sc.nir.load("n.nir")):
        with pytest.raises(ImportError, match=r"not installed: pip install 'spikecore\[nir\]'"):
            call()


def test_fused_and_watched_modules(tmp_path) -> None:
    """What a graph would leave out."""
    fused = sc.fuse(nn.Sequential(TimeBatched(nn.Linear(3, 3), nn.BatchNorm1d(3)), sc.LIF()))
    with pytest.raises(ValueError, match=r"NormPlace at '0\.module\.1' is no node of NIR; call sc.unfuse\(net\)"):
        sc.nir.save(fused, tmp_path / "net.nir", dt=1e-3)


def _watched():
    return nn.Sequential(TimeBatched(nn.Linear(3, 3)), sc.Recurrent(sc.LIF(), nn.Linear(3, 3)), nn.Identity())


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("", "Sequential"),
        ("0", "TimeBatched at '0'"),
        ("0.module", "Linear at '0.module'"),
        ("1", "Recurrent at '1'"),
        ("1.linear", "Recurrent at '1'"),
        ("2", "Identity at '2'"),
    ],
)
@pytest.mark.parametrize("how", ["hook", "forward"])
def test_what_watches_or_replaces_a_module_is_refused(path: str, named: str, how: str, tmp_path) -> None:
    """A graph would leave it out."""
    net = _watched()
    if how == "hook":
        net.get_submodule(path).register_forward_hook(lambda module, given, out: 2 * out)
    else:
        net.get_submodule(path).forward = lambda x: 2 * x
    words = f"{named} has hooks or a forward of its own, which a graph would not have; remove them"
    with pytest.raises(ValueError, match=re.escape(words)):
        sc.nir.save(net, tmp_path / "net.nir", dt=1e-3)
    assert not (tmp_path / "net.nir").exists()


@pytest.mark.parametrize(
    ("neuron", "dt", "words"),
    [
        (lambda: sc.LIF(threshold=float("inf")), 1e-3, "LIF at '1' would have v_threshold=inf in the file; give a"),
        (lambda: sc.Leaky(0.9, threshold=torch.tensor([1.0, 2.0, torch.inf, 1.0])), 1e-3, "one whose output is its"),
        (lambda: sc.IF(v_reset=-float("inf")), 1e-3, "IF at '1' would have v_reset=-inf in the file; it must be"),
        (lambda: sc.LIF(tau=2.0), 1e-60, "tau=0.0 in the file; that is beyond float32: save net.double(), or with"),
    ],
)
def test_numbers_that_load_refuses_are_not_written(neuron, dt: float, words: str, tmp_path) -> None:
    """Another reader, and sc.nir.load with another dt, take them for an error, or for something else."""
    net, file = nn.Sequential(nn.Linear(3, 4), neuron()), tmp_path / "net.nir"
    with pytest.raises(ValueError, match=re.escape(words)):
        sc.nir.save(net, file, dt=dt, keep=("soft_reset", "delayed_reset"))
    assert not file.exists()
