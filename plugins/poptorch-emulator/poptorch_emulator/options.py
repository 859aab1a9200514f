"""``poptorch.Options``: how a model is compiled and run.

Rules of this module:

- A setter has PopTorch's name, arguments and checks, and returns its group.
- A setting that the emulator follows can be read as an attribute: ``options.device_iterations``. One that only concerns
  speed, memory, devices, files, names or logs is accepted without effect; its docstring says so.
- A setting that would change numbers and is not modelled is refused when it is switched on; those of PopART are, too.
- Options that a model or a data loader was given are frozen; :meth:`Options.clone` returns a copy that is not.
"""

from __future__ import annotations

import copy
import os
from typing import Any, Dict, List, Mapping, NoReturn, Optional, TypeVar

import torch

from ._blocks import ExecutionStrategy, PipelinedExecution
from ._errors import not_modelled, py_error
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

    def _without_effect(self: Self) -> Self:
        self.checkIsFrozen()
        return self

    def exists(self, option: str) -> bool:
        """Whether there is a value of this name."""
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
        for option, value in values.items():
            if self.exists(option):
                self.set(**{option: value})
            else:
                self._values[option] = value

    def deleteIfExists(self, option: str) -> None:
        """Forget a value."""
        self.checkIsFrozen()
        self._values.pop(option, None)

    def toDict(self) -> Dict[str, Any]:
        """The values by name."""
        return dict(self._values)

    def freeze(self) -> None:
        """Allow no more changes."""
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


def checked_flag(value: Any, name: str) -> bool:
    """``value``, which must be a bool."""
    if not isinstance(value, bool):
        raise AssertionError(f"{name} needs to be set to a bool")
    return value


def checked_count(value: Any, name: str) -> Any:
    """``value``, which must not be a number below 1: PopTorch takes it, and fails later or returns nothing."""
    if isinstance(value, int) and value < 1:
        raise py_error(f"{name} must be 1 or more (Got {value})")
    return value


class JitOptions(OptionsDict):
    """``options.Jit``: PopTorch 3.4 no longer traces models with ``torch.jit``, and one setter remains."""

    def traceModel(self, trace_model: bool) -> JitOptions:
        """Refused if True, in PopTorch as well."""
        self.checkIsFrozen()
        if trace_model:
            raise ValueError("options.Jit.traceModel(True) is no longer supported")
        return self


class PrecisionOptions(OptionsDict):
    """``options.Precision``."""

    def halfFloatCasting(self, half_float_casting: HalfFloatCastingBehavior) -> PrecisionOptions:
        """No effect, in PopTorch 3.4 as here: float16 and float32 give float32, as in PyTorch."""
        self.checkIsFrozen()
        if not isinstance(half_float_casting, HalfFloatCastingBehavior):
            raise ValueError(
                "halfFloatCasting must be set to poptorch.HalfFloatCastingBehavior.FloatDowncastToHalf or "
                "poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat or poptorch.Default"
            )
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> PrecisionOptions:
        """No effect, in PopTorch 3.4 as here."""
        self.checkIsFrozen()
        if not isinstance(value, bool):
            raise ValueError("runningStatisticsAlwaysFloat needs to be set to a bool")
        return self

    def enableFloatingPointExceptions(self, enabled: bool) -> PrecisionOptions:
        """Refused if True: the device would stop at a NaN, and the emulator goes on."""
        self.checkIsFrozen()
        if checked_flag(enabled, "enableFloatingPointExceptions"):
            raise not_modelled("Precision.enableFloatingPointExceptions(True)")
        return self

    def enableStochasticRounding(self, enabled: bool) -> PrecisionOptions:
        """Refused if True: float16 is rounded to nearest here."""
        self.checkIsFrozen()
        if enabled:
            raise not_modelled("Precision.enableStochasticRounding(True)")
        return self

    def setPartialsType(self, dtype: torch.dtype) -> PrecisionOptions:
        """No effect: partial sums of matrix products and convolutions are those of the CPU."""
        self.checkIsFrozen()
        if dtype not in (torch.float32, torch.float16):
            raise ValueError("parameter to setPartialsType should be eithertorch.float or torch.half")
        return self


