"""The module that PopTorch compiles: the user's network, and in training the loss, in one ``forward``.

Rules of this module:

- ``poptorch.identity_loss`` is applied last, to the one number that the user's loss gives.
- ``forward`` runs once, at compilation. What it notes about shapes is kept in :class:`Traced`, an object that the
  shallow copy which PopTorch makes of the module shares.
- The loss is in the last block of the network: ``with poptorch.Block(...)`` ends its block, and what comes after it
  would be in none.
- An IPU keeps no state between calls. Neurons begin at rest, and their state after a call is dropped.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Optional, Tuple

from torch import Tensor, nn

from spikecore.functional import stateful_modules, to_rest
from spikecore.training import check_loss, flattened, run_network
from spikecore_ipu.blocks import last_block, placed
from spikecore_ipu.sdk import poptorch


class Traced:
    """Facts about the compiled call: sizes at dimension 0 that came in, and the shapes that went out."""

    def __init__(self) -> None:
        #: Of the whole batch, one per input tensor; written before each call.
        self.batch_sizes: Tuple[int, ...] = ()
        #: Size of a micro batch; None before compilation.
        self.micro: Optional[int] = None
        #: Of one micro batch, one per output tensor.
        self.shapes: Tuple[Tuple[int, ...], ...] = ()

    def batch_dimension(self, shape: Tuple[int, ...]) -> Optional[int]:
        """The first or the second dimension, whichever has the size of the micro batch; None if neither has."""
        return next((dim for dim, size in enumerate(shape[:2]) if size == self.micro), None)

    def check(self) -> None:
        """Raise ValueError if several micro batches will come back whose outputs could be joined along two dimensions.

        At compilation, before anything is trained.
        """
        whole = self.batch_sizes[0] if self.batch_sizes else self.micro
        for shape in self.shapes:
            if whole != self.micro and len(shape) > 1 and shape[0] == shape[1] == self.micro:
                raise ValueError(
                    f"an output of shape {list(shape)} may be [B, ...] or [T, B, ...]: the micro batch is {self.micro} "
                    "as well, and several of them cannot be joined; use another batch size or T"
                )


class Step(nn.Module):
    """``forward(inputs, targets) -> (outputs, loss)``; with ``loss=None``, ``forward(inputs) -> outputs``."""

    def __init__(self, net: nn.Module, loss: Optional[Callable[..., Tensor]]) -> None:
        super().__init__()
        self.net = net
        self.loss = loss
        self.traced = Traced()

    def unwrap(self) -> None:
        """Put back the classes of parameters and buffers, which PopTorch changes to see who reads them."""
        for parameter in self.parameters():
            parameter.__class__ = nn.Parameter
        for buffer in self.buffers():
            buffer.__class__ = Tensor

    def forward(self, inputs: Any, targets: Any = None) -> Any:
        """Outputs of the network, and its loss."""
        self.traced.micro = _micro_batch(self.traced.batch_sizes, flattened((inputs, targets)))
        with _fresh(self.net), placed(self.net), last_block() as go_on:
            outputs = run_network(self.net, inputs)
            go_on()
            loss = None if self.loss is None else self.loss(outputs, targets)
        go_on()  # the loss may have blocks of its own
        self.traced.shapes = tuple(tuple(value.shape) for value in flattened(outputs))
        self.traced.check()
        if self.loss is None:
            return outputs
        return outputs, poptorch().identity_loss(check_loss(loss), "none")


def _micro_batch(batches: Tuple[int, ...], tensors: List[Tensor]) -> int:
    """The size of a micro batch. PopTorch cuts every tensor along dimension 0, also where that is time."""
    first = tensors[0].shape[0] if tensors and tensors[0].ndim else 1
    if first != (batches[0] if batches else 1) and len(set(batches)) > 1:
        sizes = ", ".join(map(str, batches))
        raise ValueError(
            f"inputs and targets have {sizes} at dimension 0, and these options have PopTorch cut dimension 0 into "
            f"{batches[0] // first} micro batches; put the batch first everywhere, and turn it inside the network"
        )
    return int(first)


@contextmanager
def _fresh(net: nn.Module) -> Iterator[None]:
    """While a network is traced, its neurons begin at rest, and afterwards none has a state of the graph."""
    modules = stateful_modules(net)
    to_rest(modules, carried=True)
    try:
        yield
    finally:
        to_rest(modules, carried=True)
