"""``gradient="spike_time"``: the spikes stay, and the gradient is that of their times (EventProp)."""

from __future__ import annotations

import copy
import math
import pickle
from functools import partial
from typing import List, NamedTuple, Tuple

import numpy as np
import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
from spikecore import losses

THRESHOLD = 1.0


class Cell(NamedTuple):
    """Time constants of current and potential, in units of time."""

    tau_s: float
    tau_m: float


class Event(NamedTuple):
    """A spike: its time, which neuron fired, and the derivative of the time by all weights."""

    time: float
    source: int
    gradient: np.ndarray


class _State(NamedTuple):
    """Current and potential, and their total derivatives at a time that may itself move."""

    i: float
    v: float
    di: np.ndarray
    dv: np.ndarray


def _flow(cell: Cell, i: float, v: float, duration):
    decay, leak = np.exp(-duration / cell.tau_s), np.exp(-duration / cell.tau_m)
    share = cell.tau_s / (cell.tau_s - cell.tau_m)
    return i * decay, v * leak + i * share * (decay - leak)


def _crossing(cell: Cell, state: _State, duration: float):
    """Time until the potential is at the threshold, None if it stays below for ``duration``."""
    grid = np.linspace(0.0, duration, 201)
    above = np.nonzero(_flow(cell, state.i, state.v, grid)[1] >= THRESHOLD)[0]
    if not len(above):
        return None
    low, high = grid[max(above[0] - 1, 0)], grid[above[0]]
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if _flow(cell, state.i, state.v, middle)[1] >= THRESHOLD else (middle, high)
    return high


def _advance(cell: Cell, state: _State, duration: float, moved) -> Tuple[_State, np.ndarray]:
    """The state after ``duration``, whose end moves by ``moved``, None for a crossing; and by how much it moves."""
    decay, leak = np.exp(-duration / cell.tau_s), np.exp(-duration / cell.tau_m)
    share = cell.tau_s / (cell.tau_s - cell.tau_m)
    i, v = _flow(cell, state.i, state.v, duration)
    di, dv = state.di * decay, state.dv * leak + state.di * share * (decay - leak)
    slope_i, slope_v = -i / cell.tau_s, (i - v) / cell.tau_m
    moved = -dv / slope_v if moved is None else moved
    return _State(i, v, di + slope_i * moved, dv + slope_v * moved), moved


def _neuron(cell: Cell, events: List[Event], weights, gradients, end: float, number: int) -> List[Event]:
    """The spikes of one neuron. ``weights [I]``, ``gradients [I, P]``: their derivatives by all weights."""
    nothing = np.zeros(gradients.shape[-1])
    state, now, moved, fired = _State(0.0, 0.0, nothing, nothing), 0.0, nothing, []
    for event in [*sorted(events, key=lambda each: each.time), Event(end, -1, nothing)]:
        while True:
            duration = _crossing(cell, state, event.time - now)
            if duration is None:
                break
            state, by = _advance(cell, state, duration, None)
            state, now, moved = state._replace(v=0.0, dv=nothing), now + duration, moved + by
            fired.append(Event(now, number, moved))
        state, _ = _advance(cell, state, event.time - now, event.gradient - moved)
        now, moved = event.time, event.gradient
        if event.source >= 0:
            i = state.i + weights[event.source]
            state = state._replace(i=i, di=state.di + gradients[event.source])
    return fired


def network(cell: Cell, spikes: List[Tuple[float, int]], layers: List[np.ndarray], end: float) -> List[List[Event]]:
    """The spikes of every layer, given ``(time, source)`` of those of the input, and weights ``[J, I]``."""
    sizes = [weights.size for weights in layers]
    count = sum(sizes)
    events = [Event(time, source, np.zeros(count)) for time, source in spikes]
    result = []
    for k, weights in enumerate(layers):
        gradients = np.zeros((weights.size, count))
        gradients[:, sum(sizes[:k]) : sum(sizes[: k + 1])] = np.eye(weights.size)
        gradients = gradients.reshape(*weights.shape, count)
        neurons = [_neuron(cell, events, weights[j], gradients[j], end, j) for j in range(len(weights))]
        events = [event for fired in neurons for event in fired]
        result.append(events)
    return result


def first_spikes(events: List[Event], neurons: int) -> List[Event]:
    """The first spike of each neuron, of those that have one."""
    by_time = sorted(events, key=lambda each: each.time, reverse=True)
    first = {event.source: event for event in by_time}
    return [first[j] for j in range(neurons) if j in first]


