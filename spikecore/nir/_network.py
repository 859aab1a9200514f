"""A graph of NIR as a module."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from torch import Tensor, nn

from spikecore._base.batches import folded, unfolded
from spikecore._shell.state import Stateful
from spikecore.nir._layers import OF_ONE_STEP

#: The name of the graph's input among the sources of a unit.
INPUT = ""


class Unit(NamedTuple):
    """One module of a network: its name, and the units whose outputs are added for its input."""

    name: str
    module: nn.Module
    sources: Tuple[str, ...]


class Network(nn.Module):
    """What :func:`spikecore.nir.load` gives: ``[T, B, *N] -> [T, B, *M]``, as every network here.

    Submodules have the names of the nodes, ``net.get_submodule("features.0")``. Where several edges lead to a node
    their sources are added, in the order of the edges. Layers that take one step (convolutions, pooling, flattening)
    get time and batch as one, as in :class:`~spikecore.layers.TimeBatched`. With neurons of ``step="single"`` it takes
    ``[B, *N]``.
    """

    def __init__(self, units: Sequence[Unit], sources: Sequence[str]) -> None:
        super().__init__()
        # before the modules, which then get other names than these
        self.wiring: List[Tuple[str, Tuple[str, ...]]] = [(unit.name, tuple(unit.sources)) for unit in units]
        self.result = tuple(sources)
        self.places: Dict[str, str] = {}
        for unit in units:
            self.places[unit.name] = self._place(unit.name, unit.module)

    def _place(self, name: str, module: nn.Module) -> str:
        """Register a module under the name of its node, dots being levels; the place that it got."""
        holder: nn.Module = self
        *levels, last = [level or "_" for level in name.split(".")]
        path: List[str] = []
        for level in levels:
            inner = holder._modules.get(level)
            if inner is None:
                level = _free(holder, level)
                inner = nn.Module()
                holder.add_module(level, inner)
            path.append(level)
            holder = inner
        last = _free(holder, last)
        holder.add_module(last, module)
        return ".".join([*path, last])

    def forward(self, x: Tensor) -> Tensor:
        """Outputs for ``[T, B, *N]``."""
        values = {INPUT: x}
        single = any(isinstance(part, Stateful) and part.step == "single" for part in self._units())
        for name, sources in self.wiring:
            module = self.get_submodule(self.places[name])
            given = _summed(values, sources)
            if isinstance(module, OF_ONE_STEP) and not single:
                values[name] = unfolded(module(folded(given)), *given.shape[:2])
            else:
                values[name] = module(given)
        return _summed(values, self.result)

    def _units(self) -> List[nn.Module]:
        return [self.get_submodule(place) for place in self.places.values()]

    def extra_repr(self) -> str:
        """The edges."""
        edges = [f"{source or 'input'} -> {name}" for name, sources in self.wiring for source in sources]
        return ", ".join([*edges, *[f"{source or 'input'} -> output" for source in self.result]])


def _free(holder: nn.Module, name: str) -> str:
    """The name, or one like it that torch takes for a module here."""
    while hasattr(holder, name):
        name += "_"
    return name


def _summed(values: Dict[str, Tensor], sources: Sequence[str]) -> Tensor:
    total: Any = values[sources[0]]
    for each in sources[1:]:
        total = total + values[each]
    return total  # type: ignore[no-any-return]  # a tensor
