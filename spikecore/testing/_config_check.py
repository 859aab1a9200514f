"""The check that a configuration gives what the oracle gives, and rows of such checks.

:func:`check` makes the neuron, its inputs and cotangents, calls it, runs backwards, and compares every result and every
gradient.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

import spikecore as sc
from spikecore.dtypes import NARROW
from spikecore.layers.delay import PAST
from spikecore.testing._case import Collection
from spikecore.testing._config import Config, piece_lengths
from spikecore.testing._context import Context
from spikecore.testing._inputs import as_input, laid, laid_step, part_of, summed
from spikecore.testing._layers import in_network, multiplies, near
from spikecore.testing._oracle import FEEDBACK, Array, Gradients, Matrices
from spikecore.testing._subject import Subject
from spikecore.testing.compare import Mismatch, as_array, backward, foremost, same

#: By what cotangents are multiplied so that gradients overflow in float16 and cotangents do not: those of outputs, and
#: those of states, which are never float16. The share of them that is NaN.
_HUGE, _HUGE_STATE, _NANS = 2.0**14, 2.0**18, 0.02


def check(context: Context, config: Config) -> None:
    """Raise :class:`Mismatch` where a result or a gradient of the call is not the oracle's."""
    if config.feedback != "none" and not multiplies(context, config.dtype):
        config = replace(config, dtype="float32")
    s = Subject(context, config)
    leaves = leaves_of(s, config)
    if config.call == "model":
        cotangents = cotangents_of(s, config)
        calls = in_network(
            context.name, s.another, leaves, lambda neuron: partial(results_of, s, config, neuron=neuron), cotangents
        )
        for where, results, changes in calls:
            _check_values(s, config, leaves, results, f", in {where},")
            _compare_gradients(s, config, cotangents, changes, f", in {where},")
        return
    with torch.autocast(context.device.type, dtype=torch.bfloat16) if config.autocast else nullcontext():
        results = results_of(s, config, leaves)
        for _ in range(1, config.calls):
            sc.reset(s.module)
            results = results_of(s, config, leaves)
    _check_values(s, config, leaves, results, _words(config))
    connected = [name for name, value in results.items() if value.requires_grad]
    if connected and not (config.leaves or config.learnt or config.layered):
        raise Mismatch(f"{connected[0]} of {s.of} requires a gradient, where nothing given does: what is saved for it?")
    if config.given:
        _check_gradients(s, config, leaves, results)


def add_row(
    cases: Collection, id: str, tier: str, holds: str, *configs: Config, run: Callable[[Context, Config], None] = check
) -> None:
    """Add a case that consists of configurations, one after the other; ``run`` checks each."""

    def each(context: Context) -> None:
        for config in configs:
            run(context, config)

    needs = dict.fromkeys(name for config in configs for name in config.needs)
    cases.add(id, tier, holds, each, tuple(needs), dtype=configs[0].dtype)


def leaves_of(s: Subject, config: Config) -> Dict[str, Tensor]:
    """Inputs and states in their layouts; two names of one tensor where an input is given twice."""
    lay = _laid_once if config.repeat else laid
    leaves = {name: lay(x, config.layout(name)) for name, x in zip(config.inputs, s.xs())}
    for name in config.inputs:
        if config.over(name):
            leaves[name] = as_input(part_of(leaves[name], config.over(name), len(s.shape) - 1), config.over(name))
    leaves.update({name: laid_step(value, config.layout(name)) for name, value in (s.start() or {}).items()})
    leaves = {name: value.detach().requires_grad_(name in config.leaves) for name, value in leaves.items()}
    first = leaves[config.inputs[0]]
    if config.x2 in ("same", "view"):
        leaves[config.inputs[1]] = first
    return leaves


def _laid_once(x: Tensor, layout: str) -> Tensor:
    """The step that all steps are, in a layout."""
    return laid_step(x[0], layout)


def results_of(s: Subject, config: Config, leaves: Mapping[str, Tensor], neuron: Any = None) -> Dict[str, Tensor]:
    """Results by name."""
    neuron = s.module if neuron is None else neuron
    xs = [leaves[name] for name in config.inputs]
    if config.x2 == "view":
        xs[1] = xs[1].view_as(xs[1])
    final: Mapping[str, Tensor] = {}
    trace: Mapping[str, Tensor] = {}
    if config.call == "short":
        output = neuron(*xs)
    elif config.call == "single":
        output = torch.stack([neuron(*at) for at in zip(*xs)])
        final = neuron.state or {}
    elif config.call in ("carried", "cut"):
        pieces = []
        with sc.carry_state(neuron):
            for piece in _in_pieces(config, neuron, xs):
                pieces.append(neuron(*piece))
                if config.call == "cut" and len(pieces) == 1:
                    sc.detach(neuron)
            final = dict(neuron.state or {})
        output = torch.cat(pieces)
        if neuron.state is not None:
            raise Mismatch(f"{s.of} keeps a state after carry_state ended")
    else:
        state = {name: leaves[name] for name in config.carried} if config.state else None
        output, final, *traces = neuron.run(*xs, state=state, record=config.recorded)
        trace = traces[0] if traces else {}
    if tuple(trace) != config.recorded:
        raise Mismatch(f"record={config.recorded} of {s.of} gives {tuple(trace)}")
    outputs = output if isinstance(output, tuple) else (output,)
    named = {f"output {k}": value for k, value in enumerate(outputs)}
    named.update((f"final {name}", value) for name, value in final.items())
    named.update((f"trace {name}", value) for name, value in trace.items())
    return named


