"""What NIR cannot say is refused, or kept as metadata with a warning where that is asked for."""

from __future__ import annotations

import math
import re
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import spikecore as sc
from spikecore.layers import NormNeuron, TimeBatched

nir = pytest.importorskip("nir", reason="the package nir, which needs Python 3.10, is not installed")


class Mine(sc.surrogate.Surrogate):
    """A surrogate that no file can name."""

    def derivative(self, u):
        return 1.0 - u


#: What is lossy -> neuron, name, words.
LOSSY = {
    "soft": (lambda: sc.LIF(reset="soft"), "soft_reset", "resets by subtraction (reset='soft'), NIR resets to v_reset"),
    "none": (lambda: sc.IF(reset="none"), "no_reset", "is not reset (reset='none')"),
    "late": (lambda: sc.Leaky(0.9, reset="hard"), "delayed_reset", "is reset one step after it fired"),
    "late current": (sc.SynapticLeaky, "delayed_reset", "resets by subtraction (reset='soft')"),
    "surrogate": (
        lambda: sc.LIF(surrogate=sc.surrogate.FastSigmoid(slope=10.0)),
        "surrogate",
        "has surrogate=FastSigmoid(slope=10.0), which NIR has no word for",
    ),
    "detach": (lambda: sc.LIF(detach_reset=True), "detach_reset", "has detach_reset=True, a rule for gradients"),
    "start": (lambda: sc.Synaptic(v_reset=0.5), "initial_state", "starts at v_reset and leaks to 0"),
    "if": (lambda: sc.nir.NIRLIF(decay=1.0, v_leak=0.5), "initial_state", "starts at v_leak, for which NIR's IF"),
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
    "norm and neuron": (lambda: NormNeuron(nn.BatchNorm1d(4), sc.LIF()), "NormNeuron at '1' is no node of NIR; call"),
    "max": (lambda: TimeBatched(nn.MaxPool2d(2)), "MaxPool2d at '1.module' is no node of NIR; NIR has AvgPool2d"),
    "dropout": (lambda: nn.Dropout(0.2), "Dropout at '1': a network is saved as it infers, where dropout does nothing"),
    "encoder": (lambda: sc.encode.Constant(3), "Constant at '1' is no node of NIR; a graph begins behind the encoder"),
    "relu": (nn.ReLU, "ReLU at '1' is no node of NIR"),
    "surrogate": (lambda: sc.LIF(surrogate=Mine()), "is not one of sc.surrogate, so a file cannot name it"),
    "beta": (lambda: sc.Synaptic(0.5, 1.0), "its potential keeps 1 of itself in a step"),
    "mixed": (lambda: sc.Leaky(torch.tensor([0.5, 1, 1, 1.0]), reset="hard", reset_delay=False), "keeps 1 of itself"),
    "connections": (
        lambda: sc.Delay(nn.Linear(4, 4), 3, delay=1.0, learn=()),
        "Delay at '1': has a delay for each connection, NIR's Delay one for each input; use per=",
    ),
    "learnt delay": (
        lambda: sc.Delay(nn.Linear(4, 4), 3, per="input"),
        "Delay at '1' learns its delays (learn=('delay',)), NIR's Delay is fixed; save sc.Delay(",
    ),
    "feedback": (
        lambda: sc.Recurrent(sc.LIF(), nn.Sequential(nn.Linear(4, 4))),
        "Recurrent at '1': its feedback, Sequential, is no node of NIR; give one layer",
    ),
    "fed neuron": (lambda: sc.Recurrent(sc.ALIF(), nn.Linear(4, 4)), "its neuron, ALIF, is no node of NIR"),
    "width": (lambda: nn.Linear(5, 4), "Linear at '1' does not take samples of shape [4]"),
    "flat": (nn.Flatten, "start_dim=1 flattens time or batch of an input with 2 such dimensions; give start"),
    "both": (lambda: sc.LIF(step="single"), "neurons with step='multi' and with step='single'; make them one"),
}


