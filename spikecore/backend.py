"""The contract between spikecore and a backend.

Rules of this module:

- A backend compiles a :class:`~spikecore.lang._program.Program` and a :class:`Spec` to a *runner*; nothing else crosses
  the border. The host checks arguments, places parameters and caches runners, so a runner sees only good input.
- What a backend cannot do it does not declare in :class:`Capabilities`; asking for it raises :class:`Unsupported`
  before anything runs, ``torch.compile(fullgraph=True)`` while torch traces.
- A module that describes a backend (its ``spikecore_backends`` hook) is cheap to import; the backend itself is named by
  a string and imported on first use.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Optional, Tuple

import pluggy
import torch

from spikecore._base.bits import Bits as Bits
from spikecore._base.bits import Packing
from spikecore._base.bits import Whole as Whole
from spikecore._base.caches import RUNNERS, Recent
from spikecore._base.caches import Lock as Lock
from spikecore._base.contract import ANY_DEVICE as ANY_DEVICE
from spikecore._base.contract import BACKEND_API as BACKEND_API
from spikecore._base.contract import OLDEST_API as OLDEST_API
from spikecore._base.contract import Api as Api
from spikecore._base.contract import BackendError as BackendError
from spikecore._base.contract import BackendInfo as BackendInfo
from spikecore._base.contract import BackendLoadError as BackendLoadError
from spikecore._base.contract import BackendStatus as BackendStatus
from spikecore._base.contract import BackendUnavailable as BackendUnavailable
from spikecore._base.contract import Capabilities as Capabilities
from spikecore._base.contract import UnknownBackend as UnknownBackend
from spikecore._base.contract import Unsupported as Unsupported
from spikecore._base.running import ParamValue as ParamValue
from spikecore._base.running import Runner as Runner
from spikecore._base.running import Tensors as Tensors
from spikecore._base.running import by_call as by_call
from spikecore._base.running import one_step as one_step
from spikecore.context import COMPILES as COMPILES
from spikecore.dtypes import compute_dtype as compute_dtype

if TYPE_CHECKING:
    from torch import Tensor, nn

    from spikecore.lang import Program
    from spikecore.testing import Excuse
    from spikecore.training import InferenceStep, TrainingStep

__all__ = [
    "ANY_DEVICE",
    "BACKEND_API",
    "COMPILES",
    "FEEDBACK_BIAS",
    "FEEDBACK_WEIGHT",
    "MAX_STATIC_STEPS",
    "Backend",
    "BackendError",
    "BackendInfo",
    "BackendLoadError",
    "BackendStatus",
    "BackendUnavailable",
    "Bits",
    "Capabilities",
    "Feedback",
    "Lock",
    "ParamValue",
    "Runner",
    "Spec",
    "Tensors",
    "UnknownBackend",
    "Unsupported",
    "Whole",
    "by_call",
    "compute_dtype",
    "hookimpl",
]
__dir__ = __all__.copy

#: Marks a plugin's function ``spikecore_backends``.
hookimpl = pluggy.HookimplMarker("spikecore")

#: Step counts up to this one are a compile-time constant of a runner; longer runs share one runner.
MAX_STATIC_STEPS = 16


@dataclass(frozen=True)
class Feedback:
    """The output of a step comes back through a matrix, and is added to the input of the next step.

    ``(y, s)[t] = program(x[t] + r[t], s[t-1])`` with ``r[t] = y[t-1] @ weight.T + bias``, for neurons ``[..., H]``. See
    :meth:`Backend.compile` for what a runner then gets and returns.
    """

    #: True if there is a bias ``[H]``.
    bias: bool = True
    #: True if ``y[t-1]`` is a constant of ``r[t]``: the weight has a gradient, and no gradient goes back to the output.
    detach: bool = False
    #: Numbers of the input that ``r`` is added to, and of the output ``y``.
    into: int = 0
    output: int = 0
    #: True if an output of neuron ``j`` comes back ``delay[j]`` steps later: ``y[t - 1 - delay[j]]`` for ``y[t - 1]``.
    delays: bool = False
    #: Numbers of further inputs: of the weight ``[k H, H]`` and the bias ``[k H]``, each input has the next H rows.
    further: Tuple[int, ...] = ()

    @property
    def inputs(self) -> Tuple[int, ...]:
        """Numbers of all inputs that ``r`` is added to."""
        return (self.into, *self.further)


#: Names of the weight and the bias of a feedback in :attr:`Spec.learn`. No parameter of a program can have such a name.
FEEDBACK_WEIGHT, FEEDBACK_BIAS = "linear.weight", "linear.bias"


@dataclass(frozen=True)
class Spec:
    """Key of a runner, beside the program. Sizes other than the step count are never part of it."""

    #: dtype of the inputs and outputs.
    dtype: torch.dtype
    #: Number of time steps up to :data:`MAX_STATIC_STEPS`, ``None`` for any larger number, and with feedback for any.
    steps: Optional[int]
    #: One per program parameter: ``"number"`` (a Python float), ``"scalar"`` (0-d tensor), ``"channel"``, ``"full"``.
    params: Tuple[str, ...]
    #: Names of the parameters whose gradient is wanted.
    learn: Tuple[str, ...] = ()
    #: False when nobody reads the final state; the runner may then return ``None`` for it.
    final: bool = True
    #: Feedback of the last output to the input of a step; None without.
    feedback: Optional[Feedback] = None
    #: Further feedbacks beside it, which have no delays: what comes back to one input adds up.
    further: Tuple[Feedback, ...] = ()

    @property
    def feedbacks(self) -> Tuple[Feedback, ...]:
        """All feedbacks."""
        return () if self.feedback is None else (self.feedback, *self.further)

    @property
    def backs(self) -> Tuple[int, ...]:
        """Numbers of the outputs that come back."""
        return tuple(sorted({feedback.output for feedback in self.feedbacks}))

    @property
    def drives(self) -> Tuple[int, ...]:
        """Numbers of the inputs that something comes back to, in the order of the feedbacks."""
        return tuple(dict.fromkeys([number for feedback in self.feedbacks for number in feedback.inputs]))

    def learnt(self, program: Program) -> Tuple[str, ...]:
        """The learnt parameters of the program itself, without weight and bias of a feedback."""
        return tuple([name for name in self.learn if name in program.params])

    @property
    def compute(self) -> torch.dtype:
        """dtype of state and arithmetic."""
        return compute_dtype(self.dtype)


class Backend(Packing):
    """Base class of every backend. A subclass sets ``name`` and ``capabilities`` and writes :meth:`compile`; it may
    write ``pack`` and ``unpack`` (:class:`~spikecore._base.bits.Packing`), which keep spikes as bits.
    """

    name: str = ""
    #: Capabilities on some device; see :meth:`capabilities_on`.
    capabilities: Capabilities = Capabilities()
    #: Conformance cases that are known to fail: id -> reason, or :class:`spikecore.testing.ExpectedFailure`, which says
    #: how and where. Shown in every report; one that passes, or that fails in another way, is a failure.
    expected_failures: Mapping[str, Excuse] = {}
    _runners: Recent[Tuple[Program, Spec], Runner]
    _lock: Lock

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Here and not in ``__init__``, which a subclass may write without a thought of this one."""
        self = super().__new__(cls)
        self._runners = Recent(RUNNERS)
        self._lock = Lock()
        return self

    def compile(self, program: Program, spec: Spec) -> Runner:
        """Turn a program into a runner.

        A runner is called as ``runner(inputs, state, params, record)`` with

        - ``inputs``: one tensor ``[T, *N]`` per program input, all of ``spec.dtype``, one shape and one device, of any
          strides;
        - ``state``: ``None`` for a start at rest (the initial values are in the program), or one tensor ``[*N]`` of
          ``spec.compute`` per state;
        - ``params``: one float or tensor per program parameter; a tensor has any floating dtype and broadcasts against
          ``[*N]``;
        - ``record``: names of the states to return for every step;

        and returns ``(outputs, state, trace)``: outputs ``[T, *N]`` in ``spec.dtype``, final state ``[*N]`` and
        recorded states ``[T, *N]`` in ``spec.compute``. The result is differentiable in inputs, state and parameters,
        by the derivatives of the program; where the start is at rest and ``program.initial`` names a learnt parameter,
        that is part of them. Where ``program.normalised`` names an input, its derivative goes through two parameters
        as well: mean and 1 / sqrt(variance + eps) of that input, per channel over all steps and neurons. No result
        shares memory with an argument or with another result. Called once per program and spec; the host keeps the
        runner.

        With ``spec.feedback`` (:class:`Feedback`) the inputs have steps and numbers. There is one more state, behind
        the program's: the last output, ``[*N]`` of ``spec.dtype``, 0 at rest. Behind the parameters come the weight
        ``[H, H]`` and, if there is one, the bias ``[H]``; ``spec.params`` is about the others. The product is computed
        in the weight's dtype: ``spec.dtype``, or a 16-bit one that autocast chose. The result is differentiable in
        both, too; ``spec.learn`` has :data:`FEEDBACK_WEIGHT` and :data:`FEEDBACK_BIAS` where that is wanted. With
        ``spec.feedback.delays`` there is a last state, the outputs before the last one, ``[*N, longest]``, the newest
        last. Behind weight and bias come the delays ``[H]``, whole numbers of int64, and ``longest``, an int of 1 or
        more.

        With ``spec.further`` or ``spec.feedback.further``, which a backend with ``feedback_gates`` is given, there is a
        last output for each number in ``spec.backs``, and weight and bias of each of ``spec.feedbacks`` in turn.

        Raises :class:`Unsupported` for a program that cannot be lowered, naming what stands in the way.
        """
        raise Unsupported(f"backend {self.name!r} does not implement compile()")

    def capabilities_on(self, device_type: str) -> Capabilities:
        """Capabilities for tensors of this device type: ``capabilities``, or less. Cheap, and always the same.

        Calls, the conformance suite and the support table ask here; lists of backends show ``capabilities``.
        """
        return self.capabilities

    def place(self, tensor: Tensor, device: torch.device) -> Tensor:
        """A tensor of the conformance suite on the device under test, one of those that ``BackendInfo.devices`` names.

        For a backend whose tensors are made in a way of their own. The values, shape and dtype stay.
        """
        return tensor.to(device)

    # A process has one object of a backend: a copied neuron has the same one, a pickled neuron finds it by name.

    def __deepcopy__(self, memo: Any) -> Backend:
        return self

    def __reduce__(self) -> Any:
        return (_by_name, (self.name,))

    def runner(self, program: Program, spec: Spec) -> Runner:
        """The compiled runner for this program and spec, from the cache or made now."""
        key = (program, spec)
        runner = self._runners.get(key)
        if runner is None:
            with self._lock:
                runner = self._runners.get(key)
                if runner is None:
                    runner = self._runners.put(key, self.compile(program, spec))
        return runner

    def training_model(self, net: nn.Module, loss: Callable[..., Tensor], optimizer: Any, options: Any) -> TrainingStep:
        """A callable ``step(inputs, targets) -> (outputs, loss)``: forward, loss, backward, update.

        The default runs eagerly, for any backend that runs inside PyTorch.
        """
        step: TrainingStep = _above("training._eager").EagerTraining(net, loss, optimizer, options)
        return step

    def inference_model(self, net: nn.Module, options: Any) -> InferenceStep:
        """A callable ``predict(inputs) -> outputs`` without gradients."""
        predict: InferenceStep = _above("training._eager").EagerInference(net, options)
        return predict

    def data_loader(self, dataset: Any, options: Any, **kwargs: Any) -> Iterable[Any]:
        """Batches of a dataset, shaped as :meth:`training_model` of this backend wants them.

        ``kwargs`` are those of torch's loader, and ``time_first=True`` where inputs ``[B, T, ...]`` are to be turned.
        """
        data = torch.utils.data
        if not kwargs.get("collate_fn"):
            batched = _above("training._models").collated
            kwargs["collate_fn"] = data.default_convert if kwargs.get("batch_size", 1) is None else batched
        if kwargs.pop("time_first", False):
            kwargs["collate_fn"] = _above("training._models").TimeFirst(kwargs["collate_fn"])
        return torch.utils.data.DataLoader(dataset, **kwargs)


def _by_name(name: str) -> Backend:
    backend: Backend = _above("plugins.registry").default_registry().get(name, "pickle")
    return backend


def _above(module: str) -> Any:
    """A module of spikecore that stands above this one, and serves every backend: imported when it is first used."""
    return import_module(f"spikecore.{module}")
