"""SpikingJelly's layers without state, as ``sc.fuse`` and other readers of a network see them.

They compute what they did. Their classes say more: a batch normalisation, which class of torch it is of, and by
``step`` which steps a call takes; a container or an attention, whose ``forward`` checks shapes and so cannot be
followed, by ``traced_forward`` what it calls (:func:`spikecore.graph.read`).
"""

from __future__ import annotations

from typing import Any, Dict

from torch import nn

from spikecore_convert._swapped import Swapped

PACKAGE = "spikingjelly.activation_based.layer."


class ByStepMode(Swapped):
    """A module whose ``step`` follows its ``step_mode``."""

    step_mode: str

    @property
    def step(self) -> str:
        """The steps that a call takes, in spikecore's words."""
        return "multi" if self.step_mode == "m" else "single"


class Norm1d(ByStepMode):
    """``layer.BatchNorm1d``."""

    of_samples: Any = nn.BatchNorm1d


class Norm2d(ByStepMode):
    """``layer.BatchNorm2d``."""

    of_samples: Any = nn.BatchNorm2d


class Norm3d(ByStepMode):
    """``layer.BatchNorm3d``."""

    of_samples: Any = nn.BatchNorm3d


class Samples(Swapped):
    """``SeqToANNContainer``: its modules, one after the other, with time and batch as one dimension."""

    def traced_forward(self: Any, over_samples: Any, x: Any) -> Any:
        """``forward`` for a reader of networks."""
        for module in self:
            x = over_samples(module, x)
        return x


class SelfAttention(Swapped):
    """``SpikingSelfAttention`` of ``[T, B, C, L]``."""

    def traced_forward(self: Any, over_samples: Any, x: Any) -> Any:
        """``forward`` for a reader of networks."""
        heads = self.qkv_lif(self.qkv_conv_bn(x)).unflatten(2, (3, self.num_heads, -1))
        query, key, value = [heads.select(2, k) for k in range(3)]
        fired = self.attn_lif(value @ key.transpose(-2, -1) @ query * self.scale)
        return self.proj_lif(self.proj_conv_bn(fired.flatten(2, 3)))


class QKAttention(Swapped):
    """``QKAttention`` of ``[T, B, C, L]``, over tokens or channels."""

    def traced_forward(self: Any, over_samples: Any, x: Any) -> Any:
        """``forward`` for a reader of networks."""
        heads = self.qk_lif(self.qk_conv_bn(x)).unflatten(2, (2, self.num_heads, -1))
        fired = self.attn_lif(heads.select(2, 0).sum(self.sum_dim, keepdim=True))
        return self.proj_lif(self.proj_conv_bn((fired * heads.select(2, 1)).flatten(2, 3)))


class SpikeDrivenSelfAttention(Swapped):
    """``SpikeDrivenSelfAttention`` of ``[T, B, C, H, W]``, with its sum."""

    def traced_forward(self: Any, over_samples: Any, x: Any) -> Any:
        """``forward`` for a reader of networks."""
        spikes = self.shortcut_lif(x)
        query = self.q_lif(self.q_bn(self.q_conv(spikes))).flatten(3).unflatten(2, (self.num_heads, -1))
        key = self.k_lif(self.k_bn(self.k_conv(spikes))).flatten(3).unflatten(2, (self.num_heads, -1))
        value = self.v_lif(self.v_bn(self.v_conv(spikes))).flatten(3).unflatten(2, (self.num_heads, -1))
        fired = self.attn_lif((key * value).sum(-1, keepdim=True).transpose(-1, -2)).transpose(-1, -2)
        return self.proj_bn(self.proj_conv((query * fired).reshape_as(x))) + x


LAYERS: Dict[str, Any] = {
    "BatchNorm1d": Norm1d,
    "BatchNorm2d": Norm2d,
    "BatchNorm3d": Norm3d,
    "SeqToANNContainer": Samples,
    "SpikingSelfAttention": SelfAttention,
    "QKAttention": QKAttention,
    "TokenQKAttention": QKAttention,
    "ChannelQKAttention": QKAttention,
    "SpikeDrivenSelfAttention": SpikeDrivenSelfAttention,
}


def description_of(module: nn.Module) -> Any:
    """The class above that describes a layer; None for a module of another kind, and for a described one."""
    kind = type(module)
    return LAYERS.get(kind.__name__) if kind.__module__.startswith(PACKAGE) else None
