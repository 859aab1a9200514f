"""What each online rule computes, against backpropagation through time and loops over the papers' equations."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore import neurons
from spikecore.testing.random_programs._draw import drawn, programs

T, B, I, J, K = 21, 3, 6, 5, 4  # noqa: E741  # the field's names
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


def moving_bars() -> Tuple[nn.Module, Tensor, Tensor, Callable[..., Tensor]]:
    """A network of convolution, normalisation, pooling and linear layers, and bars that move to one side or another."""
    torch.manual_seed(0)
    net = nn.Sequential(
        sc.layers.TimeBatched(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6)),
        sc.LIF(3.0),
        sc.layers.TimeBatched(nn.AvgPool2d(2), nn.Flatten()),
        nn.Linear(6 * 16, 24),
        sc.ALIF(3.0),
        nn.Linear(24, 2),
    )
    labels, x = torch.arange(32) // 8 % 2, torch.zeros(10, 32, 1, 8, 8)
    for n, label in enumerate(labels):
        for t in range(10):
            x[t, n, 0, :, (n + (t if label else -t)) % 8] = 4.0

    def loss(y: Tensor, labels: Tensor) -> Tensor:
        return sum(nn.functional.cross_entropy(out, labels) for out in y)  # type: ignore[return-value]

    with torch.no_grad():
        for _ in range(20):  # moments for the normalisation
            net(x)
    net[0].module[1].eval()
    return net, x, labels, loss


@pytest.mark.slow
def test_pp_prop_points_where_backpropagation_does_in_every_layer_of_a_trained_network() -> None:
    """It trains the network, and the cosine of each parameter's gradient is high, the higher the longer a chunk."""
    net, x, labels, loss = moving_bars()
    step = sc.training_model(
        net, loss, torch.optim.Adam(net.parameters(), lr=1e-2), options=sc.OnlineOptions(rule="pp_prop", chunk=2)
    )
    for _ in range(60):
        outputs, _ = step(x, labels)
    assert (outputs.mean(0).argmax(1) == labels).double().mean() > 0.9
    want = through_time(net, x, labels, loss)
    for chunk, least in ((1, 0.5), (5, 0.9)):
        step = sc.training_model(
            net, loss, torch.optim.SGD(net.parameters(), lr=0.0), options=sc.OnlineOptions(rule="pp_prop", chunk=chunk)
        )
        step(x, labels)
        cosines = {
            name: torch.cosine_similarity(p.grad.flatten(), want[name].flatten(), dim=0).item()
            for name, p in net.named_parameters()
        }
        assert min(cosines.values()) > least, (chunk, cosines)


# -- networks


def filtered(layer: nn.Module, u: Tensor, trace: Tensor, weight: float) -> Tensor:
    """``layer(u)``, whose weights have the gradient at the mean of earlier inputs, times the sum of their shares."""
    frozen = torch.func.functional_call(layer, {name: p.detach() for name, p in layer.named_parameters()}, (u,))
    live = weight * layer((trace / weight).detach())
    return frozen + live - live.detach()


def ottt_by_steps(net: Callable[..., Tensor], layers: List[nn.Module], leak: float, x: Tensor, loss: Any) -> None:
    """The equations of OTTT by autograd within each step: ``net`` gets one step, a function that applies a layer, and
    one that applies LIF with a soft reset, number k of its kind.
    """
    traces: Dict[nn.Module, Tensor] = {}
    potentials: Dict[int, Tensor] = {}
    weight = 0.0
    for t, x_t in enumerate(x):
        weight = leak * weight + 1.0

        def apply(layer: nn.Module, u: Tensor, weight: float = weight) -> Tensor:
            traces[layer] = leak * traces.get(layer, torch.zeros_like(u)) + u.detach()
            return filtered(layer, u, traces[layer], weight)

        def fire(k: int, current: Tensor) -> Tensor:
            h = leak * potentials.get(k, torch.zeros_like(current)) + current
            z = sc.ops.spike(h - 1.0, sc.surrogate.ATan(2.0))
            potentials[k] = (h - z).detach()
            return z

        loss(t, net(x_t, apply, fire)).backward()


TAU = 3.0


def lif() -> sc.Neuron:
    """The neuron of :func:`ottt_by_steps`."""
    return sc.LIF(TAU, decay_input=False, reset="soft")


