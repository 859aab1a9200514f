"""What a launch is called with and what it gives: the contract between a runner and a kernel backend.

A launch gets the sizes of a call and then the fields of :class:`ForwardBuffers` or :class:`BackwardBuffers`, one
argument each, in their order. ``T`` below is the number of steps, ``*N`` the user's shape of one step with N numbers,
``[K, *N]`` one state before each chunk of steps but the first. "stored" is ``plan.dtype``, "arithmetic"
``plan.compute``. Of one step every tensor is dense in memory; all tensors share one order of neurons, whatever their
shape. A group that a plan does not have is empty.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Protocol, Sequence, Tuple, Union

from torch import Tensor

from spikecore.backend import Capabilities, Spec
from spikecore.kernels._geometry import Geometry
from spikecore.kernels._plan import BackwardPlan, ForwardPlan
from spikecore.lang import Program

#: Parameters as a launch gets them, one for each of the program: a float (kind "number"), or a tensor of arithmetic:
#: one number of any shape ("scalar"), ``[C]`` ("channel"), ``[*N]`` in the order of neurons ("full").
KernelParams = Tuple[Union[float, Tensor], ...]


#: Tensors of one kind, such as one for each state.
Group = Sequence[Tensor]


class ForwardBuffers(NamedTuple):
    """The groups of tensors of a forward launch. It fills the last four.

    inputs: stored, ``[T, *N]``, with ``stride(0)`` numbers from step to step, 0 where one step stands for all.
    state: arithmetic, ``[*N]`` for each state if ``plan.has_initial_state``.
    params: see :data:`KernelParams`.
    outputs: stored, ``[T, *N]``, dense.
    final: arithmetic, ``[*N]`` for each state if ``plan.final``.
    trace: arithmetic, ``[T, *N]``, dense, for each state of ``plan.record``.
    checkpoints: arithmetic, ``[K, *N]``, dense, for each state of ``plan.saved``.
    """

    inputs: Group
    state: Group
    params: KernelParams
    outputs: Group
    final: Group
    trace: Group
    checkpoints: Group


class BackwardBuffers(NamedTuple):
    """The groups of tensors of a backward launch. It fills the last two and returns the gradients of parameters.

    inputs, state, params: as in :class:`ForwardBuffers`.
    checkpoints: as forward filled them, for each state of ``plan.saved``.
    grad_outputs: stored, ``[T, *N]``, any ``stride(0)``, for each output whose cotangent arrives (``plan.outputs``).
    grad_final: arithmetic, ``[*N]`` for each state if ``plan.final``.
    grad_trace: arithmetic, ``[T, *N]``, any ``stride(0)``, for each state of ``plan.trace``.
    grad_inputs: stored, ``[T, *N]``, dense, for each input whose gradient is wanted (``plan.inputs``).
    grad_state: arithmetic, ``[*N]`` for each state if ``plan.state``.
    """

    inputs: Group
    state: Group
    params: KernelParams
    checkpoints: Group
    grad_outputs: Group
    grad_final: Group
    grad_trace: Group
    grad_inputs: Group
    grad_state: Group


class ForwardResults(NamedTuple):
    """What a forward launch of a backend with ``owns_outputs`` returns: groups as in :class:`ForwardBuffers`, flat.

    outputs: stored, ``[T, N]``.
    final: arithmetic, ``[N]``.
    trace: arithmetic, ``[T, N]``.
    checkpoints: arithmetic, ``[K, N]``.
    """

    outputs: Group
    final: Group
    trace: Group
    checkpoints: Group


class BackwardResults(NamedTuple):
    """What a backward launch of a backend with ``owns_outputs`` returns.

    grad_inputs: stored, ``[T, N]``, for each input whose gradient is wanted.
    grad_state: arithmetic, ``[N]`` for each state if ``plan.state``.
    grad_params: arithmetic, for each parameter of ``plan.learn``: partial sums of any number for kind "scalar", else
        one number for each neuron, ``[N]``.
    """

    grad_inputs: Group
    grad_state: Group
    grad_params: Group


#: Launches a forward kernel: the sizes, then the fields of :class:`ForwardBuffers`. What it returns is not read.
ForwardLaunch = Callable[[Geometry, Group, Group, KernelParams, Group, Group, Group, Group], object]
#: Launches a backward kernel: the sizes, then the fields of :class:`BackwardBuffers`. It returns the gradients of
#: ``plan.learn`` as :class:`BackwardResults` has them; what it returns is not read where no parameter is learnt.
BackwardLaunch = Callable[
    [Geometry, Group, Group, KernelParams, Group, Group, Group, Group, Group, Group], Optional[Group]
]
#: The same of a backend with ``owns_outputs``: without the groups that are filled, which they return. All tensors are
#: flat: ``[T, N]``, ``[N]``, ``[C]``.
ReturningForwardLaunch = Callable[[Geometry, Group, Group, KernelParams], ForwardResults]
ReturningBackwardLaunch = Callable[[Geometry, Group, Group, KernelParams, Group, Group, Group, Group], BackwardResults]
#: Running mean and variance ``[C]`` that a call moves, how many calls there were (``[]`` of int64) if that is counted,
#: and the share of the new ones.
Moved = Tuple[Tensor, Tensor, Optional[Tensor], float]
#: Statistics of an input ``[T, B, C, ...]``: ``launch(geometry, x, eps, running)``.
StatisticsLaunch = Callable[[Geometry, Tensor, float, Optional[Moved]], Optional[Tuple[Tensor, Tensor]]]
#: What statistics add to the gradient of an input: ``launch(geometry, x, grad, channels)``.
CorrectionLaunch = Callable[[Geometry, Tensor, Tensor, Sequence[Tensor]], None]
#: Any of the four. A backend annotates its own with the kind that it is.
Launch = Callable[..., Any]


class Launcher(Protocol):
    """What a runner needs of a kernel backend; :class:`~spikecore.kernels.KernelBackend` says what each part means.

    Runners know this protocol and not the class, because the class makes runners: each would import the other.
    """

    name: str
    owns_outputs: bool
    sizes: int
    rows: bool

    def chunk_of(self, program: Program, spec: Spec) -> int:
        """Steps of a chunk, before each of which but the first there is a checkpoint; 0 for none."""
        ...

    def feeds_back(self, program: Program, spec: Spec, width: int) -> bool:
        """Whether launches take all steps of a call with feedback."""
        ...

    def capabilities_on(self, device_type: str) -> Capabilities:
        """What the backend does on a type of device."""
        ...

    def forward(self, plan: ForwardPlan) -> Launch:
        """The launch of a forward plan."""
        ...

    def backward(self, plan: BackwardPlan) -> Launch:
        """The launch of a backward plan."""
        ...

    def statistics(self, spec: Spec) -> Optional[StatisticsLaunch]:
        """The launch of the statistics of an input."""
        ...

    def correction(self, spec: Spec) -> Optional[CorrectionLaunch]:
        """The launch of what statistics add to the gradient of an input."""
        ...
