"""What each online rule computes, against backpropagation through time and loops over the papers' equations."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore import neurons
from spikecore.testing.random_programs._draw import drawn, programs

T, B, I, J, K = 21, 3, 6, 5, 4
CHUNKS = pytest.mark.parametrize("chunk", [1, 7, T])


def weighted(y: Any, weights: Any) -> Tensor:
    """A loss with a number for each output."""
    outputs = y if isinstance(y, tuple) else (y,)
    return sum((out * part).sum() for out, part in zip(outputs, weights))  # type: ignore[return-value]


def gradients(
    net: nn.Module, x: Tensor, targets: Any, loss: Callable[..., Tensor] = weighted, **rule: Any
) -> Dict[str, Tensor]:
    """The gradients that a step leaves, which does not change a weight."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    options = sc.OnlineOptions(time_targets=True, **rule)
    sc.training_model(net, loss, optimizer, options=options)(x, targets)
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def through_time(net: nn.Module, x: Tensor, targets: Any, loss: Callable[..., Tensor] = weighted) -> Dict[str, Tensor]:
    """The gradients of torch's autograd through all steps."""
    net.zero_grad()
    loss(net(x), targets).backward()
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def difference(got: Tensor, want: Tensor) -> float:
    """The largest difference, relative to the largest number."""
    assert got.shape == want.shape
    return ((got - want).abs().max() / want.abs().max().clamp_min(1e-300)).item()


def check(got: Dict[str, Tensor], want: Dict[str, Tensor], most: float = 1e-12) -> None:
    """The same gradients of the same parameters."""
    assert got.keys() == want.keys()
    assert all(difference(got[name], value) <= most for name, value in want.items()), {
        name: difference(got[name], value) for name, value in want.items()
    }


def batch(seed: int = 0, scale: float = 2.0) -> Tuple[Tensor, Any]:
    """Spikes ``[T, B, I]`` times a scale, and numbers for outputs ``[T, B, J]``."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.rand(T, B, I, generator=generator) < 0.4).double() * scale
    return x, (torch.randn(T, B, J, generator=generator).double(),)


# -- d_rtrl: the gradient of backpropagation through time


def layer(neuron: nn.Module, scale: float = 1.0) -> nn.Module:
    """A linear layer for every input of a neuron, and the neuron."""
    torch.manual_seed(1)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linears = nn.ModuleList(nn.Linear(I, J) for _ in neuron.inputs)
            self.neuron = neuron

        def forward(self, x: Tensor) -> Any:
            return self.neuron(*(scale * linear(x) for linear in self.linears))

    return Layer().double()


@CHUNKS
@pytest.mark.parametrize("name", sorted(neurons.MODELS))
def test_d_rtrl_of_a_neuron_is_backpropagation_through_time(name: str, chunk: int) -> None:
    """For one layer of every neuron of the gallery, weights, biases and the neuron's own parameters, at any chunk."""
    plain = neurons.example(name)
    net = layer(neurons.example(name, learn=[p for p in plain.program.params if p in plain.params]))
    x, targets = batch()
    check(gradients(net, x, targets, rule="d_rtrl", chunk=chunk), through_time(net, x, targets))


def test_d_rtrl_of_random_programs() -> None:
    """200 drawn neurons, of several inputs, states and outputs."""
    checked = 0
    for program in drawn(programs(lambda name: True), 200, 7):
        model = program.model()
        net = layer(model.neuron(surrogate=model.surrogate.library()), 0.25)
        x, (weight,) = batch()
        targets = (weight,) * len(program.outputs)
        want = through_time(net, x, targets)
        checked += any(bool(gradient.any()) for gradient in want.values())
        for chunk in (1, 7, T):
            check(gradients(net, x, targets, rule="d_rtrl", chunk=chunk), want)
    assert checked > 100


