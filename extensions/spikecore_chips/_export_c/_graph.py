"""From a network to the operations of one time step: the network is read, and the example runs through its calls."""

from __future__ import annotations

import math
import operator
import re
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from spikecore import unfuse
from spikecore.core.modules import copy_of, has_own_hooks, unwrapped
from spikecore.core.neuron import Neuron
from spikecore.encode import Constant
from spikecore.functional import set_step
from spikecore.graph import NORMS, Call, Graph, NotFollowed, check_outputs, folded, norm_source, read, run
from spikecore.lang.render import C_WORDS, LIKE_A_MACRO, ascii_name
from spikecore.layers import NormNeuron, SequenceDropout
from spikecore_chips.quant._layers import round_input, round_output

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)


class Refused(ValueError):
    """A network that cannot be exported. ``@language@`` in its text stands for C or Verilog. ``in_c``: a way out that C
    has beside those of the text.
    """

    def __init__(self, text: str, in_c: str = "") -> None:
        super().__init__(text)
        self.in_c = in_c


def refusal(error: ValueError, language: str) -> str:
    """The text of a refusal, for a language."""
    more = error.in_c if isinstance(error, Refused) and language == "C" else ""
    return f"{error}{more}".replace("@language@", language)


class Operation(NamedTuple):
    """One operation: a module, the ``"sum"`` of two values, a ``"view"`` of another shape, or the ``"input"``."""

    name: str
    #: Kind and place, for messages and comments.
    title: str
    what: Any
    #: Names of the operations whose values it takes.
    of: Tuple[str, ...]
    #: The shape of a sample of its value.
    shape: Tuple[int, ...]
    #: Which output of a neuron it is.
    output: int = 0


class Step(NamedTuple):
    """One step of a network as operations in their order, and what it made of an example."""

    operations: List[Operation]
    #: The name of the operation whose value is the network's.
    result: str
    #: ``[B, T, *N]``.
    inputs: Tensor
    outputs: Tensor


def step_of(net: nn.Module, example: Tensor) -> Step:
    """One step of ``net``, on which nothing changes. ``example`` is ``[T, B, *N]``."""
    name = type(unwrapped(net)).__name__
    try:
        graph = read(_single(unwrapped(net)))
    except NotFollowed as error:
        raise Refused(f"{error}\nIts forward must call modules, add and flatten, without branches on values") from error
    if len(graph.inputs) != 1:
        raise Refused(f"{name} has {len(graph.inputs)} inputs; @language@ is written for one")
    with torch.no_grad():
        runs = [run(graph, x_t.clone()) for x_t in example]  # forward may change it
    outputs = [output for output, _ in runs]
    if not all(isinstance(y, Tensor) and y.shape[:1] == example.shape[1:2] for y in outputs):
        raise Refused(
            f"{name} must return one tensor [B, ...] for a step, and did not for steps {list(example.shape[1:])} of "
            f"example {list(example.shape)}, taken as [T, B, ...]; without time write example.expand(T, *example.shape)"
        )
    recorded = torch.stack(outputs, 1)
    if not bool(torch.isfinite(recorded).all()):
        raise Refused(f"{name} makes numbers of the example that are not finite; sc.explain(net, example) says where")
    operations = _Operations(graph, runs[-1][1])
    check_outputs(graph, [*example], outputs)
    return Step([*operations.named.values()], operations.result, example.transpose(0, 1), recorded)


def _single(net: nn.Module) -> nn.Module:
    """A copy that takes single steps, on the reference, without what only holds other modules."""
    if any(part.training for part in net.modules()):
        raise Refused("the network is in training mode, and is exported as it infers; call net.eval() first")
    # in a module of its own, so that the network itself can be replaced
    holder = set_step(unfuse(nn.Sequential(copy_of(net))), "single")  # at rest
    for name, part in [*holder.named_modules()]:
        if isinstance(part, Neuron):
            part.backend = "torch"
        if isinstance(part, NormNeuron):
            if part.shortcut:
                where = name.partition(".")[2]
                raise Refused(f"NormNeuron at {where!r} has a shortcut; write the sum in forward, without NormNeuron")
            parent, _, last = name.rpartition(".")
            setattr(holder.get_submodule(parent), last, nn.Sequential(part.norm, part.neuron))
    return holder.get_submodule("0")


def rounds_input(module: nn.Module) -> bool:
    """True for a module that rounds its first input to its ``input_format``, as those of ``sc.quant.prepare`` do."""
    return round_input in module._forward_pre_hooks.values()


def _changes(module: nn.Module) -> bool:
    """True where hooks but those of ``sc.quant.prepare``, or a forward of its own, change what a module computes."""
    hooks = {*module._forward_pre_hooks.values(), *module._forward_hooks.values()} - {round_input, round_output}
    return has_own_hooks(module) and (bool(hooks) or "forward" in vars(module))