@pytest.mark.parametrize("chunk", [1, 4])
def test_ottt_of_a_convolutional_network_with_running_statistics(chunk: int) -> None:
    """Convolutions, the weights of normalisations, a pooling between, a residual sum, and a read-out."""
    torch.manual_seed(5)
    conv1, norm1 = nn.Conv2d(2, 4, 3, padding=1).double(), nn.BatchNorm2d(4).double().eval()
    conv2, norm2, out = (
        nn.Conv2d(4, 4, 3, padding=1).double(),
        nn.BatchNorm2d(4).double().eval(),
        nn.Linear(16, K).double(),
    )
    for norm in (norm1, norm2):
        norm.running_mean.normal_(), norm.running_var.uniform_(0.2, 0.5), nn.init.normal_(norm.weight, 1.0, 0.3)
    folded = sc.layers.TimeBatched

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.lif = folded(conv1, norm1), lif()
            self.pool, self.second, self.lif2, self.flat, self.out = (
                folded(nn.AvgPool2d(2)),
                folded(conv2, norm2),
                lif(),
                folded(nn.Flatten()),
                out,
            )

        def forward(self, x: Tensor) -> Tensor:
            y = self.pool(self.lif(self.first(x)))
            return self.out(self.flat(self.lif2(self.second(y) + y)))

    net = Residual()
    x = (torch.rand(8, B, 2, 4, 4) < 0.5).double()
    targets = torch.randn(8, B, K, dtype=torch.float64)

    def by_step(x: Tensor, apply: Any, fire: Any) -> Tensor:
        y = nn.functional.avg_pool2d(fire(0, apply(norm1, apply(conv1, x))), 2)
        z = fire(1, apply(norm2, apply(conv2, y)) + y)
        return out(z.flatten(1))

    got = gradients(net, x, targets, squares, rule="ottt", chunk=chunk)
    net.zero_grad()
    ottt_by_steps(by_step, [], 1 - 1 / TAU, x, lambda t, y: squares(y, targets[t]))
    check(got, {name: p.grad for name, p in net.named_parameters()})


class Attention(nn.Module):
    """Spikes of queries, keys and values, whose products drive a neuron, as in a spiking transformer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.q, self.k, self.v, self.out = nn.Linear(I, J), nn.Linear(I, J), nn.Linear(I, J), nn.Linear(J, K)
        self.lifs = nn.ModuleList(lif() for _ in range(4))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, N, I] -> [T, B, N, K]``."""
        return self.step(x, lambda layer, u: layer(u), lambda k, current: self.lifs[k](current))

    def step(self, x: Tensor, apply: Any, fire: Any) -> Tensor:
        """The same of one step or of all."""
        q, k, v = (fire(n, apply(layer, x)) for n, layer in enumerate((self.q, self.k, self.v)))
        return self.out(fire(3, 0.5 * (q @ k.transpose(-1, -2) @ v)))


@pytest.mark.parametrize("chunk", [1, 4])
def test_ottt_through_the_products_of_attention(chunk: int) -> None:
    """Products of spikes are space, through which errors go; tokens have no trace of their own."""
    net = Attention()
    x = (torch.rand(8, B, 3, I) < 0.5).double()
    targets = torch.randn(8, B, 3, K, dtype=torch.float64)
    got = gradients(net, x, targets, squares, rule="ottt", chunk=chunk)
    net.zero_grad()
    ottt_by_steps(net.step, [], 1 - 1 / TAU, x, lambda t, y: squares(y, targets[t]))
    check(got, {name: p.grad for name, p in net.named_parameters()})


@pytest.mark.parametrize("rule", ["d_rtrl", "pp_prop"])
@pytest.mark.parametrize("name", ["two_layers", "attention", "convolutions"])
def test_one_chunk_is_backpropagation_through_time(name: str, rule: str) -> None:
    """With all steps in one chunk nothing is owed; with several, a network has what each layer owes, and no more."""
    if name == "convolutions":
        net, x, targets, loss = moving_bars()
        net, x = net.double(), x.double()
        if rule == "d_rtrl":
            pytest.skip("a convolution has no trace for each weight")
    else:
        net, loss = (two_layers(), squares) if name == "two_layers" else (Attention(), squares)
        x = (
            torch.rand(T, B, *([3] if name == "attention" else []), I, generator=torch.Generator().manual_seed(1)) < 0.5
        ).double() * 2
        targets = torch.randn(*x.shape[:-1], K, dtype=torch.float64)
    options = {} if name == "convolutions" else {"time_targets": True}

    def learnt(chunk: int) -> Dict[str, Tensor]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        step = sc.training_model(net, loss, optimizer, options=sc.OnlineOptions(rule=rule, chunk=chunk, **options))
        step(x, targets)
        return {name: p.grad.clone() for name, p in net.named_parameters()}

    want = through_time(net, x, targets, loss)
    check(learnt(len(x)), want)
    first = next(iter(want))
    assert 1e-6 < difference(learnt(1)[first], want[first]) < 1.0
