"""``sc.fuse`` and ``sc.unfuse``: batch normalisation handed to the neuron behind it, in a network as it is, and pooling
that keeps little for backward.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any, Iterator, List, Mapping, NamedTuple, Tuple

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from spikecore import _pooling
from spikecore._base.errors import a_kind
from spikecore._shell.checks import shown
from spikecore._shell.in_turn import calls_as, in_turn
from spikecore._shell.misplaced import guided
from spikecore._shell.norms import can_defer, check_restorable, defer, is_watched, restore
from spikecore._shell.outside import outside
from spikecore._shell.prologue import Prologue
from spikecore._shell.prologued import prologue_of, set_prologue
from spikecore.layers import NormNeuron, TimeBatched
from spikecore.layers._adding import Adding
from spikecore.neuron import Neuron


class Part(NamedTuple):
    """A module that an ``nn.Sequential`` calls, itself or through others."""

    module: nn.Module
    #: Whether it sees time and batch as one dimension.
    folded: bool


def _elsewhere(unknown: Mapping[str, Any]) -> str:
    if "backend" not in unknown:
        return ""
    return f"the neurons have a backend: sc.set_backend(net, {unknown['backend']!r}), before or after sc.fuse(net)"


@guided("sc.fuse", _elsewhere)
def fuse(net: nn.Module) -> nn.Module:
    """Let every neuron of ``net`` that follows a batch normalisation normalise its own input; gives ``net`` back.

    Within an ``nn.Sequential``, nested ones included, these pairs are taken::

        TimeBatched(..., nn.BatchNorm2d(C)), neuron  # multi-step
        nn.BatchNorm2d(C), neuron  # neuron of step="single"

    The kernel of the last neuron of a :class:`spikecore.layers.SEWBlock` adds the block's shortcut to its spikes.
    Pooling of windows that do not overlap, wherever it stands, keeps less for backward: ``nn.MaxPool2d`` a byte for
    each maximum, instead of its input and an index of 8 bytes, and ``nn.AvgPool2d`` nothing, instead of its input.

    The network computes what it computed before, to rounding; a backend that can compute normalisation and neuron in
    one kernel then does, in which nothing normalised is stored. Modules, parameters and buffers stay where they are, so
    ``state_dict()`` has the same keys, and an optimiser made before goes on. Left as they are: ``nn.SyncBatchNorm`` and
    other classes, a normalisation or a neuron that is in the network twice, those with hooks or a ``forward`` of their
    own, and all that a module's own ``forward`` puts together: there, use
    :class:`spikecore.layers.NormNeuron`. :func:`unfuse` undoes it; call it before other modules are put in the place of
    these (``SyncBatchNorm.convert_sync_batchnorm``).

    The parts of an ``nn.Sequential`` must be called by it alone: ``net[0](x)`` of a fused network is not normalised.
    A hook that such a normalisation gets afterwards sees the same, and what it gives back is normalised; one that such
    a neuron gets afterwards sees what is not normalised yet.
    Raises TypeError for what is no module. Warns where ``net`` has batch normalisations and neurons and no neuron of it
    normalises afterwards.
    """
    blocks = [module for module in _checked("fuse", net).modules() if isinstance(module, Adding)]
    ending = {neuron for module in blocks for neuron in [module.ending()] if neuron is not None}
    for norm, neuron in pairs(net):
        defer(norm)
        # what a block adds to the neuron's spikes goes into its kernel
        adds = neuron in ending
        set_prologue(neuron, Prologue(norm, "after" if adds else "", optional=adds))
    for module in net.modules():
        _pooling.make_compact(module)
    _warn_of_nothing(net)
    return net


def _warn_of_nothing(net: nn.Module) -> None:
    """Say so where a user expects normalisations within neurons and there are none."""
    norms = [name for name, module in net.named_modules() if isinstance(module, _BatchNorm)]
    neurons = [module for module in net.modules() if isinstance(module, Neuron)]
    if norms and neurons and all(prologue_of(neuron) is None for neuron in neurons):
        warnings.warn(
            f"sc.fuse(net) found no batch normalisation that a neuron can take over (net.{norms[0]}, for one, stays as "
            "it is): it takes those that an nn.Sequential calls right before a neuron, without hooks, and within "
            "TimeBatched unless the neuron has step='single'. In a forward of your own, write "
            "sc.layers.NormNeuron(norm, neuron); sc.explain(net, x) says where that helps. Pooling keeps less for "
            "backward all the same",
            stacklevel=outside(),
        )


def unfuse(net: nn.Module) -> nn.Module:
    """Undo :func:`fuse` in ``net``, which is given back; a :class:`spikecore.layers.NormNeuron` stays what it is.

    Raises RuntimeError for a normalisation whose class was changed since, as by ``nn.utils.parametrize``.
    """
    made = {module.neuron for module in _checked("unfuse", net).modules() if isinstance(module, NormNeuron)}
    neurons = [module for module in net.modules() if isinstance(module, Neuron) and module not in made]
    fused = [(neuron, prologue) for neuron in neurons for prologue in [prologue_of(neuron)] if prologue is not None]
    for _, prologue in fused:
        check_restorable(prologue.norm)  # of all, before the first is undone
    for neuron, prologue in fused:
        restore(prologue.norm)
        set_prologue(neuron, None)
    for module in net.modules():
        _pooling.restore(module)
    return net


def _checked(function: str, net: nn.Module) -> nn.Module:
    if not isinstance(net, nn.Module):
        raise TypeError(f"sc.{function}: net={shown(net)} is {a_kind(net)}; give the network itself (an nn.Module)")
    return net


def pairs(net: nn.Module) -> List[Tuple[nn.Module, Neuron]]:
    """The normalisations of ``net`` with the neurons behind them, as far as :func:`fuse` takes them."""
    # a module at two places is called from both, and only one of them may have the neuron behind it
    places = Counter(module for _, module in net.named_modules(remove_duplicate=False))
    found: List[Tuple[nn.Module, Neuron]] = []
    taken = set()
    for sequence in net.modules():
        if not _is_sequence(sequence):
            continue
        parts = [part for part in _parts(sequence, places) if not _does_nothing(part.module)]
        for (norm, folded), (neuron, _) in zip(parts, parts[1:]):
            if not (can_defer(norm) and _can_normalise(neuron)) or folded != (neuron.step == "multi"):
                continue
            # nested sequences meet the same pair again
            if places[norm] == 1 == places[neuron] and neuron not in taken:
                taken.add(neuron)
                found.append((norm, neuron))  # type: ignore[arg-type]  # see _can_normalise
    return found


def _is_sequence(module: nn.Module) -> bool:
    """Whether a module calls its parts one after the other, and nothing sees what is between them."""
    return in_turn(module) and not is_watched(module)


def _does_nothing(module: nn.Module) -> bool:
    """Whether a module gives its input back: an ``nn.Identity`` itself, without hooks or a ``forward`` of its own."""
    return type(module) is nn.Identity and not is_watched(module)


def _can_normalise(module: nn.Module) -> bool:
    return (
        # a forward of a derived class sees the input before the kernel does, which would be normalised behind it
        isinstance(module, Neuron)
        and calls_as(module, Neuron)
        and len(module.inputs) == 1
        and prologue_of(module) is None
        # hooks see the input of the neuron, and gradients with respect to it, which would be those of the normalisation
        and not is_watched(module)
    )


def _parts(sequence: nn.Module, places: Counter[nn.Module], folded: bool = False) -> Iterator[Part]:
    """What a sequence calls, in order; parts of parts in their place where they can be seen through."""
    # not children(), which leaves out a module that comes a second time
    for part in sequence._modules.values():
        if part is None:
            continue
        inside = part
        if not folded and type(part) is TimeBatched and not is_watched(part):
            inside = part.module
        through = _is_sequence(inside) and places[part] == 1 == places[inside]
        now_folded = folded or (inside is not part and part.step == "multi")
        if through:
            yield from _parts(inside, places, now_folded)
        else:
            # a TimeBatched at two places is not seen through: its normalisation is not the one in front of a neuron
            yield Part(inside if places[part] == 1 else part, now_folded)