def _in_pieces(config: Config, neuron: Any, xs: Sequence[Tensor]) -> Iterator[Sequence[Tensor]]:
    """The inputs of calls that carry their state."""
    lengths = piece_lengths(config.shape[0])
    if not config.repeat:
        yield from zip(*(x.split(lengths) for x in xs))
        return
    for neuron.repeat in filter(None, lengths):
        yield xs


def _check_values(
    s: Subject, config: Config, leaves: Mapping[str, Tensor], results: Mapping[str, Tensor], words: str
) -> None:
    """Outputs, final states and traces are the oracle's."""
    exact = config.bits or config.exact
    outputs = tuple(value.detach() for name, value in results.items() if name.startswith("output"))
    if config.shortcut == "after" and "skip" in leaves:  # a difference of multiples of 1/4 is exact
        outputs = (outputs[0] - leaves["skip"].detach(),)
    right = s.bits() if config.bits else s.seen
    checks = [partial(s.check_outputs, outputs, words, exact=exact)]
    for kind, what, expected in (("final", "final state", right.final), ("trace", "recorded", right.states)):
        values = {name.partition(" ")[2]: value.detach() for name, value in results.items() if name.startswith(kind)}
        past = values.pop(PAST, None) if config.longest else None
        checks.append(partial(s.check_states, values, expected, what, exact))
        if past is not None and isinstance(s.seen.layer, Matrices):
            fed = np.concatenate([s.seen.start[FEEDBACK][None], s.seen.outputs[config.output]])
            before = s.seen.layer.each[0].past(fed, config.longest)
            checks.append(partial(same, "final past", s.of, as_array(past), before))
    foremost(checks, Mismatch)
    if config.call != "short" and not all(f"final {name}" in results for name in config.states):
        raise Mismatch(f"{s.of}: no state is carried between single steps")


def _words(config: Config) -> str:
    if config.call == "single":
        return ", step by step,"
    if config.call in ("carried", "cut"):
        return " of the pieces"
    return ", with a gradient wanted," if config.wanted else ""


def cotangents_of(s: Subject, config: Config) -> Dict[str, Tensor]:
    """Cotangents by the names of results, in their layouts."""
    cotangents = {name: s.cotangent_of(name) for name in config.results}
    for name, g in cotangents.items():
        if config.cotangents == "huge":
            g.mul_(_HUGE if name.startswith("output") else _HUGE_STATE)
        elif config.cotangents == "nan":
            g[s.context.tensor(s.random(tuple(g.shape)) < _NANS, g.dtype).bool()] = float("nan")
        elif config.cotangents in ("last", "one"):
            g[:-1] = 0.0
            if config.cotangents == "one":
                g.flatten(1)[:, 1:] = 0.0
    return {
        name: (laid_step if name.startswith("final") else laid)(g, config.layout(f"g {name}"))
        for name, g in cotangents.items()
    }


def _groups(config: Config, cotangents: Mapping[str, Tensor]) -> Tuple[List[Optional[Tensor]], Any, Any]:
    """Cotangents of outputs, of final states and of traces."""
    outputs = [cotangents.get(f"output {k}") for k in range(len(config.neuron.outputs))]
    final, trace = (
        {name: cotangents[f"{kind} {name}"] for name in config.carried if f"{kind} {name}" in cotangents}
        for kind in ("final", "trace")
    )
    return outputs, final, trace


def _check_gradients(s: Subject, config: Config, leaves: Mapping[str, Tensor], results: Mapping[str, Tensor]) -> None:
    """Check that each leaf that requires a gradient has the oracle's, and no other leaf has one."""
    cotangents = cotangents_of(s, config)
    # a result that nothing wanted leads to may be without a graph; a missing gradient is judged as 0 below
    connected = [name for name in cotangents if results[name].requires_grad]
    if connected:
        of = s.of if len(connected) == len(results) else f"{', '.join(connected)} of {s.of}"
        backward(of, [results[name] for name in connected], [cotangents[name] for name in connected])
    gradients: Dict[str, Optional[Tensor]] = {}
    parameters = {_own_name(name): value for name, value in s.module.named_parameters()}
    for name, leaf in (*leaves.items(), *parameters.items()):
        if not leaf.requires_grad and leaf.grad is not None:
            raise Mismatch(f"{name} of {s.of} requires no gradient and got one")
        if leaf.grad is not None and leaf.grad.dtype != leaf.dtype:
            raise Mismatch(f"the gradient of {name} of {s.of} is {leaf.grad.dtype}, not {leaf.dtype}")
        if leaf.requires_grad:
            gradients[name] = leaf.grad
    _compare_gradients(s, config, cotangents, gradients, "")


