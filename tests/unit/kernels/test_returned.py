"""Launches that return their results, and kernels that know their sizes: the kernel backend of docs/backends.md."""

from __future__ import annotations

import pkgutil
import types
from typing import Any, Callable, Iterator, List

import pytest
import torch

import spikecore as sc
from spikecore.backend import BackendError
from spikecore.testing._loopback import installed

_module: Any = types.ModuleType("flat")
_text = (pkgutil.get_data("spikecore._scaffold", "templates/kernel.template") or b"").decode()
exec(_text.replace("@Class@", "Flat").replace("@name@", "flat").replace("@package@", "flat"), _module.__dict__)
Flat: Any = _module.Flat


@pytest.fixture
def backend() -> Iterator[Callable[..., str]]:
    """Installs a backend, beside the built-ins, until the test ends."""
    blocks: List[Any] = []

    def install(made: Any) -> str:
        blocks.append(installed(made, ("cpu",)))
        return blocks[-1].__enter__()

    yield install
    for block in reversed(blocks):
        block.__exit__(None, None, None)


def called(name: str, x: torch.Tensor, **options: Any) -> List[torch.Tensor]:
    """Outputs, final state, trace and every gradient of one call of an adaptive neuron."""
    torch.manual_seed(0)
    rho = torch.rand(x.shape[2])
    neuron = sc.ALIF(tau=2.0, rho=rho, learn=("rho", "tau"), backend=name)
    x = x.detach().requires_grad_()
    state = {name: torch.rand(x.shape[1:]).requires_grad_() for name in neuron.states}
    out, final, trace = neuron.run(x, state=state, record=("v",), **options)
    results = [out, *final.values(), trace["v"]]
    grads = [torch.rand(one.shape).to(one.dtype) for one in results]
    wanted = [x, *state.values(), *neuron.parameters()]
    return [*results, *torch.autograd.grad(results, wanted, grads)]


@pytest.mark.parametrize("steps", [1, 5, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("layout", ["contiguous", "channels last", "expanded", "part"])
def test_flat_results_take_the_shape_of_the_call(
    backend: Callable[..., str], steps: int, dtype: torch.dtype, layout: str
) -> None:
    """Whatever layout and dtype: values and gradients of everything are the reference's, in tensors of their own."""
    x = torch.rand(steps, 2, 3, 4, 5)
    x = {
        "contiguous": x,
        "channels last": x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3),
        "expanded": x[:1].expand(x.shape),
        "part": torch.rand(steps, 4, 3, 4, 5)[:, 1:3],
    }[layout].to(dtype)
    name = backend(Flat)
    found = called(name, x)
    for ours, right in zip(found, called("torch", x)):
        assert (ours.shape, ours.dtype) == (right.shape, right.dtype)
        torch.testing.assert_close(ours, right, rtol=2e-3 if dtype == torch.float16 else 1e-4, atol=1e-5)
    assert len({one.untyped_storage().data_ptr() for one in found}) == len(found)


def test_an_output_may_be_changed_in_place(backend: Callable[..., str]) -> None:
    """A result is no view of the flat tensor that was returned, of which autograd would refuse a change in place."""
    x = torch.rand(4, 2, 3, 5).permute(0, 2, 1, 3).requires_grad_()
    out = sc.LIF(backend=backend(Flat))(x)
    out.mul_(2.0)
    out.sum().backward()
    right = x.detach().requires_grad_()
    (sc.LIF(backend="torch")(right) * 2.0).sum().backward()
    torch.testing.assert_close(x.grad, right.grad)


def test_no_steps_and_no_neurons_need_no_launch(backend: Callable[..., str]) -> None:
    """Empty calls have empty results and gradients; no launch sees an empty tensor."""
    name = backend(Flat)
    for shape in ((0, 3, 2), (4, 0, 2)):
        x = torch.zeros(shape, requires_grad=True)
        sc.PLIF(backend=name)(x).sum().backward()
        assert x.grad is not None
        assert x.grad.shape == shape


class Chunked(Flat):  # type: ignore[misc]  # its base is made of text
    """Returns checkpoints every four steps, and checks those that backward gets."""

    name = "chunked"
    chunk = 4
    kept: List[Any] = []

    def forward(self, plan: Any) -> Any:
        launch, walk = super().forward(plan), _module.walker(plan)

        def with_checkpoints(geometry: Any, *tensors: Any) -> Any:
            before, _, _ = walk(geometry, *tensors)
            places = [plan.program.states.index(name) for name in plan.saved]
            kept = [torch.stack([before[t][i] for t in range(4, geometry.steps, 4)]) for i in places]
            self.kept = [value.clone() for value in kept]
            return (*launch(geometry, *tensors)[:3], kept)

        return with_checkpoints

    def backward(self, plan: Any) -> Any:
        launch = super().backward(plan)

        def with_checkpoints(geometry: Any, inputs: Any, state: Any, params: Any, checkpoints: Any, *grads: Any) -> Any:
            assert len(checkpoints) == len(self.kept) == len(plan.saved)
            assert all(torch.equal(a, b) for a, b in zip(checkpoints, self.kept))
            return launch(geometry, inputs, state, params, checkpoints, *grads)

        return with_checkpoints


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 1, 3, 2)])
def test_returned_checkpoints_reach_backward(backend: Callable[..., str], order: Any) -> None:
    """Checkpoints that forward returns arrive flat in backward as they were, in any order of dimensions."""
    x = torch.rand(11, 2, 3, 4).permute(order)
    for ours, right in zip(called(backend(Chunked), x), called("torch", x)):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-5)