@pytest.mark.parametrize(
    ("make", "dt", "words"),
    [
        (sc.LIF, 1e39, "LIF at '1': tau would be 2e+39 in the file, which float32 cannot hold; give another dt"),
        (sc.LIF, 1e-46, "tau would be 2e-46 in the file, which float32 cannot hold"),
        (lambda: sc.LIF(1e300), 1e-3, "tau would be 1e+297 in the file, which float32 cannot hold"),
        (sc.IF, 1e-40, "IF at '1': r would be 1e+40 in the file, which float32 cannot hold; give another dt"),
        (lambda: sc.Synaptic(0.5, 0.5), 1e39, "Synaptic at '1': tau_syn would be 2e+39 in the file"),
        (lambda: sc.LIF(v_reset=-math.inf), 1e-3, "LIF at '1': v_reset would be -inf in the file, and must be finite"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_numbers_that_the_file_cannot_hold(make, dt: float, words: str, tmp_path) -> None:
    """They were written as infinity or 0, with a RuntimeWarning of NumPy's at most. float64 reaches further."""
    net, file = nn.Sequential(nn.Linear(3, 4), make()), tmp_path / "net.nir"
    with pytest.raises(ValueError, match=re.escape(words)) as refused:
        sc.nir.save(net, file, dt=dt)
    assert not file.exists()
    if "float64" in str(refused.value):
        sc.nir.save(net.double(), file, dt=dt)
        assert repr(sc.nir.load(file).get_submodule("1")) == repr(net[1])
    never = nn.Sequential(nn.Linear(3, 4), sc.LIF(threshold=math.inf))
    sc.nir.save(never, file, dt=1e-3)
    assert sc.nir.load(file).get_submodule("1").threshold == math.inf


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_node_is_refused_by_name(what: str, tmp_path) -> None:
    """Nothing is written then."""
    make, words = REFUSED[what]
    with pytest.raises(ValueError, match=re.escape(words)):
        sc.nir.save(nn.Sequential(nn.Linear(3, 4), make(), sc.LI()), tmp_path / "net.nir", dt=1e-3)
    assert not (tmp_path / "net.nir").exists()


class Half(nn.Module):
    def forward(self, w):
        return w / 2


@pytest.mark.parametrize("place", [0, 1])
def test_parametrized_modules_and_meta_tensors(place: int, tmp_path) -> None:
    """The module and the way out; the parametrization itself was named instead of the layer."""
    net, file, what = nn.Sequential(nn.Linear(3, 4), sc.PLIF()), tmp_path / "net.nir", ("weight", "w")[place]
    parametrize.register_parametrization(net[place], what, Half())
    kind = ("ParametrizedLinear", "ParametrizedPLIF")[place]
    words = f"{kind} at '{place}' is no node of NIR; '{what}' is parametrized; torch.nn.utils.parametrize.remove_"
    with pytest.raises(ValueError, match=re.escape(words)):
        sc.nir.save(net, file, dt=1e-3)
    parametrize.remove_parametrizations(net[place], what)
    sc.nir.save(net, file, dt=1e-3)
    with pytest.raises(ValueError, match=r"sc.nir.save: '0.weight' is on the meta device, without numbers; load the"):
        sc.nir.save(nn.Sequential(nn.Linear(3, 4, device="meta"), sc.LIF()), tmp_path / "meta.nir", dt=1e-3)


def test_what_wraps_a_network_is_left_out(tmp_path) -> None:
    """torch.compile and nn.DataParallel: nodes have the names of the network."""
    net = nn.Sequential(nn.Linear(3, 4), sc.LIF())
    for wrapped in (torch.compile(net, backend="eager"), nn.DataParallel(net)):
        sc.nir.save(wrapped, tmp_path / "net.nir", dt=1e-3)
        assert list(sc.nir.load(tmp_path / "net.nir").state_dict()) == list(net.state_dict())


def test_pooling_that_rounds_up_nothing_is_written(tmp_path) -> None:
    """Of a size that the windows divide, ceil_mode changes nothing."""
    x = torch.rand(2, 3, 2, 9, 6)
    net = nn.Sequential(TimeBatched(nn.AvgPool2d(3, ceil_mode=True)), sc.IF())
    sc.nir.save(net, tmp_path / "net.nir", dt=1e-3, input_shape=(2, 9, 6))
    assert torch.equal(sc.nir.load(tmp_path / "net.nir")(x), net(x))


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
        (lambda self, x: self.lif(torch.relu(self.fc(x))), "forward calls relu, which is no node of NIR"),
        (lambda self, x: self.fc(x) + 1, "forward calls add, which is no node of NIR"),
        (lambda self, x: x + x, "adds the output of 'input' to itself; NIR has one edge from it"),
        (
            lambda self, x: self.lif(self.fc(self.fc(x))),
            "Linear at 'fc' is called twice, first as 'fc'",
        ),
        (lambda self, x: (self.fc(x), x), "Net must return one tensor, to be saved with one output"),
        (lambda self, x, y: self.fc(x) + y, "Net has more than one input; NIR is saved with one"),
        (lambda self, x: self.fc(x) if x.sum() > 0 else x, "torch.fx cannot follow forward of Net"),
        (lambda self, x: self.lif(self.fc.weight), "which is no node of NIR"),
    ],
)
def test_a_forward_that_is_no_graph_of_nodes(forward, words: str, tmp_path) -> None:
    """The message says what a forward may do."""
    with pytest.raises(ValueError, match=re.escape(words)):
        sc.nir.save(_calls(forward), tmp_path / "net.nir", dt=1e-3)


def test_arguments_of_save(tmp_path) -> None:
    """Each by name, with what would be right."""
    net, file = nn.Sequential(nn.Linear(3, 4), sc.LIF(1.0)), tmp_path / "net.nir"
    for options, kind, words in (
        ({"dt": 0}, ValueError, "dt=0 must be above 0 and finite: the time step in seconds"),
        ({"dt": "1ms"}, TypeError, "dt='1ms' must be a number, the time step in seconds, such as 1e-3"),
        ({"dt": 1e-3, "discretization": "midpoint"}, ValueError, "discretization='midpoint' must be 'euler'"),
        (
            {"dt": 1e-3, "keep": "soft_reset"},
            ValueError,
            "keep='soft_reset' must be a tuple of some of soft_reset",
        ),
        ({"dt": 1e-3, "keep": ("ties",)}, ValueError, "keep=('ties',) must be a tuple of some of"),
        ({"dt": 1e-3, "input_shape": (0,)}, ValueError, "input_shape=(0,) must be sizes without time and batch"),
        (
            {"dt": 1e-3, "discretization": "exp"},
            ValueError,
            "keeps nothing of itself in a step, which no",
        ),
    ):
        with pytest.raises(kind, match=re.escape(words)):
            sc.nir.save(net, file, **options)
    with pytest.raises(TypeError, match="net=3 must be an nn.Module"):
        sc.nir.save(3, file, dt=1e-3)
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
    with pytest.raises(ValueError, match=r"NormNeuron at '1' is no node of NIR; call sc.unfuse\(net\)"):
        sc.nir.save(fused, tmp_path / "net.nir", dt=1e-3)
    watched = nn.Sequential(nn.Linear(3, 3), sc.LIF())
    watched[0].register_forward_hook(lambda module, given, out: 2 * out)
    with pytest.raises(ValueError, match="Linear at '0' has hooks or a forward of its own, which a graph would not"):
        sc.nir.save(watched, tmp_path / "net.nir", dt=1e-3)
