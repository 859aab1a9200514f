"""What kernels compute is what the reference computes: bit for bit where the language has nothing but ``+ - * /``."""

from __future__ import annotations

import copy
import random
from typing import Any, Dict, List, Sequence, Type

import pytest
import torch
from torch import Tensor

import spikecore as sc
from spikecore_triton import CAPABILITIES

pytestmark = pytest.mark.matrix(turn=2)

T, SHAPE = 5, (2, 3, 11)
FLOATS = [torch.float32, torch.float16, *([torch.bfloat16] if CAPABILITIES.bfloat16 else [])]
SURROGATES = [kind for kind in sc.Surrogate.__subclasses__() if kind.__name__ in sc.surrogate.__all__]
#: How close sums in different orders, and approximate divisions in surrogates, come.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
#: Neurons made of + - * / alone.
EXACT: Dict[str, Any] = {
    **{f"IF {r}": lambda r=r, **o: sc.IF(reset=r, v_reset=-0.2, **o) for r in ("hard", "soft", "none")},
    **{f"LIF {r}": lambda r=r, **o: sc.LIF(2.5, reset=r, v_reset=-0.2, **o) for r in ("hard", "soft", "none")},
    "LIF undecayed": lambda **o: sc.LIF(2.5, decay_input=False, **o),
    "LIF detached": lambda **o: sc.LIF(2.5, detach_reset=True, reset="soft", **o),
    **{f"Leaky {r}": lambda r=r, **o: sc.Leaky(0.8, reset=r, **o) for r in ("hard", "soft", "none")},
    "KLIF": lambda **o: sc.KLIF(2.5, k=1.3, scale_reset=True, **o),
    "Synaptic": lambda **o: sc.Synaptic(0.6, 0.8, **o),
    **{f"SynapticLeaky {r}": lambda r=r, **o: sc.SynapticLeaky(reset=r, **o) for r in ("hard", "soft", "none")},
    **{f"TernaryLIF {r}": lambda r=r, **o: sc.TernaryLIF(2.5, reset=r, **o) for r in ("hard", "soft", "none")},
    "SynapticLeaky at once": lambda **o: sc.SynapticLeaky(reset_delay=False, **o),
    **{f"Lapicque {r}": lambda r=r, **o: sc.Lapicque(R=1.3, C=1.7, reset=r, **o) for r in ("hard", "soft", "none")},
    "ALIF": lambda **o: sc.ALIF(2.5, **o),
    "QIF": lambda **o: sc.QIF(2.5, **o),
    "Izhikevich": lambda **o: sc.Izhikevich(2.5, a=0.3, b=0.1, w_rest=0.1, **o),
    "LI": lambda **o: sc.LI(2.5, v_rest=0.1, **o),
}


