"""A neuron in the graph that ``torch.compile`` makes: its call as one op, or a break in the graph."""

from __future__ import annotations

import operator
from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor

from spikecore._base.running import in_graph
from spikecore._shell import checks, compiled
from spikecore._shell.binding import Bound, CallKind
from spikecore.backend import MAX_STATIC_STEPS, Unsupported
from spikecore.dtypes import NAMES


class Graphed(Bound):
    """A bound module that ``torch.compile`` can meet."""

    def named_values(self) -> Dict[str, Union[float, Tensor]]:
        """The value of each parameter of :attr:`program`, by name and in its order: this neuron's own parameters as
        they are, numbers or tensors, and behind them the numbers of its surrogate.
        """
        self._traced()
        return dict(self._values())

    def _values(self) -> List[Tuple[str, Any]]:
        """The parameters of the program, by name: the neuron's own, and the numbers of its surrogate."""
        return [*[(name, getattr(self, name)) for name in self._used(self._stamp())], *self._cache.numbers.items()]

    def _in_graph(self, x: Tensor) -> Optional[Tensor]:
        """The output of a call at rest as one op of the graph that torch.compile makes; None for another call.

        Whatever is looked at here or in ``_execute``, torch guards in every call of the graph: a neuron with 260 guards
        took 12 us for them. What depends on the stamp alone is left to ``_graph_kind``, which torch does not look into.
        The runner is looked at: neurons of one stamp, and one neuron at two times, may have different backends.
        """
        if not x.ndim:  # refused where every call is checked
            return None
        values = [value for _, value in self._values()]
        for value in values:
            if not isinstance(value, float):
                return None
        steps = operator.index(x.shape[0]) if x.shape[0] <= MAX_STATIC_STEPS else None
        grad = torch.is_grad_enabled()
        kind = self._graph_kind(
            x.dtype, x.device.type, x.layout, x.ndim, steps, grad and x.requires_grad, self._stamp()
        )
        return None if kind is None else in_graph(self._cache.runners[kind], x, values)

    # torch.compile runs these two when it meets them and takes what they return as a constant, as in Bound.

    def _graph_kind(
        self,
        dtype: torch.dtype,
        device_type: str,
        layout: torch.layout,
        dims: int,
        steps: Optional[int],
        gradients: bool,
        stamp: str,
    ) -> Optional[CallKind]:
        """The key of ``runners`` for calls at rest with one such input, whose parameters are numbers; None for a call
        that is checked as every other.
        """
        program = self._traced()
        # an input that is refused is refused where every call is checked
        if dtype not in NAMES or layout is not torch.strided or not dims or steps == 0 or len(program.inputs) != 1:
            return None
        if self._left_out(device_type, stamp):
            return None
        spec = (dtype, steps, ("number",) * len(program.params), (), False)
        return self._find(device_type, spec, gradients, False, False, stamp)

    def _left_out(self, device_type: str, stamp: str) -> bool:
        """Whether a call breaks the graph that torch.compile makes: the backend does not declare ``torch_compile``.

        Raises :class:`Unsupported` where the graph must be whole.
        """
        resolved = self._computes(device_type)
        if resolved.backend.capabilities_on(device_type).torch_compile:
            return False
        if compiled.must_be_whole():
            raise Unsupported(checks.unsupported(resolved, type(self).__name__, ("torch_compile",), device_type))
        return True

    # what torch.compiler.assume_constant_result sets, without importing the compiler with spikecore
    _graph_kind._dynamo_marked_constant = True  # type: ignore[attr-defined]  # functions take attributes
    _left_out._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as above


def values_of(neuron: Graphed) -> List[Tuple[str, Any]]:
    """The parameters of a neuron's program, by name: its own, and the numbers of its surrogate."""
    return neuron._values()
