"""``torch.export`` and ``torch.onnx.export`` of networks: plain operations of torch, whatever backend was asked for."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Callable, Dict, Sequence, Tuple

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import spikecore as sc
from spikecore import scan
from spikecore.cli import app

if not hasattr(getattr(torch, "compiler", None), "is_exporting"):
    pytest.skip("torch says that it exports from 2.7 on", allow_module_level=True)


# torch's own, of its own trees
pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
#: What torch warns of in its own source, and of states that are assigned while it exports, which it puts back.
OF_TORCH = (
    "ignore:.*should not be instantiated:DeprecationWarning",
    "ignore:The tensor attribute .* was assigned",
    "ignore:While compiling, we found certain side effects",
)
T, B = 3, 3
#: Backends that need not work here, beside the reference: an exported network asks for none of their kernels.
BACKENDS = ("cupy",)
TimeBatched = sc.layers.TimeBatched


class Loop(nn.Module):
    """Neurons that take one step a call, reset within ``forward``."""

    def __init__(self, backend: str) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 5), sc.LIF(step="single", backend=backend))

    def forward(self, x: Tensor) -> Tensor:
        sc.reset(self.net)
        return torch.stack([self.net(now) for now in x])


def dense(backend: str) -> nn.Module:
    leaky = sc.Leaky(0.9, threshold=0.3, learn=("beta",), backend=backend)
    return nn.Sequential(nn.Linear(6, 5), sc.LIF(backend=backend), nn.Linear(5, 4), leaky)


def convolutional(backend: str) -> nn.Module:
    first = [TimeBatched(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)), sc.PLIF(torch.full((3,), 1.5), backend=backend)]
    folded = TimeBatched(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 5))
    return nn.Sequential(*first, folded, sc.ALIF(backend=backend))


def recurrent(backend: str) -> nn.Module:
    return nn.Sequential(sc.Recurrent(sc.LIF(backend=backend), nn.Linear(6, 6)), sc.LI(backend=backend))


def fused(backend: str) -> nn.Module:
    net = sc.fuse(nn.Sequential(TimeBatched(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)), sc.LIF(backend=backend)))
    one = sc.layers.NormNeuron(nn.BatchNorm2d(3), sc.LIF(backend=backend), fused=True)
    return nn.Sequential(net, one)


NETWORKS: Dict[str, Tuple[Callable[[str], nn.Module], Tuple[int, ...]]] = {
    "dense": (dense, (6,)),
    "convolutional": (convolutional, (1, 6, 6)),
    "recurrent": (recurrent, (6,)),
    "fused": (fused, (1, 6, 6)),
    "a loop": (Loop, (6,)),
}


def made(name: str, backend: str) -> Tuple[nn.Module, Tensor, Tensor]:
    """The network, its input, and its spikes on the reference."""
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    net = build(backend).eval()
    for module in net.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            module.weight.data.abs_().mul_(0.7 if isinstance(module, nn.Linear) else 2.0)
        elif isinstance(module, nn.BatchNorm2d):
            module.weight.data.fill_(1.6)
    x = torch.rand(T, B, *shape) * 3
    reference = copy.deepcopy(net)
    sc.set_backend(reference, "torch")
    for module in reference.modules():
        if isinstance(module, sc.layers.NormNeuron):
            module.fused = False
    with torch.no_grad():
        want = reference(x)
    assert 0.05 < want.mean() < 0.95
    return net, x, want


def operations(program: Any) -> Any:
    return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}


#: Every network on one backend, and two on all of them.
CASES = [*((name, "torch") for name in NETWORKS), *((name, each) for name in ("dense",) for each in BACKENDS)]


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_an_exported_network_is_plain_operations(name: str, backend: str) -> None:
    """Its values are the reference's, and nothing in it is spikecore's; the backend need not be here."""
    net, x, want = made(name, backend)
    program = torch.export.export(net, (x,))
    assert [each for each in operations(program) if "aten" not in each and "getitem" not in each] == []
    assert torch.equal(program.module()(x), want)


def test_the_batch_may_be_dynamic() -> None:
    """One program for every batch; the number of steps is fixed."""
    net, x, _ = made("convolutional", "torch")
    program = torch.export.export(net, (x,), dynamic_shapes=({1: torch.export.Dim("batch")},))
    larger = torch.cat([x, x * 1.1], 1)
    with torch.no_grad():
        assert torch.equal(program.module()(larger), net(larger))


def test_a_saved_program_needs_no_neuron(tmp_path: Path) -> None:
    """A loaded program computes by torch alone."""
    net, x, want = made("dense", "auto")
    torch.export.save(torch.export.export(net, (x,)), tmp_path / "net.pt2")
    assert torch.equal(torch.export.load(tmp_path / "net.pt2").module()(x), want)


@pytest.mark.filterwarnings(*OF_TORCH)
def test_a_carried_state_is_refused() -> None:
    """It would be a constant of the program; after a reset the program begins at rest."""
    lif = sc.LIF(step="single", backend="torch")
    x = torch.rand(B, 5) * 4
    lif(x)
    with pytest.raises(RuntimeError, match="LIF carries a state, which would be a constant of the exported program"):
        torch.export.export(lif, (x,))
    sc.reset(lif)
    program = torch.export.export(lif, (x,))
    want = lif(x)
    assert torch.equal(program.module()(x), want)
    assert torch.equal(program.module()(x), want)


# -- any number of steps


def delayed(backend: str) -> nn.Module:
    """A delay, and one in a feedback."""
    fed_back = sc.Recurrent(sc.LIF(backend=backend), sc.Delay(nn.Linear(5, 5), 3, learn=()))
    return nn.Sequential(sc.Delay(nn.Linear(6, 5), 2, learn=()), sc.LIF(backend=backend), fed_back)


def gated(backend: str) -> nn.Module:
    """Four inputs that outputs come back to."""
    layer = sc.layers.SpikingLSTM(6, 5)
    sc.set_backend(layer, backend)
    return nn.Sequential(layer)


def shared(backend: str) -> nn.Module:
    """A feedback in a network that has some modules twice, one of them within the feedback."""
    linear, rectified = nn.Linear(6, 6), nn.ReLU()
    fed_back = sc.Recurrent(sc.LIF(backend=backend), nn.Sequential(linear, rectified))
    return nn.Sequential(linear, rectified, fed_back)


def sliding(backend: str) -> nn.Module:
    """Neurons that see the last steps at once."""
    layer = sc.layers.SlidingPSN(3)
    sc.set_backend(layer, backend)
    return layer


#: Networks of any number of steps, the shape of a step, and how many layers of neurons they have.
ANY = {name: (*NETWORKS[name], 2) for name in NETWORKS if name != "a loop"}
ANY.update({"delayed": (delayed, (6,), 2), "gated": (gated, (6,), 1)})
ANY.update({"shared": (shared, (6,), 1), "sliding": (sliding, (6,), 1)})
#: Numbers of steps and samples of calls of one file.
SIZES = ((1, 2), (2, 3), (40, 1))


def any_length(name: str) -> Tuple[nn.Module, Any]:
    """A network that fires, and it as a program of any steps and samples."""
    if not hasattr(torch.ops.higher_order, "scan"):
        pytest.skip("this torch has no scan")
    torch.manual_seed(0)
    build, shape, _ = ANY[name]
    net = build("torch").eval()
    for module in net.modules():
        bias = getattr(module, "input_bias", None)  # in a fused network the layer before it has none
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            module.weight.data.mul_(3)
            bias = module.bias
        if bias is not None:
            bias.data.add_(0.7)
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.fill_(1.6)
    sizes = {0: torch.export.Dim("steps", min=2), 1: torch.export.Dim("batch")}
    return net, torch.export.export(net, (torch.randn(T, B, *shape),), dynamic_shapes=(sizes,))


def compare(name: str, net: nn.Module, run: Callable[[Tensor], Tensor], tolerance: float) -> None:
    """Calls of all sizes by a program, and by the network."""
    for steps, batch in SIZES:
        x = torch.randn(steps, batch, *ANY[name][1]) * 3
        with torch.no_grad():
            want = net(x)
        torch.testing.assert_close(run(x), want, rtol=0, atol=tolerance)
    assert want.count_nonzero()


@pytest.mark.parametrize("name", ANY)
def test_one_file_takes_any_number_of_steps(name: str, tmp_path: Path) -> None:
    """Each layer of neurons is one scan, with the bits of the network."""
    net, program = any_length(name)
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert targets.count("scan") == ANY[name][2]
    torch.export.save(program, tmp_path / "net.pt2")
    compare(name, net, torch.export.load(tmp_path / "net.pt2").module(), 0)


class Chunk(nn.Module):
    """States as inputs and outputs, with a record."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.lif = nn.Linear(6, 5), sc.ALIF()
        self.layer = sc.Recurrent(sc.LIF(), nn.Linear(5, 5))

    def forward(self, x: Tensor, state: Dict[str, Tensor], fed: Dict[str, Tensor]) -> Any:
        """Spikes, states and the potential."""
        spikes, state, trace = self.lif.run(self.linear(x), state=state, record=("v",))
        out, fed = self.layer.run(spikes, state=fed)
        return out, state, fed, trace["v"]


