"""What a conversion gives back, and the exception by which a module is left as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict


class Left(Exception):
    """The reason why a module stays as it is, one sentence without its end."""


@dataclass(frozen=True)
class Conversion:
    """What :func:`spikecore.convert` did to a network. Printed, it is one line for each module.

    replaced: name of a module in the network -> its class, and what computes it now: ``"LIFNode -> LIF(tau=2, ...)"``.
    left: name of a module of the other library that keeps a state of its own, or is a neuron, and runs as before -> its
        class and the reason.

    Names are those of ``net.named_modules()``; that of the network itself is empty. A neuron in a plain list or dict
    has that of its place, ``"layers[0]"``. Layers and containers without state
    (``layer.Conv2d``, ``SeqToANNContainer``) are in neither: they are PyTorch's computation, and run as before.
    """

    replaced: Dict[str, str]
    left: Dict[str, str]

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} replaced, {len(self.left)} left"]
        for mark, rows in (("", self.replaced), ("left: ", self.left)):
            lines += [f"  {name or 'the network itself'}: {mark}{what}" for name, what in rows.items()]
        return "\n".join(lines)
