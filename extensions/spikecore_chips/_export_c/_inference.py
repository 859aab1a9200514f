"""Inference by a program in C: ``sc.inference_model(net, backend="c")``."""

from __future__ import annotations

import tempfile
from typing import Any, Dict, List, Tuple

import torch
from torch import Tensor, nn

from spikecore.backend import Unsupported
from spikecore.core.modules import in_mode, makes_time
from spikecore.functional import stateful_modules
from spikecore.words import a_kind
from spikecore_chips._export_c import CProgram, LoadedProgram, export_c
from spikecore_chips._export_c._graph import rounds_input
from spikecore_chips.quant._fixed import fixed_point_of

__all__ = ["CInference"]


class CInference:
    """A call ``predict(inputs) -> outputs`` of a whole network as a program of :func:`spikecore.export_c`.

    ``inputs`` is a tensor ``[T, B, ...]`` on the CPU. The first call, and the next one with samples of another shape or
    after a change of weights or of numbers such as a threshold, exports and compiles the network as it is in
    ``eval()``: in integers, if it is one of :func:`spikecore_chips.quant.prepare`, else in float32. As many threads as
    torch has share the batch.

    Each call begins at rest. The state lies in the program: within ``sc.carry_state(net)``, and for neurons of
    ``step="single"``, Unsupported is raised, and :meth:`CProgram.load` takes single steps. Unsupported also says which
    layer cannot be exported. ``options`` are None.
    """

    def __init__(self, net: nn.Module, options: Any = None) -> None:
        if options is not None:
            raise ValueError(f"options={options!r}: the C program of a network has none; leave them out")
        if makes_time(net):
            raise Unsupported(
                "backend='c': the network makes time itself; leave repeat= and encoders out, and give "
                "x.expand(T, *x.shape)"
            )
        self.net = net
        #: The samples' shape and the numbers of the layers of the program that there is, and copies of its weights.
        self._made: Any = None
        self._weights: List[Tensor] = []
        self._program: Any = None
        #: Size of a batch -> the program with so many states.
        self._loaded: Dict[int, LoadedProgram] = {}

    def __call__(self, inputs: Any) -> Any:
        """The outputs ``[T, B, ...]`` of one batch."""
        if not isinstance(inputs, Tensor) or inputs.ndim < 2 or not inputs.numel():
            what = a_kind(inputs) if not isinstance(inputs, Tensor) else f"of shape {list(inputs.shape)}"
            raise ValueError(
                f"backend='c': inputs are {what}; give a tensor [T, B, ...] of one step and sample or more"
            )
        if any(module.continues for module in stateful_modules(self.net)):
            raise Unsupported(
                "backend='c': the state lies in the program, and each call begins at rest; for streams take "
                "sc.export_c(net, x, folder, dtype=...).load(), in the place of carry_state and step='single'"
            )
        weights = [*self.net.parameters(), *self.net.buffers()]
        kinds = [(weight.dtype, weight.device) for weight in weights]
        made = inputs.shape[2:], [_numbers(part) for part in self.net.modules()], kinds
        # the numbers themselves: a write through .data or NumPy leaves no other trace
        if made != self._made or not all(map(torch.equal, weights, self._weights)):
            self._program, self._made, self._loaded = self._exported(inputs), made, {}
            self._weights = [weight.detach().clone() for weight in weights]
        batch = inputs.shape[1]
        if batch not in self._loaded:
            self._loaded[batch] = self._program.load(batch=batch, threads=torch.get_num_threads())
        loaded = self._loaded[batch]
        loaded.reset()
        return loaded.run(inputs)

    def _exported(self, inputs: Tensor) -> CProgram:
        parts = self.net.modules()
        is_fixed = any(rounds_input(part) or fixed_point_of(part) is not None for part in parts)
        example = inputs[:1, :1] if inputs.is_floating_point() else inputs[:1, :1].float()
        with in_mode(self.net, False), tempfile.TemporaryDirectory() as folder:
            try:
                return export_c(self.net, example, folder, dtype="fixed" if is_fixed else "float32")
            except ValueError as error:
                raise Unsupported(f"backend='c' runs what sc.export_c can write: {error}") from error


def _numbers(module: nn.Module) -> Tuple[Any, ...]:
    """The class of a layer, and its attributes that are numbers or words."""
    own = [(k, v) for k, v in vars(module).items() if k != "training" and isinstance(v, (bool, int, float, str))]
    return type(module), own
