"""The enumerations of PopTorch, with its names and values."""

from __future__ import annotations

import enum


class OutputMode(enum.IntEnum):
    """Which of a call's outputs come back. ``Default`` is ``Final`` in training, ``All`` in inference."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


class ReductionType(enum.IntEnum):
    """How gradients of micro batches and replicas become one."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class MeanReductionStrategy(enum.IntEnum):
    """When a mean is divided by its count: with every summand, or after the last."""

    Running = 0
    Post = 1
    PostAndLoss = 2


class ConnectionType(enum.IntEnum):
    """When a device is taken: at once, after compilation, or never."""

    Always = 0
    OnDemand = 1
    Never = 2


class DataLoaderMode(enum.IntEnum):
    """Whether batches are made by a process of their own."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class SharingStrategy(enum.IntEnum):
    """How an asynchronous data loader hands its data set to its process."""

    SharedMemory = 0
    FileSystem = 1
    Fork = 2
    ForkServer = 3


class CommGroupType(enum.IntEnum):
    """How replicas form groups: all in one, neighbours, every n-th, or each for itself."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    NoGrouping = 3


class VariableRetrievalMode(enum.IntEnum):
    """What is read of a variable that replicas hold in groups."""

    OnePerGroup = 0
    AllReplicas = 2


class SyncPattern(enum.IntEnum):
    """Which IPUs wait for which."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class HalfFloatCastingBehavior(enum.IntEnum):
    """How an operation on float16 and float32 casts: since PopTorch 3 always as PyTorch does."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2


class AutoStage(enum.IntEnum):
    """How blocks get their pipeline stage: that of their IPU, or one each."""

    SameAsIpu = 0
    AutoIncrement = 1


class Liveness(enum.IntEnum):
    """What phased execution keeps on the chip between phases."""

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3


class MultiConvPlanType(enum.IntEnum):
    """Whether grouped convolutions run side by side."""

    Parallel = 0
    Serial = 1


class MatMulSerializationMode(enum.Enum):
    """The dimension along which a matrix product is cut."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class OverlapMode(enum.Enum):
    """How early the host copies an input."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"