def test_parameters_of_a_channel_have_their_own_gradients() -> None:
    """A time constant for each channel, and one for all."""
    for tau in (torch.rand(J, generator=torch.Generator().manual_seed(3)) + 1.5, torch.tensor(2.5)):
        net = layer(sc.LIF(tau, learn=("tau", "threshold")))
        x, targets = batch()
        for rule in ("d_rtrl", "pp_prop", "sltt", "eprop"):
            got, want = gradients(net, x, targets, rule=rule, chunk=4), through_time(net, x, targets)
            check({"tau": got["neuron.tau"]}, {"tau": want["neuron.tau"]})
            check({"threshold": got["neuron.threshold"]}, {"threshold": want["neuron.threshold"]})


def recurrent(neuron: sc.Neuron, bias: bool = True) -> nn.Module:
    """A recurrent layer whose feedback carries no gradient."""
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(I, J), sc.Recurrent(neuron, nn.Linear(J, J, bias=bias), detach=True))
    return net.double()


@CHUNKS
def test_d_rtrl_of_a_recurrent_layer_is_a_recursion_by_hand(chunk: int) -> None:
    """Real-time recurrent learning of ALIF, written out: two states, and feedback that is an input."""
    neuron = sc.ALIF(3.0, rho=0.8, beta=0.3, decay_input=False, reset="soft", learn=("beta",))
    net = recurrent(neuron)
    x, (target,) = batch()
    W, b, R, c = (p.detach() for p in (net[0].weight, net[0].bias, net[1].linear.weight, net[1].linear.bias))
    alpha, rho, beta, width = 1 - 1 / 3.0, 0.8, neuron.beta.item(), 2.0
    v = a = z = torch.zeros(B, J, dtype=torch.float64)
    # ds/dW for each sample: of v and a, by what the weights are multiplied with
    read = {"W": I, "b": 1, "R": J, "c": 1}
    Ev, Ea = ({name: torch.zeros(B, J, size).double() for name, size in read.items()} for _ in range(2))
    Pv = Pa = torch.zeros(B, J, dtype=torch.float64)
    want = {name: torch.zeros(J, size).double() for name, size in read.items()}
    want_beta = torch.zeros(()).double()
    for t in range(T):
        inputs = {"W": x[t], "b": torch.ones(B, 1).double(), "R": z, "c": torch.ones(B, 1).double()}
        h = alpha * v + x[t] @ W.T + b + z @ R.T + c
        u = h - (1.0 + beta * a)
        z, raised = (u >= 0).double(), 1.0 + beta * a
        slope = width / 2 / (1 + (torch.pi / 2 * width * u) ** 2)
        for name in read:
            dh = alpha * Ev[name] + inputs[name][:, None]
            dz = slope[..., None] * (dh - beta * Ea[name])
            want[name] += (target[t][..., None] * dz).sum(0)
            Ev[name] = dh - dz * raised[..., None] - z[..., None] * beta * Ea[name]
            Ea[name] = rho * Ea[name] + dz
        dz = slope * (alpha * Pv - a - beta * Pa)
        want_beta += (target[t] * dz).sum()
        Pv, Pa = alpha * Pv - dz * raised - z * (a + beta * Pa), rho * Pa + dz
        v, a = h - z * raised, rho * a + z
    got = gradients(net, x, (target,), rule="d_rtrl", chunk=chunk)
    names = {"0.weight": "W", "0.bias": "b", "1.linear.weight": "R", "1.linear.bias": "c"}
    check(
        got,
        {**{name: want[by].view(got[name].shape) for name, by in names.items()}, "1.neuron.beta": want_beta},
    )


# -- the equations of the papers

WIDTH = 2.0


def slope(u: Tensor) -> Tensor:
    """The derivative of ATan(2)."""
    return WIDTH / 2 / (1 + (torch.pi / 2 * WIDTH * u) ** 2)


def squares(y: Tensor, targets: Tensor) -> Tensor:
    """Half the sum of squares."""
    return 0.5 * (y - targets).square().sum()


