"""``poptorch.Options``: how a model is compiled and run.

Rules of this module:

- A setter has PopTorch's name, arguments and checks, returns its group, and raises once the options are frozen
  (:func:`_setter`).
- A setting that the emulator follows can be read as an attribute: ``options.device_iterations``. One that only concerns
  speed, memory, devices, files, names or logs is checked and has no effect; it is in the last part of its class.
- A setting that would change numbers and is not modelled is refused when it is switched on; those of PopART are, too.
- Options that a model or a data loader was given are frozen; :meth:`Options.clone` returns a copy that is not.
"""

from __future__ import annotations

import copy
import functools
import os
from typing import Any, Callable, Dict, List, NoReturn, Optional, TypeVar

import torch

from ._errors import not_modelled, py_error
from .blocks import ExecutionStrategy, PipelinedExecution
from .enums import (
    CommGroupType,
    ConnectionType,
    HalfFloatCastingBehavior,
    MeanReductionStrategy,
    OutputMode,
    ReductionType,
    SyncPattern,
)

Self = TypeVar("Self", bound="OptionsDict")

FROZEN = "Can't modify frozen Options"


class OptionsDict:
    """Named values with a type each: a name that is not among them is an error, and so is any change once frozen.

    Private attributes are declared in ``__init__`` by :meth:`_declare`.
    """

    _values: Dict[str, Any]
    _is_frozen: bool

    def __init__(self, **values: Any) -> None:
        self._declare(_values=values, _is_frozen=False)

    def _declare(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def checkIsFrozen(self) -> None:
        """Raise ``AttributeError`` if nothing may change any more."""
        if self._is_frozen:
            raise AttributeError(FROZEN)

    def exists(self, option: str) -> bool:
        return option in self._values

    def set(self, **values: Any) -> None:
        """Set values. Raises ``AssertionError`` for an unknown name, and for a value of another type."""
        self.checkIsFrozen()
        for option, value in values.items():
            if not self.exists(option):
                raise AssertionError(f"Invalid option {option}, valid options are {self._values.keys()}")
            expected = type(self._values[option])
            if not isinstance(value, expected):
                raise AssertionError(f"Unexpected type {type(value)} for option {option}. Expected {expected}")
            self._values[option] = value

    def createOrSet(self, **values: Any) -> None:
        """Set values, new names included."""
        self.checkIsFrozen()
        self.set(**{option: value for option, value in values.items() if self.exists(option)})
        self._values.update(values)

    def deleteIfExists(self, option: str) -> None:
        self.checkIsFrozen()
        self._values.pop(option, None)

    def toDict(self) -> Dict[str, Any]:
        return dict(self._values)

    def freeze(self) -> None:
        self._set_frozen(True)

    def _unfreeze(self) -> None:
        self._set_frozen(False)

    def _set_frozen(self, frozen: bool) -> None:
        self._declare(_is_frozen=frozen)
        for value in self.__dict__.values():
            if isinstance(value, OptionsDict):
                value._set_frozen(frozen)

    def __getattr__(self, name: str) -> Any:
        # called only if there is no such attribute; while unpickling there is no _values either
        values = self.__dict__.get("_values", {})
        if name not in values:
            raise AttributeError(f"Invalid attribute {name}.")
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self.checkIsFrozen()
        if not name.startswith("_"):
            self.set(**{name: value})
        elif name in self.__dict__:
            self.__dict__[name] = value
        else:
            raise AttributeError(f"Invalid private attribute {name}. Valid attributes: {list(self.__dict__)}")

    def __call__(self, option: str) -> Any:
        return getattr(self, option)

    def __deepcopy__(self: Self, memo: Dict[int, Any]) -> Self:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        twin._declare(_is_frozen=False)
        return twin

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


def _setter(body: Callable[..., Any]) -> Callable[..., Any]:
    """A setter with the signature of ``body``, which checks and sets."""

    @functools.wraps(body)
    def setter(self: OptionsDict, *args: Any, **kwargs: Any) -> OptionsDict:
        self.checkIsFrozen()
        body(self, *args, **kwargs)
        return self

    return setter


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise AssertionError(f"Expected {kind} but got {type(value)}")
    return value


def _check_kind(name: str, value: Any, kind: type, what: str) -> None:
    if not isinstance(value, kind):
        raise AssertionError(f"{name} must be {what}, got {value!r}")


def _refuse(what: str, enabled: Any) -> None:
    if enabled:
        raise not_modelled(f"{what}(True)")


def _checked_count(value: Any, name: str) -> Any:
    """``value``, which must not be a number below 1: PopTorch takes it, and fails later or returns nothing."""
    if isinstance(value, int) and value < 1:
        raise py_error(f"{name} must be 1 or more (Got {value})")
    return value


class JitOptions(OptionsDict):
    """``options.Jit``: PopTorch 3.4 no longer traces models with ``torch.jit``, and one setter remains."""

    @_setter
    def traceModel(self, trace_model: bool) -> None:
        """Refused if True, in PopTorch as well."""
        if trace_model:
            raise ValueError("options.Jit.traceModel(True) is no longer supported")


class PrecisionOptions(OptionsDict):
    """``options.Precision``. Nothing here has an effect; what would change numbers is refused.

    float16 and float32 give float32, as in PyTorch and PopTorch 3.4; float16 is rounded to nearest, nothing stops at a
    NaN, and partial sums of matrix products and convolutions are those of the CPU.
    """

    enableStochasticRounding = _setter(lambda self, enabled: _refuse("Precision.enableStochasticRounding", enabled))

    @_setter
    def enableFloatingPointExceptions(self, enabled: bool) -> None:
        if not isinstance(enabled, bool):
            raise AssertionError("enableFloatingPointExceptions needs to be set to a bool")
        _refuse("Precision.enableFloatingPointExceptions", enabled)

    @_setter
    def halfFloatCasting(self, half_float_casting: HalfFloatCastingBehavior) -> None:
        if not isinstance(half_float_casting, HalfFloatCastingBehavior):
            raise ValueError(
                "halfFloatCasting must be set to poptorch.HalfFloatCastingBehavior.FloatDowncastToHalf or "
                "poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat or poptorch.Default"
            )

    @_setter
    def runningStatisticsAlwaysFloat(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise ValueError("runningStatisticsAlwaysFloat needs to be set to a bool")

    @_setter
    def setPartialsType(self, dtype: torch.dtype) -> None:
        if dtype not in (torch.float32, torch.float16):
            raise ValueError("parameter to setPartialsType should be eithertorch.float or torch.half")


class TrainingOptions(OptionsDict):
    """``options.Training``."""

    def __init__(self) -> None:
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Post,
        )

    @_setter
    def gradientAccumulation(self, gradient_accumulation: int) -> None:
        """Number of micro batches to one update, for each replica."""
        self.set(gradient_accumulation=_checked_count(gradient_accumulation, "gradientAccumulation"))

    @_setter
    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> None:
        """The mean (by default) or the sum of gradients over accumulated micro batches and replicas."""
        if not isinstance(reduction_type, ReductionType) or reduction_type == ReductionType.NoReduction:
            raise ValueError(
                "accumulationAndReplicationReductionType must be set to poptorch.ReductionType.Mean or "
                "poptorch.ReductionType.Sum"
            )
        self.set(accumulation_and_replication_reduction_type=reduction_type)

    # it would skip updates after an overflow in float16
    setAutomaticLossScaling = _setter(lambda self, enabled: _refuse("Training.setAutomaticLossScaling", enabled))

    # without effect but on rounding and memory

    setMeanAccumulationAndReplicationReductionStrategy = _setter(
        lambda self, mean_reduction_strategy: self.set(
            meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy
        )
    )
    setConvolutionDithering = _setter(lambda self, enabled: None)


class DistributedOptions(OptionsDict):
    """``options.Distributed``: one process; more are not modelled, since they would exchange gradients."""

    def __init__(self) -> None:
        super().__init__(num_distributed_processes=1, distributed_process_id=0)
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    @_setter
    def disable(self) -> None:
        """One process."""
        self.set(num_distributed_processes=1, distributed_process_id=0)

    @_setter
    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> None:
        """Take the number of processes, and this one's, from the environment."""
        process, count = os.environ.get(var_process_id, "0"), os.environ.get(var_num_processes, "1")
        self.configureProcessId(int(process), int(count))

    @_setter
    def configureProcessId(self, process_id: int, num_processes: int) -> None:
        """Refused for more than one process."""
        if isinstance(num_processes, int) and num_processes != 1:
            raise not_modelled("distributed execution", f"Distributed has {num_processes} processes; run one")
        self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)

    processId = property(lambda self: self.distributed_process_id)
    numProcesses = property(lambda self: self.num_distributed_processes)


