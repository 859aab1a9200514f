"""Launches: what they are called with and what they return, and inputs that are only added to an output."""

from __future__ import annotations

import copy
import types
from typing import Any, Callable, Iterator, List

import pytest
import torch

import spikecore as sc
from kernel_loop import Loop, bound
from new_backends import project
from spikecore.backend import BackendError, Spec, Unsupported
from spikecore.kernels import ForwardPlan
from spikecore.kernels.writing import input_leaf
from spikecore.lang import Node, Program
from spikecore.testing import installed
from spikecore_cupy.source import print_kernel
from spikecore_cupy.text import Form
from spikecore_torch.backend import TorchBackend

_module: Any = types.ModuleType("flat")
exec(project("flat", kernel=True)["spikecore_flat/__init__.py"], _module.__dict__)
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
        (
            changed(forward=lambda r, a: ([r[0][0].double()], *r[1:])),
            FORWARD + r"returned torch.float64 \[4, 6\] on cpu as output 0, expected torch.float32 \[4, 6\] on cpu",
        ),
        (
            changed(forward=lambda r, a: ([r[0][0].reshape(4, 3, 2)], *r[1:])),
            FORWARD + r"returned torch.float32 \[4, 3, 2\] on cpu as output 0, expected torch.float32 \[4, 6\]",
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


class Two(sc.Neuron):
    """A leaky neuron with a second input, which ``join`` joins to spikes, potential and next state."""

    inputs = ("x", "skip")
    states = {"v": 0.0}
    params = {"tau": 2.0}

    def __init__(self, join: Any, **options: Any) -> None:
        self.join = join
        super().__init__(**options)

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        h = s.v + (x.x - s.v) / p.tau
        z = self.spike(h - 1.0)
        return self.join(z, h, x.skip)


@pytest.mark.parametrize(
    ("join", "kept"),
    [
        (lambda z, h, skip: (z + skip, {"v": h}), False),
        (lambda z, h, skip: (skip + h, {"v": h}), False),
        (lambda z, h, skip: ((h, z + skip), {"v": h}), False),
        (lambda z, h, skip: (z + 2.0 * skip, {"v": h}), True),
        (lambda z, h, skip: (z * skip, {"v": h}), True),
        (lambda z, h, skip: (z + skip, {"v": h + skip}), True),
        (lambda z, h, skip: (z + skip, {"v": h * sc.ops.detach(skip)}), True),
        (lambda z, h, skip: ((z + skip, h + skip), {"v": h}), True),
        (lambda z, h, skip: (z + sc.ops.detach(skip), {"v": h}), True),
    ],
    ids=["spikes", "potential", "second output", "twice", "times", "state", "read", "two outputs", "detached"],
)
def test_which_inputs_are_kept_for_backward(join: Any, kept: bool) -> None:
    """Not those that are added as they are to one output and read nowhere else. Gradients are the reference's."""
    neuron = Two(join)
    x, skip = (torch.rand(4, 2, 3, dtype=torch.float64).requires_grad_() for _ in range(2))
    its = copy.deepcopy(neuron)
    ours, theirs = bound(neuron, Loop(3)), bound(its, TorchBackend())
    saved: List[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        ours(x, skip)
    assert (skip.data_ptr() in saved) == kept
    grads = []
    for one in (ours, theirs):
        outputs = one(x, skip)
        given = outputs if isinstance(outputs, tuple) else (outputs,)
        total = torch.stack([(out * (k + 1)).sum() for k, out in enumerate(given)]).sum()
        grads.append(torch.autograd.grad(total, (x, skip), materialize_grads=True))
    for mine, reference in zip(*grads):
        torch.testing.assert_close(mine, reference)


def test_an_operation_without_a_text_is_refused_by_name_in_a_kernel() -> None:
    """A language with one more operation: the kernel of a program that uses it is Unsupported, not a KeyError."""
    novel = Node("novel", (input_leaf("x"),))
    program = Program("Novel", inputs=("x",), states=(), outputs=[novel], next=[], initial=[])
    spec = Spec(torch.float32, 4, ())
    with pytest.raises(Unsupported, match="CudaPrinter has no text for the operation 'novel'"):
        print_kernel(ForwardPlan(program, spec), Form(1))
