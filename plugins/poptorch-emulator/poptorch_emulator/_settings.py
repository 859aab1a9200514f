"""What all of PopTorch's options share, and the groups ``options.Training``, ``.Precision`` and so on.

Rules of this module:

- A setter has PopTorch's name, arguments and checks, and returns its group.
- A setting that only changes speed, memory or what is logged is accepted without effect; its docstring says so.
- A setting that would change numbers, and that the emulator does not model, is refused when it is switched on.
"""

from __future__ import annotations

import copy
import os
from typing import Any, Dict, TypeVar

import torch

from ._errors import not_modelled, py_error
from .enums import HalfFloatCastingBehavior, MeanReductionStrategy, ReductionType

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
        self.checkIsFrozen()
        return self


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
