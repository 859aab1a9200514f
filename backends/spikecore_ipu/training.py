"""``step(inputs, targets)`` and ``predict(inputs)`` on an IPU: one call of a ``poptorch`` training or inference model.

Rules of this module:

- Weights are on the device. PopTorch reads them back when a parameter of the network is read. It does not notice
  when one is written; for ``net.load_state_dict`` a hook here does.
- The executor keeps what was trained. When the step is dropped, the weights are read back first, and the network is
  free for another.
"""

from __future__ import annotations

import itertools
import weakref
from functools import partial
from typing import Any, Callable, Dict, List, MutableMapping, Optional, Tuple

from torch import Tensor, nn

from spikecore.backend import Unsupported
from spikecore.core.modules import in_mode
from spikecore.training import all_or_nothing, check_optimizer, check_parts
from spikecore_ipu.executor import Compiled, check_sharing, checked_net, checked_options, joined
from spikecore_ipu.sdk import exclusive, poptorch, when_idle
from spikecore_ipu.step import Step
from spikecore_ipu.translate import translated

_calls = itertools.count(1)
#: The step that trains a network, by network.
_trainers: MutableMapping[nn.Module, weakref.ReferenceType[IpuTraining]] = weakref.WeakKeyDictionary()


def trainer_of(net: nn.Module) -> Optional[IpuTraining]:
    """The step that trains this network, if there is one."""
    reference = _trainers.get(net)
    return None if reference is None else reference()


class IpuTraining(Compiled):
    """``step(inputs, targets) -> (outputs, loss)``: forward, loss, backward and update, compiled at the first call.

    ``inputs`` and ``targets`` hold all the micro batches of a call, batch first: with the options' device iterations D,
    gradient accumulation A and replication R, ``D * A * R`` of them, and D updates. ``outputs`` and ``loss`` are what
    the options' output mode returns (the last micro batch of each replica, unless it says otherwise): outputs side by
    side along their batch dimension, the loss as a number, or ``[k]`` for k micro batches. For the outputs and losses
    of all, ``options.outputMode(poptorch.OutputMode.All)``.
    """

    def __init__(self, net: nn.Module, loss: Callable[..., Tensor], optimizer: Any, options: Any = None) -> None:
        check_optimizer(optimizer, checked_net(net))
        options = checked_options(options)
        step = Step(net, loss)
        self._translated = translated(optimizer, step)
        self.loss = loss
        self.optimizer = optimizer
        #: Number of the last call, counted over all steps. Weights copied at another number are stale.
        self.calls = 0
        self._edited = False
        super().__init__(net, step, options)

    def _wrapped(self) -> Any:
        other = trainer_of(self.net)
        if other is not None and other is not self and other.wrapped:
            raise Unsupported(
                "this network is trained by another training_model, which holds its weights on the device; call its "
                "destroy() first, or drop it"
            )
        if self._translated.outdated():
            self._translated = translated(self.optimizer, self._step)
        self._translated.refreshed()
        executor = poptorch().trainingModel(self._step, self._options, self._translated.target)
        _trainers[self.net] = weakref.ref(self)
        edited = _Edited(self)
        hooks = [module.register_load_state_dict_post_hook(edited) for module in self.net.modules()]
        self._end = weakref.finalize(self, when_idle, partial(_ended, executor, hooks, self._step))
        self._end.atexit = False
        return executor

    def destroy(self) -> None:
        """Give the device back, after reading weights and the optimiser's state; the next call compiles anew."""
        with exclusive():
            end_state = self._end.detach() if self.wrapped else None
            if end_state is not None:
                _, _, (end,), _ = end_state
                end()
                self._step = Step(self.net, self.loss)
            super().destroy()

    def __call__(self, inputs: Any, targets: Any) -> Tuple[Any, Tensor]:
        """Train on the micro batches of one call; outputs and losses are those from before the updates."""
        with exclusive():
            return self._train(inputs, targets)

    def _train(self, inputs: Any, targets: Any) -> Tuple[Any, Tensor]:
        if not self.calls:
            self._tell_schedulers()
        self._check_layout()
        if not self.compiled:
            check_sharing(self.net)
        self._take_device()
        if self.compiled and not self.executor.isAttachedToDevice():
            self.executor.attachToDevice()  # with the weights of the host
            self._edited = False
        self._send_hyperparameters()
        if self._edited and self.compiled:
            self.executor.copyWeightsToDevice()
        self._edited = False
        outputs, loss = self._run(inputs, targets)
        self.calls = next(_calls)
        return joined(outputs, self._step.traced), loss

    def _send_hyperparameters(self) -> None:
        if self.wrapped:
            self._translated.hand_over(self.executor)

    def _tell_schedulers(self) -> None:
        # torch's schedulers warn unless their optimiser has stepped; without gradients that changes nothing. Once, and
        # before there are weights on a device: later each look at a parameter would read them back
        if not self.compiled:
            self.optimizer.zero_grad(set_to_none=True)
            self.optimizer.step()

    def state_dict(self) -> Dict[str, Any]:
        """Weights, as ``net.state_dict()``, and the state of the optimiser, to go on from with :meth:`load_state_dict`.

        PopTorch keeps the optimiser's state on the device: that of the torch optimiser has none of it.
        """
        prefix = "net."
        with exclusive():
            self._send_hyperparameters()
            weights = self._step.state_dict()
            return {
                "net": {name[len(prefix) :]: value for name, value in weights.items() if name.startswith(prefix)},
                "optimizer": self._translated.target.state_dict(),
            }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave, as a whole or not at all.

        Raises ValueError for a state that lacks a part or is of an optimiser that ran elsewhere, and RuntimeError, as
        torch does, for weights that do not fit; nothing has changed then.
        """
        check_parts(state, ("net", "optimizer"))
        if "ipu_state" not in state["optimizer"]:
            raise ValueError(
                "state['optimizer'] is of an optimiser that did not run on an IPU, and PopTorch takes only its own; "
                "net.load_state_dict(state['net']) goes on from the weights, with a fresh optimiser"
            )
        target = self._translated.target
        with exclusive(), all_or_nothing(self.net, [self.optimizer, self._translated, target]):
            self.net.load_state_dict(state["net"])
            self._translated.load_state_dict(state["optimizer"])
            if self.wrapped:
                self.executor.setOptimizer(target)


class _Edited:
    """Tells a step that its network's weights were loaded on the host."""

    def __init__(self, step: Optional[IpuTraining]) -> None:
        self._step = None if step is None else weakref.ref(step)

    def __call__(self, module: nn.Module, keys: Any) -> None:
        step = None if self._step is None else self._step()
        if step is not None:
            step._edited = True

    def __reduce__(self) -> Tuple[Any, ...]:
        return _Edited, (None,)  # a copy of the network is in no step