def test_chunks_of_any_size_go_on_from_their_states() -> None:
    """Chunks of 60, 13 and 1 steps by one program are the whole sequence, bit for bit."""
    torch.manual_seed(0)
    net, x = Chunk().eval(), torch.randn(74, B, 6) * 12
    state = {name: torch.zeros(B, 5) for name in net.lif.states}
    fed = {name: torch.zeros(B, 5) for name in (*net.layer.neuron.states, "feedback")}
    if not hasattr(torch.ops.higher_order, "scan"):
        pytest.skip("this torch has no scan")
    sizes = ({0: torch.export.Dim("steps", min=2)}, {name: {} for name in state}, {name: {} for name in fed})
    program = torch.export.export(net, (x, state, fed), dynamic_shapes=sizes).module()
    want, rows = net(x, state, fed), []
    for chunk in x.split([60, 13, 1]):
        out, state, fed, trace = program(chunk, state, fed)
        rows.append((out, trace))
    outs, traces = map(torch.cat, zip(*rows))
    assert torch.equal(outs, want[0])
    assert torch.equal(traces, want[3])
    assert 0 < want[0].mean() < 1
    for states, expected in ((state, want[1]), (fed, want[2])):
        assert all(torch.equal(states[name], value) for name, value in expected.items())


def test_buffers_that_steps_change_are_refused() -> None:
    """Statistics in training would be those of before: the program does not write them."""
    if not hasattr(torch.ops.higher_order, "scan"):
        pytest.skip("this torch has no scan")
    net = sc.Recurrent(sc.LIF(), nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)))
    sizes = (({0: torch.export.Dim("steps", min=2)},),)
    with pytest.raises(sc.backend.Unsupported, match=r"changes linear\.1\..*; export net\.eval\(\)"):
        torch.export.export(net, (torch.randn(T, B, 6),), dynamic_shapes=sizes)
    torch.export.export(net.eval(), (torch.randn(T, B, 6),), dynamic_shapes=sizes)


