"""Training and inference with plain PyTorch operations, for every backend that runs inside PyTorch.

Rules of this module:

- Batches go to the network's device, so that one script runs anywhere.
- What a step returns is detached: nothing keeps its graph alive.
- A step begins at rest and leaves no state behind, that of single-step neurons included; within ``carry_state`` it goes
  on from the step before, without its graph.
- ``net.train()`` and ``net.eval()`` are the caller's; inference runs in eval mode and puts every module back as it was.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ContextManager, Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from spikecore._base.batches import beside, device_of, to_device, tree_map
from spikecore._shell.processes import named_as, unwrapped
from spikecore._shell.ranged import put_inside
from spikecore.functional import own_state, stateful_modules
from spikecore.layers import Delay
from spikecore.neuron import Neuron
from spikecore.training import _optimizer_state as optimizer_state
from spikecore.training import _restore as restore
from spikecore.training._checks import check_loss, check_optimizer, check_step
from spikecore.training._form import Form
from spikecore.training._options import TrainingOptions
from spikecore.training._steps import Loss
from spikecore.training._time import of_layers, of_loss, telling, warn_of_time
from spikecore.training._updates import Updates


def _options(options: Any) -> TrainingOptions:
    if options is None:
        return TrainingOptions()
    if not isinstance(options, TrainingOptions):
        hint = ""
        if isinstance(options, dict):
            hint = f"; write options=sc.TrainingOptions({', '.join(f'{k}={v!r}' for k, v in options.items())})"
        elif isinstance(options, type):
            hint = f"; write options=sc.{options.__name__}()" if issubclass(options, TrainingOptions) else ""
        raise TypeError(
            f"options={options!r} must be a spikecore.TrainingOptions on a backend that runs eagerly, or None{hint}"
        )
    return options


def _casting(options: TrainingOptions, device: Optional[torch.device]) -> ContextManager[Any]:
    if options.autocast is None:
        return nullcontext()
    return torch.autocast(device.type if device is not None else "cpu", dtype=options.autocast)


class EagerTraining:
    """``step(inputs, targets) -> (outputs, loss)`` in plain PyTorch."""

    def __init__(self, net: nn.Module, loss: Loss, optimizer: Any, options: Any = None) -> None:
        check_optimizer(optimizer, net)
        self.net = net
        self.loss = loss
        self.optimizer = optimizer
        self.options = _options(options)
        self._stateful = stateful_modules(net)
        self._form = Form(self.net, self.options, optimizer)
        self._updates = Updates(self.net, self.options.clip_norm, self.options.scaler)
        #: Whether it is known that the optimiser's step needs no closure.
        self._steps_alone = False
        #: Whether a batch was checked for mistakes about time.
        self._timed = False

    @property
    def form(self) -> Dict[str, str]:
        """Of the options ``channels_last``, ``compile`` and ``pack_spikes``, what became of each."""
        return dict(self._form.form)

    @property
    def skipped(self) -> int:
        """How many steps had gradients that were not finite: a scaler skipped the update, or a captured step took 0.

        It waits for the device.
        """
        return self._updates.skipped

    def __call__(self, inputs: Any, targets: Any) -> Tuple[Any, Tensor]:
        """Train on one batch; the outputs and the loss, detached, are those from before the update.

        Raises FloatingPointError, with ``clip_norm``, for gradients that are not finite: weights and optimiser are then
        as before. A step in a CUDA graph, which cannot raise, takes such gradients for 0, and ``skipped`` counts it.
        """
        device = device_of(self.net)
        inputs, targets = self._form.inputs(to_device(inputs, device)), to_device(targets, device)
        others = [self.loss] if isinstance(self.loss, nn.Module) else []
        outputs, loss = self._form.attempt(lambda: self._differentiated(inputs, targets, device), inputs, *others)
        self._update({"inputs": inputs, "targets": targets, "outputs": outputs, "loss": loss})
        if not self._timed:
            self._timed = True  # before a warning that may be an error
            self._timed = warn_of_time(self.net, self.loss, inputs, outputs, targets)
        return tree_map(Tensor.detach, outputs), loss.detach()

    def as_captured(self) -> ContextManager[None]:
        """Around a step that is captured, and those before it that load what it needs."""
        return self._form.as_captured()

    def _differentiated(self, inputs: Any, targets: Any, device: Optional[torch.device]) -> Tuple[Any, Tensor]:
        scaler = self.options.scaler
        if not self._steps_alone:
            check_step(self.optimizer)  # before anything changes
            self._steps_alone = True
        self.optimizer.zero_grad(set_to_none=True)
        with own_state(self._stateful):
            with _casting(self.options, device):
                with telling(lambda error: of_layers(self.net, error)):
                    outputs = self._form.run(inputs)
                with telling(lambda error: of_loss(self.loss, outputs, targets, error)):
                    loss = self._form.loss(self.loss, outputs, beside(outputs, targets))
            check_loss(loss)
            (loss if scaler is None else scaler.scale(loss)).backward()
        return outputs, loss

    def state_dict(self) -> Dict[str, Any]:
        """Weights and the state of the optimiser (and scaler), to go on from with :meth:`load_state_dict`.

        Weights have the names of the network itself, whatever wraps it: ``DistributedDataParallel``, ``torch.compile``.
        """
        scaler = self.options.scaler
        scaled = {} if scaler is None else {"scaler": scaler.state_dict()}
        optimizer = optimizer_state.complete(self.optimizer, self.optimizer.state_dict())
        return {"net": unwrapped(self.net).state_dict(), "optimizer": optimizer, **scaled}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave, as a whole or not at all.

        Raises ValueError, naming all that is missing or too much, for a state that lacks a part, is of another
        optimiser, or of one that a backend ran in a form of its own, and RuntimeError, as torch does, for weights that
        do not fit; nothing
        has changed then. What is trained afterwards leaves ``state`` as it is.
        """
        scaler = self.options.scaler
        restore.check_parts(state, ("net", "optimizer") if scaler is None else ("net", "optimizer", "scaler"))
        _check_form(self.optimizer, state["optimizer"])
        optimizer_state.check_optimizer_state(self.optimizer, state["optimizer"])
        if scaler is not None:
            restore.check_scaler_state(scaler, state["scaler"])
        net = named_as(self.net, state["net"])
        with restore.all_or_nothing(net, [self.optimizer], scaler, state["net"]):
            self.optimizer.load_state_dict(optimizer_state.loadable(self.optimizer, state["optimizer"]))
            optimizer_state.separate(self.optimizer, state["optimizer"])
            self._form.lay_out_states(self.optimizer)
            if scaler is not None:
                scaler.load_state_dict(state["scaler"])
            net.load_state_dict(state["net"])

    def _update(self, batch: Dict[str, Any]) -> None:
        self._updates.make(self.optimizer, self._form.update, self._form.is_captured, batch)
        for module in self._stateful:
            if isinstance(module, Neuron):
                # at once, not at the next call: a user may read the parameter, and a compiled network does not project
                put_inside(module)
            elif isinstance(module, Delay):
                module.project()


