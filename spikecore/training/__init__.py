"""One training step, the same call on every backend: ``outputs, loss = step(inputs, targets)``.

Rules of this module:

- ``training_model``, ``inference_model`` and ``DataLoader`` ask the backend for theirs. What stands here is the eager
  form, which serves every backend that runs inside PyTorch.
- Batches go to the network's device, so that one script runs anywhere.
- What a step returns is detached: nothing keeps its graph alive.
- A step begins at rest and leaves no state behind, that of single-step neurons included; within ``carry_state`` it goes
  on from the step before, without its graph.
- ``net.train()`` and ``net.eval()`` are the caller's; inference runs in eval mode and puts every module back as it was.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Callable, ContextManager, Dict, Iterable, Optional, Tuple

import torch
from torch import Tensor, nn

from spikecore._base.batches import beside, home, mapped, run, sent
from spikecore._plugins.selection import backend_named, capture, resolve
from spikecore._shell.checks import shown
from spikecore._shell.processes import named_as, unwrapped
from spikecore._shell.replicas import SPLITS_TIME, makes_time
from spikecore.backend import Backend
from spikecore.functional import ask, check_places, own_state, request, stateful_modules
from spikecore.neuron import Neuron
from spikecore.parallel import Pipeline
from spikecore.training import optimizer_state, restore

Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class TrainingOptions:
    """How an eager step trains.

    clip_norm: if given, gradients are scaled down to this total 2-norm before the update.
    autocast: if given, forward and loss run under ``torch.autocast`` with this dtype (float16 or bfloat16).
    scaler: a gradient scaler (``torch.amp.GradScaler``) for float16; called around backward and update.
    """

    clip_norm: Optional[float] = None
    autocast: Optional[torch.dtype] = None
    scaler: Any = None

    def __post_init__(self) -> None:
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm={self.clip_norm!r} must be above 0, or None for no clipping")
        if self.autocast not in (None, torch.float16, torch.bfloat16):
            raise ValueError(f"autocast={self.autocast!r} must be torch.float16, torch.bfloat16 or None")
        needed = ("scale", "unscale_", "step", "update")
        if self.scaler is not None and not all(hasattr(self.scaler, name) for name in needed):
            raise TypeError(
                f"scaler={self.scaler!r} must have the methods of torch.amp.GradScaler: {', '.join(needed)}"
            )


def training_model(
    net: nn.Module, loss: Loss, optimizer: Any, *, backend: Optional[str] = None, options: Any = None
) -> Any:
    """A callable ``step(inputs, targets) -> (outputs, loss)``: forward, loss, backward, update, on any backend.

    ``inputs`` is a tensor, a tuple for ``net(*inputs)``, or a dict for ``net(**inputs)``; ``loss(outputs, targets)``
    gives one number. A step begins at rest, single-step neurons included, unless ``sc.carry_state(net)`` is active.
    ``backend`` asks for a backend in every neuron of ``net`` (see :func:`spikecore.set_backend`). ``options`` are those
    of the backend: :class:`TrainingOptions` where it runs eagerly, :class:`CudaOptions` for CUDA graphs there.
    """
    _check(net, loss)
    _check_graph(net, options)
    step = _backend_of(net, backend, "training_model()").training_model(net, loss, optimizer, options)
    if _wants_graph(options):
        from spikecore.training.cuda_graph.step import GraphedTraining

        return GraphedTraining(step, options)
    return step


def inference_model(net: nn.Module, *, backend: Optional[str] = None, options: Any = None) -> Any:
    """A callable ``predict(inputs) -> outputs`` that runs ``net`` in eval mode and without gradients.

    Each call begins at rest, single-step neurons included, unless ``sc.carry_state(net)`` is active.
    """
    _check(net, len)
    _check_graph(net, options)
    predict = _backend_of(net, backend, "inference_model()").inference_model(net, options)
    if _wants_graph(options):
        from spikecore.training.cuda_graph.step import GraphedInference

        return GraphedInference(predict, options)
    return predict


def DataLoader(  # noqa: N802  # stands where torch.utils.data.DataLoader would
    dataset: Any, batch_size: int = 1, *, backend: Optional[str] = None, options: Any = None, **kwargs: Any
) -> Iterable[Any]:
    """Batches of ``dataset`` as :func:`training_model` of the backend wants them; ``kwargs`` as for torch's DataLoader.

    The backend is that of the argument, the ``use_backend`` block, or ``SPIKECORE_BACKEND``; otherwise torch's own
    loader.
    """
    return backend_named(capture(backend, "DataLoader()")).data_loader(
        dataset, options, batch_size=batch_size, **kwargs
    )


def _wants_graph(options: Any) -> bool:
    # imported here: spikecore.training.cuda_graph imports this module
    from spikecore.training.cuda_graph import CudaOptions

    return isinstance(options, CudaOptions) and options.graph


def _check(net: Any, loss: Any) -> None:
    if not isinstance(net, nn.Module):
        raise TypeError(f"net={shown(net)} is a {type(net).__name__}; give the network (an nn.Module)")
    if isinstance(loss, type):
        raise TypeError(f"loss={loss.__name__} is the class; give an object, {loss.__name__}()")
    if not callable(loss):
        raise TypeError(f"loss={loss!r} must be callable as loss(outputs, targets), such as spikecore.losses.ce_count")
    check_places(net)
    splits = isinstance(net, nn.DataParallel) and len(net.device_ids) > 1 and net.dim == 0 and not makes_time(net)
    if splits and any(module.step == "multi" for module in stateful_modules(net)):
        raise ValueError(f"net is an {SPLITS_TIME}")


def _check_graph(net: nn.Module, options: Any) -> None:
    pipelines = [module for module in net.modules() if isinstance(module, Pipeline)] if _wants_graph(options) else []
    for pipeline in pipelines:
        raise ValueError(
            f"options=CudaOptions(graph=True) captures the work of one GPU, and the network has a Pipeline over "
            f"{', '.join(map(str, pipeline.devices))}; give CudaOptions(graph=False) or sc.TrainingOptions()"
        )


def check_loss(loss: Any) -> Tensor:
    """What a loss gave, if it is a tensor with one number."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
        raise ValueError(f"loss must give a tensor with one number, got {got}; reduce it with .mean() or .sum()")
    return loss