def test_a_torch_without_scan_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to do instead."""
    monkeypatch.setattr(scan, "operator", lambda: None)
    with pytest.raises(sc.backend.Unsupported, match="leave dimension 0 out of dynamic_shapes"):
        any_length("dense")


def onnx_session(net: nn.Module, x: Tensor, shapes: Any, path: Path) -> Any:
    """A network in onnxruntime, by torch.onnx.export."""
    pytest.importorskip("onnx", reason="onnx, which is in the extra onnx, is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript, which is in the extra onnx, is not installed")
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime, which is in the extra onnx, is not installed")
    args = (x,) if isinstance(net, nn.Module) else ()
    with torch.no_grad():
        torch.onnx.export(net, args, str(path), dynamo=True, verbose=False, dynamic_shapes=shapes)
    return onnxruntime.InferenceSession(str(path))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "backend"), [("dense", "cupy"), ("convolutional", "torch"), ("recurrent", "torch")])
def test_onnxruntime_gives_the_same_spikes(name: str, backend: str, tmp_path: Path) -> None:
    """Of torch.onnx.export itself, with a dynamic batch."""
    net, x, want = made(name, backend)
    shapes = None if name == "fused" else ({1: torch.export.Dim("batch")},)
    session = onnx_session(net, x, shapes, tmp_path / "net.onnx")
    (given,) = session.get_inputs()
    (got,) = session.run(None, {given.name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), want, rtol=0, atol=0 if name != "recurrent" else 1e-6)
    if shapes is not None:
        (one,) = session.run(None, {given.name: x[:, :1].numpy()})
        torch.testing.assert_close(torch.from_numpy(one), want[:, :1], rtol=0, atol=0 if name != "recurrent" else 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convolutional", "delayed", "gated"])
def test_one_onnx_file_takes_any_number_of_steps(name: str, tmp_path: Path) -> None:
    """Each layer of neurons is one node Scan."""
    net, program = any_length(name)
    session = onnx_session(program, torch.empty(0), None, tmp_path / "net.onnx")
    (given,) = session.get_inputs()
    compare(name, net, lambda x: torch.from_numpy(session.run(None, {given.name: x.numpy()})[0]), 1e-6)


#: A network of the command line, one that cannot be exported, and an example of one sample.
COMMANDED = """
import torch
from torch import nn
import spikecore as sc

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 5), sc.Recurrent(sc.LIF(threshold=0.3), sc.Delay(nn.Linear(5, 5), 3, learn=())))


