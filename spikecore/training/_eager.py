"""Training and inference with plain PyTorch operations, for every backend that runs inside PyTorch.

Rules of this module:

- Batches go to the network's device, so that one script runs anywhere.
- What a step returns is detached: nothing keeps its graph alive.
- A step begins at rest and leaves no state behind, that of single-step neurons included; within ``carry_state`` it goes
  on from the step before, without its graph.
- ``net.train()`` and ``net.eval()`` are the caller's; inference runs in eval mode and puts every module back as it was.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any, ContextManager, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from spikecore.batches import beside, device_of, to_device, tree_map
from spikecore.core.modules import in_mode, named_as, unwrapped
from spikecore.functional import after_update, own_state, stateful_modules
from spikecore.inspect.errors import explained, of_network
from spikecore.inspect.record import Call
from spikecore.training._checks import (
    LOOKS,
    calls_of_neurons,
    check_loss,
    check_optimizer,
    of_backward,
    of_first_step,
    of_loss,
    silent_layers,
    still_silent,
)
from spikecore.training._form import Form
from spikecore.training._saving import all_or_nothing, check_parts, load_optimizer
from spikecore.training._steps import Loss, TrainingOptions
from spikecore.training._updates import Updates


class _Eager:
    """Base of training and inference: the network, its options and the form in which it runs."""

    def __init__(self, net: nn.Module, options: Any = None, optimizer: Any = None) -> None:
        self.net = net
        self.options = _options(options)
        self._stateful = stateful_modules(net)
        self._form = Form(net, self.options, optimizer)

    @property
    def form(self) -> Dict[str, str]:
        """Of the options ``channels_last``, ``compile`` and ``pack_spikes``, what became of each."""
        return self._form.form

    def _run(self, inputs: Any) -> Any:
        with explained(lambda error: of_network(self.net, inputs, error)):
            return self._form.run(inputs)

    def _casting(self, device: Optional[torch.device]) -> ContextManager[Any]:
        dtype = self.options.autocast
        return nullcontext() if dtype is None else torch.autocast("cpu" if device is None else device.type, dtype=dtype)


class EagerTraining(_Eager):
    """``step(inputs, targets) -> (outputs, loss)`` in plain PyTorch."""

    def __init__(self, net: nn.Module, loss: Loss, optimizer: Any, options: Any = None) -> None:
        check_optimizer(optimizer, net)
        super().__init__(net, options, optimizer)
        self.loss = loss
        self.optimizer = optimizer
        self._updates = Updates(net, self.options.clip_norm, self.options.scaler)
        #: Number of steps made.
        self._steps = 0
        #: The layers that gave no spike in the first step.
        self._silent: List[str] = []

    @property
    def skipped(self) -> int:
        """Number of steps whose gradients were not finite: a scaler skipped the update, or a captured step took 0.

        It waits for the device.
        """
        return self._updates.skipped

    def __call__(self, inputs: Any, targets: Any) -> Tuple[Any, Tensor]:
        """Train on one batch; the outputs and the loss, detached, are those from before the update.

        Raises FloatingPointError, with ``clip_norm``, for gradients that are not finite: weights and optimiser are then
        as before. A step in a CUDA graph, which cannot raise, takes such gradients for 0, and ``skipped`` counts it.
        """
        return self.step(inputs, targets)

    def step(self, inputs: Any, targets: Any, captured: bool = False) -> Tuple[Any, Tensor]:
        """The same. captured: it is captured, or loads what a captured step needs."""
        device = device_of(self.net)
        inputs, targets = self._form.inputs(to_device(inputs, device)), to_device(targets, device)
        step, is_eager = self._steps + 1, not (self._form.is_compiled or captured)
        looks = is_eager and (step == 1 or (step in LOOKS and bool(self._silent)))
        watches = looks or (step == 1 and not self._form.is_compiled)
        watching: ContextManager[List[Call]] = calls_of_neurons(self.net, looks) if watches else nullcontext([])
        with watching as calls:
            outputs, loss = self._form.attempt(
                lambda: self._differentiated(inputs, targets, device, captured), inputs, captured
            )
        batch = {"inputs": inputs, "targets": targets, "outputs": outputs, "loss": loss}
        self._updates.make(self.optimizer, lambda optimizer: self._form.update(optimizer, captured), captured, batch)
        after_update(self._stateful)
        texts: List[str] = []
        if step == 1:
            texts = of_first_step(self.net, self.loss, self.optimizer, calls, inputs, outputs, targets)
            self._silent = silent_layers(calls)
        elif looks:
            texts = still_silent(self._silent, calls, step)
            self._silent = [] if texts else self._silent  # it is said once
        self._steps = step
        for text in texts:
            warnings.warn(text, UserWarning, stacklevel=3)
        return tree_map(Tensor.detach, outputs), loss.detach()

    def _differentiated(
        self, inputs: Any, targets: Any, device: Optional[torch.device], captured: bool
    ) -> Tuple[Any, Tensor]:
        scaler = self.options.scaler
        self.optimizer.zero_grad(set_to_none=True)
        with own_state(self._stateful):
            with self._casting(device):
                outputs = self._run(inputs)
                with explained(lambda error: of_loss(self.net, self.loss, inputs, outputs, targets, error)):
                    loss = self._form.loss(self.loss, outputs, beside(outputs, targets), captured)
            check_loss(loss)
            with explained(lambda error: of_backward(loss)):
                (loss if scaler is None else scaler.scale(loss)).backward()
        return outputs, loss

    def state_dict(self) -> Dict[str, Any]:
        """Weights and the state of the optimiser (and scaler), to go on from with :meth:`load_state_dict`.

        Weights have the names of the network itself, whatever wraps it: ``DistributedDataParallel``, ``torch.compile``.
        """
        scaler = self.options.scaler
        scaled = {} if scaler is None else {"scaler": scaler.state_dict()}
        return {"net": unwrapped(self.net).state_dict(), "optimizer": self.optimizer.state_dict(), **scaled}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave, as a whole or not at all.

        Raises ValueError for a state that lacks a part, is of another optimiser, or of one that a backend ran in a form
        of its own, and RuntimeError, as torch does, for weights that do not fit; nothing has changed then. What is
        trained afterwards leaves ``state`` as it is.
        """
        scaler = self.options.scaler
        check_parts(state, ("net", "optimizer") if scaler is None else ("net", "optimizer", "scaler"))
        net = named_as(self.net, state["net"])
        with all_or_nothing(net, [self.optimizer]):
            load_optimizer(self.optimizer, state["optimizer"])
            self._form.lay_out_states()
            net.load_state_dict(state["net"])
            if scaler is not None:
                scaler.load_state_dict(state["scaler"])


class EagerInference(_Eager):
    """``predict(inputs) -> outputs`` in plain PyTorch."""

    def __call__(self, inputs: Any) -> Any:
        """Outputs in eval mode, without gradients."""
        return self.step(inputs)

    def step(self, inputs: Any, captured: bool = False) -> Any:
        """The same. captured: it is captured, or loads what a captured call needs."""
        device = device_of(self.net)
        with in_mode(self.net, False), torch.no_grad(), own_state(self._stateful), self._casting(device):
            batch = self._form.inputs(to_device(inputs, device))
            return self._form.attempt(lambda: self._run(batch), batch, captured)


def _options(options: Any) -> TrainingOptions:
    if options is None or isinstance(options, TrainingOptions):
        return options or TrainingOptions()
    hint = ""
    if isinstance(options, dict):
        hint = f"; write options=sc.TrainingOptions({', '.join(f'{k}={v!r}' for k, v in options.items())})"
    elif isinstance(options, type) and issubclass(options, TrainingOptions):
        hint = f"; write options=sc.{options.__name__}()"
    raise TypeError(
        f"options={options!r} must be a spikecore.TrainingOptions on a backend that runs eagerly, or None{hint}"
    )
