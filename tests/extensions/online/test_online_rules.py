"""Results of each online rule, against backpropagation through time and loops over the papers' equations."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import spikecore as sc
from online_rules import (
    B,
    I,
    J,
    K,
    T,
    alif_by_hand,
    batch,
    check,
    difference,
    eprop_by_hand,
    gradients,
    layer,
    read_out_of_lif,
    recurrent,
    recurrent_alif,
    slope,
    squares,
    step_of,
    through_time,
)
from spikecore import neurons
from spikecore.testing.drawing import drawn, programs

CHUNKS = pytest.mark.parametrize("chunk", [1, 7, T])

# -- d_rtrl: the gradient of backpropagation through time


@CHUNKS
@pytest.mark.parametrize("name", [name for name in sorted(neurons.MODELS) if not neurons.example(name).vectors])
def test_d_rtrl_of_a_neuron_is_backpropagation_through_time(name: str, chunk: int) -> None:
    """For one layer of every neuron of the gallery, weights, biases and the neuron's own parameters, at any chunk."""
    plain = neurons.example(name)
    net = layer(neurons.example(name, learn=[p for p in plain.program.params if p in plain.params]))
    x, targets = batch()
    check(gradients(net, x, targets, rule="d_rtrl", chunk=chunk), through_time(net, x, targets))


