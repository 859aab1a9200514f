"""Training and inference models and data loaders: each asks the backend of the network for its own.

What stands in :mod:`spikecore.training._eager` serves every backend that runs inside PyTorch.
"""

from __future__ import annotations

import functools
import warnings
from importlib import import_module
from typing import Any, Callable, Iterable, Mapping, Optional

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spikecore.backend import Backend, Unsupported
from spikecore.batches import tree_map
from spikecore.core.checks import check_network
from spikecore.core.dispatch import ask, request
from spikecore.core.modules import foreign_carriers
from spikecore.core.neuron import Neuron
from spikecore.functional import check_places, stateful_modules
from spikecore.parallel import Pipeline
from spikecore.plugins.selection import backend_named, capture, resolve
from spikecore.training._capture import Capture
from spikecore.training._graphed import GraphedInference, GraphedTraining
from spikecore.training._steps import CudaOptions, InferenceStep, Loss, TrainingStep
from spikecore.words import a_kind, shown

#: A backend that runs whole networks, not neurons -> the name of ``sc`` that makes its inference.
_OF_NETWORKS: Mapping[Optional[str], str] = {"c": "CInference"}


@functools.singledispatch
def step_of(options: Any, net: nn.Module, loss: Loss, optimizer: Any) -> TrainingStep:
    """The training step that options of a kind make by themselves. A package registers that of its own options."""
    raise TypeError(f"options={options!r} are those of a backend")


def training_model(
    net: nn.Module, loss: Loss, optimizer: Any, *, backend: Optional[str] = None, options: Any = None
) -> TrainingStep:
    """A callable ``step(inputs, targets) -> (outputs, loss)``: forward, loss, backward, update, on any backend.

    ``inputs`` is a tensor, a tuple for ``net(*inputs)``, or a dict for ``net(**inputs)``; ``loss(outputs, targets)``
    gives one number. A step begins at rest, single-step neurons included, unless ``sc.carry_state(net)`` is active.
    ``backend`` asks for a backend in every neuron of ``net`` (see :func:`spikecore.set_backend`). ``options`` are those
    of the backend: :class:`TrainingOptions` where it runs eagerly, :class:`CudaOptions` for a GPU there, and
    :class:`spikecore_online.OnlineOptions` there for a learning rule that moves along with time.
    """
    _check(net, loss, options)
    chosen = _backend_of(net, backend, "training_model()")
    if step_of.dispatch(type(options)) is not step_of.dispatch(object):
        if type(chosen).training_model is not Backend.training_model:
            raise Unsupported(
                f"options={options!r}: backend {chosen.name!r} trains in a way of its own; give backend= one that runs "
                "inside PyTorch, such as 'torch'"
            )
        return step_of(options, net, loss, optimizer)
    step = chosen.training_model(net, loss, optimizer, options)
    return GraphedTraining(step, options) if _is_captured(options) else step


def inference_model(net: nn.Module, *, backend: Optional[str] = None, options: Any = None) -> InferenceStep:
    """A callable ``predict(inputs) -> outputs`` that runs ``net`` in eval mode and without gradients.

    Each call begins at rest, single-step neurons included, unless ``sc.carry_state(net)`` is active. ``backend="c"``
    runs the whole network as a program in C (:class:`spikecore_chips.CInference`), where it can be exported.
    """
    _check(net, len, options)
    if backend in _OF_NETWORKS:
        made: InferenceStep = getattr(import_module("spikecore"), _OF_NETWORKS[backend])(net, options)
        return made
    predict = _backend_of(net, backend, "inference_model()").inference_model(net, options)
    return GraphedInference(predict, options) if _is_captured(options) else predict


def DataLoader(  # noqa: N802  # stands where torch.utils.data.DataLoader would
    dataset: Any,
    batch_size: int = 1,
    *,
    time_first: bool = False,
    backend: Optional[str] = None,
    options: Any = None,
    **kwargs: Any,
) -> Iterable[Any]:
    """Batches of ``dataset`` as :func:`training_model` of the backend wants them; ``kwargs`` as for torch's DataLoader.

    ``time_first``: turn the inputs of each batch from ``[B, T, ...]`` to ``[T, B, ...]``. Inputs are the first part of
    a batch ``(inputs, targets)``, with every tensor in it if that is a tuple, a list or a dict; or the batch itself, if
    it is one tensor. All other parts, such as targets and lengths, stay as they are. ValueError for inputs with fewer
    than two dimensions, TypeError for a batch that is a dict.

    The backend is that of the argument, the ``use_backend`` block, or ``SPIKECORE_BACKEND``; otherwise torch's own
    loader.
    """
    if not kwargs.get("collate_fn"):
        _check_dataset(dataset)
    if time_first:
        kwargs["time_first"] = True
    return backend_named(capture(backend, "DataLoader()")).data_loader(
        dataset, options, batch_size=batch_size, **kwargs
    )


