"""Spiking LSTM and GRU of other libraries: a product of all steps, and a neuron whose gates are fed back.

Weights have the shapes and the order of gates of these libraries, and begin as theirs. A layer gives what the next one
reads; ``run`` gives the states, too.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Union

from torch import Tensor, nn

from spikecore.core import checks
from spikecore.core.neuron import Neuron
from spikecore.lang import ops
from spikecore.layers import TimeBatched, counts
from spikecore.neurons._recurrent import Recurrent
from spikecore.surrogate import ATan, Erf, Surrogate


class LSTMCell(Neuron):
    """LSTM whose gates are spikes; the value of c is at most 1, and its gradient is that without a limit."""

    inputs, states = ("i", "f", "g", "o"), {"c": 0.0}
    surrogate = Erf(2.0)

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        """``c = f c + i g``; the output is ``o c``."""
        i, f, g, o = (self.spike(gate) for gate in (x.i, x.f, x.g, x.o))
        c = s.c * f + i * g
        c = c + ops.detach(ops.minimum(c, 1.0) - c)
        return c * o, {"c": c}


class GRUCell(Neuron):
    """GRU whose gates are spikes. ``m`` is what comes back for ``n``, before the gate ``r``."""

    inputs, states = ("r", "z", "n", "m"), {"h": 0.0}
    surrogate = Erf(2.0)

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        """``h = (1 - z) n + z h``, which is the output, too."""
        r, z = self.spike(x.r), self.spike(x.z)
        h = (1.0 - z) * self.spike(x.n + r * x.m) + z * s.h
        return h, {"h": h}


class FiringLSTMCell(Neuron):
    """LSTM whose output ``mem`` fires above a threshold, and may be reset at the step behind a spike."""

    inputs, states = ("i", "f", "g", "o"), {"syn": 0.0, "mem": 0.0}
    params = {"threshold": 1.0}  # as every neuron declares it
    configuration = {**Neuron.configuration, "reset": checks.reset}
    surrogate = ATan(2.0)

    def __init__(self, *, reset: str = "none", **options: Any) -> None:
        super().__init__(**options)
        self.reset = reset

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        """Spikes, and ``mem``."""
        fired = ops.detach(self.spike(s.mem - p.threshold, strict=True))
        syn = ops.sigmoid(x.f) * s.syn + ops.sigmoid(x.i) * ops.tanh(x.g)
        mem = ops.sigmoid(x.o) * ops.tanh(syn)
        if self.reset != "none":
            mem = mem - fired * (p.threshold if self.reset == "soft" else mem)
        return (self.spike(mem - p.threshold, strict=True), mem), {"syn": syn, "mem": mem}


class _Gated(nn.Module):
    """A layer of all steps, and the gates that it drives. Weights begin uniform, within ``bound``."""

    def __init__(self, forward: nn.Module, recurrent: Recurrent, bound: float) -> None:
        super().__init__()
        self.linear, self.recurrent = forward, recurrent
        for p in (*forward.parameters(), *recurrent.linear.parameters()):
            nn.init.uniform_(p, -bound, bound)

    def forward(self, x: Tensor, *others: Any) -> Any:
        """``[T, B, ...]``, or ``[B, ...]`` with ``step="single"``; the output alone."""
        if others:
            raise TypeError(
                f"{type(self).__name__}: a call takes the input alone; write out, state = layer.run(x, state=state), "
                "where state is a dict, and None at rest"
            )
        return self._first(self.recurrent(*self._inputs(x)))

    def run(self, x: Tensor, state: Optional[Mapping[str, Tensor]] = None, record: Sequence[str] = ()) -> Any:
        """Counterpart of :meth:`spikecore.Recurrent.run`: ``(output, state)``, with ``record`` the trace, too."""
        out, *rest = self.recurrent.run(*self._inputs(x), state=state, record=record)
        return (self._first(out), *rest)

    def _inputs(self, x: Tensor) -> Sequence[Tensor]:
        return (self.linear(x),)

    def _first(self, outputs: Any) -> Any:
        """The spikes of a cell whose other output comes back."""
        return outputs if self.recurrent.output is None else outputs[0]


class SpikingLSTM(_Gated):
    """LSTM whose gates are spikes, as ``spikingjelly.activation_based.rnn.SpikingLSTM`` with one layer::

        i, f, g, o = spikes of W_ih x + b_ih + W_hh h + b_hh
        c = min(f c + i g, 1),  of gradient 1 by f c + i g
        h = o c

    ``[T, B, input_size] -> [T, B, hidden_size]``. Lotfi Rezaabad and Vishwanath, Long short-term memory spiking
    networks and their applications (2020).

    input_size, hidden_size: numbers of a step that it takes, and that it gives.
    bias: whether both products have a bias.
    surrogate: stand-in for the derivative of a spike.
    """

    def __init__(
        self, input_size: int, hidden_size: int, *, bias: bool = True, surrogate: Surrogate = LSTMCell.surrogate
    ) -> None:
        counts("SpikingLSTM", input_size=input_size, hidden_size=hidden_size)
        gates = ("i", "f", "g", "o")
        linear = nn.Linear(hidden_size, 4 * hidden_size, bias)
        recurrent = Recurrent(LSTMCell(surrogate=surrogate), linear, into=gates, packed=True)
        super().__init__(nn.Linear(input_size, 4 * hidden_size, bias), recurrent, hidden_size**-0.5)


class SpikingGRU(_Gated):
    """GRU whose gates are spikes, as ``spikingjelly.activation_based.rnn.SpikingGRU`` with one layer::

        r, z = spikes of W_ih x + b_ih + W_hh h + b_hh
        n = spikes of W_in x + b_in + r (W_hn h + b_hn)
        h = (1 - z) n + z h

    ``[T, B, input_size] -> [T, B, hidden_size]``.

    input_size, hidden_size: numbers of a step that it takes, and that it gives.
    bias: whether both products have a bias.
    surrogate: stand-in for the derivative of a spike.
    """

    def __init__(
        self, input_size: int, hidden_size: int, *, bias: bool = True, surrogate: Surrogate = GRUCell.surrogate
    ) -> None:
        counts("SpikingGRU", input_size=input_size, hidden_size=hidden_size)
        linear, neuron = nn.Linear(hidden_size, 3 * hidden_size, bias), GRUCell(surrogate=surrogate)
        recurrent = Recurrent(neuron, linear, into=("r", "z", "m"), given=("r", "z", "n"), packed=True)
        super().__init__(nn.Linear(input_size, 3 * hidden_size, bias), recurrent, hidden_size**-0.5)


class SLSTM(_Gated):
    """LSTM that fires where ``mem`` is above a threshold, as ``snntorch.SLSTM``::

        i, f, g, o = W_ih x + b_ih + W_hh mem + b_hh
        syn = sigmoid(f) syn + sigmoid(i) tanh(g)
        mem = sigmoid(o) tanh(syn), less the reset of the step before
        z = [mem > threshold]

    ``[T, B, input_size] -> [T, B, hidden_size]``, the spikes; ``run(x, record=("mem",))`` gives ``mem`` of all steps.

    input_size, hidden_size: numbers of a step that it takes, and that it gives.
    bias: whether both products have a bias.
    threshold: where it fires. ``mem`` is below 1, so snnTorch's default of 1 is never reached: give 0.1 or so.
    reset: ``"none"``, ``"soft"`` (snnTorch's ``"subtract"``) or ``"hard"`` (``"zero"``, which resets ``mem`` alone).
    learn: ``("threshold",)`` to learn it.
    surrogate: stand-in for the derivative of a spike.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        bias: bool = True,
        threshold: Any = 1.0,
        reset: str = "none",
        learn: Sequence[str] = (),
        surrogate: Surrogate = FiringLSTMCell.surrogate,
    ) -> None:
        counts("SLSTM", input_size=input_size, hidden_size=hidden_size)
        neuron = FiringLSTMCell(threshold=threshold, reset=reset, learn=learn, surrogate=surrogate)
        linear = nn.Linear(hidden_size, 4 * hidden_size, bias)
        recurrent = Recurrent(neuron, linear, into=("i", "f", "g", "o"), output=1, packed=True)
        super().__init__(nn.Linear(input_size, 4 * hidden_size, bias), recurrent, hidden_size**-0.5)