class TensorLocationSettings(OptionsDict):
    """``poptorch.TensorLocationSettings``: the memory that tensors of one kind are in. No effect."""

    @_setter
    def useOnChipStorage(self, use: Optional[bool] = True) -> None:
        if use is None:
            self.deleteIfExists("onChip")
        else:
            self.createOrSet(onChip=int(_checked(use, bool)))

    minElementsForOffChip = _setter(
        lambda self, min_elements: self.createOrSet(minElementsForOffChip=_checked(min_elements, int))
    )
    minElementsForReplicatedTensorSharding = _setter(
        lambda self, min_elements: self.createOrSet(minElementsForReplicatedTensorSharding=_checked(min_elements, int))
    )
    useReplicatedTensorSharding = _setter(
        lambda self, use=True: self.createOrSet(useReplicatedTensorSharding=int(_checked(use, bool)))
    )
    useIOTilesToLoad = _setter(lambda self, use=True: self.createOrSet(useIOTilesToLoad=int(_checked(use, bool))))
    useIOTilesToStore = _setter(lambda self, use=True: self.createOrSet(useIOTilesToStore=int(_checked(use, bool))))


def _location(tensors: str) -> Callable[..., Any]:
    """The setter of the location of these tensors."""

    def body(self: OptionsDict, location: TensorLocationSettings) -> None:
        self.createOrSet(**{f"location_{tensors}": _checked(location, TensorLocationSettings).toDict()})

    return _setter(body)


