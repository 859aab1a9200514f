"""A single step is computed without a dimension of time, with the bits of a call of one time step."""

from __future__ import annotations

import pytest
import torch

import spikecore as sc
from spikecore.lang import _functions
from spikecore.lang import _plain as plain

N = (3, 5)

NEURONS = {
    "LIF": lambda **kwargs: sc.LIF(backend="torch", **kwargs),
    "soft": lambda **kwargs: sc.LIF(reset="soft", detach_reset=True, backend="torch", **kwargs),
    "learnt": lambda **kwargs: sc.LIF(learn=("tau", "v_reset"), backend="torch", **kwargs),
    "PLIF": lambda **kwargs: sc.PLIF(backend="torch", **kwargs),
    "two states": lambda **kwargs: sc.ALIF(backend="torch", **kwargs),
    "ties": lambda **kwargs: Rooted(backend="torch", **kwargs),
    "read twice": lambda **kwargs: Twice(backend="torch", **kwargs),
    "automatic": lambda **kwargs: sc.LIF(backend="auto", **kwargs),
}


class Rooted(sc.Neuron):
    """With an infinite derivative."""

    states = {"v": 1.0}

    def dynamics(self, x, s, p):
        h = sc.ops.sqrt(sc.ops.abs(s.v + x))
        return self.spike(h - 1.0), {"v": h}


class Twice(sc.Neuron):
    """Its input is read at two places."""

    states = {"v": 0.0}

    def dynamics(self, x, s, p):
        h = s.v * 0.5 + x * x
        z = self.spike(h - 1.0)
        return z, {"v": sc.ops.select(z, 0.0, h)}


class Passing(sc.Neuron):
    """Outputs and next states that are inputs, states, parameters, and each other."""

    states = {"a": 0.25, "b": 0.5, "c": 0.0, "d": 0.0}
    params = {"k": 2.0}

    def dynamics(self, x, s, p):
        fresh = x + s.a
        return (x, s.a, fresh, p.k * 1.0, s.b), {"a": x, "b": fresh, "c": s.d, "d": p.k}


def results(call, neuron, xs):
    """Outputs, states and gradients of steps whose input is used beside the neuron as well."""
    outputs = [call(x) + x * 0.3 for x in xs]
    states = list(neuron.state.values())
    wanted = [*xs, *neuron.parameters()]
    total = sum((out * (k + 0.7)).sum() for k, out in enumerate(outputs)) + sum(state.sum() for state in states)
    grads = torch.autograd.grad(total, wanted, allow_unused=True)
    return [*outputs, *states, *(grad for grad in grads if grad is not None)]


