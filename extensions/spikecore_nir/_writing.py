"""Saving a network: it is read (:func:`spikecore.graph.read`), and each module that it calls becomes a node.

nirtorch's ``torch_to_nir`` cannot pass :class:`~spikecore.layers.TimeBatched`, names nodes with underscores, so that
keys of ``state_dict`` are lost, and refuses ``torch.flatten``.
"""

from __future__ import annotations

import io
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from spikecore.core.modules import copy_of, unwrapped
from spikecore.core.state import Stateful
from spikecore.encode import Encoder
from spikecore.files import replacing
from spikecore.functional import reset
from spikecore.graph import DROPOUTS, Call, Graph, NotFollowed, check_outputs, is_parametrised, read, run
from spikecore.layers import Delay
from spikecore.neurons import Recurrent
from spikecore.words import shown
from spikecore_nir._conventions import check_discretization, check_dt
from spikecore_nir._file import FORMATS, metadata_of, package
from spikecore_nir._layer_nodes import WRITERS, Place, flatten_node
from spikecore_nir._neuron_nodes import FORMS, Unsaid, Writing, checked_node_of
from spikecore_nir.modules import OF_ONE_STEP, Network

#: Names that ``keep`` takes.
KEEPABLE = (
    *("soft_reset", "no_reset", "delayed_reset", "many_spikes", "initial_state"),
    *("surrogate", "detach_reset", "gradient", "detach"),
)
#: Ways out for other modules.
_HINTS: Dict[str, str] = {
    "BatchNorm1d": "fold it into the layer before it: torch.nn.utils.fusion.fuse_linear_bn_eval",
    "BatchNorm2d": "fold it into the layer before it: torch.nn.utils.fusion.fuse_conv_bn_eval",
    **dict.fromkeys(
        ("NormNeuron", "NormPlace"), "call sc.unfuse(net), and fold the normalisation into the layer before it"
    ),
    "MaxPool2d": "NIR has AvgPool2d and sums, sc.nir.SumPool2d",
    "LPPool2d": "use sc.nir.SumPool2d",
}

#: Functions by which the graph of a network makes time and batch one dimension.
_FOLDS = ("folded", "unfolded_as")


#: Module by name -> its formats, as ``sc.quant.plain`` gives them.
Formats = Mapping[str, Mapping[str, Any]]