class TensorLocationOptions(OptionsDict):
    """``options.TensorLocations``. No effect."""

    setActivationLocation = _location("activation")
    setWeightLocation = _location("weight")
    setOptimizerLocation = _location("optimizer")
    setAccumulatorLocation = _location("accumulator")

    @_setter
    def numIOTiles(self, num_tiles: int) -> None:
        """An even number from 32 to 192."""
        if not 32 <= _checked(num_tiles, int) <= 192 or num_tiles % 2:
            raise AssertionError("numIOTiles must be an even number between 32 and 192.")
        self.createOrSet(numIOTiles=num_tiles)


class PopartOptions(OptionsDict):
    """``options._Popart``: settings of PopART, which PopTorch passes on unread. Those of the engine have no effect."""

    @_setter
    def set(self, key: str, value: Any) -> None:
        """Refused: what it changes is not known."""
        raise not_modelled(f"_Popart.set({key!r}, ...)", "leave it out under the emulator")

    @_setter
    def setPatterns(self, patterns: Dict[str, bool], level: int = 2) -> None:
        """Refused: patterns rewrite the graph."""
        _checked(level, int)
        _checked(patterns, dict)
        raise not_modelled("_Popart.setPatterns", "leave it out under the emulator")

    setEngineOptions = _setter(lambda self, engine_options: None)


