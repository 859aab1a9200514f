"""Check of a file against a library: its network and ours on the same input, node by node."""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import os
import warnings
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import reduce
from io import StringIO
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch import Tensor

from spikecore.inspect.record import neuron_of, record
from spikecore.words import a_kind
from spikecore_nir import _file
from spikecore_nir._conventions import CONVENTIONS, Convention
from spikecore_nir._reading import Graph, load
from spikecore_nir.modules import OF_ONE_STEP, Network

#: Difference that is rounding, relative to the largest output of a node. Spikes differ by 1.
_ROUNDED = 1e-4
_OURS = "weight bias reset reset_delay strict many decay_input"


class Library(NamedTuple):
    """A library that reads files: its name, what it needs, the module and the name of its reader, arguments of that
    from ``(dt, samples)``, whether its network takes all steps as one batch, and what its modules say of themselves.
    """

    name: str
    packages: str
    reader: Tuple[str, str]
    arguments: Callable[[Any, int], Dict[str, Any]]
    flat: bool
    numbers: str

    def read(self, graph: Any, dt: Any, samples: int) -> Any:
        """The library's network."""
        reader = getattr(importlib.import_module(self.reader[0]), self.reader[1])
        return reader(copy.deepcopy(graph), **self.arguments(dt, samples))  # some change the graph


LIBRARIES = {
    "snntorch": Library(
        "snnTorch",
        "snntorch nirtorch nir",
        ("snntorch.import_nir", "import_from_nir"),
        lambda dt, samples: {},
        False,
        "alpha beta threshold reset_mechanism reset_delay weight bias",
    ),
    "norse": Library(
        "Norse",
        "norse nirtorch nir",
        ("norse.torch.utils.import_nir", "from_nir"),
        lambda dt, samples: {"dt": dt, "ignore_warnings": True},
        False,
        "w_in synapse.p.tau_mem_inv r lif.p.tau_mem_inv lif.p.v_th p.tau_mem_inv p.v_th p.v_reset dt weight bias",
    ),
    "sinabs": Library(
        "sinabs",
        "sinabs nirtorch nir",
        ("sinabs.nir", "from_nir"),
        lambda dt, samples: {"batch_size": samples},
        True,
        "tau_mem norm_input spike_threshold spike_fn reset_fn min_v_mem weight bias",
    ),
}


@dataclass(frozen=True)
class NodeCheck:
    """Outputs of one node: how many of ``values`` ``differ``, and from which ``step`` on; the ``means`` of spikecore
    and of the library; whether it is ``silent``, a neuron that never fired; ``numbers`` of it, by who says them.
    """

    name: str
    kind: str
    values: int
    differ: int
    step: Optional[int]
    means: Tuple[float, float]
    silent: bool
    numbers: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class FileCheck:
    """Result of :func:`check`: ``nodes`` in the order in which they are computed. ``str()`` is a table."""

    file: str
    library: str
    inputs: str
    nodes: Sequence[NodeCheck]

    @property
    def first(self) -> Optional[NodeCheck]:
        """The first node that differs. Those behind it get other inputs."""
        return next((node for node in self.nodes if node.differ), None)

    @property
    def silent(self) -> List[str]:
        """Neurons that never fired, of which nothing is known."""
        return [node.name for node in self.nodes if node.silent]

    @property
    def equal(self) -> bool:
        """True if no node differs, and every neuron fired."""
        return self.first is None and not self.silent

    def __str__(self) -> str:
        rows = [("node", "kind", "differ", "first step", "mean here", f"mean in {self.library}")]
        for node in self.nodes:
            step, (ours, theirs) = "" if node.step is None else str(node.step), node.means
            rows.append((node.name, node.kind, f"{node.differ} of {node.values}", step, f"{ours:.4g}", f"{theirs:.4g}"))
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = [f"{self.file}: {self.inputs}", ""]
        lines += ["  ".join(word.ljust(width) for word, width in zip(row, widths)).rstrip() for row in rows]
        first = self.first
        if first is not None:
            lines += ["", f"{first.name!r}, {first.kind}, is the first node that differs, from step {first.step} on:"]
            for side, numbers in first.numbers.items():
                lines.append(f"  {side + ':':11}{'; '.join(f'{key}={text}' for key, text in numbers.items())}")
        elif self.silent:
            names = ", ".join(map(repr, self.silent))
            lines += ["", f"nothing differs, but {names} never fired, so nothing is known of it; give larger scales"]
        else:
            lines += ["", "equal: every node gives the same outputs"]
        return "\n".join(lines)