def save(
    net: nn.Module,
    path: Union[str, os.PathLike[str]],
    *,
    dt: float,
    discretization: str = "euler",
    input_shape: Optional[Sequence[int]] = None,
    keep: Sequence[str] = (),
    formats: Optional[Formats] = None,
) -> None:
    r"""Write a network as a graph of NIR (Pedersen et al., 2024), which other libraries and chips read.

    Time constants become seconds. A potential that loses the part ``leak`` in a step has::

        tau = dt / leak                  discretization="euler"
        tau = -dt / log(1 - leak)        discretization="exp"
        R   = gain / leak                so that v' = v + leak (v_leak - v) + gain x

    ``leak`` is ``1/tau`` of LIF, PLIF and LI, ``1 - beta`` of Leaky, Synaptic and SynapticLeaky (``1 - alpha`` of the
    current, whose gain is ``w_in``), 0 of IF, which has ``R = gain / dt``. A reader that takes the same ``dt`` and
    discretisation has our equations again. Ours fire at the threshold, ``>=`` (:class:`~spikecore.Leaky` and
    :class:`~spikecore.SynapticLeaky` above it), NIR's above it, ``>``: the reader differs where a potential is equal to
    the threshold, as it may be with whole numbers.

    net: modules of :mod:`torch.nn` and spikecore that the page on NIR lists, in any module whose ``forward`` calls
        modules, adds their outputs and flattens. Nodes have the names of its modules. Of a network that
        ``torch.compile``, ``DistributedDataParallel`` or ``nn.DataParallel`` wraps, the network itself is written.
    path: the file, which is replaced.
    dt: the time step, in seconds: that of the reader. snnTorch takes 1e-4, and SpikingJelly where it is given none;
        sinabs takes time constants for numbers of steps, ``dt=1.0`` with ``discretization="exp"``. With another one
        they read another network, without an error. The page on NIR has a table of readers.
    discretization: how a reader is meant to make steps, ``"euler"`` as most do or ``"exp"``; kept in the file.
    input_shape: the shape of one sample, without time and batch, such as ``(2, 34, 34)``; None takes it from the first
        layer, where that is ``nn.Linear``, or a ``Delay`` of one.
    keep: what NIR cannot say is refused, unless it is named here. Then the graph is written without it, with one
        warning, and it is kept as metadata, which :func:`load` alone reads: ``"soft_reset"``, ``"no_reset"``,
        ``"delayed_reset"``, ``"many_spikes"``, ``"initial_state"``, ``"surrogate"`` (any but the default),
        ``"detach_reset"``, ``"gradient"`` (of spike times), ``"detach"`` (of what comes back within Recurrent).
    formats: of a prepared network, ``net, formats = sc.quant.plain(net)``, whose weights are on their grids. They are
        kept as metadata, ``"spikecore_formats"``. What is loaded computes in floats, and has them as ``formats``.

    Class, settings and exact parameters of our neurons are kept as metadata, too, so that :func:`load` gives the same
    network, bit for bit, although ``tau`` is rounded in the file. Numbers are float32, or float64 if the network's are.

    Raises ValueError for what NIR cannot say, naming module and way out; TypeError for arguments of wrong types;
    ImportError without the package nir.

    Pedersen et al.: Neuromorphic intermediate representation: A unified instruction set for interoperable
    brain-inspired computing. Nature Communications 15, 2024.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"sc.nir.save: net={shown(net)} must be an nn.Module")
    check_dt("sc.nir.save", dt)
    check_discretization("sc.nir.save", discretization)
    if isinstance(keep, str) or any(name not in KEEPABLE for name in keep):
        raise ValueError(f"sc.nir.save: keep={keep!r} must be a tuple of some of {', '.join(KEEPABLE)}")
    nir = package()
    net = unwrapped(net)
    for name, module in net.named_modules():
        if getattr(module, "transforms", ()):
            raise ValueError(
                f"sc.nir.save: {name or 'net'} computes by {module.transforms[-1]!r}, which NIR cannot say; of a "
                "prepared network write net, formats = sc.quant.plain(net), and give formats=formats"
            )
    wide = any(value.dtype == torch.float64 for value in net.parameters())
    drawn = Drawn(Writing(float(dt), discretization, "float64" if wide else "float32"))
    modules = dict(net.named_modules())
    first = _unlike(modules, "input")
    try:
        graph = _read(net)
        shape = _input_shape(graph, input_shape)
        drawn.nodes[first] = nir.Input(types("input", shape))
        end = drawn.follow(graph, Value((first,), shape), _leading(graph))
        _check_outputs(net, shape, _leading(graph))
        _tell(drawn.to.unsaid, keep)
        drawn.note(formats or {})
    except ValueError as error:
        raise ValueError(f"sc.nir.save: {error}") from error.__cause__
    last = _unlike({**modules, **drawn.nodes}, "output")
    drawn.nodes[last] = nir.Output(types("output", end.shape))
    drawn.edges += [(source, last) for source in end.sources]
    metadata = metadata_of({"dt": float(dt), "discretization": discretization})
    # in memory first: HDF5 does not say well what ended its writing
    content = io.BytesIO()
    nir.write(content, nir.NIRGraph(drawn.nodes, drawn.edges, metadata=metadata, type_check=False))
    _try(content)
    with replacing(Path(path)) as file:
        file.write(content.getbuffer())


def _unlike(names: Mapping[str, Any], name: str) -> str:
    """The name, or one like it that is none of these."""
    while name in names:
        name += "_"
    return name


def _read(net: nn.Module) -> Graph:
    name = type(net).__name__
    try:
        graph = read(net)
    except NotFollowed as error:
        raise ValueError(
            f"{error}\nIts forward must call modules, add, and flatten, without branches on values; save the parts, or "
            "write it so"
        ) from error
    if len(graph.inputs) != 1:
        raise ValueError(f"{name} has {len(graph.inputs)} inputs; NIR is saved with one")
    if graph.result is None:
        raise ValueError(f"{name} must return one tensor, to be saved with one output")
    for call in graph.calls:
        if call.module is None:
            continue
        if call.is_hooked:
            raise ValueError(
                f"{call.title} has hooks or a forward of its own, which a graph would not have; remove them"
            )
        times = len(graph.calls_of(call.module))
        if times > 1 and not call.is_nothing:
            raise ValueError(f"{call.title} is called {times} times; make a layer for each call")
    return graph


def _check_outputs(net: nn.Module, shape: Sequence[int], leading: int) -> None:
    """Refuse a network that computes something else in ``eval()`` than its graph, for numbers of this shape."""
    graph = read(copy_of(net))
    reset(graph.net.eval())
    numbers = next(net.parameters(), torch.zeros(()))
    x = torch.rand([2] * leading + list(shape), generator=torch.Generator().manual_seed(0))
    x = 4.0 * x.to(numbers.device, numbers.dtype)
    with torch.no_grad():
        output, _ = run(graph, x.clone())
    check_outputs(graph, [x], [output])


def _input_shape(graph: Graph, shape: Optional[Sequence[int]]) -> Tuple[int, ...]:
    if shape is not None:
        if not all(isinstance(size, int) and size > 0 for size in shape):
            raise ValueError(f"input_shape={shape!r} must be sizes without time and batch, as in (2, 34, 34)")
        return tuple(shape)
    first: Any = next((call.module for call in graph.calls if call.module is not None), None)
    linear = first.linear if isinstance(first, Delay) else first
    if isinstance(linear, nn.Linear):
        return (linear.weight.shape[1],)
    what = "no layer" if first is None else f"the first layer, {type(first).__name__}"
    raise ValueError(
        f"the shape of a sample does not follow from {what}; give it without time and batch, as in "
        "input_shape=(2, 34, 34)"
    )


def _leading(graph: Graph) -> int:
    """Dimensions before a sample's: batch, and time where neurons or TimeBatched take whole sequences."""
    modes = {call.module.step for call in graph.calls if isinstance(call.module, Stateful)}
    if len(modes) > 1:
        raise ValueError("the network has neurons with step='multi' and with step='single'; make them one")
    if modes:
        return 1 if modes == {"single"} else 2
    parts = (*graph.followed, *[call.module for call in graph.calls])
    return 2 if any(isinstance(part, Network) or getattr(part, "step", "") == "multi" for part in parts) else 1