def _compare_gradients(
    s: Subject, config: Config, cotangents: Mapping[str, Tensor], gradients: Mapping[str, Optional[Tensor]], words: str
) -> None:
    """Gradients by the names of leaves are the oracle's."""
    groups = _groups(config, cotangents)
    right, limits = s.gradients(*groups), s.conditioned(*groups)
    inputs = dict(zip(config.inputs, [g.sum(0) for g in right.inputs] if config.repeat else right.inputs))
    terms: Dict[str, Array] = {}
    for name in filter(config.over, config.inputs):
        terms[name] = _summed(np.abs(inputs[name]), name, config)
        inputs[name] = _summed(inputs[name], name, config)
    if config.x2 in ("same", "view"):
        first, second = config.inputs[:2]
        terms[first] = np.abs(inputs[first]) + np.abs(inputs[second])
        inputs = {first: inputs[first] + inputs[second]}
    if config.shortcut == "before" and config.dtype in NARROW:
        terms["x"] = np.abs(inputs["x"]) + np.abs(_through_normal(s, inputs["skip"]))
    checks = []
    for quantity, some in (
        ("input gradient", inputs),
        ("state gradient", right.state),
        ("parameter gradient", right.params),
    ):
        for name, expected in some.items():
            if name not in gradients:
                continue
            grad: Any = gradients[name]
            if grad is None and not np.any(expected):
                continue  # a gradient that is not there is 0
            if config.feedback != "none" and (config.dtype in NARROW or config.autocast):
                # in 16 bits the products of all steps are rounded, one after the other
                near(f"{quantity} of {name}", as_array(grad), expected, s.of)
                continue
            checks.append(
                partial(
                    s.check,
                    quantity,
                    grad,
                    expected,
                    name=_named(quantity, name, config) + words,
                    stored=config.param_dtype if name in s.params else "",
                    terms=terms.get(name),
                    conditioning=limits and partial(_limit, limits, quantity, name, config),
                )
            )
    foremost(checks, Mismatch)


def _summed(x: Array, name: str, config: Config) -> Array:
    """The sum over what an input broadcasts over."""
    return np.asarray(summed(x, config.over(name), len(config.shape) - 1))


def _limit(limits: Callable[[], Gradients], quantity: str, name: str, config: Config) -> Array:
    """Allowed deviation of the gradient of a leaf."""
    of = limits()
    inputs = [limit.sum(0) for limit in of.inputs] if config.repeat else of.inputs
    if quantity == "input gradient" and config.x2 in ("same", "view"):
        return np.asarray(inputs[0] + inputs[1])
    if config.over(name):
        return _summed(dict(zip(config.inputs, inputs))[name], name, config)
    kinds = {"state gradient": of.state, "parameter gradient": of.params}
    return np.asarray(kinds.get(quantity, dict(zip(config.inputs, inputs)))[name])


def _through_normal(s: Subject, cotangent: Array) -> Array:
    """Cotangent of a normalised input from its sum with a shortcut, without the part through its statistics: a kernel
    may take the sum's cotangent as the shortcut's gradient, in 16 bits.
    """
    norm = s.layer.oracle.norms[0]  # type: ignore[union-attr]  # it is a normalisation
    rstd = norm.normal(s.inputs[0])[1]
    return np.asarray(cotangent * norm.wide(norm.weight, cotangent) * rstd)


def _own_name(path: str) -> str:
    """The name of a parameter within its module: ``linear.weight`` is ``weight``, behind a parametrisation, too; that
    of the normalisation of a shortcut is ``skip_weight``, that of the second of several matrices ``1.weight``.
    """
    name = path.replace(".original", "").replace("shortcut_norm.", "skip_").rpartition(".")[2]
    parts = path.split(".")
    return f"{parts[1]}.{name}" if parts[0] == "feedbacks" else name


def _named(quantity: str, name: str, config: Config) -> str:
    """The leaf in words, where its quantity does not say it."""
    words = f"the initial {name}" if quantity == "state gradient" else name
    if "outputs" in config.given:
        return "" if quantity == "input gradient" and len(config.inputs) == 1 else words
    return f"{words}, with cotangents of {', '.join(config.results)} alone,"