CELL, END = Cell(tau_s=5.0, tau_m=10.0), 40.0
#: Models whose equations do not have one spike, as their first output, or that take more than one number.
_OTHERS = {"Alpha", "CobaLIF", "DHLIF", "ILIF", "Lapicque", "LI", "Leaky", "SynapticLeaky", "TernaryLIF"}
ONE_SPIKE = sorted(set(sc.neurons.MODELS) - _OTHERS)


def exact(dt, **options):
    """``sc.Synaptic`` with the propagators of :data:`CELL` for a time step, and the factor of its input."""
    alpha, beta = math.exp(-dt / CELL.tau_s), math.exp(-dt / CELL.tau_m)
    share = CELL.tau_s / (CELL.tau_s - CELL.tau_m)
    return sc.Synaptic(alpha, beta, gradient="spike_time", **options), share * (alpha - beta)


def task(seed, hidden=12, inputs=10):
    """Input spikes of two per channel, and the weights of two layers in which hidden neurons fire more than once."""
    drawn = np.random.default_rng(seed)
    spikes = [(float(time), source) for source in range(inputs) for time in drawn.uniform(0.5, 15.0, 2)]
    return spikes, [drawn.normal(0.7, 0.7, (hidden, inputs)), drawn.normal(0.6, 0.7, (3, hidden))]


def in_steps(spikes, inputs, dt):
    """The input spikes as ``[T, 1, inputs]``."""
    x = torch.zeros(round(END / dt), 1, inputs, dtype=torch.float64)
    for time, source in spikes:
        x[math.ceil(time / dt), 0, source] += 1.0
    return x


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


class TestAgainstEvents:
    """Two layers, all spikes of all neurons, and the loss of first spikes."""

    @pytest.mark.parametrize(("seed", "reset"), [(1, "hard"), (3, "soft")])
    def test_gradient_is_that_of_the_event_driven_network(self, seed, reset):
        """Of the loss of first spikes by all weights, in direction and size, at a 1000th of a time constant."""
        dt, tau, target = 0.005, 2.0, 1
        spikes, layers = task(seed)
        hidden, out = network(CELL, spikes, layers, END)
        first = first_spikes(out, 3)
        assert len(first) == 3
        assert len(hidden) > len(layers[0])
        odds = np.exp([-event.time / tau for event in first])
        weighed = (np.arange(3) == target) - odds / odds.sum()
        expected = sum(w / tau * event.gradient for w, event in zip(weighed, first))
        weights = [torch.tensor(layer, requires_grad=True) for layer in layers]
        y = in_steps(spikes, 10, dt)
        for weight in weights:
            neuron, scale = exact(dt, reset=reset)
            y = neuron(scale * (y @ weight.T))
        losses.first_spike(y, torch.tensor([target]), tau=tau / dt).backward()
        n = layers[0].size
        found = np.concatenate([weight.grad.numpy().ravel() for weight in weights])
        for part in (slice(0, n), slice(n, None)):
            assert cosine(found[part], expected[part]) > 0.9999
            assert np.linalg.norm(found[part]) == pytest.approx(np.linalg.norm(expected[part]), rel=0.005)

    def test_smaller_steps_come_nearer(self):
        """The error of the direction shrinks by more than ten times from a 10th to a 500th of a time constant."""
        spikes, layers = task(1)
        first = first_spikes(network(CELL, spikes, layers, END)[1], 3)
        expected = sum(event.gradient for event in first)
        distances = []
        for dt in (0.5, 0.01):
            weights = [torch.tensor(layer, requires_grad=True) for layer in layers]
            y = in_steps(spikes, 10, dt)
            for weight in weights:
                neuron, scale = exact(dt)
                y = neuron(scale * (y @ weight.T))
            step = torch.arange(len(y), dtype=y.dtype)[:, None, None]
            at = step == torch.where(y.detach() != 0, step, float(len(y))).amin(0)
            (-(y * at)).sum().backward()
            distances.append(1.0 - cosine(np.concatenate([w.grad.numpy().ravel() for w in weights]), expected))
        assert distances[1] < distances[0] / 10