@CHUNKS
@pytest.mark.parametrize("feedback", ["exact", "random"])
def test_eprop_is_that_of_bellec_et_al(chunk: int, feedback: str) -> None:
    """Eligibility traces filtered by the leak of the read-out, of input and recurrent weights, times learning signals
    by the read-out's own weights or by random ones (Bellec et al., 2020, equations 2 to 5, 22 to 25 and 28).
    """
    tau, tau_out = 3.0, 4.0
    net = nn.Sequential(
        *recurrent(sc.LIF(tau, decay_input=False, reset="soft"), bias=False),
        nn.Linear(J, K, bias=False).double(),
        sc.LI(tau_out),
    )
    x, _ = batch()
    targets = torch.randn(T, B, K, dtype=torch.float64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    options = sc.OnlineOptions(rule="eprop", chunk=chunk, feedback=feedback, time_targets=True)
    step = sc.training_model(net, squares, optimizer, options=options)
    step(x, targets)
    W, b, R, V = (p.detach() for p in net.parameters())
    signals = V if feedback == "exact" else step.state_dict()["online"]["feedback"]["1/0"]
    alpha, kappa = 1 - 1 / tau, 1 - 1 / tau_out
    v = z = torch.zeros(B, J, dtype=torch.float64)
    y, zbar = torch.zeros(B, K, dtype=torch.float64), torch.zeros(B, J, dtype=torch.float64)
    read = {"W": I, "b": 1, "R": J}
    low = {name: torch.zeros(B, size).double() for name, size in read.items()}
    eligibility = {name: torch.zeros(B, J, size).double() for name, size in read.items()}
    want = {name: torch.zeros(J, size).double() for name, size in read.items()}
    want["V"] = torch.zeros(K, J).double()
    for t in range(T):
        for name, pre in (("W", x[t]), ("b", torch.ones(B, 1).double()), ("R", z)):
            low[name] = alpha * low[name] + pre
        h = alpha * v + x[t] @ W.T + b + z @ R.T
        z = (h >= 1.0).double()
        v = h - z
        y, zbar = kappa * y + z @ V.T / tau_out, kappa * zbar + z
        error = (y - targets[t]) / tau_out
        for name in read:
            eligibility[name] = kappa * eligibility[name] + slope(h - 1.0)[..., None] * low[name][:, None]
            want[name] += ((error @ signals)[..., None] * eligibility[name]).sum(0)
        want["V"] += error.T @ zbar
    for parameter, name in zip(net.parameters(), ("W", "b", "R", "V")):
        assert difference(parameter.grad, want[name].view(parameter.shape)) <= 1e-12


def two_layers() -> nn.Module:
    """Two layers of LIF, each with a leak of its own, and a read-out without memory."""
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Linear(I, J),
        sc.LIF(2.0, decay_input=False, reset="soft"),
        nn.Linear(J, J),
        sc.LIF(4.0, decay_input=False, reset="soft", threshold=0.4),
        nn.Linear(J, K),
    ).double()


@CHUNKS
@pytest.mark.parametrize("rule", ["ottt", "sltt"])
def test_ottt_and_sltt_are_those_of_their_papers(rule: str, chunk: int) -> None:
    """Errors through space at each step, times presynaptic traces (Xiao et al., 2022, equation 8), or the inputs of
    the step (Meng et al., 2023, equation 9). The input of a bias is 1, whose trace is that of any input.
    """
    net = two_layers()
    x, _ = batch()
    targets = torch.randn(T, B, K, dtype=torch.float64)
    (W1, b1, W2, b2, W3, b3) = [p.detach() for p in net.parameters()]
    leaks, thresholds = (1 - 1 / 2.0, 1 - 1 / 4.0), (1.0, 0.4)
    v1 = v2 = torch.zeros(B, J, dtype=torch.float64)
    ones = torch.ones(B, 1, dtype=torch.float64)
    traces = [torch.zeros(B, size).double() for size in (I, 1, J, 1)]
    want = [torch.zeros_like(p) for p in (W1, b1[:, None], W2, b2[:, None], W3, b3[:, None])]
    for t in range(T):
        h1 = leaks[0] * v1 + x[t] @ W1.T + b1
        z1 = (h1 >= thresholds[0]).double()
        h2 = leaks[1] * v2 + z1 @ W2.T + b2
        z2 = (h2 >= thresholds[1]).double()
        v1, v2 = h1 - thresholds[0] * z1, h2 - thresholds[1] * z2
        d3 = z2 @ W3.T + b3 - targets[t]
        d2 = d3 @ W3 * slope(h2 - thresholds[1])
        d1 = d2 @ W2 * slope(h1 - thresholds[0])
        for k, (leak, now) in enumerate(zip((leaks[0], leaks[0], leaks[1], leaks[1]), (x[t], ones, z1, ones))):
            traces[k] = (leak * traces[k] if rule == "ottt" else 0.0) + now
        for k, (error, pre) in enumerate(zip((d1, d1, d2, d2, d3, d3), (*traces, z2, ones))):
            want[k] += error.T @ pre
    got = gradients(net, x, targets, squares, rule=rule, chunk=chunk)
    check(got, {name: value.view(got[name].shape) for name, value in zip(got, want)})


