"""``PoplarExecutor``: a wrapped model, which is compiled, called, attached to a device, detached and destroyed."""

from __future__ import annotations

import copy
import logging
import weakref
from collections import OrderedDict
from typing import Any, Callable, Dict, MutableMapping, Optional

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from . import optim
from ._arguments import Arguments, Parser
from ._devices import acquire, release
from ._errors import not_modelled, py_error
from ._executable import Executable
from ._update import Updater, read
from ._wrapping import is_wrapped, unwrap, wrap
from .enums import ConnectionType, OutputMode
from .options import Options

VERSION = "3.4.0"
#: PopTorch would read a null pointer here.
LOST_DEVICE = (
    "An earlier attachToDevice() found no device, and PopTorch's executable has none since then: another attempt would "
    "end the process. Call destroy() and compile again; detach the other executors before attaching."
)
NO_EXECUTABLE = "Model has not been compiled or has been destroyed."
INFERENCE_ACCUMULATION = (
    "You must set poptorch.Options().Training.gradientAccumulation to 1 or leave it as its default value (1) when "
    "running a poptorch.inferenceModel()."
)
PIPELINED_INFERENCE = (
    " Use poptorch.Options().deviceIterations to process a sufficient number of batches each run for pipelined "
    "execution instead."
)
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

_log = logging.getLogger("poptorch")


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
        raise py_error(INFERENCE_ACCUMULATION + PIPELINED_INFERENCE * options.execution_strategy.pipelined)
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

    @property
    def model(self) -> nn.Module:
        """The user's module."""
        return self._user_model

    @property
    def options(self) -> Options:
        """The options, which can no longer be changed."""
        return self._options

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
        result = executable.run(arguments, self._update)
        self._stale_host = self._training
        return result

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for the arguments of a call, without running."""
        if self._executable is not None:
            _log.warning("Call to compile() ignored: the executable is already compiled")
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

    def _update(self, gradients: Dict[str, Optional[Tensor]]) -> None:
        if self._updater is not None:
            self._updater.update(gradients)

    def isCompiled(self) -> bool:
        """Whether there is an executable."""
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
            raise py_error(NO_EXECUTABLE)
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
        """Whether the device is held."""
        return self._attached

    def attachToDevice(self) -> None:
        """Hold the device, with the weights of the module."""
        executable = self._compiled()
        if self._attached:
            raise py_error("Device is already attached")
        if self._lost_device:
            raise py_error(LOST_DEVICE)
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
        """Refused: groups of replicas with weights of their own."""
        raise not_modelled(f"{self._name}.replicaGrouping", "all replicas have the same weights")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parameter, name)