class TrainingOptions(OptionsDict):
    """``options.Training``."""

    def __init__(self) -> None:
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Post,
        )

    def gradientAccumulation(self, gradient_accumulation: int) -> TrainingOptions:
        """Number of micro batches to one update, for each replica."""
        self.set(gradient_accumulation=checked_count(gradient_accumulation, "gradientAccumulation"))
        return self

    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> TrainingOptions:
        """The mean (by default) or the sum of gradients over accumulated micro batches and replicas."""
        if not isinstance(reduction_type, ReductionType) or reduction_type == ReductionType.NoReduction:
            raise ValueError(
                "accumulationAndReplicationReductionType must be set to poptorch.ReductionType.Mean or "
                "poptorch.ReductionType.Sum"
            )
        self.set(accumulation_and_replication_reduction_type=reduction_type)
        return self

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> TrainingOptions:
        """No effect but on rounding, which is not modelled."""
        self.set(meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy)
        return self

    def setAutomaticLossScaling(self, enabled: bool) -> TrainingOptions:
        """Refused if True: it skips updates after an overflow in float16."""
        self.checkIsFrozen()
        if enabled:
            raise not_modelled("Training.setAutomaticLossScaling(True)")
        return self

    def setConvolutionDithering(self, enabled: bool) -> TrainingOptions:
        """No effect: memory."""
        return self._without_effect()


class DistributedOptions(OptionsDict):
    """``options.Distributed``: one process; more are not modelled, since they would exchange gradients."""

    def __init__(self) -> None:
        super().__init__(num_distributed_processes=1, distributed_process_id=0)
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> DistributedOptions:
        """One process."""
        self.set(num_distributed_processes=1, distributed_process_id=0)
        return self

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> DistributedOptions:
        """Take the number of processes, and this one's, from the environment."""
        process, count = os.environ.get(var_process_id, "0"), os.environ.get(var_num_processes, "1")
        self.configureProcessId(int(process), int(count))
        return self

    def configureProcessId(self, process_id: int, num_processes: int) -> DistributedOptions:
        """Refused for more than one process."""
        self.checkIsFrozen()
        if isinstance(num_processes, int) and num_processes != 1:
            raise not_modelled("distributed execution", f"Distributed has {num_processes} processes; run one")
        self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)
        return self

    @property
    def processId(self) -> int:
        """The number of this process."""
        number: int = self.distributed_process_id
        return number

    @property
    def numProcesses(self) -> int:
        """The number of processes."""
        number: int = self.num_distributed_processes
        return number


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise AssertionError(f"Expected {kind} but got {type(value)}")
    return value


class TensorLocationSettings(OptionsDict):
    """``poptorch.TensorLocationSettings``: the memory that tensors of one kind are in. No effect."""

    def minElementsForOffChip(self, min_elements: int) -> TensorLocationSettings:
        """No effect."""
        self.createOrSet(minElementsForOffChip=_checked(min_elements, int))
        return self

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> TensorLocationSettings:
        """No effect."""
        self.createOrSet(minElementsForReplicatedTensorSharding=_checked(min_elements, int))
        return self

    def useOnChipStorage(self, use: Optional[bool] = True) -> TensorLocationSettings:
        """No effect."""
        if use is None:
            self.deleteIfExists("onChip")
        else:
            self.createOrSet(onChip=int(_checked(use, bool)))
        return self

    def useReplicatedTensorSharding(self, use: bool = True) -> TensorLocationSettings:
        """No effect."""
        self.createOrSet(useReplicatedTensorSharding=int(_checked(use, bool)))
        return self

    def useIOTilesToLoad(self, use: bool = True) -> TensorLocationSettings:
        """No effect."""
        self.createOrSet(useIOTilesToLoad=int(_checked(use, bool)))
        return self

    def useIOTilesToStore(self, use: bool = True) -> TensorLocationSettings:
        """No effect."""
        self.createOrSet(useIOTilesToStore=int(_checked(use, bool)))
        return self


class TensorLocationOptions(OptionsDict):
    """``options.TensorLocations``. No effect."""

    def numIOTiles(self, num_tiles: int) -> TensorLocationOptions:
        """No effect; an even number from 32 to 192."""
        if not 32 <= _checked(num_tiles, int) <= 192 or num_tiles % 2:
            raise AssertionError("numIOTiles must be an even number between 32 and 192.")
        self.createOrSet(numIOTiles=num_tiles)
        return self

    def setActivationLocation(self, location: TensorLocationSettings) -> TensorLocationOptions:
        """No effect."""
        self.createOrSet(location_activation=_checked(location, TensorLocationSettings).toDict())
        return self

    def setWeightLocation(self, location: TensorLocationSettings) -> TensorLocationOptions:
        """No effect."""
        self.createOrSet(location_weight=_checked(location, TensorLocationSettings).toDict())
        return self

    def setOptimizerLocation(self, location: TensorLocationSettings) -> TensorLocationOptions:
        """No effect."""
        self.createOrSet(location_optimizer=_checked(location, TensorLocationSettings).toDict())
        return self

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> TensorLocationOptions:
        """No effect."""
        self.createOrSet(location_accumulator=_checked(location, TensorLocationSettings).toDict())
        return self