def _try(content: io.BytesIO) -> None:
    """Warn of a file that nir.read refuses, with which others begin: it infers shapes, of some layers wrong ones."""
    try:
        package().read(content)
    except Exception as error:  # what it raises depends on the node
        warnings.warn(
            f"sc.nir.save: nir.read refuses this file by the shapes that it infers ({error}); it is read by "
            "sc.nir.load, and by nir.read(path, type_check=False)",
            UserWarning,
            stacklevel=3,
        )


def _tell(unsaid: Sequence[Tuple[str, Unsaid]], keep: Sequence[str]) -> None:
    refused = [(name, each) for name, each in unsaid if each.name not in keep]
    lines = "\n".join(f"  {name!r} {each.sentence}" for name, each in refused or unsaid)
    if refused:
        names = ", ".join(repr(name) for name in sorted({each.name for _, each in refused}))
        raise ValueError(
            f"NIR cannot say this:\n{lines}\nChange it, or write the graph without it and keep it as "
            f"metadata, which sc.nir.load alone reads: keep=({names},)"
        )
    if unsaid:
        what = "the graph is written without this, which is kept as metadata that sc.nir.load alone reads"
        warnings.warn(f"sc.nir.save: {what}:\n{lines}", UserWarning, stacklevel=3)


class Value(NamedTuple):
    """Value of a call: the sum of the outputs of some nodes, of one shape."""

    sources: Tuple[str, ...]
    shape: Tuple[int, ...]


