"""The page for who comes from Norse or sinabs: its rows of neurons and surrogates, against the libraries."""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import spikecore as sc

pytestmark = pytest.mark.peers

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from-norse-and-sinabs.md").read_text(encoding="utf-8")
T, B, C = 40, 4, 24


def rows(head, heading):
    """Both cells of the rows of a table with this first cell, below a heading."""
    part = re.split(rf"(?m)^## {heading}$", PAGE)[1].split("\n## ")[0]
    (table,) = re.findall(rf"(?m)^\| {head} \|.*\n\|[-|]+\n((?:^\|.*\n)+)", part)
    return [tuple(cell.strip("` ") for cell in line.strip("|\n ").split(" | ")) for line in table.splitlines()]


@pytest.fixture(scope="module")
def names():
    """Names that rows and blocks of the page use."""
    import norse.torch as norse
    import sinabs.activation as sa
    import sinabs.layers as sl

    def keep(t):
        return math.exp(-1 / t)

    known = {"sc": sc, "nn": nn, "torch": torch, "keep": keep, "steps": lambda t: 1 / (1 - keep(t))}
    known.update(norse=norse, sa=sa, sl=sl)
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.S):
        exec(block, known)
    return SimpleNamespace(**known)


def drive(scale):
    generator = torch.Generator().manual_seed(0)
    return (scale * (0.3 + torch.randn(T, B, C, generator=generator, dtype=torch.float64))).requires_grad_()


def of_norse(module, x):
    if not type(module).__name__.endswith("Cell"):
        return module(x)[0]
    state, outputs = None, []
    for now in x:
        out, state = module(now, state)
        outputs.append(out)
    return torch.stack(outputs)


def of_sinabs(module, x):
    return module.double()(x.transpose(0, 1)).transpose(0, 1)


@pytest.mark.parametrize(
    ("library", "theirs", "ours"),
    [(library, *row) for library in ("Norse", "sinabs") for row in rows(library, "Neurons")],
)
def test_a_neuron(names, library, theirs, ours):
    """Outputs and the gradient of the input."""
    run = of_norse if library == "Norse" else of_sinabs
    results = []
    for build, call in ((theirs, run), (ours, lambda module, x: module.double()(x))):
        x = drive(12.0 if "20.0" in theirs and "norm_input" not in theirs and "ExpLeak" not in theirs else 3.0)
        out = call(eval(build, vars(names)), x)
        out.square().sum().backward()
        results.append((out.detach(), x.grad))
    (wanted, gradient), (out, mine) = results
    assert wanted.abs().mean() > 0.01
    if set(wanted.unique().tolist()) <= {float(count) for count in range(100)}:
        assert torch.equal(out, wanted.to(out.dtype))
    torch.testing.assert_close(out, wanted.to(out.dtype), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine, gradient, rtol=1e-4, atol=1e-5 * gradient.abs().max().item())


@pytest.mark.parametrize(("theirs", "ours"), rows("there", "Surrogates"))
def test_a_surrogate(names, theirs, ours):
    """Derivatives at potentials on both sides of the threshold."""
    u = torch.linspace(-3, 3, 97, dtype=torch.float64, requires_grad=True)
    if theirs.startswith("norse"):
        from norse.torch.functional.threshold import threshold

        method = eval(f"dict({theirs[6:]})")
        threshold(u, method["method"], method.get("alpha", 100.0)).sum().backward()
        wanted = u.grad
    else:
        wanted = eval(theirs, vars(names))(u.detach() + 1.0, 1.0)
    torch.testing.assert_close(eval(ours, vars(names)).derivative(u.detach()), wanted, rtol=1e-5, atol=1e-8)


def test_encoders_of_norse(names):
    x = torch.rand(3, 5, generator=torch.Generator().manual_seed(1))
    constant = names.norse.ConstantCurrentLIFEncoder(30)
    assert torch.equal(sc.LIF(10.0, repeat=30)(4.0 * x), constant(4.0 * x))
    x[0, 0] = 1.0  # Norse's largest center is the largest input
    population = names.norse.PopulationEncoder(4)(x).flatten(-2)
    torch.testing.assert_close(sc.encode.Population(5, 4, width=1.0)(x).detach(), population)
    rates = [encoder(x).mean(0) for encoder in (names.norse.PoissonEncoder(5000), sc.encode.Poisson(5000, gain=0.1))]
    torch.testing.assert_close(*rates, rtol=0.0, atol=0.03)


# -- cells with feedback: outputs and all gradients in float64, on every backend for CPUs

