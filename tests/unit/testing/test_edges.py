"""Behaviour at NaN, infinities, ties and zeros, beside the suite: paths, roots, autocast and torch.func."""

from __future__ import annotations

from typing import Any, List, Set

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import spikecore as sc

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


class Flat(sc.Neuron):
    """Operations of derivative 0 behind an infinite derivative."""

    params = {"w": 1.0, "unused": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        root = sc.ops.sqrt(x)
        flat = sc.ops.floor(root) + sc.ops.round(root) + sc.ops.sign(root) + sc.ops.detach(root * p.w)
        return (flat + x, root * p.unused), {}


@pytest.mark.parametrize("backend", ["torch", "ipu"])
def test_what_no_path_leads_to_is_zero(backend: str) -> None:
    """Where zero times an infinite derivative would be NaN: only ``x`` itself carries gradient."""
    x = torch.tensor([[4.0, 0.0], [4.0, 4.0], [4.0, 0.0]], requires_grad=True)
    neuron = Flat(backend=backend, learn=("w", "unused"))
    flat, _ = neuron(x)
    leaves = [x, neuron.get_parameter("w"), neuron.get_parameter("unused")]
    of_x, *others = torch.autograd.grad(flat.sum(), leaves, allow_unused=True)
    assert torch.equal(of_x, torch.ones(3, 2))
    assert all(grad is None or grad.item() == 0.0 for grad in others)


class Negated(sc.Neuron):
    """0 or 1, which a compiler might compute as an integer, with the sign changed."""

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return (-self.spike(x), -1.0 * sc.ops.sign(x), -sc.ops.where(x > 0.0, 1.0, 0.0)), {}


@pytest.mark.parametrize("backend", ["torch", "ipu"])
def test_a_negated_choice_has_the_sign_of_its_zero(backend: str) -> None:
    """-0 where the choice is 0."""
    found = [out[0].tolist() for out in Negated(backend=backend)(torch.tensor([[-2.0, 0.0, 2.0]]))]
    assert repr(found) == "[[-0.0, -1.0, -1.0], [1.0, -0.0, -1.0], [-0.0, -0.0, -1.0]]"


class Clamped(sc.Neuron):
    """A bound that has more numbers than what is clamped."""

    params = {"a": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return sc.ops.clamp(p.a, -7.0, x), {}


def test_clamp_of_a_number_by_a_tensor_is_differentiable() -> None:
    """The derivative of clamp with respect to a learnt number is the sum over what it was clamped by."""
    x = torch.tensor([[0.5, 2.0, 3.0]], requires_grad=True)
    neuron = Clamped(learn=("a",), backend="torch")
    neuron(x).sum().backward()
    assert neuron.a.grad.item() == 2.0
    assert x.grad.tolist() == [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("other", [torch.float16, torch.bfloat16])
def test_autocast_changes_nothing_within_a_neuron(dtype: torch.dtype, other: torch.dtype) -> None:
    """Under CPU autocast of either half type every input gives what it gives without."""
    if other == torch.float16 and TORCH < (2, 4):
        pytest.skip("torch's autocast on CPUs knows only bfloat16 before version 2.4")
    x = torch.linspace(0.0, 2.0, 24).reshape(4, 6).to(dtype).requires_grad_()
    neuron = sc.EIF(backend="torch")
    expected = neuron(x)
    (wanted,) = torch.autograd.grad(expected.sum(), x)
    with torch.autocast("cpu", other):
        out, _, trace = neuron.run(x, record=("v",))
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert out.dtype == dtype
    assert trace["v"].dtype == torch.float32
    assert torch.equal(out, expected)
    assert torch.equal(grad, wanted)


def test_the_root_of_float64_is_rounded_correctly() -> None:
    """The reference's sqrt is IEEE's in float64, too, from subnormal to large numbers, with torch's derivative."""
    generator = torch.Generator().manual_seed(0)
    exponents = torch.rand(200_000, generator=generator, dtype=torch.float64) * 1450 - 740
    x = torch.exp(exponents)
    found: Tensor = sc.ops.sqrt(x)
    assert (torch.from_numpy(_root(x)) == found).all()
    special = torch.tensor([0.0, -0.0, float("inf"), -1.0], dtype=torch.float64)
    assert [str(v) for v in sc.ops.sqrt(special).tolist()] == ["0.0", "-0.0", "inf", "nan"]
    y = torch.tensor([4.0, 0.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.grad(sc.ops.sqrt(y).sum(), y)[0].tolist() == [0.25, float("inf")]


def test_the_root_of_float32_is_rounded_correctly() -> None:
    """The root is NumPy's, which is the processor's own, from subnormal to large numbers."""
    exponents = torch.rand(200_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 190 - 102
    x = torch.exp(exponents).float()
    assert (torch.from_numpy(_root(x)) == sc.ops.sqrt(x)).all()


class Watch(TorchDispatchMode):
    """Names of torch's operations that are called, and the dtypes of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: List[str] = []
        self.dtypes: Set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.seen.append(str(func))
        self.dtypes.add(out.dtype)
        return out


@pytest.mark.parametrize("device", ["cuda:0", "ipu:0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_root_on_a_gpu_is_its_own(device: str, dtype: torch.dtype) -> None:
    """One operation on CUDA, whose root is right, and on an IPU, whose graph has it as one."""
    x = FakeTensor(FakeTensorMode(), torch.empty(3, dtype=dtype, device="meta"), torch.device(device))
    with Watch() as watch:
        sc.ops.sqrt(x)
    assert watch.seen == ["aten.sqrt.default"]


def test_the_root_on_other_devices_takes_no_float64() -> None:
    """Some have none."""
    x = torch.empty(3, device="meta")
    with Watch() as watch:
        sc.ops.sqrt(x)
    assert watch.dtypes == {torch.float32, torch.bool}


def _root(x: Tensor) -> Any:
    import numpy as np

    return np.sqrt(x.numpy())


def test_torch_func_looks_through_minimum_maximum_and_clamp() -> None:
    """vmap, grad and second derivatives go through the choices that the language defines itself."""

    def value(x: Tensor) -> Tensor:
        return sc.ops.clamp(x * x, 0.5, 2.0).sum() + sc.ops.minimum(x * x, x).sum() + sc.ops.maximum(x, 0.0 * x).sum()

    x = torch.tensor([-1.0, 0.3, 1.1, 1.7])
    expected = torch.tensor([-2.0 + 1.0, 0.6 + 1.0, 2.2 + 1.0 + 1.0, 1.0 + 1.0])
    torch.testing.assert_close(torch.func.grad(value)(x), expected)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(value))(x.unsqueeze(1)).squeeze(1), expected)
