"""What kernels compute is what the reference computes: bit for bit where the language has nothing but ``+ - * /``."""

from __future__ import annotations

import copy
import random
from typing import Any, Dict, List, Sequence, Type

import pytest
import torch
from torch import Tensor

import spikecore as sc

pytestmark = pytest.mark.matrix(turn=0)

T, SHAPE = 7, (2, 3, 11)


def pair(neuron: sc.Neuron) -> List[sc.Neuron]:
    """The neuron on numba, and a copy of it on the reference."""
    other = copy.deepcopy(neuron)
    sc.set_backend(neuron, "numba")
    sc.set_backend(other, "torch")
    return [neuron, other]


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def special(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Ordinary numbers, and every tenth subnormal, huge, zero, infinite or NaN."""
    x = noise(*shape, seed=seed, dtype=dtype)
    odd = torch.tensor([0.0, -0.0, 1e-40, -3e-39, 1e-45, 3e38, -1e30, float("inf"), float("nan"), 1.0], dtype=dtype)
    generator = torch.Generator().manual_seed(seed + 1)
    chosen = odd[torch.randint(len(odd), shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < 0.1, chosen, x)


def everything(neuron: sc.Neuron, xs: Sequence[Tensor], state: Dict[str, Tensor], seed: int = 50) -> List[Tensor]:
    """Outputs, final states, traces, and the gradients of all that has any."""
    xs = [x.clone().requires_grad_() for x in xs]
    state = {name: value.clone().requires_grad_() for name, value in state.items()}
    out, end, trace = neuron.run(*xs, state=state or None, record=tuple(neuron.states))
    results = [*(out if isinstance(out, tuple) else (out,)), *end.values(), *trace.values()]
    wanted = [*xs, *state.values(), *neuron.parameters()]
    cotangents = [noise(*r.shape, seed=seed + i, dtype=r.dtype) for i, r in enumerate(results)]
    pairs = [(r, c) for r, c in zip(results, cotangents) if r.requires_grad]
    found = torch.autograd.grad([r for r, _ in pairs], wanted, [c for _, c in pairs], allow_unused=True)
    return [*results, *(torch.zeros_like(w) if g is None else g for g, w in zip(found, wanted))]


def close(tensor: Tensor) -> Dict[str, float]:
    """How close sums in different orders come."""
    return {"rtol": 1e-4, "atol": 1e-4} if tensor.dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}


def bits(tensor: Tensor) -> Tensor:
    """The bits, with one pattern for NaN and one for zero."""
    tensor = torch.where(tensor.isnan(), torch.full_like(tensor, float("nan")), tensor)
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


EXACT = {
    **{f"IF {r}": lambda r=r, **o: sc.IF(reset=r, v_reset=-0.2, **o) for r in ("hard", "soft", "none")},
    **{f"LIF {r}": lambda r=r, **o: sc.LIF(2.5, reset=r, v_reset=-0.2, **o) for r in ("hard", "soft", "none")},
    "LIF undecayed": lambda **o: sc.LIF(2.5, decay_input=False, **o),
    "LIF detached": lambda **o: sc.LIF(2.5, detach_reset=True, reset="soft", **o),
    **{f"Leaky {r}": lambda r=r, **o: sc.Leaky(0.8, reset=r, **o) for r in ("hard", "soft", "none")},
    **{f"Leaky {r} at once": lambda r=r, **o: sc.Leaky(0.8, reset=r, reset_delay=False, **o) for r in ("hard", "soft")},
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
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_arithmetic_neurons_are_bit_identical_forward(name: str, dtype: torch.dtype) -> None:
    """Outputs, states and traces of neurons made of + - * / have the reference's bits, on odd numbers too."""
    ours, theirs = pair(EXACT[name]())
    for make in (noise, special):
        x = make(T, 1500, dtype=dtype) + 0.5
        for a, b in zip(everything(ours, [x], {}), everything(theirs, [x], {})[: 1 + 2 * len(ours.states)]):
            assert a.dtype == b.dtype
            assert torch.equal(bits(a), bits(b))


@pytest.mark.parametrize("name", [*EXACT, "PLIF", "EIF"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients(name: str, dtype: torch.dtype) -> None:
    """Gradients of inputs and of the initial state are the reference's, at rest and from a given state."""
    ours, theirs = pair({**EXACT, "PLIF": sc.PLIF, "EIF": sc.EIF}[name]())
    xs = [noise(T, *SHAPE, dtype=dtype) + 0.5]
    state = {n: 0.3 * noise(*SHAPE, seed=9, dtype=dtype) for n in ours.states}
    for given in ({}, state):
        for a, b in zip(everything(ours, xs, given), everything(theirs, xs, given)):
            torch.testing.assert_close(a, b, **close(a))


@pytest.mark.parametrize("kind", [sc.ALIF, sc.PLIF, sc.Leaky, sc.Izhikevich], ids=lambda k: k.__name__)
@pytest.mark.parametrize("shape", [(), (3,), SHAPE], ids=["scalar", "channel", "full"])
def test_gradients_of_parameters(kind: Type[sc.Neuron], shape: Any) -> None:
    """Parameters of every kind get the reference's gradients."""
    make = (lambda **o: sc.Leaky(0.8, **o)) if kind is sc.Leaky else kind
    neuron = make(learn=tuple(kind.params))
    for k, name in enumerate(kind.params):
        varied = getattr(neuron, name).detach().double() * (1 + 0.05 * noise(*shape, seed=k, dtype=torch.float64))
        setattr(neuron, name, torch.nn.Parameter(varied))
    ours, theirs = pair(neuron)
    xs = [noise(T, *SHAPE, dtype=torch.float64) + 0.5]
    for a, b in zip(everything(ours, xs, {}), everything(theirs, xs, {})):
        torch.testing.assert_close(a, b, **close(a))


@pytest.mark.parametrize("surrogate", sc.Surrogate.__subclasses__())
def test_surrogates(surrogate: Type[sc.Surrogate]) -> None:
    """Every surrogate's derivative, in float64, is the reference's."""
    ours, theirs = pair(sc.LIF(surrogate=surrogate()))
    x = noise(T, 300, dtype=torch.float64) + 0.5
    for a, b in zip(everything(ours, [x], {}), everything(theirs, [x], {})):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


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


@pytest.mark.parametrize("seed", range(24))
def test_random_programs_are_bit_identical(seed: int) -> None:
    """A random program has the reference's bits forward, on odd numbers, in float32 or float64."""
    for dtype in (torch.float32,) if seed % 2 else (torch.float64,):
        xs = [special(5, 333, seed=seed + k, dtype=dtype) for k in (0, 100)]
        found = []
        for neuron in pair(Random(seed)):
            with torch.no_grad():
                out, end, trace = neuron.run(*xs, record=("v", "w"))
            found.append([*out, *end.values(), *trace.values()])
        for a, b in zip(*found):
            assert torch.equal(bits(a + 0), bits(b + 0))


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_have_the_gradients(seed: int) -> None:
    """A random program's gradients are the reference's, in float64, where none of its numbers is extreme."""
    xs = [noise(4, 37, seed=seed + k, dtype=torch.float64) for k in (0, 100)]
    ours, theirs = pair(Random(seed, tame=True, learn=("a", "b")))
    for a, b in zip(everything(ours, xs, {}), everything(theirs, xs, {})):
        torch.testing.assert_close(a, b, **close(a))


@pytest.mark.parametrize(("steps", "neurons"), [(1, 1), (3000, 3), (700, 1111), (16, 5000), (17, 1024), (2, 1025)])
def test_every_size_gives_the_same(steps: int, neurons: int) -> None:
    """Blocks, chunks of steps, and threads change nothing."""
    ours, theirs = pair(sc.ALIF(2.5, learn=("tau",)))
    x = noise(steps, neurons) + 0.4
    found = [everything(n, [x], {}) for n in (ours, theirs)]
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert torch.equal(found[0][0], found[1][0])
