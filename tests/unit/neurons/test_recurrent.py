"""Recurrent: the last output comes back through a layer, step by step, as a loop or as one call of the backend."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import refusals
import spikecore as sc
from plain_loop import EVERYTHING, Plain
from spikecore.neurons import Recurrent
from spikecore.testing import installed

STEPS, BATCH, WIDTH = 7, 3, 5


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, the same in each run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


#: Each of them changes what a call gives, or how it is computed.
CHANGES: Dict[str, Callable[[Any], Any]] = {
    "the weight, in place": lambda net: net.linear.weight.data.mul_(-2.0),
    "another weight": lambda net: setattr(net.linear, "weight", nn.Parameter(net.linear.weight.detach() * 3.0)),
    "a linear without a bias": lambda net: setattr(net, "linear", nn.Linear(WIDTH, WIDTH, bias=False).double()),
    "a number of the neuron": lambda net: setattr(net.neuron, "v_reset", -0.5),
    "the reset": lambda net: setattr(net.neuron, "reset", "soft"),
    "detach": lambda net: setattr(net, "detach", True),
    "a frozen matrix": lambda net: net.linear.requires_grad_(False),
    "a hook": lambda net: net.linear.register_forward_hook(lambda module, args, out: out * 2.0),
    "a parametrisation": lambda net: parametrize.register_parametrization(net.linear, "weight", nn.Tanh()),
}


def results(net: Any, given: Optional[Dict[str, Tensor]]) -> List[Optional[Tensor]]:
    """Outputs, final states and all gradients of a call, from a given state or from rest."""
    net.zero_grad()
    x = (drawn(STEPS, BATCH, WIDTH) * 2).requires_grad_()
    out, state = net.run(x, state=given)
    torch.autograd.backward([out, state["v"]], [drawn(*out.shape, seed=1), drawn(*state["v"].shape, seed=2)])
    alone = net(x.detach())
    return [out.detach(), state["v"].detach(), alone.detach(), x.grad, *[p.grad for p in net.parameters()]]


def check_change(backend: str, change: str, **options: Any) -> None:
    """Calls before a change leave nothing behind: the call after it is that of a loop over the steps."""
    torch.manual_seed(3)
    net = sc.Recurrent(sc.LIF(2.0, backend=backend, **options), nn.Linear(WIDTH, WIDTH)).double()
    state = {"v": drawn(BATCH, WIDTH, seed=4), "feedback": (drawn(BATCH, WIDTH, seed=5) > 0).double()}
    before = [results(net, given) for _ in range(3) for given in (None, state)]
    assert net.looped == ""
    assert all(torch.equal(a, b) for a, b in zip(before[0], before[4]))  # type: ignore[arg-type]  # all are there
    CHANGES[change](net)
    looped = copy.deepcopy(net)
    looped.fused = False
    for given in (None, state):
        for ours, its in zip(results(net, given), results(looped, given)):
            assert (ours is None) == (its is None)
            if ours is not None and its is not None:
                torch.testing.assert_close(ours, its, rtol=1e-11, atol=1e-13)


T, B, C = 9, 3, 4


def values(*shape, seed=0, dtype=torch.float64):
    """Normal values around 0.5."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).add(0.5).to(dtype)


def layer(dtype=torch.float64):
    """A feedback layer, always the same."""
    torch.manual_seed(0)
    return nn.Linear(C, C).to(dtype)


def built(linear: Any = None, neuron: Any = None, **options: Any) -> Any:
    """A recurrent layer in float64 that is always the same."""
    torch.manual_seed(0)
    return sc.Recurrent(neuron or sc.LIF(1.7), linear or nn.Linear(C, C), **options).double()


class TestState:
    """The state of the neuron, and the last output."""

    def test_an_output_may_be_changed_in_place(self):
        """It is not the one that comes back."""
        single, multi, x = built(step="single"), built(), values(T, B, C)
        for now, expected in zip(x, multi(x)):
            out = single(now)
            assert torch.equal(out, expected)
            out.zero_()


class TestErrors:
    """Each names the argument."""

    def test_neuron_whose_own_forward_would_not_be_called(self):
        """Steps are those of its dynamics."""
        twice = type("Twice", (sc.LIF,), {"forward": lambda self, x: super(sc.LIF, self).forward(2 * x)})
        hooked = sc.LIF()
        hooked.register_forward_pre_hook(lambda module, args: (2 * args[0],))
        for neuron, name in ((twice(), "Twice"), (hooked, "LIF")):
            with pytest.raises(ValueError, match=f"^Recurrent: this {name} has a forward of its own or a forward pre-"):
                sc.Recurrent(neuron, nn.Linear(3, 3))

    @pytest.mark.parametrize(
        ("part", "step"), [(sc.LI, "multi"), (sc.LI, "single"), (sc.layers.SequenceDropout, "multi")]
    )
    def test_state_within_the_layer(self, part, step):
        """A module of several steps took the batch of a step for time, and mixed its rows; it is refused, as are
        single steps, whose state no call, ``reset`` or ``run`` of Recurrent would know of.
        """
        inner = sc.set_step(part(), step)
        name = type(inner).__name__
        with pytest.raises(ValueError, match=f"^Recurrent: linear is {name}, whose state would be no part of that of"):
            Recurrent(sc.LIF(), inner)
        with pytest.raises(ValueError, match=f"^Recurrent: linear is Sequential with {name} in it, whose state would"):
            Recurrent(sc.LIF(), nn.Sequential(layer(), inner))

    def test_time_within_the_layer(self):
        """A layer that knows of time gets one step, and says so where it was set for all of them."""
        folds = sc.layers.TimeBatched(nn.Conv1d(C, C, 1))
        with pytest.raises(ValueError, match=r"^Recurrent: linear is TimeBatched with step='multi', which would take"):
            Recurrent(sc.LIF(), folds)
        x = values(T, B, C, 2, dtype=torch.float32)
        single = Recurrent(sc.LIF(), sc.set_step(folds, "single"))
        assert torch.equal(single(x), Recurrent(sc.LIF(), folds.module)(x))