class Late(sc.Neuron):
    """An output of the state before the step, so that an input reaches no output of a chunk of one step."""

    states = {"v": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return s.v * s.v, {"v": 0.5 * s.v + x}


class Fixed(sc.Neuron):
    """The next value of a state is a number, and another state reads it."""

    states = {"a": 0.0, "b": 1.0}
    params = {"tau": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        a = 0.5 * s.a + s.b + x
        return self.spike(a - 1.0), {"a": a, "b": 0.5 * p.tau}


@CHUNKS
def test_a_state_whose_next_value_is_a_number_has_no_trace(chunk: int) -> None:
    """Others that read it go on."""
    net, (x, (weight,)) = layer(Fixed(backend="torch")), batch()
    check(gradients(net, x, (weight,), rule="d_rtrl", chunk=chunk), through_time(net, x, (weight,)))


@CHUNKS
def test_an_input_that_reaches_a_state_alone_has_a_trace(chunk: int) -> None:
    net = layer(Late(backend="torch"))
    x, targets = batch()
    check(gradients(net, x, targets, rule="d_rtrl", chunk=chunk), through_time(net, x, targets))


def of_states(net: Any, x: Tensor) -> Dict[str, Tensor]:
    """The gradients of the sum of all states at all steps: traces have those that the loss does not depend on, too."""
    net.zero_grad()
    if not net.neuron.states:
        return {}
    _, _, trace = net.neuron.run(*(0.25 * linear(x) for linear in net.linears), record=tuple(net.neuron.states))
    total = sum(value.sum() for value in trace.values())
    if isinstance(total, Tensor) and total.requires_grad:
        total.backward()
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.slow
def test_d_rtrl_of_random_programs() -> None:
    """200 drawn neurons, of several inputs, states and outputs, whose gradients through time are finite."""
    checked = moved = 0
    for program in drawn(programs(lambda name: True), 240, 7):
        model = program.model()
        net = layer(model.neuron(surrogate=model.surrogate.library()), 0.25)
        x, (weight,) = batch()
        targets = (weight,) * len(program.outputs)
        every = of_states(net, x)
        want = through_time(net, x, targets)
        if checked == 200 or not all(bool(g.isfinite().all()) for g in (*every.values(), *want.values())):
            continue
        checked += 1
        moved += any(bool(gradient.any()) for gradient in want.values())
        for chunk in (1, 7, T):
            check(gradients(net, x, targets, rule="d_rtrl", chunk=chunk), want)
    assert checked == 200
    assert moved > 100


def test_parameters_of_a_channel_have_their_own_gradients() -> None:
    """A time constant for each channel, and one for all."""
    for tau in (torch.rand(J, generator=torch.Generator().manual_seed(3)) + 1.5, torch.tensor(2.5)):
        net = layer(sc.LIF(tau, learn=("tau", "threshold")))
        x, targets = batch()
        for rule in ("d_rtrl", "pp_prop", "sltt", "eprop"):
            got, want = gradients(net, x, targets, rule=rule, chunk=4), through_time(net, x, targets)
            check({"tau": got["neuron.tau"]}, {"tau": want["neuron.tau"]})
            check({"threshold": got["neuron.threshold"]}, {"threshold": want["neuron.threshold"]})


@CHUNKS
def test_d_rtrl_of_a_recurrent_layer_is_a_recursion_by_hand(chunk: int) -> None:
    """With a learnt parameter, and with the weights that feed back."""
    net, (x, (target,)) = recurrent_alif(), batch()
    check(gradients(net, x, (target,), rule="d_rtrl", chunk=chunk), alif_by_hand(net, x, target))


# -- the equations of the papers


@CHUNKS
@pytest.mark.parametrize("feedback", ["exact", "random"])
def test_eprop_is_that_of_bellec_et_al(chunk: int, feedback: str) -> None:
    """With the read-out's own weights for learning signals, and with random ones."""
    net, (x, _) = read_out_of_lif(), batch()
    targets = torch.randn(T, B, K, dtype=torch.float64)
    step = step_of(net, squares, rule="eprop", chunk=chunk, feedback=feedback)
    step(x, targets)
    signals = None if feedback == "exact" else step.state_dict()["online"]["feedback"]["1/0"]
    check({name: p.grad for name, p in net.named_parameters()}, eprop_by_hand(net, x, targets, signals))


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


class Resonator(sc.Neuron):
    """A potential that oscillates, so that inputs of earlier steps count with both signs."""

    states = {"a": 0.0, "b": 0.0}
    params = {"stay": 0.1, "turn": 0.95}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """A damped rotation."""
        a = p.stay * s.a - p.turn * s.b + x
        return a, {"a": a, "b": p.turn * s.a + p.stay * s.b}


@pytest.mark.parametrize(
    "neuron",
    [
        Resonator(),
        sc.LI(3.0),
        sc.LIF(3.0, reset="none"),
        sc.Synaptic(0.6, 0.8, reset="none"),
        sc.LIF(1.0, reset="none"),
    ],
)
def test_ottt_is_exact_where_the_transition_is_linear(neuron: sc.Neuron) -> None:
    """Of neurons without a reset, with one state and with two: the filter has the kernel of both."""
    net = layer(neuron)
    x, targets = batch()
    check(gradients(net, x, targets, rule="ottt", chunk=4), through_time(net, x, targets))


class Magnitude(nn.Module):
    """Weights of one sign, some of them not there, with a scale that is learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.2))

    def forward(self, weight: Tensor) -> Tensor:
        """The weights that the layer computes with."""
        return self.scale * weight.abs() * (torch.arange(weight.shape[1]) % 3 > 0)


class Above(nn.Module):
    """A time constant above 1."""

    def forward(self, raw: Tensor) -> Tensor:
        """The time constant."""
        return 1.0 + nn.functional.softplus(raw)


def signed(layer: nn.Linear) -> nn.Module:
    """A layer of :class:`Magnitude`."""
    return parametrize.register_parametrization(layer, "weight", Magnitude())


def leaky() -> sc.Neuron:
    """A neuron that e-prop trains exactly."""
    return sc.LIF(3.0, learn=("tau",), detach_reset=True)


class Forward(nn.Module):
    """Layers, a neuron, and a forward that is given."""

    def __init__(self, given: Callable[..., Tensor]) -> None:
        super().__init__()
        self.linear, self.other, self.out, self.neuron = nn.Linear(I, J), nn.Linear(I, J), nn.Linear(J, J), leaky()
        self.scale, self.given = nn.Parameter(torch.tensor(1.5)), given

    def forward(self, x: Tensor) -> Tensor:
        """Outputs for a sequence."""
        return self.given(self, x)


EXACT: Dict[str, Callable[[], nn.Module]] = {
    "a parametrised layer": lambda: nn.Sequential(signed(nn.Linear(I, J)), leaky()),
    "weight normalisation": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(I, J)), leaky()),
    "parametrised feedback": lambda: nn.Sequential(
        nn.Linear(I, J), sc.Recurrent(leaky(), signed(nn.Linear(J, J)), detach=True)
    ),
    "a parametrised neuron": lambda: nn.Sequential(
        nn.Linear(I, J), parametrize.register_parametrization(leaky(), "tau", Above())
    ),
    "a value that is read twice": lambda: Forward(lambda net, x: (lambda h: net.neuron(h) + h)(net.linear(x))),
    "a sum": lambda: Forward(lambda net, x: net.neuron(net.linear(x).tanh() + net.other(x))),
    "functions behind the neuron": lambda: Forward(
        lambda net, x: net.scale * nn.functional.linear(net.neuron(net.linear(x)), net.out.weight)
    ),
    "a layer that is called twice behind it": lambda: Forward(
        lambda net, x: net.out(net.out(net.neuron(net.linear(x))))
    ),
}


@pytest.mark.parametrize("rule", ["d_rtrl", "eprop"])
@pytest.mark.parametrize("name", EXACT)
def test_one_layer_is_backpropagation_through_time_in_any_network(name: str, rule: str) -> None:
    """Where weights and time constants are computed, and what stands behind the neuron is no matter of traces."""
    torch.manual_seed(0)
    net, (x, targets) = EXACT[name]().double(), batch()
    want = through_time(net, x, targets, in_one)
    for chunk in (1, 4):
        check(gradients(net, x, targets, in_one, rule=rule, chunk=chunk), want, 1e-10)


@pytest.mark.parametrize("tau", [5.0, torch.tensor([2.0, 3.0, 5.0, 20.0]), torch.full((K,), 5.0)])
def test_eprop_has_the_memory_of_each_neuron_of_the_read_out(tau: Any) -> None:
    """Of one time constant, of one for each, and of equal ones: backpropagation's gradient of the layers below."""
    torch.manual_seed(0)
    read_out = sc.LI(tau, learn=("tau",))
    net: Any = nn.Sequential(nn.Linear(I, J), leaky(), nn.Linear(J, K), read_out).double()
    x, targets = batch()[0], torch.randn(T, B, K, dtype=torch.float64)
    want = through_time(net, x, targets, lambda y, targets: (y * targets).sum())
    for chunk in (1, 5):
        got = gradients(net, x, targets, lambda y, targets: (y * targets).sum(), rule="eprop", chunk=chunk)
        check({name: got[name] for name in want if name != "1.tau"}, {n: g for n, g in want.items() if n != "1.tau"})


@pytest.mark.parametrize("rule", ["d_rtrl", "sltt"])
def test_a_loss_of_a_neuron_s_parameter_counts(rule: str) -> None:
    """A penalty in the loss, of each chunk."""
    net, (x, targets) = nn.Sequential(nn.Linear(I, J), leaky()).double(), batch()
    want = gradients(net, x, targets, in_one, rule=rule, chunk=T)["1.tau"]
    got = gradients(net, x, targets, lambda y, t: in_one(y, t) + 2.0 * net[1].tau.sum(), rule=rule, chunk=T)["1.tau"]
    torch.testing.assert_close(got, want + 2.0)


def in_one(y: Tensor, targets: Any) -> Tensor:
    """A number for each output."""
    return (y * targets[0]).sum()


def test_weights_that_a_layer_shares_with_the_feedback_count_once() -> None:
    """Their gradient is the sum of those of two layers with equal weights."""
    apart = nn.Sequential(nn.Linear(J, J), sc.Recurrent(sc.LIF(3.0), nn.Linear(J, J), detach=True)).double()
    apart[1].linear.load_state_dict(apart[0].state_dict())
    x, targets = torch.randn(T, B, J).double(), (torch.randn(T, B, J).double(),)
    want = gradients(apart, x, targets, in_one, rule="d_rtrl", chunk=4)
    apart[1].linear.weight = apart[0].weight
    got = gradients(apart, x, targets, in_one, rule="d_rtrl", chunk=4)
    check({"weight": got["0.weight"]}, {"weight": want["0.weight"] + want["1.linear.weight"]})


class Product(sc.Neuron):
    """A leak of one input, charged by the square of the other."""

    inputs = ("a", "b")
    states = {"v": 0.0}
    params = {"decay": 0.7}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        """The new potential, which is the output."""
        v = p.decay * s.v + x.a + 0.5 * x.b * x.b
        return v, {"v": v}


class Second(nn.Module):
    """A layer whose output is the first input of a neuron; the second is computed from it."""

    def __init__(self, second: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.neuron, self.second = nn.Linear(I, J), Product(), second

    def forward(self, x: Tensor) -> Any:
        """Outputs of the neuron."""
        z = self.linear(x)
        return self.neuron(z, self.second(z))


@pytest.mark.parametrize("second", [lambda z: z, lambda z: 0.5 * z, torch.ones_like], ids=["same", "half", "constant"])
def test_inputs_of_a_neuron_may_depend_on_one_another_or_be_constant(second: Callable[[Tensor], Tensor]) -> None:
    """A gradient through two inputs counts each once, in every chunk."""
    net, (x, targets) = Second(second).double(), batch()
    check(gradients(net, x, targets, rule="d_rtrl", chunk=4), through_time(net, x, targets))


@pytest.mark.parametrize(
    ("second", "whole"),
    [
        (lambda z: torch.ones_like(z[:, 0, 0]), torch.ones_like),
        (lambda z: z.mean(-1, keepdim=True), lambda z: z.mean(-1, keepdim=True).expand_as(z)),
    ],
    ids=["[T]", "[T, B, 1]"],
)
@pytest.mark.parametrize("rule", ["d_rtrl", "pp_prop", "sltt", "bptt"])
def test_inputs_that_broadcast_are_those_of_each_neuron(second: Any, whole: Any, rule: str) -> None:
    net, same, (x, targets) = Second(second).double(), Second(whole).double(), batch()
    same.load_state_dict(net.state_dict())
    if rule == "d_rtrl" and second(torch.ones(T, B, J)).ndim > 1:
        with pytest.raises(sc.Unsupported, match="'linear' reaches 'neuron' through more than element-wise operations"):
            gradients(net, x, targets, rule=rule, chunk=4)
        return
    check(gradients(net, x, targets, rule=rule, chunk=4), gradients(same, x, targets, rule=rule, chunk=4))


def test_a_rule_is_that_of_the_step_whatever_the_layer_computed_before() -> None:
    """A recurrent layer that was trained through time, and by another rule, learns as a fresh one."""
    net, (x, targets) = recurrent(sc.LIF(3.0)), batch()
    want = gradients(copy.deepcopy(net), x, targets, rule="eprop", chunk=4)
    with sc.carry_state(net):
        net(x[:4]).sum().backward()
    sc.reset(net)
    gradients(net, x, targets, rule="d_rtrl", chunk=4)
    check(gradients(net, x, targets, rule="eprop", chunk=4), want)


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
    labels, x = torch.arange(16) // 8 % 2, torch.zeros(8, 16, 1, 8, 8)
    for n, label in enumerate(labels):
        for t in range(8):
            x[t, n, 0, :, (n + (t if label else -t)) % 8] = 4.0

    def loss(y: Tensor, labels: Tensor) -> Tensor:
        return sum(nn.functional.cross_entropy(out, labels) for out in y)  # type: ignore[return-value]

    with torch.no_grad():
        for _ in range(20):  # moments for the normalisation
            net(x)
    net[0].module[1].eval()
    return net, x, labels, loss


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


@pytest.mark.parametrize("rule", ["d_rtrl", "pp_prop", "ottt", "sltt"])
def test_a_weight_of_two_layers_gets_the_sum_of_both(rule: str) -> None:
    """The gradients of the one and of the other, with the same value, are added."""
    torch.manual_seed(0)
    first = nn.Linear(J, J)
    apart: Any = nn.Sequential(first, sc.LIF(), copy.deepcopy(first), sc.LIF()).double()
    tied = copy.deepcopy(apart)
    tied[2].weight = tied[0].weight
    x, (target,) = batch()
    x = 2.0 * x[..., :J]
    want = gradients(apart, x, (target,), rule=rule, chunk=4)
    got = gradients(tied, x, (target,), rule=rule, chunk=4)
    check({"0.weight": got["0.weight"]}, {"0.weight": want["0.weight"] + want["2.weight"]})


@pytest.mark.parametrize("rule", ["d_rtrl", "eprop", "pp_prop"])
@pytest.mark.parametrize("chunk", [1, 5])
def test_traces_under_autocast_are_of_full_precision(rule: str, chunk: int) -> None:
    """Layers compute in bfloat16; sums over steps do not."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(I, J), sc.LIF(4.0), nn.Linear(J, K), sc.LI(4.0))
    x, target = batch()[0].float(), (torch.randn(T, B, K),)
    step = step_of(net, rule=rule, chunk=chunk)
    want = gradients(net, x, target, rule=rule, chunk=chunk)
    with torch.autocast("cpu", dtype=torch.bfloat16), sc.carry_state(net):
        step(x, target)
        assert {trace.dtype for trace in step.traces.values()} == {torch.float32}
    got = {name: p.grad for name, p in net.named_parameters()}
    check({"0.weight": got["0.weight"]}, {"0.weight": want["0.weight"]}, 0.1)


@pytest.mark.parametrize("rule", ["d_rtrl", "eprop", "bptt"])
def test_values_recorded_for_a_loss_have_no_traces(rule: str) -> None:
    """Their gradient would leave out all earlier chunks: bptt takes them, and every rule a monitor without graphs."""
    net = nn.Sequential(nn.Linear(I, J), sc.LIF(4.0), nn.Linear(J, K), sc.LI(4.0)).double()
    x, target = batch()[0], (torch.randn(T, B, K, dtype=torch.float64),)
    with sc.record(net, "h"):
        if rule == "bptt":
            step_of(net, rule=rule, chunk=5)(x, target)
        else:
            with pytest.raises(sc.Unsupported, match="'1' for a loss, and the rule has no traces of recorded values"):
                step_of(net, rule=rule, chunk=5)(x, target)
    with sc.monitor(net):
        step_of(net, rule=rule, chunk=5)(x, target)