H = 16
BACKENDS = ("torch", "numba", "c")


def wide(value):
    """A number as a tensor in float64, which Norse's parameters are in float32."""
    return torch.tensor(value, dtype=torch.float64)


@pytest.fixture(params=BACKENDS)
def backend(request):
    """A backend that is installed."""
    if {status.name: status.state for status in sc.backends()}[request.param] == "not installed":
        pytest.skip(f"{request.param} is not installed")
    with sc.use_backend(request.param):
        yield request.param


@pytest.fixture
def lif(names):
    """Norse's parameters in float64."""
    return names.norse.LIFParameters(tau_syn_inv=wide(200.0), tau_mem_inv=wide(100.0), v_leak=wide(0.0))


def agree(ours, theirs, mine, its):
    """Spikes are equal; gradients by tensors of either side, to the last digits of float64."""
    assert 0.01 < theirs.mean() < 0.9
    assert torch.equal(ours, theirs)
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(2), dtype=ours.dtype)
    found, wanted = torch.autograd.grad(ours, mine, weight), torch.autograd.grad(theirs, its, weight)
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10 * b.abs().max().item())
    return found, wanted


def weights_of(cell, gain=1.0):
    """The two matrices of a cell, whose input is made larger, as layers with a gain; gradients are Norse's."""
    cell.input_weights.data.mul_(3.0)
    layers = [nn.Linear(*weight.shape[::-1], bias=False) for weight in (cell.input_weights, cell.recurrent_weights)]
    for layer, weight in zip(layers, (cell.input_weights, cell.recurrent_weights)):
        layer.double().weight.data.copy_(gain * weight.data)
    layers[0].weight.register_hook(lambda gradient: gain * gradient)
    layers[1].weight.register_hook(lambda gradient: (gain * gradient).fill_diagonal_(0.0))
    return layers


@pytest.mark.parametrize("kind", ["LIFRecurrentCell", "LIFRefracRecurrentCell"])
def test_recurrent_cells_of_norse(names, lif, backend, kind):
    torch.manual_seed(0)
    surrogate = sc.surrogate.Super(1.0)
    if kind == "LIFRecurrentCell":
        p, neuron, gain = lif, sc.Synaptic(0.8, 0.9, detach_reset=True, surrogate=surrogate), 0.1
    else:
        p = names.norse.LIFRefracParameters(lif, wide(3.0))
        neuron, gain = names.Refractory(rest=3.0, surrogate=surrogate), 1.0
    cell = getattr(names.norse, kind)(C, H, p=p).double()
    forward, recurrent = weights_of(cell, gain)
    layer = sc.Recurrent(neuron, recurrent).double()
    x = drive(3.0)
    ours, theirs = layer(forward(x)), of_norse(cell, x)
    assert layer.looped == ""
    mine, its = [x, forward.weight, recurrent.weight], [x, cell.input_weights, cell.recurrent_weights]
    agree(ours, theirs, mine, its)


def test_refractory_cell_of_norse(names, lif, backend):
    cell = names.norse.LIFRefracCell(p=names.norse.LIFRefracParameters(lif, wide(3.0)))
    x = drive(9.0)
    neuron = names.Refractory(rest=3.0, surrogate=sc.surrogate.Super(1.0))
    neuron.recurrent = False
    agree(neuron(x), of_norse(cell, x), [x], [x])


@pytest.mark.parametrize("rests", [False, True])
def test_compartments_of_norse(names, lif, backend, rests):
    """Spikes through one matrix, and potentials through the couplings."""
    torch.manual_seed(0)
    from norse.torch.module.lif_mc import LIFMCRecurrentCell
    from norse.torch.module.lif_mc_refrac import LIFMCRefracRecurrentCell

    kind, p, dt = LIFMCRecurrentCell, lif, 0.001
    if rests:
        kind, p, dt = LIFMCRefracRecurrentCell, names.norse.LIFRefracParameters(lif, wide(3.0)), 1.0
    cell = kind(C, H, p=p, g_coupling=nn.Parameter(0.05 / dt * torch.randn(H, H).double())).double()
    forward, recurrent = weights_of(cell)
    coupling = nn.Linear(H, H, bias=False).double()
    coupling.weight.data.copy_(dt * cell.g_coupling.data)
    ways = [sc.layers.Feedback(recurrent, into="x", output=0), sc.layers.Feedback(coupling, into="c", output=1)]
    neuron = names.RestingCompartments(rest=3.0) if rests else names.Compartments()
    neuron.surrogate = sc.surrogate.Super(1.0)
    layer = sc.Recurrent(neuron, ways, given=("x",)).double()
    x = drive(3.0)
    (ours, _), theirs = layer(forward(x)), of_norse(cell, x)
    assert layer.looped == ""
    coupling.weight.register_hook(lambda gradient: dt * gradient)
    mine = [x, forward.weight, recurrent.weight, coupling.weight]
    its = [x, cell.input_weights, cell.recurrent_weights, cell.g_coupling]
    found, _ = agree(ours, theirs, mine, its)
    assert found[3].abs().max() > 0