def check(
    path: Union[str, os.PathLike[str]],
    against: str,
    *,
    network: Optional[Network] = None,
    dt: Optional[float] = None,
    discretization: Optional[str] = None,
    convention: Union[str, Convention, None] = None,
    shape: Optional[Sequence[int]] = None,
    scales: Sequence[float] = (0.5, 2.0, 8.0, 32.0),
    seed: int = 0,
) -> FileCheck:
    """Compare what spikecore and another library make of a file, node by node, on the same random input.

    ::

        report = sc.nir.check("theirs.nir", against="snntorch")
        print(report)  # a table, and the numbers of the first node that differs

    path: a file of NIR.
    against: the library that reads the file, too: ``"snntorch"``, ``"norse"`` or ``"sinabs"``.
    network: what :func:`load` made of the file; None to load it with the next three arguments.
    dt, discretization, convention: as of :func:`load`. By default a file of :func:`save` is read as it was saved, and
        another one with ``convention=against``. Norse reads with the same ``dt``; the other two have their own.
    shape: ``[T, B, *N]`` of the input; None for 40 steps of 8 samples of the shape in the file.
    scales: standard deviations of the normal input, of one sample after the other, so that neurons fire rarely and
        often.
    seed: that of the input.

    Spikes must be the same; outputs of layers may differ by rounding. Of a loop of a neuron and layers, the neuron's
    output is compared.

    Raises ImportError for a library that is not installed, and ValueError for arguments, and for a file that spikecore
    or the library cannot read, with the node.
    """
    if against not in LIBRARIES:
        raise ValueError(f"sc.nir.check: against={against!r} is none of {', '.join(LIBRARIES)}")
    if not scales or not all(scale > 0 for scale in scales):
        raise ValueError(f"sc.nir.check: scales={scales!r} must be numbers above 0, such as (0.5, 8.0)")
    library, file = LIBRARIES[against], os.fspath(path)
    try:
        importlib.import_module(library.reader[0])
    except ImportError as error:
        raise ImportError(
            f"sc.nir.check: against={against!r} reads the file with {library.name}, which cannot be imported "
            f"({error}): pip install {library.packages}"
        ) from error
    graph = _file.read(path, _file.MAX_BYTES)
    saved = _file.content_of(graph.metadata)
    if saved is None and convention is None and discretization is None:
        convention = against
    if saved is None and dt is None:
        like = CONVENTIONS.get(convention or against) if not isinstance(convention, Convention) else convention
        dt = (like and like.dt) or CONVENTIONS[against].dt
    net = network or load(path, dt=dt, discretization=discretization, convention=convention)
    x, nodes = _input(graph, shape, scales, seed), Graph(graph).nodes
    ours = _ours(net, x)
    who = f"{library.name} {importlib.metadata.version(against)}"
    refusal = _Refusal(f"sc.nir.check: {file}: {who}", library, nodes)
    theirs, modules = _theirs(library, graph, dt or (saved and saved["dt"]), x, refusal)
    checks = []
    for unit, place in net.places.items():
        name = _node_of(unit, nodes)
        sides = (ours[unit], net.get_submodule(place)), (theirs[_key(name)], modules[_key(name)])
        checks.append(_compared(name, nodes[name], *sides, library))
    times = ", ".join(f"{each:g}" for each in scales)
    return FileCheck(file, who, f"{len(x)} steps of {x.shape[1]} samples, normal numbers times {times}", checks)


def _input(graph: Any, shape: Optional[Sequence[int]], scales: Sequence[float], seed: int) -> Tensor:
    if shape is None:
        node = next(node for node in graph.nodes.values() if type(node).__name__ == "Input")
        shape = (40, 8, *np.atleast_1d(next(iter(node.input_type.values()))).tolist())
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    factors = torch.tensor([scales[sample % len(scales)] for sample in range(x.shape[1])])
    return x * factors.view(-1, *[1] * (x.ndim - 2))


def _ours(net: Network, x: Tensor) -> Dict[str, Tensor]:
    """Outputs of every node, ``[T, B, ...]``."""
    with torch.no_grad(), record(net) as run:
        try:
            net(x)
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"sc.nir.check: the network takes no input of shape {[*x.shape]} ({error}); give shape=(T, B, *N)"
            ) from error
    calls = {call.name: call for call in run.calls}
    outputs = {name: calls[place].outputs[0] for name, place in net.places.items()}
    folded = [name for name, place in net.places.items() if isinstance(calls[place].layer, OF_ONE_STEP)]
    return {**outputs, **{name: outputs[name].unflatten(0, x.shape[:2]) for name in folded}}


class _Refusal(NamedTuple):
    """Words of the errors about what a library does not do."""

    who: str
    library: Library
    nodes: Mapping[str, Any]

    def __call__(self, does: str, names: Sequence[str], why: Optional[Exception] = None) -> ValueError:
        what = " and ".join(f"node {name!r}, {a_kind(self.nodes[name])}" for name in names) or "the graph"
        cause = "" if why is None else f": {type(why).__name__}: {why}"
        return ValueError(
            f"{self.who} {does} {what}{cause}; docs/nir.md says what {self.library.name} reads: write the node so, or "
            "check the file without it"
        )

    def check_all(self, there: Mapping[str, Any]) -> None:
        """Raise for a node that is left out."""
        for name in self.nodes:
            if _key(name) not in there:
                raise self("leaves out", [name])


