"""The adjoint of one step, run backwards through time, is the gradient that autograd finds step by step."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import spikecore as sc
from spikecore.lang import Node, topological
from spikecore.lang.eager import evaluate
from spikecore.neurons import example

T, SHAPE = 6, (4, 3)


class Gated(sc.Neuron):
    """Two inputs, two outputs, three states; rules of every kind."""

    inputs = ("x", "gate")
    states = {"v": "start", "w": 0.25, "peak": 0.0}
    params = {"tau": 2.0, "a": 0.5, "start": 0.1, "unused": 1.0}

    def dynamics(self, inputs, s, p):
        x, gate = inputs
        open_ = sc.ops.sigmoid(gate * p.a)
        h = s.v + (x - sc.ops.minimum(s.v, p.a * s.w)) / p.tau
        z = self.spike(h - 1.0)
        late = self.spike(h - s.peak, strict=True)
        peak = sc.ops.maximum(s.peak, sc.ops.detach(h)) * 0.9
        w = sc.ops.where((gate > 0.0) & (h < 2.0), s.w * open_, sc.ops.tanh(s.w - z) + sc.ops.clamp(x, -0.5, p.a))
        return (z, open_ * h - late), {"v": sc.ops.select(z, p.start * s.w, h), "w": w, "peak": peak}


class Memory(sc.Neuron):
    """The output carries no gradient; what is left is a state that adds up."""

    states = {"v": 0.0}
    params = {"k": 0.5}

    def dynamics(self, x, s, p):
        v = s.v * 0.5 + x
        return sc.ops.detach(v * p.k), {"v": v}


#: Rules of every kind, and what the built-in neurons add to them: exponentials, rectifiers, two compartments, gates.
NEURONS = {
    **{f"LIF {r}": lambda r=r, **o: sc.LIF(2.5, reset=r, v_reset=-0.2, **o) for r in ("hard", "soft", "none")},
    "LIF detached": lambda **o: sc.LIF(2.5, detach_reset=True, **o),
    "KLIF scaled": lambda **o: sc.KLIF(2.5, k=1.3, scale_reset=True, reset="soft", **o),
    "Leaky at once": lambda **o: sc.Leaky(0.8, reset="hard", reset_delay=False, **o),
    "CLIF detached": lambda **o: sc.CLIF(2.5, detach_reset=True, **o),
    "TCLIF": lambda **o: sc.TCLIF(c1=0.3, c2=-0.2, v_reset=-0.2, **o),
    "Izhikevich": lambda **o: sc.Izhikevich(2.5, a=0.3, b=0.2, **o),
    **{name: partial(example, name) for name in ("EIF", "BRF", "GLIF", "Alpha")},
    "Gated": Gated,
    "Gated exponential": lambda **o: Gated(surrogate=sc.surrogate.PiecewiseExp(2.0), **o),
    "Memory": Memory,
}


def random(*shape, seed):
    """Normal numbers around 0.4, which make these neurons fire now and then."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.4


def own_params(program):
    """Names of the parameters that are the neuron's own, and no numbers of its surrogate."""
    return tuple(name for name in program.params if name not in program.numbers)


def by_adjoint(program, learn, inputs, state, params, out_grads, next_grads):
    """Outputs, final state, and the gradients of inputs, initial state and parameters by :meth:`Program.adjoint`."""
    like = inputs[0]
    fixed = dict(zip(program.leaves[len(program.inputs) + len(program.states) :], params))
    now, steps, outputs = list(state), [], []
    for xs in zip(*inputs):
        steps.append({**dict(zip(program.leaves, [*xs, *now])), **fixed})
        results = evaluate([*program.outputs, *program.next], steps[-1], like)
        outputs.append(results[: len(program.outputs)])
        now = [value.expand(SHAPE) for value in results[len(program.outputs) :]]
    adjoint = program.adjoint(learn)
    assert (len(adjoint.inputs), len(adjoint.states)) == (len(inputs), len(state))
    carried = list(next_grads)
    to_inputs, to_params = [], [torch.zeros_like(params[program.params.index(name)]) for name in learn]
    for t in reversed(range(T)):
        values = dict(steps[t])
        values.update({Node("out_grad", (), i): grad[t] for i, grad in enumerate(out_grads)})
        values.update({Node("next_grad", (), name): grad for name, grad in zip(program.states, carried)})
        found = evaluate([*adjoint.inputs, *adjoint.states, *adjoint.params], values, like)
        found = [value.expand(SHAPE) for value in found]
        to_inputs.append(found[: len(inputs)])
        carried = found[len(inputs) : len(inputs) + len(state)]
        to_params = [total + value.sum() for total, value in zip(to_params, found[len(inputs) + len(state) :])]
    to_inputs = [torch.stack(steps[::-1]) for steps in zip(*to_inputs)]
    return [torch.stack(o) for o in zip(*outputs)], now, to_inputs, carried, to_params


