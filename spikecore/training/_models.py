"""Training and inference models and data loaders: each asks the backend of the network for its own.

What stands in :mod:`spikecore.training._eager` serves every backend that runs inside PyTorch.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional

from torch import nn

from spikecore._base.errors import a_kind
from spikecore._plugins.selection import backend_named, capture, resolve
from spikecore._shell.binding import ask, backend_on, request
from spikecore._shell.checks import shown
from spikecore._shell.misplaced import guided
from spikecore.backend import Backend
from spikecore.functional import check_places, stateful_modules
from spikecore.neuron import Neuron
from spikecore.parallel import Pipeline
from spikecore.training._cuda_graph.fallback import CapturedInference, CapturedTraining
from spikecore.training._cuda_graph.options import CudaOptions
from spikecore.training._cuda_graph.step import GraphedInference, GraphedTraining
from spikecore.training._options import options_of
from spikecore.training._steps import InferenceStep, Loss, TrainingStep


def _as_options(unknown: Mapping[str, Any]) -> str:
    return options_of(unknown, "options=")


@guided("sc.training_model", _as_options)
def training_model(
    net: nn.Module, loss: Loss, optimizer: Any, *, backend: Optional[str] = None, options: Any = None
) -> TrainingStep:
    """A callable ``step(inputs, targets) -> (outputs, loss)``: forward, loss, backward, update, on any backend.

    ``inputs`` is a tensor, a tuple for ``net(*inputs)``, or a dict for ``net(**inputs)``; ``loss(outputs, targets)``
    gives one number. A step begins at rest, single-step neurons included, unless ``sc.carry_state(net)`` is active.
    ``backend`` asks for a backend in every neuron of ``net`` (see :func:`spikecore.set_backend`). ``options`` are those
    of the backend: :class:`TrainingOptions` where it runs eagerly, :class:`CudaOptions` for a GPU there.
    """
    _check(net, loss)
    _check_graph(net, options)
    _check_fast(net, options)
    step = _backend_of(net, backend, "training_model()").training_model(net, loss, optimizer, options)
    if _wants_graph(options):
        return GraphedTraining(step, options)
    return CapturedTraining(step, options) if _tries_graph(options) else step


@guided("sc.inference_model", _as_options)
def inference_model(net: nn.Module, *, backend: Optional[str] = None, options: Any = None) -> InferenceStep:
    """A callable ``predict(inputs) -> outputs`` that runs ``net`` in eval mode and without gradients.

    Each call begins at rest, single-step neurons included, unless ``sc.carry_state(net)`` is active.
    """
    _check(net, len)
    _check_graph(net, options)
    _check_fast(net, options)
    predict = _backend_of(net, backend, "inference_model()").inference_model(net, options)
    if _wants_graph(options):
        return GraphedInference(predict, options)
    return CapturedInference(predict, options) if _tries_graph(options) else predict


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
    return isinstance(options, CudaOptions) and options.graph is True


def _tries_graph(options: Any) -> bool:
    return isinstance(options, CudaOptions) and options.fast and options.graph is None


def _check(net: Any, loss: Any) -> None:
    if not isinstance(net, nn.Module):
        raise TypeError(f"net={shown(net)} is {a_kind(net)}; give the network (an nn.Module)")
    if isinstance(loss, type):
        raise TypeError(f"loss={loss.__name__} is the class; give an object, {loss.__name__}()")
    if not callable(loss):
        raise TypeError(f"loss={loss!r} must be callable as loss(outputs, targets), such as spikecore.losses.ce_count")
    check_places(net)


def _check_graph(net: nn.Module, options: Any) -> None:
    pipelines = [module for module in net.modules() if isinstance(module, Pipeline)] if _wants_graph(options) else []
    for pipeline in pipelines:
        raise ValueError(
            f"options=CudaOptions(graph=True) captures the work of one GPU, and the network has a Pipeline over "
            f"{', '.join(map(str, pipeline.devices))}; give CudaOptions(graph=False) or sc.TrainingOptions()"
        )


def _check_fast(net: nn.Module, options: Any) -> None:
    if not (isinstance(options, CudaOptions) and options.fast):
        return
    for name, tensor in net.named_parameters():
        if tensor.device.type != "cuda":
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
    placed = {part: place.type for one in pipelines for stage, place in one.placed for part in stage.modules()}
    chosen = [backend_on(neuron, placed.get(neuron, device)) for neuron in neurons] or [
        resolve(capture(backend, source), device).backend
    ]
    if len({type(one).training_model for one in chosen}) > 1:
        names = ", ".join(sorted({one.name for one in chosen}))
        raise ValueError(f"the neurons of this network ask for {names}, which train differently; give backend=")
    return chosen[0]
