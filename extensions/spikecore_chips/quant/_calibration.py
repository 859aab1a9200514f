"""A run of a network on calibration data: what its layers and neurons read, hold and write."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from spikecore.batches import flattened
from spikecore.core.neuron import Neuron
from spikecore.functional import stateful_modules, to_rest
from spikecore.graph import Call, NotFollowed, Refused, computed_by, read, readers_of, values
from spikecore.lang import Program
from spikecore.lang.transform import Derived, Transform, changed
from spikecore.layers import Delay
from spikecore.neurons import Recurrent
from spikecore.words import shown
from spikecore_chips.quant._fixed import FixedPoint, fixed_point_of
from spikecore_chips.quant._layers import LAYERS
from spikecore_chips.quant._rewriting import saturating

Inputs = Union[Tensor, Tuple[Tensor, ...]]
#: Poolings that divide, and the dimensions of their windows.
WINDOWS = {nn.AvgPool1d: 1, nn.AvgPool2d: 2, nn.AvgPool3d: 3}
MEANS = (*WINDOWS, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
#: Modules whose inputs and outputs have ranges.
SEEN = (*LAYERS, *MEANS, Neuron, Recurrent, Delay)
#: Values of a tensor that a range is chosen from.
_SAMPLE = 1 << 18


@dataclass
class Seen:
    """Values that a module read and wrote in a calibration run."""

    inputs: List[Tensor] = field(default_factory=list)
    outputs: List[Tensor] = field(default_factory=list)
    states: List[Tensor] = field(default_factory=list)
    #: Calls that computed its inputs, behind changes of shape: one for each call of it.
    sources: List[Optional[Call]] = field(default_factory=list)
    #: Of a neuron, the values in each call of what saturates in its program, or would in fixed point.
    saturating: List[Tuple[Tensor, ...]] = field(default_factory=list)
    #: The state after the last call of a single step.
    last: Any = None
    #: Of a pooling, the sizes of its last input along each dimension, as multiples of those of its output.
    ratios: Tuple[float, ...] = ()


class Run:
    """Values that the layers and neurons of a network read and write in one call, in ``eval()``.

    Raises :class:`NotFollowed` for a network that cannot be read, :class:`Refused` for a layer that is called by name.
    """

    def __init__(self, net: nn.Module, x: Inputs, dtype: torch.dtype) -> None:
        inputs = inputs_of(x, dtype)
        self.seen: Dict[nn.Module, Seen] = {}
        self.shapes: Dict[Call, Tuple[int, ...]] = {}
        known: Dict[Call, Any] = {}
        with evaluating(net):
            self.graph = read(net, inputs=inputs)
        self.inputs = dict(zip(self.graph.inputs, inputs))
        with evaluating(net), torch.no_grad():
            for call, value in values(self.graph, *inputs):
                known[call] = value
                self.shapes[call] = tuple(value.shape) if isinstance(value, Tensor) else ()
                if isinstance(call.module, SEEN):
                    self._see(call, [known[each] for each in call.args if isinstance(each, Call)], value)
        to_rest(stateful_modules(net), carried=True)
        self.output = known[self.graph.output]

    def _see(self, call: Call, args: Sequence[Any], output: Any) -> None:
        if call.kwargs:
            why = f"is called with {', '.join(call.kwargs)} by name, where formats are those of the first argument"
            raise Refused(call.title, why, "give it by position")
        seen = self.seen.setdefault(call.module, Seen())
        seen.sources.append(computed_by(call.source))
        if isinstance(call.module, (Neuron, Recurrent)):
            seen.inputs += [_sampled(value) for value in args]
            _look_into(seen, call.module, args)
        else:
            seen.inputs.append(_sampled(args[0]))
        if isinstance(output, Tensor):
            seen.outputs.append(_sampled(output))
            seen.ratios = tuple(a / b for a, b in zip(args[0].shape, output.shape))

    def fires(self, module: nn.Module) -> bool:
        """Tell whether all that a module reads is spikes of neurons."""
        return all(source is not None and fires(source.module) for source in self.seen[module].sources)

    def first_readers(self, x: Call) -> List[nn.Module]:
        """The layers with weights that read an input of the network."""
        readers = [reader.module for reader in readers_of(x)]
        return list(dict.fromkeys(module for module in readers if isinstance(module, (*LAYERS, Delay))))

    def is_read(self, module: nn.Module) -> bool:
        """Tell whether something else than a neuron reads what a module writes."""
        readers = [reader for call in self.graph.calls_of(module) for reader in readers_of(call)]
        return not all(isinstance(reader.module, Neuron) for reader in readers)


def _sampled(value: Tensor) -> Tensor:
    """Values of a tensor, evenly spread, with the least and the greatest among them."""
    flat = value.detach().flatten()
    some = flat[:: max(1, flat.numel() // _SAMPLE)]
    return torch.cat([some, flat.min().reshape(1), flat.max().reshape(1)]) if flat.numel() else flat


def _look_into(seen: Seen, module: Any, args: Sequence[Any]) -> None:
    """Note the states of a call of a neuron, and what saturates in it, by calling its equations again."""
    neuron: Any = module.neuron if isinstance(module, Recurrent) else module
    single, names, count = module.step == "single", tuple(neuron.states), len(neuron.program.outputs)
    before, seen.last = seen.last, module.state if single else None
    with neuron.under(_Shown(fixed_point_of(neuron))):
        outputs, _, *trace = module.run(*[x.unsqueeze(0) if single else x for x in args], state=before, record=names)
    seen.states += [_sampled(value) for values in trace for value in values.values()]
    seen.saturating.append(outputs[count:] if isinstance(outputs, tuple) else ())


@dataclass(frozen=True)
class _Shown(Transform):
    """Further outputs: the values that saturate, or would in fixed point."""

    how: Optional[FixedPoint]

    def apply(self, program: Program) -> Derived:
        return Derived(changed(program, {}, outputs=[*program.outputs, *saturating(program, self.how)]))


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    training = {module: module.training for module in net.modules()}
    net.eval()
    to_rest(stateful_modules(net), carried=True)
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode


def first_run(owner: str, net: nn.Module, x: Inputs, dtype: torch.dtype) -> Run:
    """A run with inputs that are checked first: TypeError and ValueError for what is no batch of finite numbers."""
    values: Dict[str, Any] = {f"x[{k}]": value for k, value in enumerate(x)} if isinstance(x, tuple) else {"x": x}
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{owner}: {name}={shown(value)} must be a tensor: a batch of the training data")
        if not value.numel():
            raise ValueError(f"{owner}: {name} of shape {list(value.shape)} is empty; ranges need a batch with samples")
        wrong = (~torch.isfinite(value)).nonzero().tolist()
        if wrong:
            raise ValueError(
                f"{owner}: {len(wrong)} of {value.numel()} values of {name} are not finite, the first is "
                f"{float(value[tuple(wrong[0])])} at {wrong[0]}; leave these samples out"
            )
    try:
        devices = sorted({value.get_device() for value in values.values() if value.is_cuda})
        with torch.random.fork_rng(devices):
            torch.manual_seed(0)
            run = Run(net, x, dtype)
            torch.manual_seed(0)
            _confirm(run, net, inputs_of(x, dtype))
        return run
    except RuntimeError as error:
        whole = [f"{name} has dtype {value.dtype}" for name, value in values.items() if not value.is_floating_point()]
        if not whole:
            raise
        raise TypeError(f"{owner}: {whole[0]}, which the network does not take: {error}; give x.float()") from error


def _confirm(run: Run, net: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Raise :class:`NotFollowed` where the network gives something else than its graph, as after a branch on a type."""
    if any(isinstance(value, torch.Generator) for module in net.modules() for value in vars(module).values()):
        return  # it draws other numbers
    with evaluating(net), torch.no_grad():
        expected = flattened(net(*inputs))
    to_rest(stateful_modules(net), carried=True)
    got = flattened(run.output)
    same = [a.shape == b.shape and torch.allclose(a, b, equal_nan=True) for a, b in zip(got, expected)]
    if not (all(same) and len(got) == len(expected)):
        raise NotFollowed(
            f"forward of {type(net).__name__} gives other values than the calls that torch.fx follows: it may branch "
            "on the type of a value, or on a setting; write it without"
        )


def inputs_of(x: Inputs, dtype: torch.dtype) -> Tuple[Tensor, ...]:
    values = x if isinstance(x, tuple) else (x,)
    return tuple([value.to(dtype) if value.is_floating_point() else value for value in values])


def fires(module: Optional[nn.Module]) -> bool:
    """Tell whether a module's output is spikes."""
    neuron: Any = module.neuron if isinstance(module, Recurrent) else module
    number = (module.output or 0) if isinstance(module, Recurrent) else 0
    return isinstance(neuron, Neuron) and neuron.program.outputs[number].op == "spike"