class TestValues:
    @pytest.mark.parametrize("name", ONE_SPIKE)
    def test_spikes_and_states_stay(self, name):
        """Bit for bit those of the surrogate, for every model with one spike."""
        x = 20.0 * torch.rand(30, 3, 6, generator=torch.Generator().manual_seed(0))
        plain, timed = sc.neurons.example(name), sc.neurons.example(name, gradient="spike_time")
        y, end = plain.run(x)
        ours, its_end = timed.run(x)
        assert torch.equal(ours, y)
        assert y.sum() > 0
        assert all(torch.equal(its_end[state], value) for state, value in end.items())
        assert not its_end["time_shift"].any()

    def test_only_a_crossing_that_is_seen_has_a_derivative(self):
        """None in the first step and in the second of two steps with a spike; ``-1 / rise`` in the others."""
        neuron = sc.IF(gradient="spike_time")
        x = torch.tensor([[1.5], [0.4], [0.9], [1.2], [0.7], [0.7], [0.1]], dtype=torch.float64, requires_grad=True)
        y = neuron(x)
        assert y.flatten().tolist() == [1, 0, 1, 1, 0, 1, 0]
        # of the sum of the steps at which there are spikes, each step later counts 1
        (y * torch.arange(7.0, dtype=torch.float64)[:, None]).sum().backward()
        # dt/dh of the spike at step 2, which the potentials of steps 1 and 2 make, and of that at step 5
        first, second = -1 / (1.3 - 0.4), -1 / (1.4 - 0.7)
        # the spike at step 2 a step later resets away the input of step 3 in the place of that of step 2: no effect on
        # what comes after step 3, whose spike has no derivative
        assert x.grad.flatten().tolist() == pytest.approx([0, first, first, 0, second, second, 0])

    def test_strict_spikes_cross_above_0(self):
        class Strict(sc.LIF):
            def dynamics(self, x, s, p):
                h = s.v + x
                z = self.spike(h - p.threshold, strict=True)
                return z, {"v": self.after_spike(h, z, p)}

        x = torch.tensor([[1.0], [0.5]], dtype=torch.float64, requires_grad=True)
        y = Strict(gradient="spike_time")(x)
        assert y.flatten().tolist() == [0, 1]
        (-y[1]).sum().backward()
        assert x.grad.flatten().tolist() == [-2.0, -2.0]


class TestOption:
    def test_states_follow_the_option(self):
        """Two more states while it is on; copies and pickles have them, and a carried sequence is one call."""
        x = 2.0 * torch.rand(20, 2, 5, generator=torch.Generator().manual_seed(1))
        neuron = sc.LIF()
        assert tuple(neuron.states) == ("v",)
        neuron.gradient = "spike_time"
        assert tuple(neuron.states) == ("v", "time_shift", "last_u")
        whole = neuron(x)
        for same in (copy.deepcopy(neuron), pickle.loads(pickle.dumps(neuron))):
            with sc.carry_state(same):
                assert torch.equal(torch.cat([same(x[:7]), same(x[7:])]), whole)
        neuron.gradient = "surrogate"
        assert tuple(neuron.states) == ("v",)
        assert neuron.program == sc.LIF().program

    def test_names_that_a_neuron_uses_are_left_to_it(self):
        class Shifted(sc.Neuron):
            states = {"time_shift": 0.0}
            params = {"last_u": 1.0}

            def dynamics(self, x, s, p):
                h = s.time_shift + x
                z = self.spike(h - p.last_u)
                return z, {"time_shift": sc.ops.select(z, 0.0, h)}

        neuron = Shifted(gradient="spike_time")
        assert tuple(neuron.states) == ("time_shift", "time_shift_", "last_u_")
        x = torch.rand(9, 4)
        assert torch.equal(neuron(x), Shifted()(x))

    def test_parameters_learn(self):
        """The derivative by a threshold is that by an input of the other sign, in the step of the crossing."""
        neuron = sc.IF(gradient="spike_time", learn=("threshold",))
        x = torch.full((4, 1), 0.4)
        y = neuron(x)
        (-y[2]).sum().backward()
        assert neuron.threshold.grad.item() == pytest.approx(1 / 0.4)

    def test_a_network_trains(self):
        """Two classes that differ in which half of the inputs comes first: after training, first spikes tell them."""
        torch.manual_seed(0)
        times = torch.tensor([[5.0] * 4 + [20.0] * 4, [20.0] * 4 + [5.0] * 4])
        x = torch.stack([(torch.arange(80.0)[:, None] == row).double() for row in times], 1)
        net = nn.Sequential(
            nn.Linear(8, 10, bias=False), sc.Synaptic(0.9, 0.95, gradient="spike_time"),
            nn.Linear(10, 2, bias=False), sc.Synaptic(0.9, 0.95, gradient="spike_time"),
        ).double()  # fmt: skip
        for layer in (net[0], net[2]):
            nn.init.uniform_(layer.weight, 0.0, 0.3)
        loss = partial(losses.first_spike, tau=4.0)
        step = sc.training_model(net, loss, torch.optim.Adam(net.parameters(), 5e-3))
        y = torch.tensor([0, 1])
        before = step(x, y)[1].item()
        for _ in range(60):
            outputs, after = step(x, y)
        assert after.item() < before / 2
        assert sc.metrics.accuracy(outputs, y, by="first_spike") == 1.0


test_refused = refusals.table(__file__, globals())