class _Operations:
    """The operations of a graph by name, and the name of the last one."""

    def __init__(self, graph: Graph, shapes: Dict[Call, Tuple[int, ...]]) -> None:
        self._graph, self._shapes = graph, shapes
        self.named: Dict[str, Operation] = {}
        #: Call -> the operation whose value it is.
        self._of: Dict[Call, str] = {}
        #: Neurons of several outputs.
        self._several = {call.module for call in graph.calls if call.module is not None and call not in shapes}
        for call in graph.calls[:-1]:
            self._take(call)
        self.result = self._known(graph.output.args[0], graph.output)

    def _take(self, call: Call) -> None:
        if call.kind == "input":
            self._add(call, "x", "input", ())
        elif call.is_nothing or (call.layer in (SequenceDropout, Constant) and not call.is_hooked):
            self._of[call] = self._known(call.source, call)
        elif call.is_reshape:
            self._view(call)
        elif call.module is not None:
            self._module(call)
        elif call.summands:
            of = [self._known(value, call) for value in call.summands]
            shapes = [list(self.named[name].shape) for name in of]
            if shapes[0] != shapes[1]:
                raise Refused(f"{call.title} adds samples of shapes {shapes[0]} and {shapes[1]}")
            self._add(call, call.name, "sum", of)
        elif call.target is operator.getitem and isinstance(call.source, Call) and call.source.module in self._several:
            self._output(call)
        elif call in self._shapes:  # what is no tensor is a size
            what = f"reads {call.title}" if call.kind == "attribute" else f"calls {call.function}"
            raise Refused(f"forward {what}, for which there is no @language@; it may call modules, add, and flatten")

    def _add(self, call: Call, name: str, what: Any, of: Sequence[str]) -> None:
        name = identifier(name, self.named)
        self.named[name] = Operation(name, call.title, what, tuple(of), self._shapes.get(call, ())[1:])
        self._of[call] = name

    def _known(self, value: Any, reader: Call) -> str:
        if not isinstance(value, Call) or value not in self._of:
            what = value.title if isinstance(value, Call) else repr(value)
            raise Refused(f"{reader.title} takes {what}, which is no tensor of this step")
        return self._of[value]

    def _view(self, call: Call) -> None:
        of = self._known(call.source, call)
        before, behind = (self._shapes[each] for each in (call.source, call) if each is not None)
        if before[:1] != behind[:1] or math.prod(before) != math.prod(behind):
            raise Refused(
                f"{call.title} makes {list(behind)} of {list(before)}, a batch of one step, and @language@ is written "
                "for one sample; leave dimension 0 as it is, and count others from the end"
            )
        self._add(call, call.name, "view", [of])

    def _module(self, call: Call) -> None:
        module, path, times = call.module, call.name, len(self._graph.calls_of(call.module))
        if call.kwargs:
            raise Refused(f"{call.title} is called with keyword arguments, {[*call.kwargs]}")
        of = [self._known(value, call) for value in call.args]
        if any(_changes(part) for part in module.modules()):
            raise Refused(
                f"{call.title} has hooks or a forward of its own, which @language@ would not have; remove them"
            )
        if times > 1:
            raise Refused(f"{call.title} is called {times} times; make a layer for each call")
        if call.layer in NORMS:
            before = self.named[self._of[norm_source(self._graph, call, self._shapes, _LAYERS)]]
            title = f"{before.title} and {call.title}"
            self.named[before.name] = before._replace(what=folded(before.what, module), title=title)
            self._of[call] = of[0]
            return
        kind = type_before_parametrizations(module).__name__.lower()
        self._add(call, path if path[:1].isalpha() else f"{kind}_{path}", module, of)

    def _output(self, call: Call) -> None:
        """One output of a neuron with several, of which others may be unpacked and not used."""
        if not call.readers:
            return
        source: Any = call.source
        neuron = self.named[self._known(source, call)]
        if len({reader.args[1] for reader in source.readers if reader.readers}) > 1:
            raise Refused(f"{neuron.title} gives two of its outputs, and @language@ is written for one of them")
        self.named[neuron.name] = neuron._replace(shape=self._shapes[call][1:], output=int(call.args[1]))
        self._of[call] = neuron.name


def identifier(name: str, taken: Any) -> str:
    """A name as C can have it, beside others."""
    name = re.sub("_+", "_", ascii_name(name.replace(".", "_"))).strip("_")
    name = name if name[:1].isalpha() else f"u{name}"
    name += "_" * bool(LIKE_A_MACRO.fullmatch(name))
    while name in C_WORDS or name in taken:
        name += "_"
    return name