def coba(names, **values):
    """Norse's parameters of conductances for steps of 0.1, and the neuron of the page with the same values."""
    defaults = names.norse.CobaLIFParameters()._asdict()
    p = {name: value if name == "method" else wide(float(value)) for name, value in defaults.items()}
    p.update({name: wide(value) for name, value in values.items()})
    p.update(
        {name: wide(round(float(p[name]), 6)) for name in ("tau_syn_exc_inv", "tau_syn_inh_inv", "c_m_inv", "g_l")}
    )
    neuron = copy.deepcopy(names.coba).double()
    return names.norse.CobaLIFParameters(**p), neuron


def test_conductances_of_norse(names, backend):
    """Without feedback, whose input Norse reads."""
    from norse.torch.functional.coba_lif import CobaLIFFeedForwardState, coba_lif_feed_forward_step

    p, neuron = coba(names)
    neuron.backend = backend
    x = drive(0.2)
    zero = torch.zeros(B, C, dtype=x.dtype)
    state, rows = CobaLIFFeedForwardState(zero - 70.0, zero, zero), []
    for now in x:
        z, state = coba_lif_feed_forward_step(now, state, p, 0.1)
        rows.append(z)
    factor = 0.98 / 0.25
    agree(neuron(factor * x.relu(), factor * (-x).relu()), torch.stack(rows), [x], [x])


def test_conductances_of_norse_with_feedback(names, backend):
    """From a state in which all fired; Norse's cell ignores its input."""
    torch.manual_seed(0)
    p, neuron = coba(names, v_rest=5.0)
    neuron.v_rest, neuron.backend = 5.0, backend
    cell = names.norse.CobaLIFCell(C, H, p, 0.1).double()
    zero = torch.zeros(B, H, dtype=torch.float64)
    v = (-70.0 + 75.0 * torch.rand(B, H).double()).requires_grad_()
    state, rows = type(cell(drive(1.0)[0])[1])(zero + 1.0, v, zero, zero), []
    for now in drive(1.0):
        z, state = cell(now, state)
        rows.append(z)
    both = nn.Linear(H, 2 * H, bias=False).double()
    w, factor = cell.recurrent_weights, 0.98 / 0.25
    both.weight.data.copy_(factor * torch.cat([w.data.relu(), (-w.data).relu()]))
    layer = sc.Recurrent(neuron, both, into=("e", "i"))
    none = torch.zeros(T, B, H, dtype=torch.float64)
    ours, _ = layer.run(none, none, state={"ge": zero, "gi": zero, "v": v, "feedback": zero + 1.0})
    assert layer.looped == ""
    assert torch.equal(ours, torch.stack(rows))
    weight = torch.randn_like(ours)
    found = torch.autograd.grad(ours, [v, both.weight], weight)
    wanted = torch.autograd.grad(torch.stack(rows), [v, w], weight)
    to_e, to_i = (factor * part for part in found[1].chunk(2))
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(to_e * (w > 0) - to_i * (w < 0), wanted[1], rtol=1e-10, atol=1e-10)


def test_recurrent_layer_of_sinabs(names, backend):
    """Many spikes of a step come back. In float32, in which sinabs begins."""
    torch.manual_seed(0)
    connect = nn.Linear(C, C, bias=False)
    cell = names.sl.LIFRecurrent(20.0, rec_connect=connect)
    layer = sc.Recurrent(names.ManySpikes(keep=names.keep(20.0), surrogate=names.Exponential()), connect)
    x = drive(20.0).detach().float().requires_grad_()
    ours, theirs = layer(x), cell(x.transpose(0, 1)).transpose(0, 1)
    assert ours.max() > 1.0
    assert torch.equal(ours, theirs)
    weight = torch.randn_like(ours)
    for a, b in zip(*[torch.autograd.grad(y, [x, connect.weight], weight) for y in (ours, theirs)]):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * b.abs().max().item())