def changed(**launches: Callable[..., Any]) -> Any:
    """The backend with what its forward or backward launch returns changed by a function of (results, arguments)."""

    def method(direction: str) -> Any:
        def make(self: Any, plan: Any) -> Any:
            launch = getattr(Flat, direction)(self, plan)
            return lambda *arguments: launches[direction](launch(*arguments), arguments)

        return make

    return type("Wrong", (Flat,), {"name": "wrong", **{direction: method(direction) for direction in launches}})


FORWARD = "the forward launch of backend 'wrong' for PLIF "
BACKWARD = "the backward launch of backend 'wrong' for PLIF "


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (changed(forward=lambda r, a: r[:3]), FORWARD + r"must return groups of 1, 1, 0, 0 tensors, got \[1, 1, 0\]"),
        (changed(forward=lambda r, a: None), FORWARD + r"must return groups of 1, 1, 0, 0 tensors, got \[\]"),
        (
            changed(forward=lambda r, a: ([], *r[1:])),
            FORWARD + r"must return groups of 1, 1, 0, 0 tensors, got \[0, 1, 0, 0\]",
        ),
        (
            changed(forward=lambda r, a: ([r[0][0].double()], *r[1:])),
            FORWARD + r"returned torch.float64 \[4, 6\] on cpu as output 0, expected torch.float32 \[4, 6\] on cpu",
        ),
        (
            changed(forward=lambda r, a: ([r[0][0].reshape(4, 3, 2)], *r[1:])),
            FORWARD + r"returned torch.float32 \[4, 3, 2\] on cpu as output 0, expected torch.float32 \[4, 6\]",
        ),
        (
            changed(forward=lambda r, a: ([r[0][0].to("meta")], *r[1:])),
            FORWARD + r"returned torch.float32 \[4, 6\] on meta as output 0, expected torch.float32 \[4, 6\] on cpu",
        ),
        (
            changed(forward=lambda r, a: ([r[0][0].numpy()], *r[1:])),
            FORWARD + "returned a ndarray as output 0, not a tensor",
        ),
        (
            changed(backward=lambda r, a: (*r[:2], [])),
            BACKWARD + r"must return groups of 1, 0, 1 tensors, got \[1, 0, 0\]",
        ),
        (
            changed(backward=lambda r, a: (*r[:2], [r[2][0].double()])),
            BACKWARD + "returned torch.float64 .* as gradient of parameter .*, expected torch.float32 of any shape",
        ),
    ],
)
def test_what_is_returned_is_checked(backend: Callable[..., str], made: Any, words: str) -> None:
    """A wrong number, kind, shape, dtype or device of results is an error that names launch and result."""
    neuron = sc.PLIF(backend=backend(made))
    x = torch.rand(4, 3, 2, requires_grad=True)
    with pytest.raises(BackendError, match=words):
        torch.autograd.grad(neuron.run(x)[0].exp(), [x, *neuron.parameters()], torch.rand(4, 3, 2))


class Sized(Flat):  # type: ignore[misc]  # its base is made of text
    """Counts what it compiles, and checks that a kernel runs with the sizes it was compiled for."""

    name = "sized"
    sizes = 2
    compiled: List[Any] = []

    def _made(self, direction: str, plan: Any, launch: Any) -> Any:
        Sized.compiled.append((direction, plan.geometry))

        def checked(geometry: Any, *tensors: Any) -> Any:
            assert plan.geometry in (None, geometry)
            return launch(geometry, *tensors)

        return checked

    def forward(self, plan: Any) -> Any:
        return self._made("forward", plan, super().forward(plan))

    def backward(self, plan: Any) -> Any:
        return self._made("backward", plan, super().backward(plan))


def test_few_sizes_get_kernels_of_their_own(backend: Callable[..., str]) -> None:
    """The first sizes of a plan are compiled for, once each; all others share one kernel, and results stay right."""
    Sized.compiled = []
    neuron = sc.LIF(tau=torch.rand(3) + 1.5, backend=backend(Sized))
    right = sc.LIF(tau=neuron.tau, backend="torch")
    for batch in (1, 2, 1, 4, 5, 2, 4):
        x = torch.rand(3, batch, 3, requires_grad=True)
        grads = [torch.autograd.grad(one(x).exp().sum(), x)[0] for one in (neuron, right)]
        torch.testing.assert_close(*grads)
    sizes = [(direction, geometry and (geometry.steps, geometry.neurons)) for direction, geometry in Sized.compiled]
    each = [(direction, size) for size in ((3, 3), (3, 6), None) for direction in ("forward", "backward")]
    assert sizes == each
    assert Sized.compiled[0][1].channels[neuron.program.params.index("tau")] == (1, 3)


def test_without_sizes_a_plan_has_none(backend: Callable[..., str]) -> None:
    """A backend that does not ask for sizes compiles one kernel per plan, as before."""

    class General(Sized):
        name = "general"
        sizes = 0

    Sized.compiled = []
    neuron = sc.LIF(backend=backend(General))
    for batch in (1, 2, 3):
        neuron(torch.rand(3, batch))
    assert Sized.compiled == [("forward", None)]
