"""Has ``torch.zeros`` and its like make tensors of the device in a compiled ``forward``, if no device is named.

PopTorch replaces these functions in the module ``torch`` while it compiles, and only there: a name that was bound
before, as by ``from torch import zeros``, still makes a tensor of the host.
"""

from __future__ import annotations

import functools
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Iterator

import torch
from torch import Tensor
from torch.distributions import Distribution

from ._structure import leaves
from ._tensor import DEVICE

if TYPE_CHECKING:
    from ._trace import Trace

FACTORIES = (
    "arange empty full full_like linspace logspace normal ones rand randint randn randperm range tensor zeros "
    "zeros_like"
).split()

_log = logging.getLogger("poptorch")


@contextmanager
def on_device_by_default(trace: Trace) -> Iterator[None]:
    """Replace the functions inside, and have ``torch.distributions`` not validate its arguments: it would read them."""
    validated = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    originals = {name: getattr(torch, name) for name in FACTORIES}
    for name, original in originals.items():
        setattr(torch, name, _forced(trace, name, original))
    try:
        yield
    finally:
        Distribution.set_default_validate_args(validated)
        for name, original in originals.items():
            setattr(torch, name, original)


def _forced(trace: Trace, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def factory(*args: Any, **kwargs: Any) -> Any:
        if not trace.listens:
            return original(*args, **kwargs)
        from_tensors = name == "normal" and any(True for _ in leaves([list(args), kwargs], Tensor))
        if "device" not in kwargs and not from_tensors:
            _log.warning("No device set in torch.%s(): forcing to IPU", name)
            kwargs["device"] = DEVICE
        if name != "tensor" or torch.device(kwargs["device"]).type != DEVICE.type:
            return original(*args, **kwargs)
        # torch would fill it on the device, whose memory it cannot access
        del kwargs["device"]
        return original(*args, **kwargs).to(DEVICE)

    return factory
