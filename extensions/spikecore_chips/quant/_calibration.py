"""A run of a network on calibration data: what its layers and neurons read, hold and write."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from spikecore.batches import flattened
from spikecore.core.modules import in_mode
from spikecore.core.neuron import Neuron
from spikecore.functional import stateful_modules, to_rest
from spikecore.graph import Call, Graph, NotFollowed, Refused, computed_by, read, readers_of, values
from spikecore.inspect.record import Call as Recorded
from spikecore.inspect.record import neuron_of, record
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
    #: Of a pooling, the sizes of its last input along each dimension, as multiples of those of its output.
    ratios: Tuple[float, ...] = ()


class Run:
    """Values that the layers and neurons of a network read and write in one call, in ``eval()``.

    Raises :class:`NotFollowed` for a network that cannot be read, or gives something else than its graph, and
    :class:`Refused` for a layer that is called by name.
    """

    def __init__(self, net: nn.Module, x: Inputs, dtype: torch.dtype) -> None:
        inputs = inputs_of(x, dtype)
        self.shapes: Dict[Call, Tuple[int, ...]] = {}
        with evaluating(net):
            self.graph = read(net, inputs=inputs)
        self.inputs = dict(zip(self.graph.inputs, inputs))
        self.seen = _called(self.graph)
        with torch.random.fork_rng(sorted({value.get_device() for value in inputs if value.is_cuda})), torch.no_grad():
            torch.manual_seed(0)
            with evaluating(net):
                for call, value in values(self.graph, *inputs):
                    self.shapes[call] = tuple(value.shape) if isinstance(value, Tensor) else ()
            torch.manual_seed(0)
            with evaluating(net), self._recorded(net):
                self.output = net(*inputs)
        to_rest(stateful_modules(net), carried=True)
        _check_same(net, value, self.output)

    @contextmanager
    def _recorded(self, net: nn.Module) -> Iterator[None]:
        """A block in which the modules' values are noted. Neurons give the values that saturate beside their outputs,
        which the network does not get.
        """

        def ends(call: Recorded) -> Any:
            seen, outputs = self.seen[call.layer], call.outputs[: counts.get(call.layer)]
            seen.inputs += [_sampled(value) for value in (call.inputs if call.layer in counts else call.inputs[:1])]
            seen.states += [_sampled(value) for value in call.states.values()]
            seen.saturating.append(tuple(call.outputs[len(outputs) :]))
            if len(outputs) > 1:
                return tuple(outputs)
            seen.outputs.append(_sampled(outputs[0]))
            seen.ratios = tuple(a / b for a, b in zip(call.inputs[0].shape, outputs[0].shape))
            return outputs[0]

        layers = [(name, module) for name, module in net.named_modules() if module in self.seen]
        neurons = [(name, module) for name, module in layers if neuron_of(module) is not None]
        counts = {module: len(neuron_of(module).program.outputs) for _, module in neurons}
        states = sorted({state for _, module in neurons for state in neuron_of(module).states})
        with ExitStack() as stack:
            stack.enter_context(record(net, layers=layers, neurons=neurons, states=states, ends=ends, edits=True))
            for _, module in neurons:
                neuron = neuron_of(module)
                stack.enter_context(neuron.under(_WithSaturating(fixed_point_of(neuron))))
            yield

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


def _called(graph: Graph) -> Dict[nn.Module, Seen]:
    """The modules with ranges that a network calls, with the calls that compute their inputs."""
    seen: Dict[nn.Module, Seen] = {}
    for call in graph.calls:
        if isinstance(call.module, SEEN):
            module: Any = call.module
            if call.kwargs:
                why = f"is called with {', '.join(call.kwargs)} by name, where formats are those of the first argument"
                raise Refused(call.title, why, "give it by position")
            seen.setdefault(module, Seen()).sources.append(computed_by(call.source))
    return seen


@dataclass(frozen=True)
class _WithSaturating(Transform):
    """Further outputs: the values that saturate, or would in fixed point."""

    how: Optional[FixedPoint]

    def apply(self, program: Program) -> Derived:
        return Derived(changed(program, {}, outputs=[*program.outputs, *saturating(program, self.how)]))


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """A block in which a network infers, from rest on."""
    with in_mode(net, False):
        to_rest(stateful_modules(net), carried=True)
        yield


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
        return Run(net, x, dtype)
    except RuntimeError as error:
        whole = [f"{name} has dtype {value.dtype}" for name, value in values.items() if not value.is_floating_point()]
        if not whole:
            raise
        raise TypeError(f"{owner}: {whole[0]}, which the network does not take: {error}; give x.float()") from error


def _check_same(net: nn.Module, followed: Any, output: Any) -> None:
    """Raise :class:`NotFollowed` where the network gives something else than its graph, as after a branch on a type."""
    if any(isinstance(value, torch.Generator) for module in net.modules() for value in vars(module).values()):
        return  # it draws other numbers
    got, expected = flattened(followed), flattened(output)
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
    neuron, number = neuron_of(module), (module.output or 0) if isinstance(module, Recurrent) else 0
    return neuron is not None and bool(neuron.program.outputs[number].op == "spike")
