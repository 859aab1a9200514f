"""``PoplarExecutor``: a wrapped model, which is compiled, called, attached to a device, detached and destroyed.

What is compiled is the graph of ``forward``, weights in device memory, and the step that runs over a batch: device
iterations, in each the accumulated micro batches, in each the replicas. The weights are updated once per device
iteration, from gradients of the final loss that are averaged (or summed) over accumulation and replicas. Buffers are
written per micro batch and replica.
"""

from __future__ import annotations

import copy
import warnings
import weakref
from collections import OrderedDict
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, MutableMapping, Optional

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from . import optim
from ._errors import Error, cpp_error, logger, not_modelled, py_error
from ._graph import check_no_grad, final_loss
from ._tensor import STALE, IpuTensor, narrow, narrowed
from ._trace import Trace
from ._weights import (
    DeviceWeights,
    check_changes,
    check_layout,
    check_updatable,
    host_weights,
    is_wrapped,
    on_device,
    unwrap,
    wrap,
)
from .arguments import Arguments, Batching, Parser, leaves
from .blocks import placing
from .devices import acquire, release
from .enums import ConnectionType, OutputMode, ReductionType
from .hyperparameters import read
from .options import Options
from .update import Updater

#: Dtypes that an input may have on the device.
_INPUTS = (torch.float32, torch.float16, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class Executable:
    """``model`` compiled for calls with these arguments. ``forward`` runs here, once, and never again.

    Raises what PopTorch raises for what it cannot compile.
    """

    def __init__(self, model: nn.Module, arguments: Arguments, options: Options, training: bool) -> None:
        self.arguments = arguments
        self.batching = Batching(options)
        self._mean = options.Training.accumulation_and_replication_reduction_type == ReductionType.Mean
        for tensor in arguments.tensors():
            self._check_input(tensor)
        trace = Trace(training)
        host = host_weights(model)
        check_layout(host)
        with placing(options, training) as blocks:
            returned = self._recorded(model, arguments, trace)
        #: How many IPUs the model takes.
        self.ipus = (max(blocks.values(), default=0) + 1) * options.replication_factor
        for tensor in leaves(returned, Tensor):
            if not isinstance(tensor, IpuTensor):
                warnings.warn(f"Output expected to be on the IPU but is on {tensor.device.type}", stacklevel=2)
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

    def _recorded(self, model: nn.Module, arguments: Arguments, trace: Trace) -> Any:
        inputs = arguments.map_tensors(lambda tensor: trace.input(self.batching.slice(tensor, 0, 0, 0)))
        with trace.recording(), on_device(model, trace):
            return model(*inputs.args, **inputs.kwargs)

    def _check_kept(self, model: nn.Module, arguments: Arguments, training: bool) -> None:
        """Raise if ``forward`` left a tensor on a module and would begin with it: PopTorch would start every call from
        its value at compilation, without a word. To find out, ``forward`` runs a second time, but only if it left
        a tensor.
        """
        kept = [
            ".".join(filter(None, (name, attribute)))
            for name, module in model.named_modules()
            for attribute, value in vars(module).items()
            if attribute not in ("_parameters", "_buffers", "_modules") and leaves(value, IpuTensor)
        ]
        if not kept:
            return
        try:
            self._recorded(model, arguments, Trace(training))
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
            logger.warning(
                "Input tensor has requires_grad=True set. This tensor will be detached because backward pass via "
                "inputs is not supported."
            )
        self.batching.check(tensor.shape)

    def run(self, arguments: Arguments, updater: Optional[Updater]) -> Any:
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
                if updater is not None:
                    updater.update(self._reduced(gradients))
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
                logger.warning("No gradient reaches %s: not trained", ", ".join(self._unreached))
        count = self.batching.accumulation * self.batching.replicas if self._mean else 1
        return {name: None if gradient is None else gradient / count for name, gradient in gradients.items()}

    @contextmanager
    def _random(self) -> Iterator[None]:
        """Inside, random numbers come from the emulated device, not from the host. A real IPU draws other numbers."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random_state)
            yield
            self._random_state = torch.get_rng_state()


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


VERSION = "3.4.0"
#: Attributes of PopTorch's executor that the emulator has no answer for.
NOT_MODELLED = frozenset(
    (
        "compileAndExport save loadExecutable cycleCount compilationTime getPerfCounters getLatency getComputeLatency "
        "getHostIpuLatency getIpuHostLatency getTensorNames getAnchoredTensor rng_state "
        "per_replica_params"
    ).split()
)

#: Module -> how often its weights were copied from a device to the host. A device that last got the host's weights at a
#: lower count has old ones.
_versions: MutableMapping[nn.Module, int] = weakref.WeakKeyDictionary()

_before_compilation: Dict[int, Callable[[], Any]] = OrderedDict()
_after_compilation: Dict[int, Callable[[], Any]] = OrderedDict()


def trainingModel(model: Any, options: Optional[Options] = None, optimizer: Any = None) -> PoplarExecutor:
    """Wrap a module to train it: a call runs forward, backward and the optimiser's updates.

    ``optimizer`` is SGD with ``lr=0.01`` if None. Raises ``RuntimeError`` if the module is wrapped for training
    already.
    """
    model = model.model if isinstance(model, PoplarExecutor) else model
    if is_wrapped(model):
        raise RuntimeError(
            "Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() on the model to unwrap "
            "before wrapping again."
        )
    return PoplarExecutor(copy.copy(model), options, True, VERSION, optimizer, model)


def inferenceModel(model: Any, options: Optional[Options] = None) -> PoplarExecutor:
    """Wrap a module, or what a training executor wraps, to run it."""
    model = model.model if isinstance(model, PoplarExecutor) else model
    return PoplarExecutor(copy.copy(model), options, False, VERSION, user_model=model)


def registerPreCompileHook(hook: Callable[[], Any]) -> RemovableHandle:
    """Call ``hook()`` before every compilation, until ``remove()`` of what is returned."""
    return _registered(_before_compilation, hook, "Pre-compile")


def registerPostCompileHook(hook: Callable[[], Any]) -> RemovableHandle:
    """Call ``hook()`` after every compilation, until ``remove()`` of what is returned."""
    return _registered(_after_compilation, hook, "Post-compile")


def _registered(hooks: Dict[int, Callable[[], Any]], hook: Callable[[], Any], what: str) -> RemovableHandle:
    if not callable(hook):
        raise RuntimeError(f"{what} hook must be callable")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _version(model: nn.Module) -> int:
    return _versions.get(model, 0)


def _own_options(options: Optional[Options], training: bool) -> Options:
    """A copy with the default output mode made explicit; both are frozen."""
    options = Options() if options is None else options
    if not isinstance(options, Options):
        raise py_error(f"Invalid type: 'options' is of type {type(options)} (Expected poptorch.Options)")
    options.freeze()
    if not training and options.Training.gradient_accumulation != 1:
        pipelined = (
            " Use poptorch.Options().deviceIterations to process a sufficient number of batches each run for pipelined "
            "execution instead."
        )
        raise py_error(
            "You must set poptorch.Options().Training.gradientAccumulation to 1 or leave it as its default value (1) "
            f"when running a poptorch.inferenceModel().{pipelined * options.execution_strategy.pipelined}"
        )
    own = options.clone()
    if own.output_mode == OutputMode.Default:
        own.outputMode(OutputMode.Final if training else OutputMode.All)
    own.freeze()
    return own


class PoplarExecutor:
    """A model that is called as on an IPU; made by :func:`trainingModel` and :func:`inferenceModel`."""

    def __init__(
        self,
        model: nn.Module,
        options: Optional[Options],
        training: bool,
        poptorch_version: str,
        optimizer: Any = None,
        user_model: Optional[nn.Module] = None,
    ) -> None:
        self._user_model: nn.Module = model if user_model is None else user_model
        self._model = model
        self._training = training
        self._options = _own_options(options, training)
        self._parser = Parser(model.forward)
        self._executable: Optional[Executable] = None
        self._attached = False
        #: Whether an attach failed, after which PopTorch's executable has no device.
        self._lost_device = False
        #: The device has weights that the host has not.
        self._stale_host = False
        #: The module's count in ``_versions`` when the device last got the host's weights.
        self._host_version = 0
        self._updater: Optional[Updater] = None
        if training:
            self._optimizer = optimizer or optim.SGD(self._user_model.parameters(), lr=0.01)
            #: Read now, as PopTorch does: later changes of the optimiser take effect at setOptimizer().
            self._hyperparameters = read(self._optimizer)
            wrap(self._user_model, self.copyWeightsToHostIfNeeded)

    #: The user's module, and the options, which can no longer be changed.
    model = property(lambda self: self._user_model)
    options = property(lambda self: self._options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on the batch of one call; compiles at the first."""
        if self._options.connection_type == ConnectionType.Never:
            raise AssertionError(
                "Trying to run a model on an offline device (ConnectionType.Never): use model.compile(inputs) instead "
                "of model(inputs)"
            )
        arguments = self._parser(args, kwargs, compiling=self._executable is None)
        executable = self._executable or self._compile(arguments)
        if not self._attached:
            self.attachToDevice()
        if not self._training:
            self._follow_the_trainer()
        executable.arguments.check(arguments)
        result = executable.run(arguments, self._updater)
        self._stale_host = self._training
        return result

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for the arguments of a call, without running."""
        if self._executable is not None:
            logger.warning("Call to compile() ignored: the executable is already compiled")
            return
        self._compile(self._parser(args, kwargs, compiling=True))

    def _compile(self, arguments: Arguments) -> Executable:
        self._refresh_from_trainer()
        for hook in list(_before_compilation.values()):
            hook()
        try:
            executable = Executable(self._model, arguments, self._options, self._training)
        finally:
            for hook in list(_after_compilation.values()):
                hook()
        if self._training:
            weights = executable.weights
            trained = {name: weights.variables[name] for name in weights.trained}
            named = dict(self._model.named_parameters())
            self._updater = Updater(self._optimizer, named, trained, self._hyperparameters)
        if self._options.connection_type == ConnectionType.Always:
            self._acquire(executable)
        self._executable = executable
        self._host_version = _version(self._user_model)
        return executable

    def _acquire(self, executable: Executable) -> None:
        if not getattr(self._options, "use_model", False):  # Graphcore's simulator is always there
            acquire(self, executable.ipus, getattr(self._options, "ipu_id", None))
        self._attached = True

    def isCompiled(self) -> bool:
        return self._executable is not None

    def destroy(self) -> None:
        """Read weights and the optimiser's state, give the device back, unwrap the module; nothing if not compiled."""
        if self._executable is None:
            return
        if self._training:
            self.copyWeightsToHostIfNeeded()
            self._optimizer.state_dict()
        self._executable, self._updater, self._attached, self._lost_device = None, None, False, False
        release(self)
        if self._training:
            unwrap(self._user_model)

    def _compiled(self) -> Executable:
        if self._executable is None:
            raise py_error("Model has not been compiled or has been destroyed.")
        return self._executable

    def copyWeightsToHost(self) -> None:
        """Copy parameters and buffers from the device to the module."""
        executable = self._compiled()
        self._stale_host = False
        executable.weights.to_host()
        _versions[self._user_model] = _version(self._user_model) + 1

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copy them if the module's are stale; returns whether they were."""
        if self._stale_host:
            self.copyWeightsToHost()
            return True
        return False

    def copyWeightsToDevice(self) -> None:
        """Copy parameters and buffers from the module to the device."""
        executable = self._compiled()
        self._stale_host = False
        executable.weights.to_device()

    def copyNamedBuffersToDevice(self) -> None:
        """Copy the buffers that ``options.updatableNamedBuffers`` names from the module to the device."""
        executable = self._compiled()
        names = self._options.toDict().get("updatable_named_buffers")
        if names is None:
            raise py_error("No named buffers marked as updatable via updatableNamedBuffers option")
        self._stale_host = False
        executable.weights.to_device(names)

    def load_state_dict(self, state_dict: Dict[str, Tensor], strict: bool = True) -> Any:
        """``load_state_dict`` of the module, and of the device if it is attached."""
        result = self._user_model.load_state_dict(state_dict, strict)
        if self._attached:
            self.copyWeightsToDevice()
        return result

    def setOptimizer(self, optimizer: Any) -> None:
        """Train on with the hyper-parameters that ``optimizer`` has now."""
        if not self._training:
            raise py_error("setOptimizer() is for a trainingModel")
        hyperparameters = read(optimizer)
        if self._updater is not None:
            self._updater.set(optimizer, hyperparameters)
        self._optimizer, self._hyperparameters = optimizer, hyperparameters

    def isAttachedToDevice(self) -> bool:
        return self._attached

    def attachToDevice(self) -> None:
        """Hold the device, with the weights of the module."""
        executable = self._compiled()
        if self._attached:
            raise py_error("Device is already attached")
        if self._lost_device:
            raise py_error(  # PopTorch would read a null pointer
                "An earlier attachToDevice() found no device, and PopTorch's executable has none since then: another "
                "attempt would end the process. Call destroy() and compile again; detach the other executors before "
                "attaching."
            )
        self._lost_device = True
        self._acquire(executable)
        self._lost_device = False
        self.copyWeightsToDevice()

    def detachFromDevice(self) -> None:
        """Read the weights and give the device back, not the executable."""
        self._compiled()
        if not self._attached:
            raise py_error("Device is not attached")
        self.copyWeightsToHostIfNeeded()
        if self._training:
            self._optimizer.state_dict()
        self._attached = False
        release(self)

    def _refresh_from_trainer(self) -> None:
        if not self._training and is_wrapped(self._user_model):
            refresh: Any = self._user_model.copyWeightsToHostIfNeeded
            refresh()

    def _follow_the_trainer(self) -> None:
        """Copy the weights to this device if another wrapper of the same module has trained them since."""
        self._refresh_from_trainer()
        version = _version(self._user_model)
        if version != self._host_version:
            self.copyWeightsToDevice()
            self._host_version = version

    def __getattr__(self, name: str) -> Any:
        if name in NOT_MODELLED:
            raise py_error(f"PoplarExecutor.{name} is not modelled by the emulator")
        value = getattr(self.__dict__["_user_model"], name)
        return ReplicaGroupingWrapper(name, value) if isinstance(value, nn.Parameter) else value


class ReplicaGroupingWrapper:
    """The value of ``executor.weight``, as in PopTorch: it has the parameter's attributes and is no tensor."""

    def __init__(self, name: str, parameter: nn.Parameter) -> None:
        self._name = name
        self._parameter = parameter

    def replicaGrouping(self, comm_group_type: Any, shards: int, variable_retrieval_mode: Any) -> None:
        raise not_modelled(f"{self._name}.replicaGrouping", "all replicas have the same weights")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parameter, name)