def _theirs(
    library: Library, graph: Any, dt: Any, x: Tensor, refusal: _Refusal
) -> Tuple[Dict[str, Tensor], Dict[str, Any]]:
    """Outputs of every node, ``[T, B, ...]``, and the modules."""
    with redirect_stdout(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of readers, about scaled weights and a deprecated nirtorch
        try:
            net = library.read(graph, dt, x.shape[1])
        except Exception as error:  # of any kind
            alone = [(name, _error_of(library, node, dt, x.shape[1])) for name, node in refusal.nodes.items()]
            loops = [name for loop in Graph(graph).loops() for name in sorted(loop)]
            name, why = next((pair for pair in alone if pair[1]), ("", error))
            raise refusal("cannot read", [name] if name else loops, why) from error
    modules: Dict[str, Any] = {_key(name): module for name, module in net.named_modules()}
    refusal.check_all(modules)
    begun: List[str] = []
    with torch.no_grad(), record(net, begins=lambda call: begun.append(_key(call.name))) as run:
        try:
            state = None
            for step in [x.transpose(0, 1).flatten(0, 1)] if library.flat else x:
                state = net(step) if library.flat else net(step, state)[1]
        except Exception as error:  # of any kind
            last = [name for key in begun for name in refusal.nodes if _key(name) == key][-1:]
            raise refusal("cannot compute", last, error) from error
    calls: Dict[str, List[Tensor]] = {}
    for call in run.calls:
        calls.setdefault(_key(call.name), []).append(call.outputs[0])
    refusal.check_all(calls)
    if library.flat:
        return {key: each[0].unflatten(0, (x.shape[1], -1)).transpose(0, 1) for key, each in calls.items()}, modules
    return {key: torch.stack(each) for key, each in calls.items()}, modules


def _error_of(library: Library, node: Any, dt: Any, samples: int) -> Optional[Exception]:
    """The error of reading a node alone."""
    nir = _file.package()
    nodes = {"input": nir.Input(node.input_type), "node": node, "output": nir.Output(node.output_type)}
    try:
        library.read(nir.NIRGraph(nodes, [("input", "node"), ("node", "output")], type_check=False), dt, samples)
    except Exception as error:  # of any kind
        return error
    return None


def _key(name: str) -> str:
    """The name that nirtorch has for a node, and torch for its module in another one; ``nir_node_if`` is ``if``."""
    return name.replace(".", "_").replace("nir_node_", "")


def _node_of(unit: str, nodes: Mapping[str, Any]) -> str:
    """The node whose output a module gives: of a loop its neuron, of a delay and its layer that."""
    inside = [name for name in nodes if name == unit or name.startswith(unit + ".")]
    return next((name for name in inside if name == unit or hasattr(nodes[name], "v_threshold")), inside[-1])


def _compared(name: str, node: Any, here: Tuple[Tensor, Any], there: Tuple[Tensor, Any], library: Library) -> NodeCheck:
    (ours, module), (theirs, other) = here, there
    wrong = torch.ones_like(ours, dtype=torch.bool)
    if ours.shape == theirs.shape:
        wrong = ~((ours - theirs).abs() <= _ROUNDED * max(1.0, float(ours.abs().max())))  # NaN differs
    steps, kind, neuron = wrong.flatten(1).any(1).nonzero(), type(node).__name__, neuron_of(module)
    names = _OURS if neuron is None else " ".join((*neuron.params, _OURS))
    numbers = {
        "file": {key: _text(value) for key, value in _file.fields(node)},
        "spikecore": _numbers(module if neuron is None else neuron, names, ours),
        library.name: _numbers(other, library.numbers, theirs),
    }
    silent = (hasattr(node, "v_threshold") or kind == "Threshold") and not (ours.any() or theirs.any())
    first = int(steps[0]) if len(steps) else None
    means = float(ours.mean()), float(theirs.mean())
    return NodeCheck(name, kind, ours.numel(), int(wrong.sum()), first, means, silent, numbers)


def _numbers(module: Any, names: str, outputs: Tensor) -> Dict[str, str]:
    """Class of a module, those of the attributes that it has, and the shape of its outputs."""
    values = {name: reduce(lambda of, each: getattr(of, each, None), name.split("."), module) for name in names.split()}
    texts = {name: _text(value) for name, value in values.items() if value is not None}
    return {"class": type(module).__name__, **texts, "shape": str([*outputs.shape])}


def _text(value: Any) -> str:
    """A number, or the range and the mean of several."""
    if not isinstance(value, (Tensor, np.ndarray, float)):
        return getattr(value, "__name__", str(value))
    array = torch.as_tensor(value).detach().double()
    low, high, mean = float(array.min()), float(array.max()), float(array.mean())
    return f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g} (mean {mean:.6g})"