class Random(sc.Neuron):
    """A neuron with a random step over what every target computes exactly."""

    inputs = ("x", "y")
    states = {"v": 0.0, "w": 0.25}
    params = {"a": 0.5, "b": 2.0}
    seed, tame = 0, False

    def __init__(self, seed: int, tame: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.seed, self.tame = seed, tame

    def dynamics(self, inputs: Any, s: Any, p: Any) -> Any:
        draw = random.Random(self.seed)
        known = [*inputs, s.v, s.w, p.a, p.b]

        def number(depth: int) -> Any:
            if depth == 0 or draw.random() < 0.1:
                return draw.choice([*known, *known, 0.1, -1.0, 0.7 if self.tame else 1e-40, 3.0])
            kind = draw.choice("+-*/+-*/nwsSarfmMc")
            x, y = number(depth - 1), number(depth - 1)
            if isinstance(x, float):
                x = s.v - x
            value = {
                "+": lambda: x + y,
                "-": lambda: x - y,
                "*": lambda: x * y,
                "/": lambda: x / (1.5 + abs(y) if self.tame else y),
                "n": lambda: -x,
                "w": lambda: sc.ops.where((x > y) | ~(x <= s.w), x, y),
                "s": lambda: self.spike(x),
                "S": lambda: sc.ops.select(self.spike(x, strict=True), y, s.w),
                "a": lambda: abs(x),
                "r": lambda: sc.ops.round(x),
                "f": lambda: sc.ops.floor(x),
                "m": lambda: sc.ops.minimum(x, y),
                "M": lambda: sc.ops.maximum(x, y),
                "c": lambda: sc.ops.clamp(x, -1.0, 2.0) * sc.ops.sign(y),
            }[kind]()
            known.append(value)
            return value

        v, w, z = (number(4) for _ in range(3))
        z = z + 0.0 * s.v
        return (z, self.spike(v - 1.0)), {"v": v + 0.0 * s.v, "w": w + 0.0 * s.w}


def pair(neuron: sc.Neuron, device: str) -> List[sc.Neuron]:
    """The neuron on triton, and a copy of it on the reference; both on the device."""
    other = copy.deepcopy(neuron)
    sc.set_backend(neuron, "triton")
    sc.set_backend(other, "torch")
    return [neuron.to(device), other.to(device)]


def noise(*shape: int, device: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers, the same on every device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype).to(device)


def special(*shape: int, device: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Ordinary numbers, and every tenth subnormal, huge, zero, infinite or NaN."""
    x = noise(*shape, device="cpu", seed=seed, dtype=dtype)
    odd = torch.tensor([0.0, -0.0, 1e-40, -3e-39, 1e-45, 3e38, -1e30, float("inf"), float("nan"), 1.0], dtype=dtype)
    generator = torch.Generator().manual_seed(seed + 1)
    chosen = odd[torch.randint(len(odd), shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < 0.1, chosen, x).to(device)


def everything(neuron: sc.Neuron, xs: Sequence[Tensor], state: Dict[str, Tensor], seed: int = 50) -> List[Tensor]:
    """Outputs, final states, traces, and the gradients of all that has any."""
    xs = [x.clone().requires_grad_() for x in xs]
    state = {name: value.clone().requires_grad_() for name, value in state.items()}
    out, end, trace = neuron.run(*xs, state=state or None, record=tuple(neuron.states))
    results = [*(out if isinstance(out, tuple) else (out,)), *end.values(), *trace.values()]
    wanted = [*xs, *state.values(), *neuron.parameters()]
    cotangents = [noise(*r.shape, device=str(r.device), seed=seed + i, dtype=r.dtype) for i, r in enumerate(results)]
    pairs = [(r, c) for r, c in zip(results, cotangents) if r.requires_grad]
    found = torch.autograd.grad([r for r, _ in pairs], wanted, [c for _, c in pairs], allow_unused=True)
    return [*results, *(torch.zeros_like(w) if g is None else g for g, w in zip(found, wanted))]


def bits(tensor: Tensor) -> Tensor:
    """The bits, with one pattern for NaN."""
    tensor = torch.where(tensor.isnan(), torch.full_like(tensor, float("nan")), tensor)
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_arithmetic_neurons_are_bit_identical_forward(name: str, dtype: torch.dtype, device: str) -> None:
    """Outputs, states and traces of neurons made of + - * / have the reference's bits, on odd numbers too."""
    ours, theirs = pair(EXACT[name](), device)
    for make in (noise, special):
        x = make(T, 700, device=device, dtype=dtype) + 0.5
        for a, b in zip(everything(ours, [x], {}), everything(theirs, [x], {})[: 1 + 2 * len(ours.states)]):
            assert a.dtype == b.dtype
            assert torch.equal(bits(a), bits(b))


@pytest.mark.parametrize("name", [*EXACT, "PLIF", "EIF"])
def test_gradients(name: str, device: str) -> None:
    """Gradients of inputs and of the initial state are the reference's, at rest and from a given state."""
    ours, theirs = pair({**EXACT, "PLIF": sc.PLIF, "EIF": sc.EIF}[name](), device)
    xs = [noise(T, *SHAPE, device=device) + 0.5]
    state = {n: 0.3 * noise(*SHAPE, device=device, seed=9) for n in ours.states}
    for given in ({}, state):
        for a, b in zip(everything(ours, xs, given), everything(theirs, xs, given)):
            torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
def test_gradients_of_16_bits(dtype: torch.dtype, device: str) -> None:
    """Products with a reciprocal in place of divisions are lost in the rounding."""
    for kind in (sc.LIF, sc.ALIF):
        ours, theirs = pair(kind(2.3, learn=("tau",)), device)
        x = noise(T, 300, device=device, dtype=dtype) + 0.5
        for a, b in zip(everything(ours, [x], {}), everything(theirs, [x], {})):
            torch.testing.assert_close(a.float(), b.float(), rtol=2 * torch.finfo(dtype).eps, atol=1e-4)


@pytest.mark.parametrize("kind", [sc.ALIF, sc.PLIF, sc.Leaky, sc.Izhikevich], ids=lambda k: k.__name__)
@pytest.mark.parametrize("shape", [(), (3,), SHAPE], ids=["scalar", "channel", "full"])
def test_gradients_of_parameters(kind: Type[sc.Neuron], shape: Any, device: str) -> None:
    """Parameters of every kind get the reference's gradients."""
    make = (lambda **o: sc.Leaky(0.8, **o)) if kind is sc.Leaky else kind
    neuron = make(learn=tuple(kind.params))
    for k, name in enumerate(kind.params):
        varied = getattr(neuron, name).detach() * (1 + 0.05 * noise(*shape, device="cpu", seed=k))
        setattr(neuron, name, torch.nn.Parameter(varied))
    ours, theirs = pair(neuron, device)
    xs = [noise(T, *SHAPE, device=device) + 0.5]
    for a, b in zip(everything(ours, xs, {}), everything(theirs, xs, {})):
        torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_surrogates(surrogate: Type[sc.Surrogate], device: str) -> None:
    """Every surrogate's derivative is the reference's."""
    ours, theirs = pair(sc.LIF(surrogate=surrogate()), device)
    x = noise(T, 300, device=device) + 0.5
    for a, b in zip(everything(ours, [x], {}), everything(theirs, [x], {})):
        torch.testing.assert_close(a, b, **CLOSE)


class Minus(sc.Neuron):
    """What tells zero from minus zero."""

    states = {"v": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return 1.0 / -x, {"v": s.v * 0.5 - -x}


def test_minus_keeps_the_sign_of_zero(device: str) -> None:
    """``-x`` is not ``0 - x``."""
    x = torch.tensor([[0.0, -0.0, 2.0]], device=device)
    ours, theirs = pair(Minus(), device)
    assert torch.equal(ours(x), theirs(x))
    assert ours(x)[0, 0] == -float("inf")


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_are_bit_identical(seed: int, device: str) -> None:
    """A random program has the reference's bits forward, on odd numbers."""
    xs = [special(4, 333, device=device, seed=seed + k) for k in (0, 100)]
    found = []
    for neuron in pair(Random(seed), device):
        with torch.no_grad():
            out, end, trace = neuron.run(*xs, record=("v", "w"))
        found.append([*out, *end.values(), *trace.values()])
    for a, b in zip(*found):
        assert torch.equal(bits(a + 0), bits(b + 0))


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_have_the_gradients(seed: int, device: str) -> None:
    """A random program's gradients are the reference's, where none of its numbers is extreme."""
    xs = [noise(3, 37, device=device, seed=seed + k) for k in (0, 100)]
    ours, theirs = pair(Random(seed, tame=True, learn=("a", "b")), device)
    for a, b in zip(everything(ours, xs, {}), everything(theirs, xs, {})):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("steps", "neurons"), [(1, 1), (2, 257), (15, 16), (16, 600), (17, 33), (31, 2), (32, 300), (48, 1), (69, 40)]
)
def test_every_size_gives_the_same(steps: int, neurons: int, device: str) -> None:
    """Chunks of steps, steps left over, blocks and half-empty blocks change nothing."""
    ours, theirs = pair(sc.ALIF(2.5, learn=("tau",)), device)
    x = noise(steps, neurons, device=device) + 0.4
    found = [everything(n, [x], {}) for n in (ours, theirs)]
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert torch.equal(found[0][0], found[1][0])


@pytest.mark.parametrize("steps", [7, 37])
def test_a_given_state_goes_through_chunks(steps: int, device: str) -> None:
    """The first chunk starts from the given state, the others from checkpoints; its gradient comes back."""
    ours, theirs = pair(sc.Synaptic(0.6, 0.8), device)
    x = noise(steps, 50, device=device)
    state = {n: noise(50, device=device, seed=4) for n in ours.states}
    for a, b in zip(everything(ours, [x], state), everything(theirs, [x], state)):
        torch.testing.assert_close(a, b, **CLOSE)


class Counting(sc.Neuron):
    """A state that no gradient is computed from, before one that is."""

    states = {"count": 0.0, "v": 0.1}
    params = {"tau": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        h = s.v + (x - s.v) / p.tau
        z = self.spike(h - 1.0)
        count = s.count + z
        return count, {"count": count, "v": sc.ops.select(z, 0.0, h)}


@pytest.mark.parametrize(("make", "saved"), [(Counting, 1), (sc.LI, 0), (sc.ALIF, 2)], ids=["Counting", "LI", "ALIF"])
@pytest.mark.parametrize("steps", [32, 37])
def test_forward_saves_what_backward_reads(make: Any, saved: int, steps: int, device: str) -> None:
    """The states before every chunk but the first, and of those the ones that gradients need."""
    ours, theirs = pair(make(), device)
    x = noise(steps, 40, device=device) + 0.5
    out = ours(x.clone().requires_grad_())
    assert [kept.shape for kept in out.grad_fn.saved_tensors[1:]] == [((steps - 1) // 16, 40)] * saved
    for a, b in zip(everything(ours, [x], {}), everything(theirs, [x], {})):
        torch.testing.assert_close(a, b, **CLOSE)


def test_one_step_may_stand_for_all(device: str) -> None:
    """An input expanded over time, and a cotangent expanded over everything, are read as they lie."""
    ours, theirs = pair(sc.LIF(), device)
    found = []
    for neuron in (ours, theirs):
        x = (noise(90, device=device) + 1).requires_grad_()
        neuron(x.expand(20, 90)).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found, **CLOSE)


def test_lanes_without_a_neuron_add_nothing(device: str) -> None:
    """Not even the NaN of a division by a parameter that is not there."""
    neuron = sc.LIF(learn=("tau", "threshold"))
    neuron.tau = torch.nn.Parameter(torch.full((50,), 2.0))
    ours, theirs = pair(neuron, device)
    for neuron in (ours, theirs):
        neuron(noise(4, 50, device=device) + 1).sum().backward()
    torch.testing.assert_close(ours.threshold.grad, theirs.threshold.grad, **CLOSE)


def test_gradients_of_scalars_are_the_same_every_time(device: str) -> None:
    """Partial sums are added in a fixed order."""
    x = noise(9, 3000, device=device) + 0.4
    neuron = sc.PLIF(backend="triton").to(device)
    found = []
    for _ in range(2):
        neuron.w.grad = None
        neuron(x).sum().backward()
        found.append(neuron.w.grad)
    assert found[0] is not None
    assert torch.equal(found[0], found[1])
