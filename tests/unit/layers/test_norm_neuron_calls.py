"""Calls of a neuron that normalises: later ones skip checks and runner, and give the same bits whatever changes; and
why a call is two layers.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Callable, Dict, List

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from kernel_loop import SHAPE, Loop, Moving, bound, image
from spikecore.backend import Unsupported
from spikecore.layers import NormNeuron
from spikecore.testing import installed

C = SHAPE[1]


class Slow(Moving):
    """The same through all checks and the runner, at each call."""

    def compile(self, program: Any, spec: Any) -> Any:
        made = super().compile(program, spec)
        made.bind = lambda *_: None
        return made


NEURONS: Dict[str, Callable[[], sc.Neuron]] = {
    "numbers": sc.LIF,
    "scalar": lambda: sc.LIF(learn=("tau", "threshold")),
    "channels": lambda: sc.LIF(torch.linspace(2, 3, C), learn=("tau",)),
    "not learnt": lambda: sc.LIF(torch.linspace(2, 3, C)),
    "ranged": sc.PLIF,
    "two states": lambda: sc.Synaptic(learn=("alpha",)),
}


def norm(**options: Any) -> nn.BatchNorm2d:
    made = nn.BatchNorm2d(C, **options)
    if made.affine:
        with torch.no_grad():
            made.weight.copy_(torch.linspace(0.6, 1.8, C))
            made.bias.copy_(torch.linspace(-0.2, 0.5, C))
    return made


def layers(neuron: str = "numbers", shortcut: Any = None, backend: Any = Moving, **options: Any) -> List[NormNeuron]:
    """A layer, and a twin all of whose calls go through every check."""
    fast = NormNeuron(norm(**options), bound(NEURONS[neuron](), backend()), shortcut=shortcut)
    slow = copy.deepcopy(fast)
    bound(slow.neuron, Slow())
    return [fast, slow]


def results(layer: NormNeuron, x: Tensor, *skip: Tensor, grad: bool = True, cotangent: Any = None) -> List[Any]:
    """Output, gradients, running statistics."""
    given = [value.detach().clone(memory_format=torch.preserve_format).requires_grad_(grad) for value in (x, *skip)]
    layer.zero_grad()
    out = layer(*given)
    if out.requires_grad:
        out.backward(torch.cos(x) if cotangent is None else cotangent)
    found = [out.detach(), *(value.grad for value in given), *(p.grad for p in layer.parameters())]
    return [*found, *(value.clone() for value in layer.buffers())]


def equal(mine: List[Any], its: List[Any]) -> None:
    assert len(mine) == len(its)
    for one, other in zip(mine, its):
        assert (one is None) == (other is None)
        if one is not None:
            assert torch.equal(one, other)
            assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())


def agree(pair: List[NormNeuron], x: Tensor, *skip: Tensor, **options: Any) -> None:
    equal(*(results(layer, x, *skip, **options) for layer in pair))


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
EVAL_CHANGES = "weight in place, mean in place, weight with gaps, statistics away, eps, another norm, loaded".split(
    ", "
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


def settled(**settings: Any) -> NormNeuron:
    return NormNeuron(norm(), bound(sc.LIF(), Loop()), **settings)


def again(one: NormNeuron, *inputs: Tensor) -> Any:
    """The results of a copy, so that running statistics stay."""
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
    """The call is one program, and then it is not."""
    one = settled()
    for value, reason in ((None, ""), (False, "fused=False was asked for"), (True, ""), (None, "")):
        one.fused = value
        assert one.fused is value
        one(image())
        assert one.reason == reason  # type: ignore[union-attr]  # it has one


class TestBackward:
    """Values that come back are not those of forward."""

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


# -- which backend normalises, and why two layers are computed


class Without(Loop):
    """A backend without the capability."""

    name = "without"
    capabilities = replace(Loop.capabilities, normalisation=False)


class OfOneInput(Loop):
    """A backend of an older contract, which normalises the first input alone."""

    name = "of_one_input"
    capabilities = replace(Loop.capabilities, normalised_shortcut=False)


def test_a_backend_may_normalise_the_first_input_alone() -> None:
    """A normalised shortcut is computed one after the other there, and the reason names the capability."""
    with installed(OfOneInput) as name:
        neuron = sc.LIF(backend=name)
        layer = NormNeuron(norm(), neuron, shortcut="before")
        layer(image(), image())
        assert layer.reason == ""
        layer.shortcut_norm = norm()
        layer(image(), image())
        assert "does not support normalised_shortcut" in str(layer.reason)


def test_why_two_layers_are_computed_is_said() -> None:
    """On the reference, by wish, in calls that torch traces; fused=True raises instead, in words."""
    x = image()
    layer = NormNeuron(norm(), sc.LIF(backend="torch"))
    layer(x)
    assert "computes one operation after the other" in str(layer.reason)
    layer = NormNeuron(norm(), sc.LIF(backend="torch"), fused=True)
    layer(x)
    assert layer.reason == ""
    with installed(Without) as name:
        layer = NormNeuron(norm(), sc.LIF(backend=name), fused=True)
        with pytest.raises(
            Unsupported, match=r"LIF was to normalise within its kernel \(fused=True\): backend 'without'"
        ):
            layer(x)
    assert int(layer.norm.num_batches_tracked) == 0
    layer = NormNeuron(norm(), bound(sc.LIF(), Loop()), fused=False)
    layer(x)
    assert layer.reason == "fused=False was asked for"
    layer = NormNeuron(norm(), bound(sc.LIF(), Loop()), fused=True)
    layer(x)
    assert layer.reason == ""
    other = NormNeuron(norm(), bound(sc.LIF(tau=torch.full((5,), 2.0), channel_dim=3), Loop()))
    other(x)
    assert other.reason == "channel_dim=3, and a parameter is a tensor"
    with pytest.raises(Unsupported, match="is no plain input of the normalisation"):
        layer(x[..., :0])  # no number to normalise over
    layer.fused = None
    assert layer(x[..., :0]).shape == x[..., :0].shape
    assert "is no plain input of the normalisation" in str(layer.reason)
    with pytest.raises(TypeError, match="fused='yes' must be True, False or None"):
        NormNeuron(norm(), sc.LIF(), fused="yes")


def test_an_eps_of_nothing_is_left_to_torch() -> None:
    """A kernel gave no spikes, in silence, where a channel is constant and where torch refuses the number."""
    layer = NormNeuron(norm(eps=0.0), sc.LIF(), fused=True)
    bound(layer.neuron, Loop())
    with pytest.raises(Unsupported, match=r"eps=0\.0 of the normalisation is not above 0"):
        layer(image())


def test_the_interpreter_derives_statistics() -> None:
    """The suite's cases of normalisation run on the reference, too; it has second derivatives beside."""
    layer = NormNeuron(nn.BatchNorm2d(2).double(), sc.LI(tau=2.7, backend="torch"), fused=True)
    x = (image(2, torch.float64)[:, :2, :2, :1, :2] * 2.0).requires_grad_()
    assert torch.autograd.gradgradcheck(layer, (x,))