class EagerInference:
    """``predict(inputs) -> outputs`` in plain PyTorch."""

    def __init__(self, net: nn.Module, options: Any = None) -> None:
        self.net = net
        self.options = _options(options)
        self._stateful = stateful_modules(net)
        self._form = Form(self.net, self.options)

    def as_captured(self) -> ContextManager[None]:
        """As that of training."""
        return self._form.as_captured()

    @property
    def form(self) -> Dict[str, str]:
        """Of the options ``channels_last``, ``compile`` and ``pack_spikes``, what became of each."""
        return dict(self._form.form)

    def __call__(self, inputs: Any) -> Any:
        """Outputs in eval mode, without gradients."""
        device = device_of(self.net)
        modes = [(module, module.training) for module in self.net.modules()]
        self.net.eval()
        try:
            with torch.no_grad(), own_state(self._stateful), _casting(self.options, device):
                batch = self._form.inputs(to_device(inputs, device))
                return self._form.attempt(lambda: self._form.run(batch), batch)
        finally:
            for module, mode in modes:
                module.training = mode


def _check_form(optimizer: Any, state: Any) -> None:
    """Raise ValueError for entries of a state that no optimiser here has: of one that a backend ran in its own form."""
    known = {"state", "param_groups", *optimizer.state_dict()}
    foreign = sorted(map(str, set(state) - known)) if isinstance(state, dict) else []
    if foreign:
        raise ValueError(
            f"state['optimizer'] does not fit: it has {', '.join(map(repr, foreign))}, which this optimiser has not; "
            "for an optimiser that a backend ran in a form of its own, net.load_state_dict(state['net']) goes on from "
            "the weights, with a fresh optimiser"
        )