class Options(OptionsDict):
    """``poptorch.Options``."""

    #: Of training, number formats, tracing, several processes, memory, and of PopART.
    Training: TrainingOptions
    Precision: PrecisionOptions
    Jit: JitOptions
    Distributed: DistributedOptions
    TensorLocations: TensorLocationOptions
    _Popart: PopartOptions

    def __init__(self) -> None:
        super().__init__(
            device_iterations=1,
            replication_factor=1,
            input_group_size=1,
            broadcast_buffers=True,
            output_mode=OutputMode.Default,
            output_return_period=1,
            connection_type=ConnectionType.Always,
            sync_pattern=SyncPattern.Full,
            auto_round_num_ipus=False,
            log_dir=".",
            anchored_tensors={},
            available_memory_proportion={},
        )
        self._declare(
            Training=TrainingOptions(),
            Precision=PrecisionOptions(),
            Jit=JitOptions(),
            Distributed=DistributedOptions(),
            TensorLocations=TensorLocationOptions(),
            _Popart=PopartOptions(),
            _execution_strategy=PipelinedExecution(),
            _relax_optimizer_checks=False,
        )

    #: The seed that was set; None if none was, where PopTorch has no such attribute.
    random_seed = property(lambda self: self._values.get("random_seed"))
    #: What setExecutionStrategy() was given; in PopTorch a private attribute.
    execution_strategy = property(lambda self: self._execution_strategy)

    # what a call takes, computes and returns

    @_setter
    def deviceIterations(self, device_iterations: int) -> None:
        """Number of updates (in training) or batches (in inference) to a call."""
        self.set(device_iterations=_checked_count(device_iterations, "deviceIterations"))

    @_setter
    def replicationFactor(self, replication_factor: int) -> None:
        """Number of replicas, each with its own part of the batch."""
        self.set(replication_factor=_checked_count(replication_factor, "replicationFactor"))

    @_setter
    def inputReplicaGrouping(self, input_group_size: int, input_group_type: CommGroupType) -> None:
        """Number of neighbouring replicas that get the same part of the batch. Other arrangements are refused."""
        self.set(input_group_size=_checked_count(input_group_size, "input_group_size"))
        if input_group_type != CommGroupType.Consecutive:
            raise not_modelled(f"inputReplicaGrouping({input_group_size}, {input_group_type!r})", "use Consecutive")

    #: Whether replicas are to share buffers, which PopTorch cannot do for buffers that a model changes.
    broadcastBuffers = _setter(lambda self, broadcast_buffers=True: self.set(broadcast_buffers=broadcast_buffers))

    @_setter
    def outputMode(self, output_mode: OutputMode, output_return_period: Optional[int] = None) -> None:
        """Which micro batches' outputs a call returns."""
        _check_kind("output_mode", output_mode, OutputMode, "a poptorch.OutputMode")
        if output_mode == OutputMode.EveryN and not (output_return_period and output_return_period > 0):
            raise AssertionError("EveryN anchor must have output_return_period set to valid positive integer")
        self.set(output_mode=output_mode, output_return_period=output_return_period or 1)

    def defaultOutputMode(self) -> bool:
        """True if the output mode was left to PopTorch."""
        return bool(self.output_mode == OutputMode.Default)

    @_setter
    def randomSeed(self, random_seed: int) -> None:
        """The seed of the device, and of torch on the host."""
        _check_kind("random_seed", random_seed, int, "an int")
        torch.manual_seed(random_seed)
        self.createOrSet(random_seed=random_seed)

    # it would compute with random inputs
    enableSyntheticData = _setter(lambda self, enabled: _refuse("enableSyntheticData", enabled))

    # where it runs

    @_setter
    def connectionType(self, connection_type: ConnectionType) -> None:
        """When to take the device. ``Never`` allows nothing but to compile."""
        _check_kind("connection_type", connection_type, ConnectionType, "a poptorch.ConnectionType")
        self.set(connection_type=connection_type)

    @_setter
    def useOfflineIpuTarget(self, ipu_version: int = 2) -> None:
        """``connectionType(ConnectionType.Never)``; the version has no effect."""
        self.connectionType(ConnectionType.Never)
        self.createOrSet(ipu_version=ipu_version)

    @_setter
    def setExecutionStrategy(self, strategy: ExecutionStrategy) -> None:
        """Set how blocks become stages of a pipeline; checked while a model is compiled, without effect on numbers."""
        _check_kind("strategy", strategy, ExecutionStrategy, "an execution strategy")
        self._execution_strategy = strategy

    #: Whether a number of IPUs that is not a power of two is rounded up; otherwise it is an error.
    autoRoundNumIPUs = _setter(lambda self, auto_round_num_ipus=True: self.set(auto_round_num_ipus=auto_round_num_ipus))
    #: Take no device of the machine.
    useIpuModel = _setter(lambda self, use_model: self.createOrSet(use_model=use_model))

    @_setter
    def useIpuId(self, ipu_id: int) -> None:
        """Take the device of this number."""
        _check_kind("ipu_id", ipu_id, int, "an int")
        self.createOrSet(ipu_id=ipu_id)

    # optimisers and buffers

    @_setter
    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> None:
        """Log the attributes that an optimiser has too many as DEBUG rather than as WARNING."""
        self._relax_optimizer_checks = relax

    #: The buffers that ``copyNamedBuffersToDevice`` copies; of the model's floating-point buffers.
    updatableNamedBuffers = _setter(lambda self, buffers: self.createOrSet(updatable_named_buffers=buffers))

    def loadFromFile(self, filepath: str) -> NoReturn:
        """Refused: set the options by their methods."""
        self.checkIsFrozen()
        raise not_modelled(f"loadFromFile({filepath!r})", "call the setters")

    # without effect: time, memory, files, logs, names and profiles, and the CPU's norms

    @_setter
    def syncPattern(self, sync_pattern: SyncPattern) -> None:
        _check_kind("sync_pattern", sync_pattern, SyncPattern, "a poptorch.SyncPattern")
        self.set(sync_pattern=sync_pattern)

    @_setter
    def setAvailableMemoryProportion(self, available_memory_proportion: Dict[str, float]) -> None:
        for key in available_memory_proportion:
            if not key.startswith("IPU"):
                raise AssertionError(
                    'Available memory proportions are expected to be in a dictionary of {"IPU0": 0.5} where the 0 in '
                    f"IPU is the index of the IPU. Invalid key: {key}"
                )
        self.set(available_memory_proportion={int(key[3:]): mem for key, mem in available_memory_proportion.items()})

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: Optional[OutputMode] = None,
        output_return_period: Optional[int] = 1,
    ) -> None:
        """Noted; ``getAnchoredTensor``, for which it is, is not modelled."""
        self.checkIsFrozen()
        self.anchored_tensors[short_name] = [long_name, output_mode is None, output_mode, output_return_period]

    logDir = _setter(lambda self, log_dir: self.set(log_dir=log_dir))
    modelName = _setter(lambda self, name: self.createOrSet(model_name=name))
    enableStableNorm = _setter(lambda self, enabled: None)
    enableExecutableCaching = _setter(lambda self, path: None)
    enableProfiling = _setter(lambda self, profile_dir=None: None)
    logCycleCount = _setter(lambda self, log_cycle_count: None)
    showCompilationProgressBar = _setter(lambda self, show=True: None)
    disableModuleNamescope = _setter(lambda self: None)
    sourceLocationExcludes = _setter(lambda self, excludes: None)
    appendToLocationExcludes = _setter(lambda self, *excludes: None)

    def clone(self) -> Options:
        """A copy that is not frozen."""
        return copy.deepcopy(self)

    def freeze(self) -> None:
        """Allow no more changes: what a wrapper or a data loader does to the options it gets."""
        if self.replication_factor % self.input_group_size:
            raise py_error(
                f"input_group_size ({self.input_group_size}) must be a factor of the replication factor "
                f"({self.replication_factor})"
            )
        super().freeze()

    def __repr__(self) -> str:
        groups: List[Any] = [self.Training, self.Precision, self.Jit, self.Distributed, self.TensorLocations]
        return f"{super().__repr__()[:-1]}, {', '.join(map(repr, groups))})"
