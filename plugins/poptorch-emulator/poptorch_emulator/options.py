"""``poptorch.Options``: how a model is compiled and run.

Rules of this module:

- Each setter has PopTorch's name, arguments and checks, and returns the options.
- A setting that the emulator follows can be read as an attribute: ``options.device_iterations``. A setting that only
  concerns speed, memory, devices, files or logs is accepted without effect; its docstring says so.
- A setting that would change numbers and is not modelled is refused when it is switched on.
- Options that a model or a data loader was given are frozen; :meth:`Options.clone` returns a copy that is not.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, List, NoReturn, Optional

import torch

from ._errors import not_modelled, py_error
from ._locations import PopartOptions, TensorLocationOptions
from ._no_effect import OptionsWithoutEffect
from ._settings import (
    DistributedOptions,
    JitOptions,
    PrecisionOptions,
    TrainingOptions,
    checked_count,
)
from ._stages import ExecutionStrategy, PipelinedExecution
from .enums import CommGroupType, ConnectionType, OutputMode, SyncPattern


class Options(OptionsWithoutEffect):
    """``poptorch.Options``."""

    _jit: JitOptions
    _precision: PrecisionOptions
    _training: TrainingOptions
    _distributed: DistributedOptions
    _tensor_locations: TensorLocationOptions
    _popart: PopartOptions

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
            _jit=JitOptions(),
            _precision=PrecisionOptions(),
            _training=TrainingOptions(),
            _distributed=DistributedOptions(),
            _tensor_locations=TensorLocationOptions(),
            _popart=PopartOptions(),
            _execution_strategy=PipelinedExecution(),
            _relax_optimizer_checks=False,
        )

    @property
    def Training(self) -> TrainingOptions:
        """Options of training."""
        return self._training

    @property
    def Precision(self) -> PrecisionOptions:
        """Options of number formats."""
        return self._precision

    @property
    def Jit(self) -> JitOptions:
        """Options of tracing."""
        return self._jit

    @property
    def Distributed(self) -> DistributedOptions:
        """Options for several processes."""
        return self._distributed

    @property
    def TensorLocations(self) -> TensorLocationOptions:
        """Options of memory."""
        return self._tensor_locations

    @property
    def _Popart(self) -> PopartOptions:
        return self._popart

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
