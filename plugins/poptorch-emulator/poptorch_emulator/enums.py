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
    """How gradients of micro batches and replicas become one."""

    Sum, Mean, NoReduction = range(3)


class MeanReductionStrategy(enum.IntEnum):
    """When a mean is divided by its count: with every summand, or after the last."""

    Running, Post, PostAndLoss = range(3)


class ConnectionType(enum.IntEnum):
    """When a device is taken: at once, after compilation, or never."""

    Always, OnDemand, Never = range(3)


class DataLoaderMode(enum.IntEnum):
    """Whether batches are made by a process of their own."""

    Sync, Async, AsyncRebatched = range(3)


class SharingStrategy(enum.IntEnum):
    """How an asynchronous data loader hands its data set to its process."""

    SharedMemory, FileSystem, Fork, ForkServer = range(4)


class CommGroupType(enum.IntEnum):
    """How replicas form groups: all in one, neighbours, every n-th, or each for itself."""

    All, Consecutive, Orthogonal, NoGrouping = range(4)


class VariableRetrievalMode(enum.IntEnum):
    """What is read of a variable that replicas hold in groups."""

    OnePerGroup, AllReplicas = 0, 2


class SyncPattern(enum.IntEnum):
    """Which IPUs wait for which."""

    Full, SinglePipeline, ReplicaAndLadder = range(3)


class HalfFloatCastingBehavior(enum.IntEnum):
    """How an operation on float16 and float32 casts: since PopTorch 3 always as PyTorch does."""

    FloatDowncastToHalf, HalfUpcastToFloat, Default = range(3)


class AutoStage(enum.IntEnum):
    """How blocks get their pipeline stage: that of their IPU, or one each."""

    SameAsIpu, AutoIncrement = range(2)


class Liveness(enum.IntEnum):
    """What phased execution keeps on the chip between phases."""

    AlwaysLive, OffChipAfterFwd, OffChipAfterFwdNoOverlap, OffChipAfterEachPhase = range(4)


class MultiConvPlanType(enum.IntEnum):
    """Whether grouped convolutions run side by side."""

    Parallel, Serial = range(2)


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