def assert_close(expected, actual):
    """Equal to 1e-12 of the largest gradient, tensor by tensor."""
    for e, a in zip(expected, actual):
        e = torch.zeros_like(a) if e is None else e
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-12 * max(1.0, e.abs().max().item()))


class TestThroughTime:
    @pytest.mark.parametrize(
        ("make", "final"),
        [*((make, True) for make in NEURONS.values()), (sc.LIF, False)],
        ids=[*NEURONS, "LIF without a final state"],
    )
    def test_equals_autograd(self, make, final):
        """Gradients of inputs, initial state and every parameter are those of the torch backend."""
        names = own_params(make().program)
        neuron = make(learn=names, backend="torch").double()
        program = neuron.program
        inputs = [random(T, *SHAPE, seed=i).requires_grad_() for i in range(len(program.inputs))]
        state = [random(*SHAPE, seed=10 + i).requires_grad_() for i in range(len(program.states))]
        params = [torch.as_tensor(value, dtype=torch.float64) for _, value in neuron.named_values().items()]

        out, end = neuron.run(*inputs, state=dict(zip(program.states, state)))
        outs = out if isinstance(out, tuple) else (out,)
        out_grads = [random(T, *SHAPE, seed=20 + i) for i in range(len(outs))]
        next_grads = [random(*SHAPE, seed=30 + i) * final for i in range(len(state))]
        pairs = zip([*outs, *end.values()], [*out_grads, *next_grads])
        kept = [(root, cotangent) for root, cotangent in pairs if root.requires_grad]
        roots, cotangents = zip(*kept)
        expected = torch.autograd.grad(roots, [*inputs, *state, *params[: len(names)]], cotangents, allow_unused=True)

        with torch.no_grad():
            outputs, now, *gradients = by_adjoint(program, names, inputs, state, params, out_grads, next_grads)
        assert all(torch.equal(e, a) for e, a in zip([*outs, *end.values()], [*outputs, *now]))
        actual = [value for part in gradients for value in part]
        assert len(expected) == len(actual)
        assert_close(expected, actual)


class TestStructure:
    def test_a_cotangent_that_does_not_arrive_is_in_no_expression(self):
        """What does not arrive has no leaf, and a state that no cotangent leads to has none."""
        program = sc.LIF().program
        for asked, ops in (
            ({"final": False}, {"out_grad", "next_grad"}),
            ({"outputs": [False]}, {"next_grad"}),
            ({"outputs": [False], "final": False}, set()),
        ):
            found = program.adjoint(**asked)
            used = {node.op for node in topological([*found.inputs, *found.states]) if node.op.endswith("_grad")}
            assert used == ops, asked

    def test_the_final_states_that_are_asked_for(self):
        """Those that are named have a leaf, and those that a named one is computed from; others have none."""
        program = sc.Synaptic().program  # the potential is computed from the current, and not the other way round
        for final, names in (((), set()), (("v",), {"i", "v"}), (True, {"i", "v"}), (["i"], {"i"})):
            found = program.adjoint(outputs=[False], final=final)
            leaves = topological([*found.inputs, *found.states])
            assert {node.attr for node in leaves if node.op == "next_grad"} == names, final

    @pytest.mark.parametrize(
        ("asked", "words"),
        [
            ({"outputs": [True, True]}, r"has 1 outputs, give one value for each"),
            ({"trace": ["u"]}, r"trace=\('u',\): the states"),
            ({"final": ["u"]}, r"final=\('u',\): the states"),
            (
                {"learn": ("tau", "beta")},
                r"beta is no parameter of <Program LIF \w+>: \('tau', 'threshold', 'v_reset'\)",
            ),
            ({"final": "v"}, r"final='v' is one text; give a list of names of states, \['v'\]"),
        ],
    )
    def test_cotangents_of_what_there_is_not(self, asked, words):
        """Another number of outputs and the name of no state are errors that name the argument."""
        with pytest.raises(ValueError, match=words):
            sc.LIF().program.adjoint(**asked)
