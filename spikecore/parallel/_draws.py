"""Which layers are known to draw no random numbers: computed again, they need no state of torch's generators.

To keep that state and to put it back takes as long as a small layer, and a CUDA graph that is captured refuses both.
"""

from __future__ import annotations

from torch import nn

from spikecore._shell.hooks import has_forward_hooks
from spikecore.encode import Encoder
from spikecore.layers import (
    TEBN,
    MSBlock,
    NormNeuron,
    SequenceDropout,
    SEWBlock,
    SpikingSelfAttention,
    TimeBatched,
    Voting,
)
from spikecore.neuron import Neuron
from spikecore.neurons import Recurrent

#: Modules of torch that draw, or may.
_DRAWING = (
    nn.modules.dropout._DropoutNd,
    nn.RReLU,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
    nn.MultiheadAttention,
    nn.RNNBase,
)


#: Modules of spikecore that do not, in a ``forward`` of their own: a program has no random numbers. ``Stochastic``,
#: whose neurons draw some, has another ``forward``, and so counts as a layer that may draw.
_STEADY = (Neuron, Recurrent, TimeBatched, NormNeuron, TEBN, Voting, SEWBlock, MSBlock, SpikingSelfAttention)


def may_draw(module: nn.Module) -> bool:
    """Whether a module, apart from those it contains, may draw from torch's own generators when it is called."""
    if has_forward_hooks(module) or "forward" in vars(module):
        return True
    kind = type(module)
    if isinstance(module, _STEADY):
        return kind.forward not in [steady.forward for steady in _STEADY]
    if isinstance(module, (Encoder, SequenceDropout)):
        return getattr(module, "generator", None) is None
    home = str(kind.__module__)
    return not home.startswith("torch.nn.modules.") or home.endswith(".transformer") or isinstance(module, _DRAWING)
