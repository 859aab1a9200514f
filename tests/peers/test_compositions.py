"""Layers of other libraries that are a few lines of a page: neurons on every backend for CPUs, and delays."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc

pytestmark = pytest.mark.peers

DOCS = Path(__file__).parents[2] / "docs"
T, B, C = 9, 4, 5


def programs(page: str, *names: str) -> Any:
    """The classes of these names that a page defines."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    known = {"sc": sc, "nn": nn, "torch": torch}
    for name in names:
        (code,) = re.findall(rf"(?m)^class {name}\(.*\n(?:(?:    .*)?\n)+", text)
        exec(code, known)
    return SimpleNamespace(**known)


@pytest.fixture(params=["torch", "numba", "c"])
def backend(request: pytest.FixtureRequest) -> Any:
    """A backend that is installed."""
    if {status.name: status.state for status in sc.backends()}[request.param] == "not installed":
        pytest.skip(f"{request.param} is not installed")
    with sc.use_backend(request.param):
        yield request.param


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Numbers from 0 to 3."""
    return 3.0 * torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def agree(ours: Tensor, theirs: Tensor, mine: Any, its: Any, tolerance: float = 1e-11) -> None:
    """Spikes are equal, and gradients up to rounding."""
    assert 0.02 < theirs.mean() < 0.9
    assert torch.equal(ours, theirs)
    cotangent = drawn(*ours.shape, seed=1) - 1.5
    found, right = torch.autograd.grad(ours, mine, cotangent), torch.autograd.grad(theirs, its, cotangent)
    for a, b in zip(found, right):
        torch.testing.assert_close(a, b.reshape(a.shape), rtol=tolerance, atol=tolerance * b.abs().max().item())


class FireNormalised(sc.Neuron):
    """The spike and the reset of the normalised potential."""

    params = {"threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        z = self.spike(x - p.threshold)
        return (z, sc.ops.select(z, 0.0, x)), {}


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("training", [True, False])
def test_mpbn_of_spikingjelly(training: bool) -> None:
    """Spikes, gradients and running statistics."""
    from spikingjelly.activation_based import neuron, surrogate

    torch.manual_seed(0)
    sigmoid = surrogate.Sigmoid(4.0)
    theirs = neuron.MPBNLIFNode(decay_input=True, out_features=C, surrogate_function=sigmoid, step_mode="m").double()
    norm = nn.BatchNorm1d(C).double()
    norm.weight.data.uniform_(0.5, 1.5)
    norm.bias.data.fill_(0.5)
    theirs.vbn.load_state_dict(norm.state_dict())
    ours = sc.layers.Between(sc.LI(2.0), norm, FireNormalised(surrogate=sc.surrogate.Sigmoid(4.0))).train(training)
    x = drawn(T, B, C).requires_grad_()
    out, its = ours(x), theirs.train(training)(x)
    agree(out, its, [x, norm.weight, norm.bias], [x, theirs.vbn.weight, theirs.vbn.bias])
    torch.testing.assert_close(norm.running_var, theirs.vbn.running_var)


class ChargeLeaky(sc.Neuron):
    """The charge of snnTorch's Leaky, with the reset of the step before."""

    states = {"mem": 0.0}
    params = {"beta": 0.875, "threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        reset = sc.ops.detach(self.spike(s.mem - p.threshold, strict=True))
        mem = p.beta * s.mem + x - reset * p.threshold
        return mem, {"mem": mem}


class FireAbove(sc.Neuron):
    """The spike alone."""

    params = {"threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return self.spike(x - p.threshold, strict=True), {}


@pytest.mark.usefixtures("backend")
@pytest.mark.filterwarnings("ignore:Inhibition is an unstable feature:UserWarning")
def test_winner_take_all_of_snntorch() -> None:
    """Only the highest potential of a sample fires."""
    import snntorch

    x = drawn(T, B, C).requires_grad_()
    theirs = snntorch.Leaky(0.875, inhibition=True, spike_grad=snntorch.surrogate.atan(2.0))
    mem, rows = theirs.init_leaky(), []
    for now in x:
        spikes, mem = theirs(now, mem)
        rows.append(spikes)
    winner = programs("layers", "Winner").Winner()
    out = sc.layers.Between(ChargeLeaky(), winner, FireAbove())(x)
    assert out.sum(2).max() == 1
    agree(out, torch.stack(rows), [x], [x], 1e-6)  # snnTorch's surrogate computes in float32


@pytest.mark.usefixtures("backend")
def test_glif_with_a_conductance_for_each_step() -> None:
    """SpikingJelly's, in channels; the conductance is an input that broadcasts over samples and places."""
    from spikingjelly.activation_based import neuron, surrogate

    node = neuron.GatedLIFNode(T, inplane=C, surrogate_function=surrogate.ATan(2.0)).double()
    node.conduct.data.copy_(torch.linspace(-1.0, 1.0, T * C).view(T, C))
    names = {
        "alpha": "alpha",
        "beta": "beta",
        "gamma": "gamma",
        "tau": "tau",
        "leak": "linear_decay",
        "drop": "v_subreset",
    }
    values = {ours: getattr(node, theirs).detach().sigmoid() for ours, theirs in names.items()}
    ours = programs("neurons", "StepwiseGLIF").StepwiseGLIF(**values, learn=tuple(values))
    x = (drawn(T, B, C, 2, 2) - 1.2).requires_grad_()
    conductance = node.conduct.detach().sigmoid().requires_grad_()
    out, its = ours(x, conductance.view(T, 1, C, 1, 1)), node(x)
    cotangent = drawn(*out.shape, seed=1) - 1.5
    assert 0.02 < its.mean() < 0.9
    assert torch.equal(out, its)
    wanted = torch.autograd.grad(its, [x, node.conduct, *[getattr(node, name) for name in names.values()]], cotangent)
    found = torch.autograd.grad(out, [x, conductance, *[getattr(ours, name) for name in names]], cotangent)
    behind = [None, conductance, *[getattr(ours, name) for name in names]]
    for a, b, value in zip(found, wanted, behind):
        a = a if value is None else a * value * (1.0 - value)  # of a sigmoid
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


# -- delays beside DCLS, whose convolutions over time have learnt positions

LONGEST, SIGMA = 6, 1.25
#: Layers with the shape of their steps.
LAYERS: Dict[str, Tuple[Any, Tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, stride=2, padding=1), (2, 7)),
    "conv2d": (lambda: nn.Conv2d(2, 3, (3, 2), padding=1), (2, 5, 4)),
    "conv2d of groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, bias=False), (4, 4, 5)),
}


def taps(layer: Any, x: Tensor) -> Tensor:
    """Inputs of each tap of a kernel: ``[T, B, channels * taps, places]``."""
    if isinstance(layer, nn.Linear):
        return x.unsqueeze(-1)
    flat = x.flatten(0, 1)
    sizes = [layer.kernel_size, layer.dilation, layer.padding, layer.stride]
    if isinstance(layer, nn.Conv1d):
        flat, sizes = flat.unsqueeze(2), [(1, *size) if k != 2 else (0, *size) for k, size in enumerate(sizes)]
    return nn.functional.unfold(flat, *sizes).unflatten(0, x.shape[:2])


def positions(delay: Tensor) -> Tensor:
    """DCLS counts from the middle of its kernel, and forwards in time: ``[1, out, taps, 1]``."""
    return (LONGEST - delay - (LONGEST + 1) // 2).flatten(1)[None, ..., None]


@pytest.mark.parametrize("name", LAYERS)
def test_a_delay_for_each_tap(name: str) -> None:
    """Output, and the gradients of input, weights, bias, positions and width. DCLS divides by a sum plus 1e-7."""
    from DCLS.construct.modules import Dcls1d

    torch.manual_seed(0)
    make, step = LAYERS[name]
    layer = sc.Delay(make().double(), LONGEST, sigma=SIGMA, learn=("delay", "sigma")).double()
    inner: Any = layer.linear
    groups = getattr(inner, "groups", 1)
    weight = inner.weight.flatten(1)
    theirs = Dcls1d(
        weight.shape[1] * groups, len(weight), 1, dilated_kernel_size=LONGEST + 1, groups=groups,
        bias=inner.bias is not None, version="gauss",
    ).double()  # fmt: skip
    theirs.weight.data.copy_(weight.unsqueeze(-1))
    theirs.P.data.copy_(positions(layer.delay.data))
    theirs.SIG.data.fill_(SIGMA - 0.27)
    x = torch.randn(T, B, *step, dtype=torch.float64).requires_grad_()
    read = taps(inner, x)  # [T, B, taps, places]
    sequences = nn.functional.pad(read.permute(1, 3, 2, 0).flatten(0, 1), (LONGEST, 0))
    if inner.bias is not None:
        theirs.bias.data.copy_(inner.bias)
    out = layer(x)
    its = theirs(sequences).unflatten(0, (B, -1)).permute(3, 0, 2, 1).reshape(out.shape)
    torch.testing.assert_close(out, its, rtol=1e-6, atol=1e-6)
    cotangent = torch.randn_like(out)
    biases = [] if inner.bias is None else [(inner.bias, theirs.bias)]
    pairs = [(x, x), (inner.weight, theirs.weight), (layer.delay, theirs.P), (layer.sigma, theirs.SIG), *biases]
    mine, wanted = ([pair[k] for pair in pairs] for k in (0, 1))
    found = torch.autograd.grad(out, mine, cotangent)
    right = torch.autograd.grad(its, wanted, cotangent)
    for ours, its_own, value in zip(found, right, mine):
        if value is layer.sigma:
            ours, its_own = ours.sum(), its_own.sum()
        sign = -1.0 if value is layer.delay else 1.0  # a later position is a shorter delay
        torch.testing.assert_close(ours, sign * its_own.reshape(ours.shape), rtol=1e-5, atol=1e-5)


def test_whole_delays_are_version_0_at_whole_positions() -> None:
    """In ``eval()``, positions that DCLS interpolates between two steps are whole ones."""
    from DCLS.construct.modules import Dcls1d

    torch.manual_seed(0)
    delay = torch.randint(0, LONGEST + 1, (3, 2, 3)).double()
    layer = sc.Delay(nn.Conv1d(2, 3, 3).double(), LONGEST, delay=delay).double()
    layer.sigma = 0.5
    layer.eval()
    inner: Any = layer.linear
    theirs = Dcls1d(6, 3, 1, dilated_kernel_size=LONGEST + 1, version="v0").double()
    theirs.weight.data.copy_(inner.weight.flatten(1).unsqueeze(-1))
    theirs.bias.data.copy_(inner.bias)
    theirs.P.data.copy_(positions(delay))
    x = torch.randn(T, B, 2, 7, dtype=torch.float64)
    sequences = nn.functional.pad(taps(inner, x).permute(1, 3, 2, 0).flatten(0, 1), (LONGEST, 0))
    out = layer(x)
    torch.testing.assert_close(out, theirs(sequences).unflatten(0, (B, -1)).permute(3, 0, 2, 1), rtol=1e-12, atol=1e-12)