def _check_dataset(dataset: Any) -> None:
    """Raise TypeError for a tuple ``(inputs, targets)``, of which no batch can be made: samples have one shape."""
    if not (isinstance(dataset, tuple) and all(isinstance(part, Tensor) and part.ndim for part in dataset)):
        return
    if len(set(map(len, dataset))) == 1 < len({part.shape for part in dataset}):
        raise TypeError(
            f"dataset is a tuple of {len(dataset)} tensors, which would be its samples; for inputs and targets give "
            "torch.utils.data.TensorDataset(inputs, targets)"
        )


def collated(samples: Any) -> Any:
    """The batch of torch's loader, and an error for sequences of different lengths that says what collates them."""
    try:
        return torch.utils.data.default_collate(samples)
    except RuntimeError as error:
        if "equal size" not in str(error):
            raise
        raise ValueError(
            f"samples have different sizes, and make no batch ({error}): give a collate_fn that pads sequences, by "
            "torch.nn.utils.rnn.pad_sequence, and returns (x, (labels, mask)), with mask = "
            "sc.functional.mask_of(lengths, len(x)); the guide's page on sequences has one of six lines"
        ) from error


class TimeFirst:
    """Collation: makes a batch by ``collate``, and turns its inputs from ``[B, T, ...]`` to ``[T, B, ...]``."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> Any:
        """The batch."""
        batch = self.collate(samples)
        if isinstance(batch, Tensor):
            return _turned(batch)
        if not isinstance(batch, (tuple, list)) or not batch:
            raise TypeError(
                f"time_first=True turns the first part of a batch (inputs, targets), and a batch is {a_kind(batch)}; "
                "leave time_first out, and turn the inputs in a collate_fn: x.transpose(0, 1)"
            )
        parts = [tree_map(_turned, batch[0]), *batch[1:]]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def _turned(x: Tensor) -> Tensor:
    if x.ndim < 2:
        raise ValueError(
            f"time_first=True turns inputs [B, T, ...], and these are {list(x.shape)}; leave it out for inputs without "
            "time, which an encoder gives time, sc.encode.Constant(T)"
        )
    return x.transpose(0, 1).contiguous()


def _is_captured(options: Any) -> bool:
    return isinstance(options, CudaOptions) and bool(options.graph or (options.fast and options.graph is None))


def _check(net: Any, loss: Any, options: Any) -> None:
    check_network("training_model() and inference_model()", net)
    if isinstance(loss, type):
        raise TypeError(f"loss={loss.__name__} is the class; give an object, {loss.__name__}()")
    if not callable(loss):
        order = "; the order is training_model(net, loss, optimizer)" if isinstance(loss, Optimizer) else ""
        raise TypeError(
            f"loss={shown(loss)} must be callable as loss(outputs, targets), such as spikecore.losses.ce_count{order}"
        )
    check_places(net)
    carriers = foreign_carriers(net)
    if carriers:
        more = f" and {len(carriers) - 3} more" if len(carriers) > 3 else ""
        warnings.warn(
            f"the state of {', '.join(carriers[:3])}{more}, of another library, goes on from call to call, with its "
            "graph: a step begins at rest in neurons of spikecore alone. Write sc.convert(net) before; what that "
            "leaves, reset yourself after each call: functional.reset_net(net) of SpikingJelly, utils.reset(net) of "
            "snnTorch",
            UserWarning,
            stacklevel=3,
        )
    if isinstance(options, CudaOptions):
        _check_cuda(net, options)


def _check_cuda(net: nn.Module, options: CudaOptions) -> None:
    pipeline = next((module for module in net.modules() if isinstance(module, Pipeline)), None)
    if options.graph and pipeline is not None:
        raise ValueError(
            f"options=CudaOptions(graph=True) captures the work of one GPU, and the network has a Pipeline over "
            f"{', '.join(map(str, pipeline.devices))}; give CudaOptions(graph=False) or sc.TrainingOptions()"
        )
    for name, tensor in net.named_parameters() if options.fast else ():
        if tensor.device.type != Capture.device_type:
            raise ValueError(
                f"fast=True needs the network on a GPU, and {name} is on {tensor.device}; move it with net.to('cuda') "
                "before the optimiser is made, or use fast=torch.cuda.is_available()"
            )


def _backend_of(net: nn.Module, backend: Optional[str], source: str) -> Backend:
    """The backend that trains ``net``: the one its neurons agree on. ``source`` is who asks, for errors."""
    if backend is not None:
        ask(stateful_modules(net), request(backend, source))
    device = next((p.device.type for p in net.parameters()), "cpu")
    neurons = [module for module in stateful_modules(net) if isinstance(module, Neuron)]
    pipelines = [module for module in net.modules() if isinstance(module, Pipeline)]
    placed = {part: place.type for whole in pipelines for stage, place in whole.placed for part in stage.modules()}
    chosen = [neuron._dispatch.bind(placed.get(neuron, device)).backend for neuron in neurons] or [
        resolve(capture(backend, source), device).backend
    ]
    if len({type(candidate).training_model for candidate in chosen}) > 1:
        names = ", ".join(sorted({candidate.name for candidate in chosen}))
        raise ValueError(f"the neurons of this network ask for {names}, which train differently; give backend=")
    return chosen[0]
