"""Vectors: several values of a neuron under one name, wherever a state is; values and gradients are the suite's."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
from ready import needs_backend
from spikecore.lang import trace

T, B, C = 12, 3, 5


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Dendrite(sc.Neuron):
    """Branches and a gate, without a spike."""

    inputs = {"gate": None, "x": sc.vector(3)}
    states = {"d": sc.vector(3)}

    def dynamics(self, x, s, p):
        d = 0.5 * s.d + x.x
        return sc.ops.tanh(sc.ops.sum(d)) * x.gate, {"d": d}


def values_of(vectors, numbers, lead):
    """Values of vectors, ``[*lead, n]``, all different and above 0, and numbers."""
    made = {name: 0.5 + drawn(*lead, n, seed=k).abs() for k, (name, n) in enumerate(vectors.items())}
    return {**made, **{name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}}


class TestState:
    """Tensors ``[*N, n]``, wherever a state is."""

    def test_parts_single_steps_and_flat_states(self):
        """All are the one call; a carried state goes out of a network and back."""
        values = values_of({"rate": 16, "c": 16}, {}, (C,))
        x = 4 * drawn(T, B, C)
        whole, end = sc.SpikingSSM(**values).run(x)
        net = nn.Sequential(sc.SpikingSSM(**values))
        with sc.carry_state(net):
            first = net(x[:5])
            state = sc.get_state(net)
            rest = net(x[5:])
        assert {key: value.shape for key, value in state.items()} == {"0.s": (B, C, 16), "0.v": (B, C)}
        assert torch.equal(torch.cat([first, rest]), whole)
        single = sc.set_step(nn.Sequential(sc.SpikingSSM(**values)), "single")
        sc.set_state(single, state)
        assert torch.equal(torch.stack([single(x_t) for x_t in x[5:]]), rest)
        assert torch.equal(single[0].state["s"], end["s"])

    def test_a_monitor_and_a_normalisation_have_them(self):
        x = 4 * drawn(T, B, C)
        neuron = sc.SpikingSSM(n=2)
        with sc.monitor(neuron, record=("s",)) as seen:
            neuron(x)
        (layer,) = seen
        assert torch.equal(seen[layer].s, neuron.run(x, record=("s",))[2]["s"])
        fused = sc.layers.NormNeuron(nn.BatchNorm1d(C).double(), sc.SpikingSSM(n=2)).eval()
        normal = fused.norm(x.flatten(0, 1)).unflatten(0, (T, B))
        (out, end, trace_of), (want, want_end, want_trace) = (
            each.run(y, record=("s", "v")) for each, y in ((fused, x), (neuron, normal))
        )
        torch.testing.assert_close((out, end, trace_of), (want, want_end, want_trace))

    def test_feedback_around_a_vector(self):
        """One call and a loop over steps agree, in outputs, state and record."""
        linear, x = nn.Linear(C, C).double(), 4 * drawn(T, B, C)
        neuron = sc.SpikingSSM(n=3)
        layer = sc.Recurrent(neuron, linear)
        out, end, seen = layer.run(x, record=("s",))
        assert torch.equal(layer(x), out)
        state, last = None, x.new_zeros(B, C)
        for t, x_t in enumerate(x):
            step, state = neuron.run((x_t + linear(last)).unsqueeze(0), state=state)
            last = step[0]
            assert torch.equal(out[t], last)
            torch.testing.assert_close(seen["s"][t], state["s"])
        torch.testing.assert_close({name: end[name] for name in state}, state)

    @pytest.mark.parametrize("backend", ["torch", "numba"])
    def test_feedback_into_a_vector(self, backend):
        """Parts of what comes back are the values of a vector, then the gate: those of a loop by hand."""
        if backend == "numba":
            needs_backend("numba")
        torch.manual_seed(0)
        ways = [
            sc.layers.Feedback(nn.Linear(C, 3 * C), into="x"),
            sc.layers.Feedback(nn.Linear(C, 4 * C, bias=False), into=("x", "gate"), detach=True),
        ]
        layer = sc.Recurrent(Dendrite(backend=backend), ways, given=("x",), fused=True).double()
        x = drawn(T, B, C, 3).requires_grad_()
        out, end = layer.run(x)
        d, y, rows = torch.zeros(B, C, 3, dtype=x.dtype), torch.zeros(B, C, dtype=x.dtype), []
        for x_t in x:
            *parts, gate = ways[1].module(y.detach()).chunk(4, -1)
            d = 0.5 * d + x_t + torch.stack(ways[0].module(y).chunk(3, -1), -1) + torch.stack(parts, -1)
            y = torch.tanh(d.sum(-1)) * gate
            rows.append(y)
        torch.testing.assert_close(out, torch.stack(rows))
        torch.testing.assert_close((end["d"], end["feedback"]), (d, y))
        wanted = [x, *layer.parameters()]
        found = [torch.autograd.grad(y.square().sum(), wanted) for y in (out, torch.stack(rows))]
        torch.testing.assert_close(*found)
        with sc.carry_state(layer):
            torch.testing.assert_close(torch.cat([layer(x[:5]), layer(x[5:])]), out)
        with sc.monitor(layer, record=("d",)) as seen:
            layer(x)
        torch.testing.assert_close(seen[""].d[-1], d)
        layer.fused, layer.step = None, "single"
        sc.reset(layer)
        torch.testing.assert_close(torch.stack([layer(x_t) for x_t in x]), out)

    @pytest.mark.parametrize("form", ["alone", "state", "repeat", "feedback", "several", "looped", "normalised"])
    def test_a_named_value_beside_a_vector(self, form):
        """``h`` follows from the recorded vector and potential, in value and gradient, and is no state at the end."""
        neuron = sc.SpikingSSM(n=3, backend="torch", repeat=T if form == "repeat" else None)
        linear, x = nn.Linear(C, C).double(), (4 * drawn(B, C) if form == "repeat" else 4 * drawn(T, B, C))
        feedback = sc.layers.Feedback(linear)
        layers = {
            "feedback": lambda: sc.Recurrent(neuron, linear, fused=True),
            "several": lambda: sc.Recurrent(neuron, [feedback, feedback], fused=True),
            "looped": lambda: sc.Recurrent(neuron, linear, fused=False),
            "normalised": lambda: sc.layers.NormNeuron(nn.BatchNorm1d(C).double(), neuron, fused=True),
        }
        layer = layers.get(form, lambda: neuron)()
        state = {"s": drawn(B, C, 3, seed=1), "v": drawn(B, C, seed=2)} if form == "state" else None
        out, end, seen = layer.run(x.requires_grad_(), state=state, record=("h", "s", "v"))
        before = torch.cat([(state["v"] if state else torch.zeros(B, C)).unsqueeze(0), seen["v"][:-1]])
        h = before + (seen["s"].sum(-1) - before) / 2.0
        torch.testing.assert_close(seen["h"], h)
        assert torch.equal(seen["v"], torch.where(out > 0, 0.0, seen["h"]))
        assert {*end} - {"feedback"} == {"s", "v"}
        assert torch.equal(end["s"], seen["s"][-1])
        of_h, right = (torch.autograd.grad(each.sin().sum(), x, retain_graph=True)[0] for each in (seen["h"], h))
        torch.testing.assert_close(of_h, right)


class TestParameters:
    """Numbers, ``[n]`` and ``[C, n]``, by declaration."""

    def test_a_width_decides_nothing(self):
        """With as many channels as values, ``[n]`` is a value for each element and none for each channel."""
        values = values_of({"rate": C}, {}, ())
        x = 4 * drawn(T, B, C)
        wide = values["rate"].expand(C, C).contiguous()
        alone = sc.SpikingSSM(n=C, **values).run(x, record=("s",))[2]["s"]
        assert torch.equal(alone, sc.SpikingSSM(n=C, rate=wide).run(x, record=("s",))[2]["s"])
        assert not torch.equal(alone, sc.SpikingSSM(n=C, rate=wide.T.contiguous()).run(x, record=("s",))[2]["s"])

    def test_a_number_stays_one_until_it_is_learnt(self):
        neuron = sc.SpikingSSM(n=3, c=0.5, learn=("b",))
        assert neuron.c == 0.5
        assert [tuple(value.shape) for value in neuron.parameters()] == [(3,)]
        neuron.b = 2.0
        assert neuron.b.tolist() == [2.0, 2.0, 2.0]
        neuron.c = torch.tensor([1.0, 2.0, 3.0])
        again = sc.SpikingSSM(n=3, learn=("b",))
        again.load_state_dict(neuron.state_dict())
        x = 4 * drawn(T, B, C).float()
        for copied in (again, copy.deepcopy(neuron), pickle.loads(pickle.dumps(neuron))):
            assert torch.equal(copied(x), neuron(x))

    def test_a_range_holds_for_each_value(self):
        """A learnt value that an optimiser took out of its range counts as the nearest inside, and can come back."""
        neuron = sc.SpikingSSM(n=3, learn=("rate",))
        with torch.no_grad():
            neuron.rate[1] = -1.0
        neuron(4 * drawn(T, B, C).float()).sum().backward()
        assert bool(torch.isfinite(neuron.rate.grad).all())
        sc.functional.project(neuron)
        assert neuron.rate[1] > 0
        assert neuron.rate[[0, 2]].tolist() == [1.0, 3.0]

    def test_sizes_are_arguments(self):
        class Wide(sc.SpikingSSM):
            sizes = {"n": 4}

        assert (Wide().n, Wide().rate.tolist(), Wide(n=2).rate.tolist()) == (4, [1.0, 2.0, 3.0, 4.0], [1.0, 2.0])
        assert repr(sc.DHLIF(branches=2)).startswith("DHLIF(branches=2, w_branch=tensor[2] (learnt), ")

    @pytest.mark.parametrize("here", [0.5, torch.full((4,), 0.5), torch.full((C, 4), 0.5)], ids=str)
    @pytest.mark.parametrize("learn", [(), ("c",)])
    def test_a_checkpoint_of_another_size_is_one_of_the_mismatches(self, here, learn):
        """Beside those of torch; and of that neuron nothing is loaded."""
        saved = nn.Sequential(nn.Linear(2, 3), sc.SpikingSSM(c=torch.full((3,), 0.25), n=3))
        net = nn.Sequential(nn.Linear(2, 4), sc.SpikingSSM(c=here, learn=learn, n=4))
        shape = r"\[5, 4\]" if getattr(here, "ndim", 0) > 1 else r"\[4\]"
        of_c = rf"size mismatch for 1.c: copying a param with shape torch.Size\(\[3\]\) .* torch.Size\({shape}\)"
        with pytest.raises(RuntimeError, match=rf"(?s)size mismatch for 0.weight: .*{of_c}\."):
            net.load_state_dict(saved.state_dict())
        assert torch.as_tensor(net[1].c).eq(0.5).all()


class TestLanguage:
    """Forms that a definition may write."""

    def test_operators_and_functions_go_by_element(self):
        """In any order beside numbers, lists and NumPy's scalars; the text of a program has the names with numbers."""

        def dynamics(x, s, p):
            h = 2.0 * s.h - x / (1.0 + s.h**2) + torch.exp(-s.h) + sc.ops.where(s.h > x, s.h, [0.0, x])
            return sc.ops.sum(abs(h)[::-1]) + sum(s.h) - s.h[-1], {"h": sc.ops.where(h >= 1.0, 0.0, h)}

        text = str(trace(dynamics, name="Cell", inputs=("x",), states={"h": sc.vector(2, 0.5)}, params=()))
        assert "  rest  h[1] = 0.5" in text
        assert "where(h[0] > x, h[0], 0)" in text
        assert "where(h[1] > x, h[1], x)" in text
        assert "abs(t1) + abs(t2) + (0 + h[0] + h[1]) - h[1]" in text

    def test_sum_of_tensors_and_numbers(self):
        """So that a definition can be called by hand; in the order of a program, to the bit."""
        h = drawn(3, 4).float()
        assert torch.equal(sc.ops.sum(h), h[:, 0] + h[:, 1] + h[:, 2] + h[:, 3])
        assert sc.ops.sum([1.0, 2.0]) == 3.0


def dynamics_of(text, **attributes):
    """A class with a state ``h`` of 3 values, a state ``g`` of 2, and this output."""

    def dynamics(self, x, s, p):
        return eval(text, {"s": s, "p": p, "x": x, "sc": sc}), {"h": s.h, "g": s.g, "v": s.v}

    states = {"h": sc.vector(3), "g": sc.vector(2), "v": 0.0}
    kind = type("Cell", (sc.Neuron,), {"states": states, "dynamics": dynamics, **attributes})
    return kind().program


def following(**values):
    """A class whose next values are these."""

    def dynamics(self, x, s, p):
        return x, {"h": s.h, "v": s.v, **{name: make(s) for name, make in values.items()}}

    kind = type("Cell", (sc.Neuron,), {"states": {"h": sc.vector(3), "v": 0.0}, "dynamics": dynamics})
    return kind().program


def declared(**attributes):
    return type("Cell", (sc.Neuron,), attributes)


test_refused = refusals.table(__file__, globals(), dynamics_of, following, declared)
