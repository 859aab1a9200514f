"""A compiled model: the graph of its ``forward``, its weights in device memory, and the step that runs over a batch.

Rules of this module:

- Order: device iterations, in each the accumulated micro batches, in each the replicas. The weights are updated once
  per device iteration; buffers are written per micro batch and replica.
- Gradients are those of the final loss, averaged (or summed) over accumulation and replicas.
"""

from __future__ import annotations

import logging
import warnings
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional

import torch
from torch import Tensor, nn

from ._arguments import Arguments
from ._batches import Batching
from ._errors import Error, cpp_error, py_error
from ._losses import check_no_grad, final_loss
from ._stages import placing
from ._structure import leaves
from ._tensor import STALE, IpuTensor, narrow, narrowed
from ._trace import Trace
from ._weights import DeviceWeights, check_changes, check_layout, check_updatable, host_weights, on_device
from .enums import ReductionType
from .options import Options

_log = logging.getLogger("poptorch")

#: Dtypes that an input may have on the device.
_INPUTS = (torch.float32, torch.float16, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)

#: Receives the gradients of one device iteration by name of the parameter; None where the loss does not depend on it.
Update = Callable[[Dict[str, Optional[Tensor]]], None]


class Executable:
    """``model`` compiled for calls with these arguments. ``forward`` runs here, once, and never again.

    Raises what PopTorch raises for what it cannot compile.
    """

    def __init__(self, model: nn.Module, arguments: Arguments, options: Options, training: bool) -> None:
        self.arguments = arguments
        self.batching = Batching.of(options)
        self._mean = options.Training.accumulation_and_replication_reduction_type == ReductionType.Mean
        for tensor in arguments.tensors():
            self._check_input(tensor)
        trace = Trace(training)
        inputs = arguments.map_tensors(lambda tensor: trace.input(self.batching.slice(tensor, 0, 0, 0)))
        host = host_weights(model)
        check_layout(host)
        with placing(options, training) as blocks, trace.recording(), on_device(model, trace):
            returned = model(*inputs.args, **inputs.kwargs)
        #: How many IPUs the model takes.
        self.ipus = (max(blocks.values(), default=0) + 1) * options.replication_factor
        _warn_of_host_tensors(returned)
        self._check_kept(model, arguments, training)
        self.graph = trace.finish(returned)
        self.loss = final_loss(self.graph) if training else None
        self.weights = DeviceWeights(host, self.batching.replicas)
        if self.loss is not None:
            check_no_grad(self.graph, self.loss, [self.graph.weights[name] for name in self.weights.trained])
        check_updatable(self.weights, options.toDict().get("updatable_named_buffers", ()))
        check_changes(self.graph, self.weights, options.broadcast_buffers)
        seed = torch.initial_seed() if options.random_seed is None else options.random_seed
        self._random_state = torch.Generator().manual_seed(seed).get_state()
        self._unreached: Optional[List[str]] = None

    def _check_kept(self, model: nn.Module, arguments: Arguments, training: bool) -> None:
        """Raise if ``forward`` left a tensor on a module and would begin with it: PopTorch would start every call from
        its value at compilation, without a word. To find out, ``forward`` runs a second time, but only if it left
        a tensor.
        """
        kept = [
            ".".join(filter(None, (name, attribute)))
            for name, module in model.named_modules()
            for attribute, value in vars(module).items()
            if attribute not in ("_parameters", "_buffers", "_modules") and any(True for _ in leaves(value, IpuTensor))
        ]
        if not kept:
            return
        again = Trace(training)
        inputs = arguments.map_tensors(lambda tensor: again.input(self.batching.slice(tensor, 0, 0, 0)))
        try:
            with again.recording(), on_device(model, again):
                model(*inputs.args, **inputs.kwargs)
        except Error as error:
            if STALE in str(error):
                raise py_error(
                    f"forward leaves a tensor in {', '.join(kept)} and begins with it at the next call. "
                    "An IPU keeps none: each call would start from its value at compilation, without a word. Make it a "
                    "local variable of forward, or a buffer that is updated in place"
                ) from error
            raise

    def _check_input(self, tensor: Tensor) -> None:
        if narrowed(tensor.dtype) not in _INPUTS:
            raise cpp_error(f"Unsupported input type {tensor.dtype}")
        if tensor.requires_grad:
            _log.warning(
                "Input tensor has requires_grad=True set. This tensor will be detached because backward pass via "
                "inputs is not supported."
            )
        self.batching.check(tensor.shape)

    def run(self, arguments: Arguments, update: Update) -> Any:
        """One call: what ``forward`` returned, with the results of this batch as fresh tensors of the host."""
        given = [tensor.detach() for tensor in self.arguments.tensors_of(arguments)]
        on_ipu = [narrow(tensor) for tensor in given]
        changed = self.graph.changed(self.graph.inputs)
        outputs: Dict[int, List[Tensor]] = {index: [] for index in self.graph.outputs}
        with torch.inference_mode(False), self._random():
            for iteration in range(self.batching.iterations):
                gradients: Dict[str, Optional[Tensor]] = dict.fromkeys(self.weights.trained)
                for step in range(self.batching.accumulation):
                    for replica in range(self.batching.replicas):
                        micro = [self.batching.slice(tensor, iteration, step, replica).clone() for tensor in on_ipu]
                        values = self._micro_batch(micro, replica, gradients)
                        for index, results in outputs.items():
                            results.append(values[index].detach().clone())
                        for index, tensor, result in zip(self.graph.inputs, given, micro):
                            if index in changed:
                                self.batching.slice(tensor, iteration, step, replica).copy_(result.detach())
                if self.loss is not None:
                    update(self._reduced(gradients))
        return self.graph.rebuilt({index: _guarded(self.batching.joined(each)) for index, each in outputs.items()})

    def _micro_batch(
        self, inputs: List[Tensor], replica: int, gradients: Dict[str, Optional[Tensor]]
    ) -> Dict[int, Tensor]:
        """All values for one micro batch; its gradients are added to ``gradients``."""
        weights = self.weights.of_replica(replica)
        values = self.graph.replay(inputs, weights)
        if self.loss is not None and values[self.loss].requires_grad:
            names = self.weights.trained
            found = torch.autograd.grad(values[self.loss], [weights[name] for name in names], allow_unused=True)
            for name, gradient in zip(names, found):
                if gradient is not None:
                    before = gradients[name]
                    gradients[name] = gradient if before is None else before + gradient
        return values

    def _reduced(self, gradients: Dict[str, Optional[Tensor]]) -> Dict[str, Optional[Tensor]]:
        """Mean or sum over the micro batches of one update."""
        if self._unreached is None:
            self._unreached = [name for name, gradient in gradients.items() if gradient is None]
            if self._unreached:
                _log.warning("No gradient reaches %s: not trained", ", ".join(self._unreached))
        count = self.batching.accumulation * self.batching.replicas if self._mean else 1
        return {name: None if gradient is None else gradient / count for name, gradient in gradients.items()}

    @contextmanager
    def _random(self) -> Iterator[None]:
        """Inside, random numbers come from the emulated device, not from the host. A real IPU draws other numbers."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random_state)
            yield
            self._random_state = torch.get_rng_state()


def _warn_of_host_tensors(returned: Any) -> None:
    for tensor in leaves(returned, Tensor):
        if not isinstance(tensor, IpuTensor):
            warnings.warn(f"Output expected to be on the IPU but is on {tensor.device.type}", stacklevel=2)


def _guarded(tensor: Tensor) -> Tensor:
    """An output whose ``backward()`` raises PopTorch's error."""
    tensor.backward = _no_backward  # type: ignore[method-assign]  # of this one tensor
    return tensor


def _no_backward(*args: Any, **kwargs: Any) -> None:
    raise py_error(
        "backward() cannot be called explicitly on outputs of a PopTorch model. If you're using a trainingModel, the "
        "backwards pass is performed automatically when invoking the model. If you're using an inferenceModel, you "
        "should use a trainingModel instead."
    )