class Longer(nn.Module):
    def forward(self, x):
        return x[:5] if x.shape[0] > 5 else x


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


repeated = nn.Sequential(nn.Linear(6, 5), sc.LIF(repeat=4))
"""


@pytest.fixture
def commanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``spikecore export`` in a folder with ``onnx_model.py`` and ``x.pt``, seven steps of one sample."""
    pytest.importorskip("onnxruntime", reason="onnxruntime, which is in the extra onnx, is not installed")
    (tmp_path / "onnx_model.py").write_text(COMMANDED)
    torch.manual_seed(1)
    torch.save(torch.randn(7, 1, 6) * 3, tmp_path / "x.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda words: CliRunner().invoke(app, ["export", *words.split()])


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "sizes"), [("any", (1, 7, 40)), ("5", (5,))])
def test_the_command_writes_one_file(steps: str, sizes: Sequence[int], commanded: Callable[..., Any]) -> None:
    """It takes any number of steps, or those asked for, and any batch; it says what it is and compares it itself."""
    import onnxruntime

    done = commanded(f"onnx_model.py:net --example x.pt --onnx net.onnx --steps {steps} --json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["bytes"] == Path("net.onnx").stat().st_size
    assert b"onnx_model.py" not in Path("net.onnx").read_bytes()
    assert facts["input"] == [steps if steps == "any" else 5, "any", 6]
    assert facts["compared"]["differing"] == 0
    import onnx_model

    session = onnxruntime.InferenceSession("net.onnx")
    for length in sizes:
        x = torch.randn(length, 3, 6) * 3
        with torch.no_grad():
            want = onnx_model.net.eval()(x)
        (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        assert torch.equal(torch.from_numpy(got), want)
    assert 0 < want.mean() < 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("net", "give --out DIR for a program in C, or --onnx FILE"),
        ("net --onnx n.onnx --inputs 0,0,1", "--inputs 0,0,1 is of programs in C; leave it out beside --onnx"),
        ("net --out c --steps 4", "--steps 4 is of ONNX; a program in C computes one step at a call"),
        ("net --onnx n.onnx --steps few", "--steps few must be any, or a whole number above 0"),
        ("net --onnx n.onnx --steps 9", "the example has 7 steps; save one of 9 or more, or give any"),
        ("Longer --onnx n.onnx", "does not take any number of steps; give --steps 7"),
        ("Branching --onnx n.onnx", "torch.export cannot trace the network: "),
        ("repeated --onnx n.onnx", "the network makes time itself, and --onnx takes inputs over time"),
    ],
)
def test_errors_of_the_command_name_the_option(words: str, said: str, commanded: Callable[..., Any]) -> None:
    """The option, its value and the way out, in one sentence; no file is left."""
    name, _, rest = words.partition(" ")
    done = commanded(f"onnx_model.py:{name} --example x.pt {rest}")
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.output.split())
    assert not Path("n.onnx").exists()
    assert not Path("c").exists()