@pytest.mark.parametrize(
    "neuron", [sc.LI(3.0), sc.LIF(3.0, reset="none"), sc.Synaptic(0.6, 0.8, reset="none"), sc.LIF(1.0, reset="none")]
)
def test_ottt_is_exact_where_the_transition_is_linear(neuron: sc.Neuron) -> None:
    """Of neurons without a reset, with one state and with two: the filter has the kernel of both."""
    net = layer(neuron)
    x, targets = batch()
    check(gradients(net, x, targets, rule="ottt", chunk=4), through_time(net, x, targets))


# -- pp_prop


def test_pp_prop_is_exact_for_biases_and_where_samples_and_neurons_share_a_transition() -> None:
    """A leak without a reset is one transition for all, and a bias has an input that is the same at all steps."""
    x, targets = batch()
    leaky = layer(sc.LI(3.0))
    check(gradients(leaky, x, targets, rule="pp_prop", chunk=4), through_time(leaky, x, targets))
    spiking = layer(sc.ALIF())
    got, want = gradients(spiking, x, targets, rule="pp_prop", chunk=4), through_time(spiking, x, targets)
    check({"bias": got["linears.0.bias"]}, {"bias": want["linears.0.bias"]})
    assert difference(got["linears.0.weight"], want["linears.0.weight"]) > 1e-3


def trained(rule: str = "pp_prop") -> Tuple[nn.Module, Tensor, Tensor, Callable[..., Tensor]]:
    """A network of convolution, normalisation, pooling and linear layers that tells where in time a bar moves."""
    torch.manual_seed(0)
    steps, count = 10, 24
    net = nn.Sequential(
        sc.layers.TimeBatched(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6)),
        sc.LIF(3.0, surrogate=sc.surrogate.ATan(1.0)),
        sc.layers.TimeBatched(nn.AvgPool2d(2), nn.Flatten()),
        nn.Linear(6 * 16, 24),
        sc.ALIF(3.0, surrogate=sc.surrogate.ATan(1.0)),
        nn.Linear(24, 2),
    )
    labels = torch.arange(count) % 2
    x = torch.zeros(steps, count, 1, 8, 8)
    for n in range(count):
        for t in range(steps):
            x[t, n, 0, :, (n + (t if labels[n] else -t)) % 8] = 2.0

    def loss(y: Tensor, labels: Tensor) -> Tensor:
        return sum(nn.functional.cross_entropy(out, labels) for out in y) / steps  # type: ignore[return-value]

    with torch.no_grad():
        net(x)  # moments for the normalisation
    net[0].module[1].eval()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    step = sc.training_model(net, loss, optimizer, options=sc.OnlineOptions(rule=rule, chunk=5))
    for _ in range(40):
        outputs, _ = step(x, labels)
    assert (outputs.mean(0).argmax(1) == labels).double().mean() > 0.8
    return net, x, labels, loss


@pytest.mark.slow
def test_pp_prop_points_where_backpropagation_does_in_every_layer_of_a_trained_network() -> None:
    """The cosine of the gradient of each parameter, by one step at a time."""
    net, x, labels, loss = trained()
    want = through_time(net, x, labels, loss)
    options = sc.OnlineOptions(rule="pp_prop", chunk=1)
    sc.training_model(net, loss, torch.optim.SGD(net.parameters(), lr=0.0), options=options)(x, labels)
    cosines = {
        name: torch.cosine_similarity(p.grad.flatten(), want[name].flatten(), dim=0).item()
        for name, p in net.named_parameters()
    }
    assert min(cosines.values()) > 0.8, cosines