class SConv2dLSTM(_Gated):
    """LSTM of :class:`SLSTM` whose products are convolutions, as ``snntorch.SConv2dLSTM`` without pooling.

    ``[T, B, in_channels, H, W] -> [T, B, out_channels, H, W]``. One convolution there, of inputs and ``mem`` side by
    side, is two here: ``linear`` has its first channels and its bias, ``recurrent.linear`` the others.

    in_channels, out_channels: channels of an image that it takes, and that it gives.
    kernel_size: odd size of the kernel, or one for each dimension; images keep their size.
    bias: whether there is a bias.
    threshold, reset, learn, surrogate: as of :class:`SLSTM`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Union[int, Tuple[int, int]],
        *,
        bias: bool = True,
        threshold: Any = 1.0,
        reset: str = "none",
        learn: Sequence[str] = (),
        surrogate: Surrogate = FiringLSTMCell.surrogate,
    ) -> None:
        high, wide = (kernel_size, kernel_size) if isinstance(kernel_size, int) else kernel_size
        counts("SConv2dLSTM", in_channels=in_channels, out_channels=out_channels, kernel_size=min(high, wide))
        if not (high % 2 and wide % 2):
            raise ValueError(f"SConv2dLSTM: kernel_size={kernel_size!r} must be odd, so that images keep their size")
        neuron = FiringLSTMCell(threshold=threshold, reset=reset, learn=learn, surrogate=surrogate)
        kernel: Any = {"kernel_size": (high, wide), "padding": (high // 2, wide // 2)}
        conv = nn.Conv2d(out_channels, 4 * out_channels, bias=False, **kernel)
        gates = ("i", "f", "o", "g")
        recurrent = Recurrent(neuron, conv, into=gates, output=1, given=gates)
        forward = TimeBatched(nn.Conv2d(in_channels, 4 * out_channels, bias=bias, **kernel))
        super().__init__(forward, recurrent, ((in_channels + out_channels) * high * wide) ** -0.5)

    def _inputs(self, x: Tensor) -> Sequence[Tensor]:
        gates = self.linear(x).unflatten(-3, (4, -1))
        return [gates.select(-4, k) for k in range(4)]  # not iterated over, for readers of networks