class Drawn:
    """The nodes and edges of a network while it is followed."""

    def __init__(self, to: Writing) -> None:
        self.to = to
        self.nodes: Dict[str, Any] = {}
        self.edges: List[Tuple[str, str]] = []
        #: Node -> path of its module.
        self._paths: Dict[str, str] = {}

    def add(self, name: str, node: Any, of: Value, shape: Sequence[int]) -> Value:
        """One node behind ``of``."""
        if name == "." or re.search("[/\0\ud800-\udfff]", name):
            raise ValueError(
                f"{name!r} cannot be the name of a node in HDF5: it is '.', or has a '/', NUL or surrogate; give the "
                "module another name"
            )
        while name in self.nodes:
            name += "_"
        self.nodes[name] = node
        self.edges += [(source, name) for source in of.sources]
        node.input_type, node.output_type = types("input", of.shape), types("output", shape)
        return Value((name,), tuple(shape))

    def note(self, formats: Formats) -> None:
        """Keep the formats of a prepared network as metadata of the nodes of its modules, or of those around them.

        ValueError for one of a module that is no node.
        """
        left = dict(formats)
        for node_name, node in self.nodes.items():
            path = self._paths.get(node_name, node_name)
            inside = [name for name in formats if f"{name}.".startswith(f"{path}.")]
            # by the name of the node, which is that of the module unless the network was loaded
            content = {f"{node_name}{name[len(path) :]}": left.pop(name) for name in inside}
            if content:
                node.metadata = {**(node.metadata or {}), FORMATS: json.dumps(content)}
        if left:
            raise ValueError(
                f"formats has {', '.join(map(repr, left))}, and no such module is a node; give those that "
                "sc.quant.plain returned with this network"
            )

    def follow(self, graph: Graph, of: Value, leading: int) -> Value:
        """Add a network's nodes behind a value; its result. ``leading``: dimensions of its input before a sample's."""
        values: Dict[Any, Value] = {}
        names = _names(graph.net)
        for call in graph.calls[:-1]:
            if call.kind == "input":
                values[call] = of
            elif call.is_nothing or call.function in _FOLDS:
                values[call] = _known(values, call.source, call)
            elif call.summands:
                first, second = [_known(values, each, call) for each in call.summands]
                values[call] = _sum(first, second, call.title)
            else:
                self._paths[names.get(call.name, call.name)] = call.name
                values[call] = self._node(call, names.get(call.name, call.name), values, leading)
        return _known(values, graph.result, graph.output)

    def _node(self, call: Call, name: str, values: Dict[Any, Value], leading: int) -> Value:
        dims = 1 if call.is_folded else leading
        if call.module is None:
            if call.function != "flatten":
                what = f"reads {call.title}" if call.kind == "attribute" else f"calls {call.function}"
                raise ValueError(
                    f"forward {what}, which is no node of NIR; it may call modules, add outputs, and flatten"
                )
            of = _known(values, call.source, call)
            ends = {**dict(zip(("start_dim", "end_dim"), call.args[1:])), **call.kwargs}
            place = Place(name, f"torch.flatten at {name!r}", of.shape, dims, self.to)
            node = flatten_node(ends.get("start_dim", 0), ends.get("end_dim", -1), place)
            return self.add(name, node, of, node.output_type["output"])
        if len(call.args) != 1 or call.kwargs or call.source is None:
            raise ValueError(f"module {call.name!r} is called with other things than one tensor")
        return self._module(call.module, name, _known(values, call.source, call), dims)

    def _module(self, module: Any, name: str, of: Value, leading: int) -> Value:
        owner = f"{type(module).__name__} at {name!r}"
        name = name or type(module).__name__.lower()
        if type(module) in FORMS:
            return self.add(name, checked_node_of(name, module, of.shape, self.to), of, of.shape)
        if type(module) is Recurrent:
            return self._recurrent(module, name, of)
        if type(module) is Delay:
            return self._subgraph(name, of, self._delay_nodes(module, name, of.shape), module.linear.weight.shape[:1])
        if type(module) in WRITERS:
            place = Place(name, owner, of.shape, leading, self.to)
            return self.add(
                name, WRITERS[type(module)](module, place), of, _shape_behind(module, owner, of.shape, leading)
            )
        if isinstance(module, DROPOUTS):
            raise ValueError(
                f"{owner}: a network is saved as it infers, where dropout does nothing; call net.eval() first"
            )
        hint = _HINTS.get(type(module).__name__)
        if is_parametrised(module):
            named = ", ".join(map(repr, module.parametrizations))
            hint = f"{named} is parametrized; torch.nn.utils.parametrize.remove_parametrizations keeps its values"
        if isinstance(module, Encoder):
            hint = "a graph begins behind the encoder; save the network without it"
        known = ", ".join(sorted(kind.__name__ for kind in (*FORMS, *WRITERS, Recurrent, Delay)))
        raise ValueError(f"{owner} is no node of NIR" + (f"; {hint}" if hint else f"; what can be saved: {known}"))

    def _subgraph(self, name: str, of: Value, parts: Dict[str, Any], shape: Sequence[int], back: str = "") -> Value:
        """Nodes in a row as a graph of their own; ``back``: after the first one come the others, and back to it."""
        names, edges = list(parts), []
        inner = {"input": package().Input(types("input", of.shape)), **parts}
        inner["output"] = package().Output(types("output", shape))
        edges = [("input", names[0]), *zip(names, names[1:])]
        edges += [(names[-1], back), (back, "output")] if back else [(names[-1], "output")]
        return self.add(name, package().NIRGraph(inner, edges, type_check=False), of, shape)

    def _delay_nodes(self, delay: Any, name: str, shape: Sequence[int]) -> Dict[str, Any]:
        owner = f"Delay at {name!r}"
        if not isinstance(delay.linear, nn.Linear):
            raise ValueError(f"{owner}: its layer is {type(delay.linear).__name__}; NIR has delays of nn.Linear here")
        if delay.delay.ndim == 2:
            raise ValueError(
                f"{owner}: has a delay for each connection, NIR's Delay one for each input; use per='input'"
            )
        if delay.learn:
            raise ValueError(
                f"{owner} learns its delays (learn={delay.learn!r}), NIR's Delay is fixed; save "
                "sc.Delay(linear, max_delay, delay=layer.whole.float(), learn=()), as it computes in eval()"
            )
        steps = delay.whole.expand(delay.linear.in_features).cpu().double().numpy()
        node = package().Delay(delay=steps * self.to.dt)
        node.metadata = {"spikecore_max_delay": delay.max_delay}
        place = Place(f"{name}.linear", owner, tuple(shape), 1, self.to)
        return {"delay": node, "linear": WRITERS[nn.Linear](delay.linear, place)}

    def _recurrent(self, module: Any, name: str, of: Value) -> Value:
        owner = f"Recurrent at {name!r}"
        if module.several:
            raise ValueError(
                f"{owner}: feeds back through a list of modules, or to several inputs; NIR has no node for it"
            )
        if type(module.neuron) not in FORMS:
            raise ValueError(f"{owner}: its neuron, {type(module.neuron).__name__}, is no node of NIR")
        parts = {"neuron": checked_node_of(f"{name}.neuron", module.neuron, of.shape, self.to)}
        linear = module.linear
        if type(linear) is Delay:
            parts.update(self._delay_nodes(linear, f"{name}.linear", of.shape))
        elif type(linear) in WRITERS and not isinstance(linear, Stateful):
            place = Place(f"{name}.linear", owner, of.shape, 1, self.to)
            parts["linear"] = WRITERS[type(linear)](linear, place)
        else:
            raise ValueError(f"{owner}: its feedback, {type(linear).__name__}, is no node of NIR; give one layer")
        if module.detach:
            parts["neuron"].metadata = {**parts["neuron"].metadata, "spikecore_detach": 1}
            said = "feeds back with detach=True, a rule for gradients that NIR has no word for"
            self.to.unsaid.append((name, Unsaid("detach", said)))
        return self._subgraph(name, of, parts, of.shape, back="neuron")


