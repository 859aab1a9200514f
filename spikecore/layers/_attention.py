"""Spiking self-attention."""

from __future__ import annotations

import math
from typing import Optional

from torch import Tensor, nn

from spikecore._base.bits import Whole
from spikecore.layers._arguments import counts, makers
from spikecore.layers._blocks import MakeNeuron, MakeNorm
from spikecore.layers._norms import normalised
from spikecore.layers._packed import Follow


class SpikingSelfAttention(nn.Module):
    """Self-attention of spikes, without softmax: products of spikes are not negative.

    ::

        q, k, v = neuron(norm(linear(x)))                       three layers
        a = neuron(scale * q (k^T v))                           in each head, over the tokens of a sample
        y = neuron(norm(linear(a)))

    ``[T, B, N, C] -> [T, B, N, C]`` with N tokens of C channels, ``[B, N, C]`` of one step. ``q (k^T v)`` is
    ``(q k^T) v`` with fewer products where there are more tokens than channels in a head; sums of spikes are whole
    numbers, so both are exact in float32. Batch and tokens are one dimension for layers, normalisation and neurons, as
    ``[T, B N, C]``: statistics are over time, batch and tokens.

    channels: C, a multiple of ``heads``.
    neuron, norm: as of :class:`SEWBlock`, ``norm`` of ``[B N, C]``: ``nn.BatchNorm1d``.
    attention_neuron: makes the neuron behind the products; None takes ``neuron``. The paper's fires at 0.5.
    scale: the factor of the products, 0.125 in the paper, whatever the number of channels.
    bias: whether the linear layers have a bias.
    qkv_bias: the same of the first three; None takes ``bias``. The authors' program for ImageNet has none there.

    Raises TypeError or ValueError for a number that is not whole or below 1, ValueError for channels that are no
    multiple of ``heads`` and for an input of another shape, TypeError for a module where a function makes them.
    Source: Zhou, Zhu, He, Wang, Yan, Tian, Yuan: Spikformer: When Spiking Neural Network Meets Transformer. ICLR 2023.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        neuron: MakeNeuron,
        *,
        attention_neuron: Optional[MakeNeuron] = None,
        norm: MakeNorm = nn.BatchNorm1d,
        scale: float = 0.125,
        bias: bool = True,
        qkv_bias: Optional[bool] = None,
    ) -> None:
        super().__init__()
        counts("SpikingSelfAttention", channels=channels, heads=heads)
        makers("SpikingSelfAttention", neuron=neuron, attention_neuron=attention_neuron or neuron, norm=norm)
        if channels % heads:
            raise ValueError(f"SpikingSelfAttention: channels={channels} must be a multiple of heads={heads}")
        if isinstance(scale, bool) or not isinstance(scale, (int, float)):
            raise TypeError(f"SpikingSelfAttention: scale={scale!r} must be a number, the factor of the products")
        if not math.isfinite(scale):
            raise ValueError(f"SpikingSelfAttention: scale={scale!r} must be finite")
        self.channels, self.heads, self.scale = channels, heads, scale
        first = bias if qkv_bias is None else qkv_bias
        self.query = linear(channels, channels, neuron, norm, first)
        self.key = linear(channels, channels, neuron, norm, first)
        self.value = linear(channels, channels, neuron, norm, first)
        self.fire = (attention_neuron or neuron)()
        self.projected = linear(channels, channels, neuron, norm, bias)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, N, C] -> [T, B, N, C]``, or ``[B, N, C]`` of one step."""
        if not isinstance(x, Tensor):
            raise TypeError(f"SpikingSelfAttention: x must be a tensor, got {type(x).__name__}")
        if x.ndim < 3 or x.shape[-1] != self.channels:
            raise ValueError(
                f"SpikingSelfAttention: x must be [T, B, N, C] with C={self.channels}, or [B, N, C] of one step, got "
                f"shape {tuple(x.shape)}"
            )
        each = x.shape[-3:-1]
        flat = x.flatten(-3, -2)
        query, key, value = (
            layer(flat).unflatten(-2, each).unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            for layer in (self.query, self.key, self.value)
        )
        attended = query @ (key.transpose(-2, -1) @ value) * self.scale
        fired = self.fire(attended.transpose(-3, -2).flatten(-2).flatten(-3, -2))
        projected: Tensor = self.projected(fired).unflatten(-2, each)
        return projected

    def follow_spikes(self, known: Optional[Whole], follow: Follow) -> Optional[Whole]:
        """What comes out, for :func:`spikecore.pack`."""
        for layer in (self.query, self.key, self.value):
            follow(layer, known)
        return follow(self.projected, follow(self.fire, None))

    def extra_repr(self) -> str:
        """Heads and scale."""
        return f"heads={self.heads}, scale={self.scale}"


def linear(channels: int, out: int, neuron: MakeNeuron, norm: MakeNorm, bias: bool) -> nn.Module:
    """A linear layer of tokens ``[T, B N, C]``, normalisation and a neuron."""
    return nn.Sequential(normalised(nn.Linear(channels, out, bias=bias), norm(out)), neuron())
