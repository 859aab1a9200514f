"""Every neuron with every reset, detached or not, with every surrogate: the whole product, for who asks for it."""

from __future__ import annotations

from functools import partial

from spikecore.testing._case import Collection
from spikecore.testing._cases.core import configurations, gradient
from spikecore.testing._context import Context
from spikecore.testing._oracle import SURROGATES


def add_to(cases: Collection) -> None:
    """Add the cases of this tier."""
    for model, reset, name in configurations():
        if not model.fires:
            continue
        for detach in (False, True):
            cases.add(
                f"product/{name}{'-detach' if detach else ''}",
                "product",
                "the input gradient is the oracle's with every surrogate",
                partial(every_surrogate, model=model.name, reset=reset, detach=detach),
                ("gradients",),
            )


def every_surrogate(context: Context, model: str, reset: str, detach: bool) -> None:
    """The nineteen, one after the other."""
    for twin in SURROGATES.values():
        gradient(context, model, reset, detach=detach, surrogate=twin)