def check_optimizer(optimizer: Any, net: nn.Module) -> None:
    """Raise unless ``optimizer`` is one, and holds parameters of this network."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer={optimizer!r} must be a torch.optim.Optimizer of this network's parameters")
    mine = {id(parameter) for parameter in net.parameters()}
    if not any(id(held) in mine for group in optimizer.param_groups for held in group["params"]):
        raise ValueError("optimizer holds no parameter of this network; make it from net.parameters()")


def _backend_of(net: nn.Module, backend: Optional[str], source: str) -> Backend:
    """The backend that trains ``net``: the one its neurons agree on. ``source`` is who asks, for errors."""
    if backend is not None:
        ask(stateful_modules(net), request(backend, source))
    device = next((p.device.type for p in net.parameters()), "cpu")
    neurons = [module for module in stateful_modules(net) if isinstance(module, Neuron)]
    pipelines = [module for module in net.modules() if isinstance(module, Pipeline)]
    placed = {part: place.type for one in pipelines for stage, place in one.placed for part in stage.modules()}
    chosen = [neuron._bind(placed.get(neuron, device)).backend for neuron in neurons] or [
        resolve(capture(backend, source), device).backend
    ]
    if len({type(one).training_model for one in chosen}) > 1:
        names = ", ".join(sorted({one.name for one in chosen}))
        raise ValueError(f"the neurons of this network ask for {names}, which train differently; give backend=")
    return chosen[0]


def _options(options: Any) -> TrainingOptions:
    if options is None:
        return TrainingOptions()
    if not isinstance(options, TrainingOptions):
        raise TypeError(
            f"options={options!r} must be a spikecore.TrainingOptions on a backend that runs eagerly, or None"
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

    def __call__(self, inputs: Any, targets: Any) -> Tuple[Any, Tensor]:
        """Train on one batch; the outputs and the loss, detached, are those from before the update."""
        device, scaler = home(self.net), self.options.scaler
        inputs, targets = sent(inputs, device), sent(targets, device)
        self.optimizer.zero_grad(set_to_none=True)
        with own_state(self._stateful):
            with _casting(self.options, device):
                outputs = run(self.net, inputs)
                loss = self.loss(outputs, beside(outputs, targets))
            check_loss(loss)
            (loss if scaler is None else scaler.scale(loss)).backward()
        self._update(scaler)
        return mapped(Tensor.detach, outputs), loss.detach()

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
        optimiser, or of one that ran on an IPU, and RuntimeError, as torch does, for weights that do not fit; nothing
        has changed then. What is trained afterwards leaves ``state`` as it is.
        """
        scaler = self.options.scaler
        restore.check_parts(state, ("net", "optimizer") if scaler is None else ("net", "optimizer", "scaler"))
        if "ipu_state" in state["optimizer"]:
            raise ValueError(
                "state['optimizer'] is of an optimiser that ran on an IPU, which keeps its state in a form of its own; "
                "net.load_state_dict(state['net']) goes on from the weights, with a fresh optimiser"
            )
        optimizer_state.check_optimizer_state(self.optimizer, state["optimizer"])
        if scaler is not None:
            restore.check_scaler_state(scaler, state["scaler"])
        net = named_as(self.net, state["net"])
        with restore.all_or_nothing(net, [self.optimizer], scaler, state["net"]):
            self.optimizer.load_state_dict(optimizer_state.loadable(self.optimizer, state["optimizer"]))
            optimizer_state.separate(self.optimizer, state["optimizer"])
            if scaler is not None:
                scaler.load_state_dict(state["scaler"])
            net.load_state_dict(state["net"])

    def _update(self, scaler: Any) -> None:
        if self.options.clip_norm is not None:
            if scaler is not None:
                scaler.unscale_(self.optimizer)
            held = [p for group in self.optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(held, self.options.clip_norm)
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        for module in self._stateful:
            if isinstance(module, Neuron):
                # at once, not at the next call: a user may read the parameter, and a compiled network does not project
                module._project()


class EagerInference:
    """``predict(inputs) -> outputs`` in plain PyTorch."""

    def __init__(self, net: nn.Module, options: Any = None) -> None:
        self.net = net
        self.options = _options(options)
        self._stateful = stateful_modules(net)

    def __call__(self, inputs: Any) -> Any:
        """Outputs in eval mode, without gradients."""
        device = home(self.net)
        modes = [(module, module.training) for module in self.net.modules()]
        self.net.eval()
        try:
            with torch.no_grad(), own_state(self._stateful), _casting(self.options, device):
                return run(self.net, sent(inputs, device))
        finally:
            for module, mode in modes:
                module.training = mode