class Masked(nn.Module):
    """The lower triangle."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.tril()


class Scaled(nn.Linear):
    """A layer with a forward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * super().forward(x)


#: Why a module is called step by step.
IS_NO_LINEAR = "linear is {}, and one call takes the forward of nn.Linear only"


def hooked() -> nn.Module:
    linear = nn.Linear(C, C)
    linear.register_forward_hook(lambda module, args, out: out * 2)
    return linear


@pytest.mark.parametrize(
    ("net", "says"),
    [
        (lambda: built(nn.Identity()), IS_NO_LINEAR.format("torch.nn.modules.linear.Identity")),
        (lambda: built(Scaled(C, C)), IS_NO_LINEAR.format(f"{__name__}.Scaled")),
        (lambda: built(hooked()), "linear has hooks, which are called at every step"),
        (lambda: built(nn.utils.spectral_norm(nn.Linear(C, C))), "linear has hooks, which are called at every step"),
        (lambda: built(fused=False), "fused=False was asked for"),
    ],
)
def test_what_no_matrix_can_be_is_a_loop(net: Any, says: str) -> None:
    """It says so, and where one call was asked for it is refused."""
    made = net()
    x = values(T, B, C)
    out = made(x)
    assert (made.looped, out.shape) == (says, x.shape)
    assert f"steps=a loop ({says})" in repr(made)
    if made.fused is None:
        made.fused = True
        with pytest.raises(sc.backend.Unsupported) as told:
            made(x)
        assert str(told.value) == f"Recurrent was to run all steps in one call (fused=True): {says}"


def test_a_backend_without_it_is_given_single_steps() -> None:
    """The loop computes, and one call is refused by name."""

    class Partial(Plain):
        name = "plain"
        capabilities = replace(EVERYTHING, recurrent=False)

    x = values(T, B, C)
    with installed(Partial) as name:
        net = built(neuron=sc.LIF(1.7, backend=name))
        assert torch.equal(net(x), built()(x))
        assert net.looped == "backend 'plain' does not declare recurrent"
        net.fused = True
        with pytest.raises(sc.backend.Unsupported, match="backend 'plain' does not declare recurrent$"):
            net(x)


def test_a_backend_of_plain_feedback_is_given_single_steps_of_others() -> None:
    """A backend that knows no detached feedback runs single steps; the gradients are those of the reference."""

    class Partial(Plain):
        name = "plain"
        capabilities = replace(EVERYTHING, feedback_options=False)

    x = values(T, B, C).requires_grad_()
    with installed(Partial) as name:
        net = built(neuron=sc.LIF(1.7, backend=name), detach=True)
        (mine,) = torch.autograd.grad(net(x).sum(), x)
        assert net.looped == "backend 'plain' does not declare feedback_options"
        assert torch.equal(mine, torch.autograd.grad(built(detach=True)(x).sum(), x)[0])
        assert not built(neuron=sc.LIF(1.7, backend=name))(x).isnan().any()


@pytest.mark.parametrize("change", CHANGES)
def test_a_later_call_sees_what_changed(change: str) -> None:
    """Calls of one signature share what was found out at the first one, and no more than that."""
    check_change("torch", change, learn=("tau",))


def test_autocast_ends_with_its_block() -> None:
    """A weight that autocast made, and one of that dtype: the same tensors, of which only the first is one call."""
    net, x = built().float(), values(T, B, C, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(x)
        assert net.looped == ""
    net.linear.bfloat16()
    with pytest.raises(RuntimeError, match="dtype"):
        net(x)
    assert "weight is torch.bfloat16" in net.looped


def test_a_parametrisation_is_computed_once_a_call() -> None:
    """And its gradient flows to what it is computed from."""
    calls = []

    class Counted(Masked):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return super().forward(weight)

    linear = nn.Linear(C, C)
    net = built(linear)
    parametrize.register_parametrization(linear, "weight", Counted())
    calls.clear()
    net(values(T, B, C)).sum().backward()
    assert (net.looped, len(calls)) == ("", 1)
    grad = linear.parametrizations.weight.original.grad
    assert grad.tril().any()
    assert not grad.triu(1).any()


test_refused = refusals.table(__file__, globals())
