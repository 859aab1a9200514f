"""Online rules that are wrong on purpose: what checks the rules passes on the rule as it is, and on none of these."""

from __future__ import annotations

from typing import Any, Callable, Dict

import pytest
import torch
from torch import Tensor

import online_rules as rules
import spikecore as sc
from spikecore.core.state import put_back
from spikecore_online import _backward, _chunk, _traces


def check_recurrent() -> None:
    """One layer with feedback, two states and a learnt parameter, by d_rtrl."""
    net, (x, (target,)) = rules.recurrent_alif(), rules.batch()
    rules.check(rules.gradients(net, x, (target,), rule="d_rtrl", chunk=3), rules.alif_by_hand(net, x, target))


def check_eprop() -> None:
    """A read-out with memory and random feedback."""
    net, (x, _) = rules.read_out_of_lif(), rules.batch()
    targets = torch.randn(rules.T, rules.B, rules.K, dtype=torch.float64)
    step = rules.step_of(net, rules.squares, rule="eprop", chunk=2, feedback="random")
    step(x, targets)
    signals = step.state_dict()["online"]["feedback"]["1/0"]
    rules.check({name: p.grad for name, p in net.named_parameters()}, rules.eprop_by_hand(net, x, targets, signals))


def check_outer() -> None:
    """One leak for all neurons, by the rank-one trace."""
    net, (x, targets) = rules.layer(sc.LI(3.0)), rules.batch()
    rules.check(rules.gradients(net, x, targets, rule="pp_prop", chunk=2), rules.through_time(net, x, targets))


def check_filtered() -> None:
    """The same by the trace of the input."""
    net, (x, targets) = rules.layer(sc.LI(3.0)), rules.batch()
    rules.check(rules.gradients(net, x, targets, rule="ottt", chunk=2), rules.through_time(net, x, targets))


CHECKS: Dict[str, Callable[[], None]] = {
    "recurrent": check_recurrent,
    "eprop": check_eprop,
    "outer": check_outer,
    "filtered": check_filtered,
}


@pytest.mark.parametrize("name", CHECKS)
def test_the_rules_as_they_are_pass(name: str) -> None:
    """The control."""
    CHECKS[name]()


def earlier(transition: Callable[..., Any]) -> Callable[..., Any]:
    """The transition of the chunk before."""
    last: Dict[Any, Any] = {}

    def of_before(call: Any, state: str) -> Any:
        now = transition(call, state)
        before, last[call.name, state] = last.get((call.name, state), now), now
        return before

    return of_before


def stays(advance: Callable[..., None]) -> Callable[..., None]:
    """Traces that are made in the first chunk, and not moved afterwards."""

    def once(self: Any, *args: Any) -> None:
        if not self.traces:
            advance(self, *args)

    return once


def rolled(owe: Callable[..., None]) -> Callable[..., None]:
    """What a sample owes is multiplied with the trace of another one."""

    def mixed(self: Any, of: Any, starts: Dict[str, Tensor]) -> None:
        owe(self, of, {name: g.roll(1, 0) for name, g in starts.items()})

    return mixed


def leaking(sent: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Random feedback with a part of the network's own."""

    def leaks(self: Any, call: Any, k: int, error: Tensor) -> Tensor:
        found = sent(self, call, k, error)
        return found + 0.1 * (error @ error.new_ones(error.shape[-1], found[0, 0].numel())).view(found.shape)

    return leaks


def late(fed_back: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """What came back one step later than it did."""
    return lambda self: fed_back(self).roll(1, 0)


def unfiltered(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A filter that begins at rest in every chunk."""

    def at_rest(self: Any, of: Any, what: str, x: Tensor) -> Tensor:
        self.traces.clear()
        return run(self, of, what, x)

    return at_rest


#: name -> (where, what, the fault, the check that catches it)
MUTANTS: Dict[str, Any] = {
    "traces are not advanced": (_traces.Full, "advance", stays, "recurrent"),
    "mean inputs are not advanced": (_traces.Outer, "advance", stays, "outer"),
    "traces are advanced by the transition of the chunk before": (
        _chunk.NeuronCall,
        "transition",
        earlier,
        "recurrent",
    ),
    "rows of the batch are mixed": (_traces.Full, "owe", rolled, "recurrent"),
    "rows of the batch are mixed in the outer product": (_traces.Outer, "owe", rolled, "outer"),
    "random feedback leaks": (_backward.Backward, "_sent", leaking, "eprop"),
    "the read-out's memory is left out": (_backward.Backward, "_memory_errors", lambda _: lambda *_: {}, "eprop"),
    "feedback comes back a step late": (_chunk.NeuronCall, "fed_back", late, "recurrent"),
    "the filter begins anew in each chunk": (_traces.Filtered, "_run", unfiltered, "filtered"),
    "parameters have no traces": (
        _backward,
        "learn_parameters",
        lambda learn: lambda call, errors, traces: learn(call, errors, {}),
        "recurrent",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check that passes on the rule fails."""
    where, what, fault, check = MUTANTS[name]
    monkeypatch.setattr(where, what, fault(getattr(where, what)))
    with pytest.raises(AssertionError):
        CHECKS[check]()


def test_a_graph_over_the_whole_sequence_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """States that keep their graph from chunk to chunk give the same numbers, and hold every chunk."""
    net = rules.read_out_of_lif()
    rules.check_one_chunk_is_held(net, rule="eprop")

    def kept(self: Any, *_: Any) -> None:
        for module in self.modules:
            put_back(module, {"_carrying": 0}, module.state)

    monkeypatch.setattr(_chunk, "_leaves", lambda state: state)
    monkeypatch.setattr(_chunk.GoingOn, "__exit__", kept)
    with pytest.raises(AssertionError, match="tensors that are held"):
        rules.check_one_chunk_is_held(net, rule="eprop")
