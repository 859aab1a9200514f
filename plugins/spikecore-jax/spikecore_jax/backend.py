"""The backend: each plan compiled by XLA, for tensors of PyTorch that JAX reads where they are."""

from __future__ import annotations

import os
from typing import Any, List, NamedTuple, Sequence, Union

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from spikecore.backend import BackendError
from spikecore.kernels import (
    BackwardPlan,
    BackwardResults,
    ForwardPlan,
    ForwardResults,
    Geometry,
    KernelBackend,
    ReturningBackwardLaunch,
    ReturningForwardLaunch,
)
from spikecore_jax import CAPABILITIES, scan
from spikecore_jax.expected_failures import EXPECTED
from spikecore_jax.operations import Table, compiled, numbers
from spikecore_jax.scan import DTYPES, Group, Values
from spikecore_jax.tensors import array, padded, tensor, x64

Plan = Union[ForwardPlan, BackwardPlan]


class JaxBackend(KernelBackend):
    """Compiles every program with XLA.

    Backward computes all steps again before it walks back, so forward keeps nothing but what it was given.
    """

    name = "jax"
    capabilities = CAPABILITIES
    owns_outputs = True
    #: So many sizes of a plan have code of their own; all others are padded to powers of two, which are few.
    sizes = 8
    expected_failures = EXPECTED

    def forward(self, plan: ForwardPlan) -> ReturningForwardLaunch:
        function = Compiled(plan)

        def launch(geometry: Geometry, inputs: Any, state: Any, params: Any) -> ForwardResults:
            outputs, final, trace = function(geometry, params, inputs, state)
            return ForwardResults(outputs, final, trace, [])

        return launch

    def backward(self, plan: BackwardPlan) -> ReturningBackwardLaunch:
        function = Compiled(plan)

        def launch(
            geometry: Geometry,
            inputs: Any,
            state: Any,
            params: Any,
            checkpoints: Any,
            grad_outputs: Any,
            grad_final: Any,
            grad_trace: Any,
        ) -> BackwardResults:
            return BackwardResults(*function(geometry, params, inputs, state, grad_outputs, grad_final, grad_trace))

        return launch


class Arguments(NamedTuple):
    """Arguments of a compiled function beside the tensors of a call, so that XLA knows none of their values."""

    #: An unsigned 0 of as many bits as a number of arithmetic has.
    zero: Any
    #: The constants of the plan.
    constants: Group
    #: How many steps the call has, where arrays have more; else None.
    steps: Any
    #: For each parameter, neurons between neighbouring channels.
    inner: Group


class Compiled:
    """The compiled function of a plan, on flat arrays, and how its arguments are made."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._numbers, self._compute = scan.constants(plan), DTYPES[plan.compute]
        self._compiled = compiled(self._function)
        #: Whether arrays have just the sizes of a call.
        self._fits = plan.geometry is not None

    def __call__(
        self, geometry: Geometry, params: Sequence[Any], inputs: Sequence[Tensor], state: Sequence[Tensor], *late: Any
    ) -> List[List[Tensor]]:
        """Results of a call, in groups; inputs are ``[T, N]``, states ``[N]``, and so are the groups behind them."""
        _check_process()
        steps, neurons, device = geometry.steps, geometry.neurons, inputs[0].device
        rows, columns = (steps, neurons) if self._fits else (_bucket(steps, 16), _bucket(neurons, 1024))
        # JAX takes float64 only where that is turned on
        with x64(self.plan.compute == torch.float64 or jax.config.jax_enable_x64):
            groups = [[array(padded(value, rows, columns)) for value in group] for group in (inputs, state, *late)]
            placed = [self._placed(kind, value, columns) for kind, value in zip(self.plan.spec.params, params)]
            with jax.default_device(_device_of(device)):
                found = self._compiled(self._arguments(geometry), placed, *groups)
            return [[tensor(value, steps, neurons, device) for value in group] for group in found]

    def _function(self, arguments: Arguments, params: Group, inputs: Group, state: Group, *late: Group) -> Any:
        plan, neurons = self.plan, inputs[0].shape[1]
        values = Values(
            Table(arguments.zero, zip(self._numbers, arguments.constants)),
            [
                value[jnp.arange(neurons) // inner % value.shape[0]] if kind == "channel" else value
                for kind, value, inner in zip(plan.spec.params, params, arguments.inner)
            ],
            (neurons,),
            self._compute,
            arguments.steps,
        )
        start = state if plan.has_initial_state else None
        if isinstance(plan, ForwardPlan):
            outputs, final, trace = scan.forward(plan, values, inputs, start)
            return outputs, (final if plan.final else []), trace
        of_inputs, of_states, of_params = scan.backward(plan, values, inputs, start, *late)
        return of_inputs, (of_states if plan.state else []), of_params

    def _arguments(self, geometry: Geometry) -> Arguments:
        zero = np.zeros((), f"uint{torch.finfo(self.plan.compute).bits}")
        inner = [np.int32(max(1, pair[0])) for pair in geometry.channels] or [np.int32(1)] * len(self.plan.spec.params)
        steps = None if self._fits else np.int32(geometry.steps)
        return Arguments(zero, numbers(self._numbers, self._compute), steps, inner)

    def _placed(self, kind: str, value: Any, columns: int) -> Any:
        if kind == "number":
            return numbers([value], self._compute)[0]
        return array(padded(value, 0, columns) if kind == "full" else value)


#: The process in which JAX began to compute.
_started: List[int] = []


def _check_process() -> None:
    """JAX computes in threads, which a fork of the process does not have: it would wait for them for ever."""
    here = os.getpid()
    if not _started:
        _started.append(here)
    if _started[0] != here:
        raise BackendError(
            "backend 'jax' computed in the process that this one was forked from, and its threads are not here; start "
            "processes by multiprocessing.get_context('spawn'), or choose another backend"
        )


def _bucket(size: int, least: int) -> int:
    """The next power of two, but not below ``least``."""
    return max(least, 1 << (size - 1).bit_length())


def _device_of(device: torch.device) -> Any:
    return jax.devices("cpu")[0] if device.type == "cpu" else jax.devices("cuda")[device.index or 0]