def drawn(dtype, steps=4, seed=0):
    """Inputs, one per step."""
    generator = torch.Generator().manual_seed(seed)
    xs = torch.rand((steps, *N), generator=generator, dtype=torch.float64) * 3 - 0.2
    return [x.clone().requires_grad_() for x in xs.to(dtype)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", sorted(NEURONS))
def test_bits_are_those_of_a_call_of_one_time_step(kind, dtype):
    """Outputs, states and gradients, at rest and carried, when the calls are repeated."""
    single, carried = NEURONS[kind](step="single"), NEURONS[kind]()
    for _ in range(3):
        sc.reset(single)
        found = results(single, single, drawn(dtype))
        with sc.carry_state(carried):
            expected = results(lambda x: carried(x.unsqueeze(0)).squeeze(0), carried, drawn(dtype))
        assert len(found) == len(expected)
        for got, wanted in zip(found, expected):
            assert torch.equal(got, wanted)


def graph_of(tensor):
    """The names of the nodes that a tensor comes from."""
    nodes, seen = [tensor.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [before for before, _ in node.next_functions]
    return {node.name() for node in seen}


def test_the_graph_has_no_dimension_of_time():
    """A repeated single step neither adds that dimension nor takes it away, nor copies the state."""
    lif, x = NEURONS["LIF"](step="single"), drawn(torch.float32, 1)[0]
    for _ in range(3):
        sc.reset(lif)
        out = lif(x)
    names = graph_of(out) | graph_of(lif.state["v"])
    assert not {name for name in names if name.startswith(("Unsqueeze", "Squeeze", "Unbind", "Stack"))}
    assert not lif.state["v"].grad_fn.name().startswith("Clone")


def test_numbers_are_made_once(monkeypatch):
    """A repeated call makes no tensor of a number."""
    lif, multi, x = NEURONS["LIF"](step="single"), NEURONS["LIF"](), drawn(torch.float32, 1)[0]
    for _ in range(3):
        lif(x), multi(x)
    monkeypatch.setattr(plain, "number", None)
    lif(x), multi(x)


def test_numbers_that_are_equal_are_not_the_same():
    """-0.0 is another reset potential than 0.0, and a changed number counts at once."""
    lif = sc.LIF(step="single", backend="torch")
    for v_reset, sign in ((0.0, False), (-0.0, True), (0.0, False)):
        lif.v_reset = v_reset
        sc.reset(lif)
        with torch.no_grad():
            for _ in range(3):
                lif(torch.full(N, 5.0))
        assert bool(torch.signbit(lif.state["v"]).all()) is sign


def test_numbers_met_in_inference_mode_have_gradients():
    """What is kept from a call in inference mode can be saved for backward."""
    lif, (x,) = NEURONS["PLIF"](step="single"), drawn(torch.float32, 1)
    with torch.inference_mode():
        lif(x), lif(x)
    sc.reset(lif)
    lif(x).sum().backward()
    expected = torch.autograd.grad(NEURONS["PLIF"]()(x.unsqueeze(0)).sum(), x)[0]
    assert torch.equal(x.grad, expected)


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_results_are_the_callers_own(grad):
    """Outputs and states share no memory with each other, with the input, with parameters or with the last states."""
    neuron, x = Passing(step="single", backend="torch"), drawn(torch.float32, 1)[0]
    with torch.set_grad_enabled(grad):
        for _ in range(4):
            before = list(neuron.state.values()) if neuron.state else []
            outputs = neuron(x)
            tensors = [*outputs, *neuron.state.values(), x, *before]
            assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)
            assert all(tensor.is_contiguous() and tensor.shape == x.shape for tensor in tensors)


@pytest.mark.parametrize("kind", sorted(NEURONS))
def test_results_may_be_changed_in_place(kind):
    """A dropout in place after a neuron, and a last state that is overwritten, leave gradients what they are."""
    found = []
    for disturbed in (False, True):
        neuron, xs = NEURONS[kind](step="single"), drawn(torch.float32)
        outputs = []
        for x in xs:
            out = neuron(x)
            outputs.append(out.mul_(2.0) if disturbed else out * 2.0)
        total = sum(out.sum() for out in outputs)
        if disturbed:
            with torch.no_grad():
                neuron.state["v"].fill_(7.0)
        found.append(torch.autograd.grad(total, xs))
    for got, wanted in zip(*found):
        assert torch.equal(got, wanted)


def test_other_layouts_give_contiguous_results():
    """As a call of one time step does."""
    lif = sc.LIF(step="single", backend="torch")
    for x in (torch.rand(4, 6).t(), torch.rand(1, 6).expand(4, 6), torch.rand(2, 3, 4, 4).permute(0, 2, 3, 1)):
        sc.reset(lif)
        with torch.no_grad():
            for _ in range(3):
                assert lif(x).is_contiguous()
                assert lif.state["v"].is_contiguous()


@pytest.mark.parametrize("size", [8, 2 * plain._MANY])
@pytest.mark.parametrize("spiking", [True, False], ids=["spike with gradient", "spike without"])
def test_second_derivatives_of_a_choice(size, spiking):
    """Those of the arithmetic form, for few numbers and for many, with a spike that has a gradient or has none."""
    generator = torch.Generator().manual_seed(1)
    z = (torch.rand(size, generator=generator) > 0.5).double().requires_grad_(spiking)
    a, b = (torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    leaves = [z, a, b] if spiking else [a, b]
    found = []
    for select in (_functions.select, lambda z, a, b: z * a + (1 - z) * b):
        first = torch.autograd.grad((select(z, a, b) ** 3).sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum((grad * grad).sum() for grad in first), leaves)
        found.append([*first, *second])
    for got, wanted in zip(*found):
        torch.testing.assert_close(got, wanted)


class Operations(torch.utils._python_dispatch.TorchDispatchMode):
    """What torch runs."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, float("nan"), float("inf")])
@pytest.mark.parametrize("full", [False, True], ids=["number", "tensor"])
def test_a_choice_among_many(dtype, value, full):
    """It has every bit of that by truth values, whatever is chosen by what; of a mere 0 it takes four operations."""
    n = 5000
    kinds = torch.tensor([0.0, 1.0, -0.0, float("nan"), 2.0, float("inf")], dtype=dtype)
    others = torch.tensor([0.0, -0.0, 1.0, -2.5, float("nan"), float("-inf"), 1e-310], dtype=dtype)
    z, b = kinds.repeat(n)[:n], others.repeat(n)[:n]
    a = torch.full((n,) if full else (), value, dtype=dtype)
    with Operations() as ran:
        found = plain.choice(z, a, b)
    bits = torch.int32 if dtype == torch.float32 else torch.int64
    assert torch.equal(found.view(bits), torch.where(z != 0, a, b).view(bits))
    assert torch.equal(b.view(bits), others.repeat(n)[:n].view(bits))
    computed = [name for name in ran.names if name in ("eq", "ne", "_to_copy", "neg_", "bitwise_and_", "bitwise_xor_")]
    is_zero = not full and str(value) == "0.0"
    assert (computed == ["eq", "_to_copy", "neg_", "bitwise_and_"]) == is_zero
