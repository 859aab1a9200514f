"""What training and inference on an IPU share: the wrapped step, its call, and what goes stale."""

from __future__ import annotations

from typing import Any, Callable, List, Optional

from torch import nn

from spikecore.backend import Unsupported
from spikecore.batches import flattened, home
from spikecore.functional import stateful_modules
from spikecore_ipu.sdk import poptorch
from spikecore_ipu.step import Step


def checked_options(options: Any) -> Any:
    """``poptorch.Options``, made anew if None."""
    library = poptorch()
    if options is None:
        return library.Options()
    if not isinstance(options, library.Options):
        raise TypeError(
            f"options={options!r} must be a poptorch.Options on backend 'ipu', or None; spikecore_ipu.poptorch() is "
            "the module poptorch that is in use"
        )
    return options


def checked_net(net: nn.Module) -> nn.Module:
    """The network, which must be on the CPU: PopTorch takes it from there."""
    device = home(net)
    if device is not None and device.type != "cpu":
        raise ValueError(f"net is on {device}; backend 'ipu' takes a network on the CPU, net.cpu()")
    return net


class Compiled:
    """A step and its ``poptorch.PoplarExecutor``."""

    def __init__(self, net: nn.Module, step: Step, wrap: Callable[[Step], Any]) -> None:
        self.net = net
        self._step = step
        self._wrap = wrap
        self._stateful = stateful_modules(net)
        self._modes: Optional[List[bool]] = None
        self._executor: Any = None

    @property
    def executor(self) -> Any:
        """The ``poptorch.PoplarExecutor``, for what is PopTorch's alone: devices, executables, profiles."""
        if self._executor is None:
            self._executor = self._wrapped()
        return self._executor

    @property
    def compiled(self) -> bool:
        """Whether there is a program, which may hold weights that the network has not."""
        return self._executor is not None and bool(self.executor.isCompiled())

    def _wrapped(self) -> Any:
        return self._wrap(self._step)

    def _run(self, *batch: Any) -> Any:
        """Compile at the first call, and run."""
        for module in self._stateful:
            if module._carrying:
                raise Unsupported(
                    f"a {type(module).__name__} is to carry its state from call to call, and an IPU keeps none; call "
                    "the network outside sc.carry_state, or run it on another backend"
                )
        modes = [module.training for module in self.net.modules()]
        if self._modes is not None and modes != self._modes:
            raise Unsupported(
                "train() or eval() was called on a part of this network after it was compiled, and an IPU program "
                "never changes; put it back, or call destroy() first, which compiles anew"
            )
        self._step.traced.given = tuple(t.shape[0] if t.ndim else 1 for t in flattened(batch))
        result = self.executor(*batch)
        self._modes = modes
        return result

    def destroy(self) -> None:
        """Give the device back, after reading weights and the optimiser's state; the next call compiles anew."""
        if self.compiled:
            self.executor.destroy()
        self._executor = self._modes = None
