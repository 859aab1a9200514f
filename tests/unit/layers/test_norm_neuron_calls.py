"""Calls of a neuron that normalises: later ones skip checks and runner, and give the same bits whatever changes."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from fused_layers import NEURONS, C, Moving, Slow, agree, equal, layers, norm
from kernel_loop import Loop, bound, image
from spikecore.layers import NormNeuron

BACKENDS: Dict[str, Callable[[], Loop]] = {"torch's statistics": lambda: Loop(4), "its own": Moving}


@pytest.mark.parametrize(
    ("neuron", "backend", "shortcut"),
    [
        *((name, "its own", None) for name in NEURONS),
        ("channels", "torch's statistics", None),
        ("numbers", "its own", "before"),
        ("channels", "its own", "after"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_outputs_gradients_and_running_statistics(neuron: str, backend: str, shortcut: Any, training: bool) -> None:
    """Bit for bit as through all checks: three calls, with checkpoints and without."""
    pair = layers(neuron, shortcut, backend=BACKENDS[backend])
    if backend != "its own":
        pair[1] = copy.deepcopy(pair[0])
        bound(pair[1].neuron, _slow_without())
    for layer in pair:
        layer.train(training)
    for seed, steps in enumerate((3, 6, 6)):
        agree(pair, image(steps, seed=seed), *[image(steps, seed=9)] * (shortcut is not None))


def _slow_without() -> Slow:
    made = Slow()
    made.statistics = lambda spec: None  # type: ignore[method-assign]  # as Loop has it
    return made


def _in_place(tensor: Callable[[NormNeuron], Tensor]) -> Callable[[NormNeuron], None]:
    def change(layer: NormNeuron) -> None:
        with torch.no_grad():
            tensor(layer).mul_(1.5).add_(0.25)

    return change


def _set(path: str, value: Callable[[], Any]) -> Callable[[NormNeuron], None]:
    def change(layer: NormNeuron) -> None:
        owner, _, name = path.rpartition(".")
        setattr(layer.get_submodule(owner) if owner else layer, name, value())

    return change


def _weight_of(layer: NormNeuron) -> Any:
    return layer.norm.weight


#: What may change between two calls; each is made to both layers after two calls.
CHANGES: Dict[str, Callable[[NormNeuron], Any]] = {
    "weight in place": _in_place(_weight_of),
    "mean in place": _in_place(lambda layer: layer.norm.running_mean),
    "weight another": _set("norm.weight", lambda: nn.Parameter(torch.linspace(2.0, 1.0, C))),
    "weight with gaps": lambda layer: setattr(_weight_of(layer), "data", torch.linspace(2.0, 1.0, 2 * C)[::2]),
    "weight frozen": lambda layer: _weight_of(layer).requires_grad_(False),
    "statistics away": lambda layer: (
        setattr(layer.norm, "running_mean", None),
        setattr(layer.norm, "running_var", None),
    ),
    "eps": _set("norm.eps", lambda: 0.3),
    "eval": lambda layer: layer.eval(),
    "another norm": _set("norm", lambda: norm(eps=0.2)),
    "loaded": lambda layer: layer.norm.load_state_dict(norm().state_dict()),
    "double": lambda layer: layer.double(),
}


#: Those that eval mode, where running statistics normalise, has another way for.
EVAL_CHANGES = (
    "weight in place",
    "mean in place",
    "weight with gaps",
    "statistics away",
    "eps",
    "another norm",
    "loaded",
)


@pytest.mark.parametrize(
    ("change", "training"), [*((name, True) for name in CHANGES), *((name, False) for name in EVAL_CHANGES)]
)
def test_what_changes_between_calls_counts_at_the_next_one(change: str, training: bool) -> None:
    """Numbers, gradients and running statistics are those of a layer whose calls go through every check."""
    pair = layers()
    for layer in pair:
        layer.train(training)
    for _ in range(2):
        agree(pair, image(6))
    for layer in pair:
        CHANGES[change](layer)
    x = image(6).double() if change == "double" else image(6)
    for seed in range(2):
        agree(pair, x + seed)


class TestAround:
    """What is around a call."""

    def test_parameters_of_a_functional_call(self) -> None:
        """They are those of its call alone."""
        pair = layers()
        agree(pair, image(6))
        other = {"norm.weight": torch.full((C,), 2.0), "norm.bias": torch.zeros(C)}
        equal(*([torch.func.functional_call(layer, other, (image(6),))] for layer in pair))
        agree(pair, image(6))

    def test_a_checkpointed_call_is_computed_again_by_the_same_launches(self) -> None:
        """torch.utils.checkpoint compares what is saved."""
        from torch.utils.checkpoint import checkpoint

        layer = layers()[0]
        x = image(6).requires_grad_()
        checkpoint(layer, x, use_reentrant=False).sum().backward()
        found, x.grad = x.grad, None
        layer(x).sum().backward()
        assert torch.equal(x.grad, found)


def refusal(call: Callable[[Tensor], Tensor], x: Tensor) -> str:
    """What is said of ``x``, or nothing: newer versions of torch refuse a norm whose eps is 0, and 2.0 takes it."""
    try:
        call(x)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("widths", [(4, 8), (8, 4)])
def test_one_neuron_behind_norms_of_other_widths(widths: Any) -> None:
    """Each layer, and one that gets another norm, gives what a fresh one gives, on the backend of kernels."""
    neuron = bound(sc.LIF(2.0), Loop(4))
    layer = NormNeuron(nn.BatchNorm2d(widths[0]), neuron)
    for width in widths:
        layer.norm = nn.BatchNorm2d(width)
        x = torch.randn(3, 2, width, 3, 2, generator=torch.Generator().manual_seed(width)) * 2
        fresh = NormNeuron(nn.BatchNorm2d(width), bound(sc.LIF(2.0), Loop(4)))
        assert all(torch.equal(layer(x), fresh(x)) for _ in range(2))
    layer.norm.eps = 0.0
    assert refusal(layer, x) == refusal(layer.norm, x[0])


def settled(**settings: Any) -> NormNeuron:
    return NormNeuron(norm(), bound(sc.LIF(), Loop()), **settings)


def again(one: NormNeuron, *inputs: Tensor) -> Any:
    """What a copy gives, so that running statistics stay."""
    return copy.deepcopy(one)(*inputs)


@pytest.mark.parametrize(("before", "after"), [(None, "before"), ("before", "after"), ("after", None)])
def test_a_shortcut_counts_from_the_next_call_on(before: Any, after: Any) -> None:
    """The layer computes, prints and takes what one does that was made so."""
    changed, made = settled(shortcut=before), settled(shortcut=after)
    made.load_state_dict(changed.state_dict())
    x, skip = image(), torch.rand_like(image())
    again(changed, x, *[skip] * (before is not None))
    changed.shortcut = after
    inputs = (x, skip) if after else (x,)
    assert torch.equal(again(changed, *inputs), again(made, *inputs))
    assert changed.extra_repr() == made.extra_repr()
    assert changed.shortcut == after
    with pytest.raises(TypeError, match="which normalises its input, takes"):
        changed(*inputs, skip)


def test_fused_counts_from_the_next_call_on() -> None:
    """As one program, and not."""
    one = settled()
    for value, reason in ((None, ""), (False, "fused=False was asked for"), (True, ""), (None, "")):
        one.fused = value
        assert one.fused is value
        one(image())
        assert one.reason == reason  # type: ignore[union-attr]  # it has one


class TestBackward:
    """What comes back is not what forward had."""

    @pytest.mark.parametrize("what", ["input", "weight"])
    def test_what_changed_since_forward_is_found(self, what: str) -> None:
        """Torch counts the versions of what is saved."""
        layer = layers()[0]
        x = image(6).requires_grad_() * 1
        layer(x)
        out = layer(x)
        with torch.no_grad():
            {"input": x, "weight": layer.norm.weight}[what].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()

    def test_a_running_mean_that_moved_since_forward_changes_no_gradient(self) -> None:
        """In eval mode backward has a copy of the mean that the call was normalised by."""
        layer, found = layers()[0].eval(), []
        for moves in (False, True):
            x = image(6).requires_grad_()
            out = layer(x)
            if moves:
                layer.norm.running_mean.add_(1)
            found.append(torch.autograd.grad(out.sum(), [x, layer.norm.weight]))
        for before, after in zip(*found):
            assert torch.equal(before, after)