def _names(net: nn.Module) -> Dict[str, str]:
    """Paths of modules of networks that were loaded -> the names that they had in the file."""
    return {
        f"{prefix}.{path}" if prefix else path: f"{prefix}.{name}" if prefix else name
        for prefix, part in net.named_modules()
        for name, path in (part.places.items() if isinstance(part, Network) else ())
    }


def _known(values: Dict[Any, Value], value: Any, reader: Call) -> Value:
    if not isinstance(value, Call) or value not in values:
        what = value.title if isinstance(value, Call) else repr(value)
        raise ValueError(f"{reader.title} uses {what}, which is no output of a layer; NIR has no node for it")
    return values[value]


def _sum(first: Value, second: Value, call: str) -> Value:
    if first.shape != second.shape:
        raise ValueError(f"{call} adds samples of shapes {list(first.shape)} and {list(second.shape)}")
    twice = set(first.sources) & set(second.sources)
    if twice:
        raise ValueError(f"{call} adds the output of {sorted(twice)[0]!r} to itself; NIR has one edge from it")
    return Value((*first.sources, *second.sources), first.shape)


def types(key: str, shape: Sequence[int]) -> Dict[str, Any]:
    return {key: torch.tensor(shape, dtype=torch.int64).numpy()}


def _shape_behind(module: Any, owner: str, shape: Sequence[int], leading: int) -> Tuple[int, ...]:
    """The shape of a sample behind a layer, by calling it on zeros."""
    if isinstance(module, Stateful):
        return tuple(shape)
    if leading == 2 and isinstance(module, OF_ONE_STEP) and not isinstance(module, nn.Flatten):
        raise ValueError(f"{owner}: takes [B, ...], its input is [T, B, ...]; place it in sc.layers.TimeBatched")
    numbers = next(iter(module.parameters()), torch.zeros(()))
    zeros = torch.zeros([1] * leading + list(shape), dtype=numbers.dtype, device=numbers.device)
    call: Callable[[Tensor], Tensor] = type(module).forward.__get__(module)
    with torch.no_grad():
        try:
            return tuple(call(zeros).shape[leading:])
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"{owner} does not take samples of shape {list(shape)}: {error}") from error