class PopartOptions(OptionsDict):
    """``options._Popart``: settings of PopART, which PopTorch passes on unread."""

    def set(self, key: str, value: Any) -> NoReturn:  # type: ignore[override]  # PopTorch's signature
        """Refused: what it changes is not known."""
        self.checkIsFrozen()
        raise not_modelled(f"_Popart.set({key!r}, ...)", "leave it out under the emulator")

    def setPatterns(self, patterns: Mapping[str, bool], level: int = 2) -> NoReturn:
        """Refused: patterns rewrite the graph."""
        self.checkIsFrozen()
        _checked(level, int)
        _checked(patterns, dict)
        raise not_modelled("_Popart.setPatterns", "leave it out under the emulator")

    def setEngineOptions(self, engine_options: Dict[str, str]) -> PopartOptions:
        """No effect: Poplar's engine is not there."""
        return self._without_effect()


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

    @property
    def random_seed(self) -> Optional[int]:
        """The seed that was set; None if none was, where PopTorch has no such attribute."""
        seed: Optional[int] = self.toDict().get("random_seed")
        return seed

    @property
    def execution_strategy(self) -> ExecutionStrategy:
        """What :meth:`setExecutionStrategy` was given; in PopTorch a private attribute."""
        strategy: ExecutionStrategy = self._execution_strategy
        return strategy

    # what a call takes, computes and returns

    def deviceIterations(self, device_iterations: int) -> Options:
        """Number of updates (in training) or batches (in inference) to a call."""
        self.set(device_iterations=checked_count(device_iterations, "deviceIterations"))
        return self

    def replicationFactor(self, replication_factor: int) -> Options:
        """Number of replicas, each with its own part of the batch."""
        self.set(replication_factor=checked_count(replication_factor, "replicationFactor"))
        return self

    def inputReplicaGrouping(self, input_group_size: int, input_group_type: CommGroupType) -> Options:
        """Number of neighbouring replicas that get the same part of the batch. Other arrangements are refused."""
        self.set(input_group_size=checked_count(input_group_size, "input_group_size"))
        if input_group_type != CommGroupType.Consecutive:
            raise not_modelled(f"inputReplicaGrouping({input_group_size}, {input_group_type!r})", "use Consecutive")
        return self

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> Options:
        """Whether replicas are to share buffers, which PopTorch cannot do for buffers that a model changes."""
        self.set(broadcast_buffers=broadcast_buffers)
        return self

    def outputMode(self, output_mode: OutputMode, output_return_period: Optional[int] = None) -> Options:
        """Which micro batches' outputs a call returns."""
        if not isinstance(output_mode, OutputMode):
            raise AssertionError(f"output_mode must be a poptorch.OutputMode, got {output_mode!r}")
        if output_mode == OutputMode.EveryN and not (output_return_period and output_return_period > 0):
            raise AssertionError("EveryN anchor must have output_return_period set to valid positive integer")
        self.set(output_mode=output_mode, output_return_period=output_return_period or 1)
        return self

    def defaultOutputMode(self) -> bool:
        """Whether the output mode was left to PopTorch."""
        return bool(self.output_mode == OutputMode.Default)

    def randomSeed(self, random_seed: int) -> Options:
        """The seed of the device, and of torch on the host."""
        self.checkIsFrozen()
        if not isinstance(random_seed, int):
            raise AssertionError(f"random_seed must be an int, got {random_seed!r}")
        torch.manual_seed(random_seed)
        self.createOrSet(random_seed=random_seed)
        return self

    def enableSyntheticData(self, enabled: bool) -> Options:
        """Refused if True: it computes with random inputs."""
        self.checkIsFrozen()
        if enabled:
            raise not_modelled("enableSyntheticData(True)")
        return self

    # where it runs

    def connectionType(self, connection_type: ConnectionType) -> Options:
        """When to take the device. ``Never`` allows nothing but to compile."""
        if not isinstance(connection_type, ConnectionType):
            raise AssertionError(f"connection_type must be a poptorch.ConnectionType, got {connection_type!r}")
        self.set(connection_type=connection_type)
        return self

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Options:
        """``connectionType(ConnectionType.Never)``; the version has no effect."""
        self.connectionType(ConnectionType.Never)
        self.createOrSet(ipu_version=ipu_version)
        return self

    def setExecutionStrategy(self, strategy: ExecutionStrategy) -> Options:
        """How blocks become stages of a pipeline; checked while a model is compiled, without effect on numbers."""
        if not isinstance(strategy, ExecutionStrategy):
            raise AssertionError(f"strategy must be an execution strategy, got {strategy!r}")
        self._execution_strategy = strategy
        return self

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Options:
        """Whether a number of IPUs that is not a power of two is rounded up; otherwise it is an error."""
        self.set(auto_round_num_ipus=auto_round_num_ipus)
        return self

    def useIpuModel(self, use_model: bool) -> Options:
        """Take no device of the machine."""
        self.createOrSet(use_model=use_model)
        return self

    def useIpuId(self, ipu_id: int) -> Options:
        """Take the device of this number."""
        if not isinstance(ipu_id, int):
            raise AssertionError(f"ipu_id must be an int, got {ipu_id!r}")
        self.createOrSet(ipu_id=ipu_id)
        return self

    def syncPattern(self, sync_pattern: SyncPattern) -> Options:
        """No effect: time."""
        if not isinstance(sync_pattern, SyncPattern):
            raise AssertionError(f"sync_pattern must be a poptorch.SyncPattern, got {sync_pattern!r}")
        self.set(sync_pattern=sync_pattern)
        return self

    def setAvailableMemoryProportion(self, available_memory_proportion: Dict[str, float]) -> Options:
        """No effect: memory."""
        for key in available_memory_proportion:
            if not key.startswith("IPU"):
                raise AssertionError(
                    'Available memory proportions are expected to be in a dictionary of {"IPU0": 0.5} where the 0 in '
                    f"IPU is the index of the IPU. Invalid key: {key}"
                )
        self.set(available_memory_proportion={int(key[3:]): mem for key, mem in available_memory_proportion.items()})
        return self

    def enableStableNorm(self, enabled: bool) -> Options:
        """No effect: norms are those of the CPU."""
        return self._without_effect()

    # files, logs, names and profiles

    def enableExecutableCaching(self, path: Optional[str]) -> Options:
        """No effect."""
        return self._without_effect()

    def enableProfiling(self, profile_dir: Optional[str] = None) -> Options:
        """No effect."""
        return self._without_effect()

    def logCycleCount(self, log_cycle_count: bool) -> Options:
        """No effect: cycles are not modelled."""
        return self._without_effect()

    def logDir(self, log_dir: str) -> Options:
        """No effect."""
        self.set(log_dir=log_dir)
        return self

    def modelName(self, name: str) -> Options:
        """No effect."""
        self.createOrSet(model_name=name)
        return self

    def showCompilationProgressBar(self, show: bool = True) -> Options:
        """No effect: no progress bar is shown."""
        return self._without_effect()

    def disableModuleNamescope(self) -> Options:
        """No effect: it is about names in PopART's graph."""
        return self._without_effect()

    def sourceLocationExcludes(self, excludes: List[str]) -> Options:
        """No effect: it is about source lines in PopART's graph."""
        return self._without_effect()

    def appendToLocationExcludes(self, *excludes: str) -> Options:
        """No effect: it is about source lines in PopART's graph."""
        return self._without_effect()

    # optimisers and buffers

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Options:
        """Whether attributes that an optimiser has too many are logged as DEBUG rather than as WARNING."""
        self._relax_optimizer_checks = relax
        return self

    def updatableNamedBuffers(self, buffers: List[str]) -> Options:
        """The buffers that ``copyNamedBuffersToDevice`` copies; of the model's floating-point buffers."""
        self.createOrSet(updatable_named_buffers=buffers)
        return self

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: Optional[OutputMode] = None,
        output_return_period: Optional[int] = 1,
    ) -> None:
        """No effect: ``getAnchoredTensor``, for which it is, is not modelled."""
        self.checkIsFrozen()
        self.anchored_tensors[short_name] = [long_name, output_mode is None, output_mode, output_return_period]

    def loadFromFile(self, filepath: str) -> NoReturn:
        """Refused: set the options by their methods."""
        self.checkIsFrozen()
        raise not_modelled(f"loadFromFile({filepath!r})", "call the setters")

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
