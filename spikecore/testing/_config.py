"""A configuration: one call of one neuron, as data, and the check that it gives what the oracle gives.

Most cases of the suite are rows of this: a name that never changes, and one configuration or several. :func:`check`
makes the neuron, its inputs and cotangents, calls it, runs backwards, and compares every result and every gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, backward
from spikecore.testing._context import Context
from spikecore.testing._custom import CUSTOM, TENT
from spikecore.testing._models import MODELS, Model, spread
from spikecore.testing._oracle import OTHER_ARGUMENTS, SURROGATES, Derivative
from spikecore.testing._strides import EXPANDED, LAYOUTS, Layout
from spikecore.testing._subject import SHAPE, Subject
from spikecore.testing._suspects import of_parts
from spikecore.testing._turning import SWAP, TURN

Names = Tuple[str, ...]

#: The neurons that a configuration may name.
NEURONS: Mapping[str, Model] = {model.name: model for model in (*MODELS, *CUSTOM, SWAP, TURN)}


def _one_number(x: Tensor) -> Tensor:
    return torch.ones_like(x[:1].flatten()[:1]).reshape((1,) * x.ndim).expand(x.shape)


#: Layouts of cotangents: ``ones`` is that of ``sum()``, one number expanded.
OF_COTANGENTS: Mapping[str, Layout] = {**LAYOUTS, **EXPANDED, "ones": _one_number}


@dataclass(frozen=True)
class Config:
    """One call. The default of each field is its simplest value, which the text of a configuration leaves out."""

    model: str = "lif"
    reset: str = "hard"
    detach: bool = False
    #: Name of the surrogate; with a star, with other arguments than its defaults.
    surrogate: str = "ATan"
    dtype: str = "float32"
    #: ``[T, *N]``.
    shape: Tuple[int, ...] = SHAPE
    #: Inputs with which nothing is rounded and potentials meet the threshold, instead of those with a margin.
    exact: bool = False
    #: Outputs and states are compared to the bit with those of the dtype of arithmetic.
    bits: bool = False
    #: Parameters: ``number``, ``scalar`` tensors, one value per ``channel``, ``full``, one per neuron, or a shape that
    #: broadcasts to one time step: ``1x7``.
    params: str = "number"
    channel_dim: int = 1
    #: Names of learnt parameters; ``*`` for all.
    learn: Names = ()
    #: Whether a state is given.
    state: bool = False
    #: Names of recorded states; ``*`` for all.
    record: Names = ()
    #: ``run`` returns the final state; ``short`` is ``neuron(x)``; ``single`` one call per step.
    call: str = "run"
    #: Inputs and states that require a gradient, by name; ``inputs``, ``states`` for all.
    wanted: Names = ()
    #: Results that have a cotangent: ``output 0``, ``final v``, ``trace v``; ``outputs``, ``final``, ``trace`` for all.
    given: Names = ()
    #: Layouts of the first input, and of the cotangents of outputs.
    x: str = "contiguous"
    g: str = "contiguous"
    #: Another number for other values.
    draw: int = 0

    def __str__(self) -> str:
        said = [
            (field.name, getattr(self, field.name))
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return ",".join(f"{name}={_text(value)}" for name, value in said) or "simplest"

    @property
    def neuron(self) -> Model:
        """The neuron."""
        return NEURONS[self.model]

    @property
    def states(self) -> Names:
        """Names of the neuron's states."""
        return tuple(self.neuron.oracle.rest)

    @property
    def learnt(self) -> Names:
        """Names of the learnt parameters."""
        return tuple(self.neuron.params) if self.learn == ("*",) else self.learn

    @property
    def recorded(self) -> Names:
        """Names of the recorded states."""
        return self.states if self.record == ("*",) else self.record

    @property
    def leaves(self) -> Names:
        """Names of inputs and states that require a gradient."""
        groups = {"inputs": self.neuron.oracle.inputs, "states": self.states}
        return tuple(name for part in self.wanted for name in groups.get(part, (part,)))

    @property
    def results(self) -> Names:
        """Names of the results that have a cotangent."""
        groups = {
            "outputs": tuple(f"output {k}" for k in range(len(self.neuron.outputs))),
            "final": tuple(f"final {name}" for name in self.states),
            "trace": tuple(f"trace {name}" for name in self.recorded),
        }
        return tuple(name for part in self.given for name in groups.get(part, (part,)))

    @property
    def derivative(self) -> Derivative:
        """The surrogate's."""
        if self.surrogate == TENT.name:
            return TENT
        return OTHER_ARGUMENTS[self.surrogate[:-1]] if self.surrogate.endswith("*") else SURROGATES[self.surrogate]

    @property
    def needs(self) -> Names:
        """The capabilities that the call takes, beside its dtype."""
        inputs = any(name in self.neuron.oracle.inputs for name in self.leaves)
        states = any(name in self.states for name in self.leaves)
        needed = {
            "gradients": inputs,
            "parameter_gradients": bool(self.learn),
            "state_gradients": states or (self.call != "short" and (inputs or bool(self.learn))),
            "record": bool(self.record),
            "channel_parameters": self.params == "channel",
            "full_parameters": self.params == "full" or "x" in self.params,
            "several_inputs": len(self.neuron.oracle.inputs) > 1,
            "several_outputs": len(self.neuron.outputs) > 1,
        }
        return tuple(name for name, need in needed.items() if need)

    def values(self) -> Dict[str, Any]:
        """The parameters as arrays, no two values alike; nothing where they are numbers."""
        if self.params == "number":
            return {}
        step = self.shape[1:]
        sizes: Dict[str, Sequence[int]] = {"scalar": (), "full": step}
        if self.params == "channel":
            sizes["channel"] = (step[self.channel_dim],)
        shape = sizes[self.params] if self.params in sizes else tuple(map(int, self.params.split("x")))
        return {name: spread(value, shape) for name, value in self.neuron.params.items()}

    def subject(self, context: Context) -> Subject:
        """The neuron beside its oracle."""
        options: Dict[str, Any] = {} if self.channel_dim == 1 else {"channel_dim": self.channel_dim}
        if self.call == "single":
            options["step"] = "single"
        return Subject(
            context,
            self.neuron,
            self.reset,
            detach=self.detach,
            surrogate=self.derivative,
            dtype=self.dtype,
            learn=self.learnt,
            values=self.values(),
            shape=self.shape,
            state=self.state,
            exact=self.exact,
            draw=self.draw,
            **options,
        )


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ("x" if value and isinstance(value[0], int) else "+").join(map(str, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def add_row(cases: Collection, id: str, tier: str, holds: str, *configs: Config) -> None:
    """Add a case that consists of configurations, one after the other."""
    needs = dict.fromkeys(name for config in configs for name in config.needs)
    cases.add(id, tier, holds, partial(check_all, configs=configs), tuple(needs), dtype=configs[0].dtype)


def check_all(context: Context, configs: Sequence[Config]) -> None:
    """Each of them."""
    for config in configs:
        check(context, config)


def check(context: Context, config: Config) -> None:
    """Raise :class:`Mismatch` where a result or a gradient of the call is not the oracle's."""
    s = config.subject(context)
    xs = s.xs()
    if config.x != "contiguous":
        xs[0] = s.gives(LAYOUTS[config.x](xs[0]))
    leaves = {**dict(zip(s.twin.inputs, xs)), **(s.start() or {})}
    leaves = {name: value.detach().requires_grad_(name in config.leaves) for name, value in leaves.items()}
    results = _called(s, config, leaves)
    _check_values(s, config, results)
    if config.given:
        _check_gradients(s, config, leaves, results)


def _called(s: Subject, config: Config, leaves: Mapping[str, Tensor]) -> Dict[str, Tensor]:
    """Results by name."""
    xs = [leaves[name] for name in s.twin.inputs]
    final: Mapping[str, Tensor] = {}
    trace: Mapping[str, Tensor] = {}
    if config.call == "short":
        output = s.neuron(*xs)
    elif config.call == "single":
        output = torch.stack([s.neuron(*at) for at in zip(*xs)])
        final = s.neuron.state or {}
    else:
        state = {name: leaves[name] for name in config.states} if config.state else None
        output, final, *traces = s.neuron.run(*xs, state=state, record=config.recorded)
        trace = traces[0] if traces else {}
    if tuple(trace) != config.recorded:
        raise Mismatch(f"record={config.recorded} of {s.of} gives {tuple(trace)}")
    outputs = output if isinstance(output, tuple) else (output,)
    named = {f"output {k}": value for k, value in enumerate(outputs)}
    named.update((f"final {name}", value) for name, value in final.items())
    named.update((f"trace {name}", value) for name, value in trace.items())
    return named


def _check_values(s: Subject, config: Config, results: Mapping[str, Tensor]) -> None:
    """Outputs, final states and traces are the oracle's."""
    exact = config.bits or config.exact
    outputs = tuple(value.detach() for name, value in results.items() if name.startswith("output"))
    s.check_outputs(outputs, _words(config), exact=exact)
    right = s.bits() if config.bits else s.seen
    for kind, words, expected in (("final", "final state", right.final), ("trace", "recorded", right.states)):
        values = {name.partition(" ")[2]: value.detach() for name, value in results.items() if name.startswith(kind)}
        if values:
            s.check_states(values, expected, words, exact)
    if config.call != "short" and not all(f"final {name}" in results for name in config.states):
        raise Mismatch(f"{s.of}: no state is carried between single steps")


def _words(config: Config) -> str:
    if config.call == "single":
        return ", step by step,"
    return ", with a gradient wanted," if config.wanted else ""


def _check_gradients(s: Subject, config: Config, leaves: Mapping[str, Tensor], results: Mapping[str, Tensor]) -> None:
    """What requires a gradient has the oracle's, and nothing else has one."""
    cotangents = {name: s.cotangent(results[name]) for name in config.results}
    if config.g != "contiguous":
        cotangents.update(
            (name, OF_COTANGENTS[config.g](g)) for name, g in cotangents.items() if name.startswith("output")
        )
    # a result that nothing wanted leads to may be without a graph, and one without elements, too
    connected = [name for name in cotangents if results[name].requires_grad]
    connected = connected or [name for name in cotangents if results[name].numel()]
    if connected:
        of = s.of if len(connected) == len(results) else f"{', '.join(connected)} of {s.of}"
        backward(of, [results[name] for name in connected], [cotangents[name] for name in connected])
    outputs = [cotangents.get(f"output {k}") for k in range(len(config.neuron.outputs))]
    final, trace = (
        {name: cotangents[f"{kind} {name}"] for name in config.states if f"{kind} {name}" in cotangents}
        for kind in ("final", "trace")
    )
    right = s.gradients(outputs, final, trace)
    suspects = partial(_suspects, s, cotangents, (outputs[0] if len(outputs) == 1 else outputs, final, trace))
    expected = {**dict(zip(s.twin.inputs, right.inputs)), **right.state, **right.params}
    every: List[Tuple[str, str, Tensor]] = [("input gradient", name, leaves[name]) for name in s.twin.inputs]
    every += [("state gradient", name, leaves[name]) for name in config.states if config.state]
    every += [("parameter gradient", name, value) for name, value in s.neuron.named_parameters()]
    for quantity, name, leaf in every:
        if not leaf.requires_grad:
            if leaf.grad is not None:
                raise Mismatch(f"{name} of {s.of} requires no gradient and got one")
            continue
        if leaf.grad is not None and leaf.grad.dtype != leaf.dtype:
            raise Mismatch(f"the gradient of {name} of {s.of} is {leaf.grad.dtype}, not {leaf.dtype}")
        grad = torch.zeros_like(leaf) if leaf.grad is None and not np.any(expected[name]) else leaf.grad
        s.check(quantity, grad, expected[name], name=_named(quantity, name, config), suspects=suspects(name))


def _named(quantity: str, name: str, config: Config) -> str:
    """The leaf in words, where its quantity does not say it."""
    words = "" if quantity == "input gradient" and len(config.neuron.oracle.inputs) == 1 else name
    words = f"the initial {name}" if quantity == "state gradient" else words
    return words if "outputs" in config.given else f"{words}, with cotangents of {', '.join(config.results)} alone,"


def _suspects(s: Subject, cotangents: Mapping[str, Tensor], groups: Sequence[Any], name: str) -> Dict[str, Any]:
    """What else the gradient of a leaf might be."""
    found: Dict[str, Any] = {}
    if name == s.twin.inputs[0]:
        found.update(s.gradient_suspects(*groups))
    if list(cotangents) != ["output 0"] or name in s.params:
        found.update(of_parts(s, name, cotangents))
    if name in s.params and list(cotangents) == ["output 0"]:
        found.update(s.parameter_suspects(name, cotangents["output 0"]))
    return found