def _ended(executor: Any, hooks: List[Any], step: Step) -> None:
    for hook in hooks:
        hook.remove()
    if executor.isCompiled():
        executor.destroy()  # reads back, unwraps, and frees the device
    else:
        step.unwrap()  # PopTorch leaves a module wrapped whose compilation failed


class IpuInference(Compiled):
    """``predict(inputs) -> outputs`` in eval mode, compiled at the first call, with the weights as they are now.

    Weights that a training step of the same network holds on its device are read back before a call, and other programs
    are detached until their next call, unless both have an ``options.useIpuId`` of their own. The outputs of
    all micro batches are put side by side along their batch dimension, unless the options' output mode says otherwise.
    """

    def __init__(self, net: nn.Module, options: Any = None) -> None:
        options = checked_options(options)
        step = Step(checked_net(net), None)
        super().__init__(net, step, options)
        self._weights: Any = None

    def _wrapped(self) -> Any:
        return poptorch().inferenceModel(self._step, self._options)

    def __call__(self, inputs: Any) -> Any:
        """Outputs, without gradients."""
        with exclusive(), in_mode(self.net, False):
            self._check_layout()
            self._take_device()
            self._hand_over()
            return joined(self._run(inputs), self._step.traced)

    def _hand_over(self) -> None:
        """Copy the weights to the device if they have changed since the last call."""
        versions = _weights_of(self.net)
        # attaching copies them, too
        if self.compiled and versions != self._weights and self.executor.isAttachedToDevice():
            self.executor.copyWeightsToDevice()
        self._weights = versions


def _weights_of(net: nn.Module) -> Any:
    """A value that differs whenever the weights do. Weights on the device that trains them are read back first."""
    trainer = trainer_of(net)
    if trainer is not None and trainer.compiled:
        trainer.executor.copyWeightsToHostIfNeeded()
    calls = None if trainer is None else trainer.calls
    return calls, [(id(tensor), tensor._version) for tensor in (*net.parameters(), *net.buffers())]
