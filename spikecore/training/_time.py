"""Where time is, as the network, the loss and the targets see it: two mistakes of a first script, told in words.

- A loss of torch knows no time. Given outputs ``[T, B, C]`` it ends with an error about sizes.
- A batch ``[B, ...]`` without time, in front of which an encoder was forgotten: neurons take the batch for time, and a
  loss of torch compares each "step" with the target of one sample, so that training goes on with wrong numbers.
"""

from __future__ import annotations

import warnings
from typing import Any, Iterator

from torch import Tensor, nn

from spikecore._norm_neuron import NormNeuron
from spikecore._shell.in_turn import in_turn
from spikecore._shell.processes import unwrapped
from spikecore._shell.state import Stateful
from spikecore.layers._time_batched import TimeBatched

#: Where torch.nn has the modules that keep dimension 0 of their input as it is.
_KEEP = frozenset(
    f"torch.nn.modules.{name}"
    for name in "activation batchnorm conv dropout instancenorm linear normalization padding pooling".split()
)
#: The losses of torch on classes ``[B, C]`` and their indices ``[B]``, as modules and as functions.
_OF_CLASSES = frozenset("CrossEntropyLoss MultiMarginLoss NLLLoss cross_entropy multi_margin_loss nll_loss".split())


def with_way_out(loss: Any, outputs: Any, targets: Any, error: Exception) -> Exception:
    """The error of a loss of torch that got outputs with time, with the way out; any other error as it is."""
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.ndim == 3 and targets.ndim == 1):
        return error
    name = type(loss).__name__ if isinstance(loss, nn.Module) else getattr(loss, "__name__", "")
    if name not in _OF_CLASSES or outputs.shape[1] != targets.shape[0]:
        return error
    return ValueError(
        f"loss={name} knows no time, and got outputs [T, B, C] = {list(outputs.shape)} for targets [B] = "
        f"{list(targets.shape)}; use a loss over time, such as spikecore.losses.ce_count for spikes or ce_max_membrane "
        "for a membrane, or a mean over time: loss=lambda outputs, targets: F.cross_entropy(outputs.mean(0), targets)"
    )


def warn_of_batch_as_time(net: nn.Module, inputs: Any, outputs: Any, targets: Any) -> None:
    """Warn if neurons certainly take dimension 0 for time where the loss pairs it with one class of each sample.

    That is right for one thing alone, a single sequence with a target for each step; so it is no error.
    """
    if not all(isinstance(one, Tensor) for one in (inputs, outputs, targets)):
        return
    if outputs.ndim != 2 or targets.ndim != 1 or targets.is_floating_point():
        return
    size = targets.shape[0]
    if size < 2 or inputs.ndim < 2 or not size == inputs.shape[0] == outputs.shape[0]:
        return
    if _takes_dimension_0_for_time(unwrapped(net)):
        warnings.warn(
            f"the network takes dimension 0 of inputs {list(inputs.shape)} for time, and each of the {size} targets "
            "is compared with one time step of one sample. If it is the batch, the numbers are wrong: put "
            "sc.encode.Constant(T) in front of the network, or give inputs [T, B, ...], with a loss over time, such as "
            "spikecore.losses.ce_count. For one sequence with a target for each step, this is right",
            UserWarning,
            stacklevel=3,
        )


def _takes_dimension_0_for_time(net: nn.Module) -> bool:
    """Whether the input of a chain of known layers reaches a multi-step neuron with its dimension 0 as it was."""
    for layer in _chain(net):
        neuron = layer.neuron if isinstance(layer, NormNeuron) else layer
        if isinstance(neuron, Stateful):
            return neuron.step == "multi" and not neuron.carrying
        if not (type(layer).__module__ in _KEEP or isinstance(layer, TimeBatched) or _flattens_samples(layer)):
            return False
    return False


def _chain(net: nn.Module) -> Iterator[nn.Module]:
    if in_turn(net):
        for part in net.children():
            yield from _chain(part)
    else:
        yield net


def _flattens_samples(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and layer.start_dim >= 1
