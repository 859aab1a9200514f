"""Feedback through a matrix on kernel backends that know nothing of it."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import pytest
import torch
from torch import nn

import spikecore as sc
from kernel_loop import Loop, bound
from spikecore.testing._install import installed
from spikecore_torch.backend import TorchBackend


def net_of(neuron: Any, width: int, dtype: torch.dtype, bias: bool = True, longest: int = 0, **options: Any) -> Any:
    """A recurrent layer whose weights are multiples of 1/8, with delays up to ``longest``."""
    torch.manual_seed(width)
    linear = nn.Linear(width, width, bias=bias).to(dtype)
    with torch.no_grad():
        for value in linear.parameters():
            value.copy_((value * 24).round() / 8)
    if longest:
        delay = torch.arange(width) * longest % (longest + 1)
        return sc.Recurrent(neuron, sc.Delay(linear, longest, delay=delay.double(), learn=()), fused=True, **options)
    return sc.Recurrent(neuron, linear, fused=True, **options).to(dtype)


def called(
    net: Any,
    x: torch.Tensor,
    state: Optional[Dict[str, torch.Tensor]],
    record: Tuple[str, ...],
    absent: Tuple[int, ...],
) -> List[Optional[torch.Tensor]]:
    """Everything that a call gives, and every gradient; no cotangent for the results of these numbers."""
    x = x.detach().requires_grad_()
    start = None if state is None else {k: v.detach().requires_grad_() for k, v in state.items()}
    out, final, *trace = net.run(x, state=start, record=record)
    results = [out, *final.values(), *(trace[0].values() if trace else ())]
    torch.manual_seed(5)
    grads = [torch.rand(one.shape, dtype=one.dtype) for one in results]
    wanted = [x, *(start.values() if start else ()), *net.parameters()]
    there = [k for k in range(len(results)) if k not in absent]
    found = torch.autograd.grad([results[k] for k in there], wanted, [grads[k] for k in there], allow_unused=True)
    return [*(one.detach() for one in results), *found]


@pytest.mark.parametrize(
    ("chunk", "shape", "given", "absent"),
    [
        (0, (1, 2, 3), True, ()),
        (0, (18, 3, 4), False, (0,)),
        (0, (41, 5), True, (1, 2, 3)),
        (4, (18, 3, 4), True, ()),
        (4, (6, 2, 2, 3), False, (0, 1, 2, 4)),
    ],
)
def test_values_and_gradients_are_those_of_the_reference(
    chunk: int, shape: Tuple[int, ...], given: bool, absent: Tuple[int, ...]
) -> None:
    """With parameters of every kind, a record, a given state or none, and cotangents of some results alone."""
    width, step = shape[-1], shape[1:]

    def neuron() -> Any:
        torch.manual_seed(1)
        full = torch.rand(step) + 1.5  # of a step's shape: one for each neuron of each row
        values = {"tau": full if len(step) > 1 else 2.0, "rho": torch.rand(width) * 0.5, "beta": torch.tensor(0.25)}
        return sc.ALIF(**values, learn=("tau", "rho", "beta", "threshold"), channel_dim=-1)

    torch.manual_seed(2)
    x = torch.randn(shape, dtype=torch.float64) * 2
    state = {name: torch.rand(step, dtype=torch.float64) for name in ("v", "a", "feedback")} if given else None
    right = net_of(neuron(), width, torch.float64)
    bound(right.neuron, TorchBackend())
    expected = called(right, x, state, ("v", "a"), absent)
    mine = net_of(neuron(), width, torch.float64)
    bound(mine.neuron, Loop(chunk))
    found = called(mine, x, state, ("v", "a"), absent)
    assert mine.looped == ""
    for ours, one in zip(found, expected):
        assert (ours is None) == (one is None) or not bool((one if ours is None else ours).any())
        if ours is not None and one is not None:
            torch.testing.assert_close(ours, one, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("chunk", [0, 4])
@pytest.mark.parametrize("options", [{"detach": True}, {"longest": 5}, {"longest": 30, "detach": True}], ids=str)
def test_detached_and_delayed(chunk: int, options: Dict[str, Any]) -> None:
    """The same for outputs that are constants, and for those that come back later, also after the end of the call."""
    torch.manual_seed(2)
    x, longest = torch.randn(19, 3, 4, dtype=torch.float64) * 2, options.get("longest", 0)
    state = {name: torch.rand(3, 4, dtype=torch.float64) for name in ("v", "a", "feedback")}
    if longest:
        state["past"] = torch.rand(3, 4, longest, dtype=torch.float64)
    found = []
    for backend in (TorchBackend(), Loop(chunk)):
        net = net_of(sc.ALIF(learn=("rho",)).double(), 4, torch.float64, **options)
        bound(net.neuron, backend)
        found.append(called(net, x, state, ("v", "a"), ()))
        assert net.looped == ""
    for ours, one in zip(*found):
        there = [value for value in (ours, one) if value is not None and value.any()]
        assert len(there) != 1
        if len(there) == 2:
            torch.testing.assert_close(ours, one, rtol=1e-10, atol=1e-12)


def test_what_is_kept_for_backward() -> None:
    """What the neuron was given at each step, and states after every root of the steps; the input itself is not."""
    kept: List[Tuple[int, ...]] = []
    net = net_of(sc.ALIF(), 4, torch.float32)
    bound(net.neuron, Loop())
    x = torch.randn(400, 2, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        out = net(x)
    # u and the output; v and a after 20, 40, ..., 380 steps; v, a and the last output before the first; weight, bias
    assert sorted(kept) == sorted([(400, 2, 4)] * 2 + [(19, 2, 4)] * 2 + [(2, 4)] * 3 + [(4, 4), (4,)])
    out.sum().backward()
    kept.clear()
    net.linear.requires_grad_(False)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        net(x)
    assert kept.count((400, 2, 4)) == 1


def test_backward_within_autocast() -> None:
    """Of a call that was computed without: its products have the dtypes of that call."""
    x, found = torch.randn(6, 3, 4), []
    for inside in (False, True):
        with installed(Loop) as name:
            net = net_of(sc.LIF(1.7, backend=name), 4, torch.float32)
            torch.manual_seed(3)
            state = {key: torch.rand(3, 4).requires_grad_() for key in ("v", "feedback")}
            out = net.run(x, state=state)[0]
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
                found.append(torch.autograd.grad(out.sum(), [*net.parameters(), *state.values()]))
    for plain, within in zip(*found):
        assert torch.equal(plain, within)
