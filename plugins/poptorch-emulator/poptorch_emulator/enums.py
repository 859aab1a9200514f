"""The enumerations of PopTorch, with its names and values."""

from __future__ import annotations

import enum

__all__ = [
    "AutoStage", "CommGroupType", "ConnectionType", "DataLoaderMode", "HalfFloatCastingBehavior", "Liveness",
    "MatMulSerializationMode", "MeanReductionStrategy", "MultiConvPlanType", "OutputMode", "OverlapMode",
    "ReductionType", "SharingStrategy", "SyncPattern", "VariableRetrievalMode",
]  # fmt: skip


class OutputMode(enum.IntEnum):
    """Which of a call's outputs come back. ``Default`` is ``Final`` in training, ``All`` in inference."""

    Final, EveryN, All, Sum, Default = range(5)


class ReductionType(enum.IntEnum):
    """Reduction of the gradients of micro batches and replicas to one."""

    Sum, Mean, NoReduction = range(3)


class MeanReductionStrategy(enum.IntEnum):
    """When a mean is divided by its count: with every summand, or after the last."""

    Running, Post, PostAndLoss = range(3)


class ConnectionType(enum.IntEnum):
    """When a device is taken: at once, after compilation, or never."""

    Always, OnDemand, Never = range(3)


class DataLoaderMode(enum.IntEnum):
    """Process that makes batches: the caller's or its own."""

    Sync, Async, AsyncRebatched = range(3)


class SharingStrategy(enum.IntEnum):
    """Ways in which an asynchronous data loader hands its data set to its process."""

    SharedMemory, FileSystem, Fork, ForkServer = range(4)


class CommGroupType(enum.IntEnum):
    """Groups of replicas: all in one, neighbours, every n-th, or each for itself."""

    All, Consecutive, Orthogonal, NoGrouping = range(4)


class VariableRetrievalMode(enum.IntEnum):
    """Copies that are read of a variable that replicas hold in groups."""

    OnePerGroup, AllReplicas = 0, 2


class SyncPattern(enum.IntEnum):
    """Which IPUs wait for which."""

    Full, SinglePipeline, ReplicaAndLadder = range(3)


class HalfFloatCastingBehavior(enum.IntEnum):
    """Casts of an operation on float16 and float32: since PopTorch 3 always as PyTorch's."""

    FloatDowncastToHalf, HalfUpcastToFloat, Default = range(3)


class AutoStage(enum.IntEnum):
    """Pipeline stage of a block: that of its IPU, or one each."""

    SameAsIpu, AutoIncrement = range(2)


class Liveness(enum.IntEnum):
    """Values that phased execution keeps on the chip between phases."""

    AlwaysLive, OffChipAfterFwd, OffChipAfterFwdNoOverlap, OffChipAfterEachPhase = range(4)


class MultiConvPlanType(enum.IntEnum):
    """Plan of grouped convolutions: side by side or in turn."""

    Parallel, Serial = range(2)


class MatMulSerializationMode(enum.Enum):
    """The dimension along which a matrix product is cut."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class OverlapMode(enum.Enum):
    """Time at which the host copies an input."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"
