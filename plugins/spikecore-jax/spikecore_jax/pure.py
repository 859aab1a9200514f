"""Neurons as pure functions of JAX arrays, without a tensor of PyTorch in a call."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

import spikecore as sc
from spikecore.backend import Spec
from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.lang import Program
from spikecore_jax import scan
from spikecore_jax.operations import Table, numbers
from spikecore_jax.scan import Values

#: One array, or one for each input or output of a neuron.
Arrays = Union[jax.Array, Sequence[jax.Array]]
State = Dict[str, jax.Array]
_TORCH = {name: dtype for dtype, name in scan.DTYPES.items()}
#: Signalling NaNs that no arithmetic gives: where an input begins with one, which none does, :func:`_unknown` is 1.
_NEVER = {"uint32": 0x7FA1C5E3, "uint64": 0x7FF4A1C5E37B9D21}


def function(neuron: sc.Neuron) -> Function:
    """The neuron as a pure function ``(params, state, xs) -> (outs, state)``: see :class:`Function`.

    Raises ``TypeError`` for what is no neuron, and what :attr:`spikecore.Neuron.program` raises.
    """
    if not isinstance(neuron, sc.Neuron):
        raise TypeError(
            f"neuron={neuron!r} must be a spikecore neuron; of sc.Recurrent give its neuron, and write the loop with "
            "Function.step"
        )
    return Function(neuron)


class Function:
    """A neuron's equations as a pure function, for ``jit``, ``vmap``, ``grad`` and ``shard_map``.

    ``outs, state = f(f.params, None, xs)`` computes all steps of ``xs [T, *N]`` by ``lax.scan``. The spikes are those
    of every backend of spikecore, to the bit for neurons made of ``+ - * /``, and so are the gradients, by the same
    adjoint (``jax.custom_vjp``: reverse mode, once). An object holds no arrays but the first values of parameters, is
    hashable by identity, and may be closed over.

    params: the parameters' values in the neuron, by name, learnt or not; scalars ``[]``, one value per channel ``[C]``
    (along dimension ``channel_dim`` of one step) or any shape that broadcasts against ``[*N]``. Differentiate in those
    named in ``learnt``, or in others.
    """

    def __init__(self, neuron: sc.Neuron) -> None:
        self.program: Program = neuron.program
        self.channel_dim: int = neuron.channel_dim
        named = neuron.named_values()
        own = [name for name in self.program.params if name not in self.program.numbers]
        self.params: Dict[str, jax.Array] = {name: _array(named[name]) for name in own}
        self.learnt = tuple(name for name in own if getattr(named[name], "requires_grad", False))
        self._numbers = {name: float(named[name]) for name in self.program.numbers}
        self._run = jax.custom_vjp(self._forward, nondiff_argnums=(0,))
        self._run.defvjp(self._saved, self._backward)

    def __repr__(self) -> str:
        return f"Function({self.program.name}: {', '.join(self.params)})"

    def initial(self, params: Mapping[str, Any], shape: Sequence[int], dtype: Any = jnp.float32) -> State:
        """The state at rest for one step of this shape, in the dtype of arithmetic for inputs of ``dtype``."""
        plan = self._plan(jnp.dtype(dtype).name)
        values = self._values(plan, self._placed(params, tuple(shape), plan), None, tuple(shape))
        return dict(zip(self.program.states, scan.initial(plan, values)))

    def __call__(self, params: Mapping[str, Any], state: Optional[Mapping[str, Any]], xs: Arrays) -> Tuple[Any, State]:
        """Outputs ``[T, *N]`` in the dtype of ``xs``, one or a tuple as the neuron has, and the state after all steps.

        params: as :attr:`params`. state: by name, ``[*N]`` each; None starts at rest. xs: ``[T, *N]``, float16,
        bfloat16, float32 or float64, a tuple of them for a neuron with several inputs; T at least 1.

        Raises ``ValueError`` for names or shapes that do not fit.
        """
        inputs = self._inputs(xs)
        shape, plan = inputs[0].shape[1:], self._plan(inputs[0].dtype.name)
        placed = self._placed(params, shape, plan)
        if state is None:
            values = self._values(plan, placed, None, shape)
            first = scan.initial(plan, values)
        else:
            first = self._state(state, shape, plan)
        outs, final = self._run(plan, inputs, _tied(first, inputs[0]), _tied(placed, inputs[0]))
        return outs[0] if len(outs) == 1 else tuple(outs), dict(zip(self.program.states, final))

    def step(self, params: Mapping[str, Any], state: Mapping[str, Any], x: Arrays) -> Tuple[Any, State]:
        """One step ``[*N]``: for loops of one's own, such as one in which outputs come back through weights."""
        xs = [_checked(one)[None] for one in (x if isinstance(x, (tuple, list)) else [x])]
        outs, state = self(params, state, xs)
        return outs[0] if len(self.program.outputs) == 1 else tuple(out[0] for out in outs), state

    # -- arguments

    def _plan(self, dtype: str) -> ForwardPlan:
        if dtype not in _TORCH:
            raise ValueError(f"xs has dtype {dtype}; give one of {', '.join(_TORCH)}")
        kinds = tuple("number" if name in self.program.numbers else "full" for name in self.program.params)
        return ForwardPlan(self.program, Spec(_TORCH[dtype], None, kinds, (), True), (), True, True)

    def _inputs(self, xs: Arrays) -> List[Any]:
        inputs = [_checked(x) for x in (xs if isinstance(xs, (tuple, list)) else [xs])]
        if len(inputs) != len(self.program.inputs):
            names = ", ".join(self.program.inputs)
            raise ValueError(
                f"xs has {len(inputs)} arrays, {self.program.name} has the inputs {names}; give one for each"
            )
        one = inputs[0]
        if any(x.shape != one.shape or x.dtype != one.dtype for x in inputs) or one.ndim < 1 or not one.shape[0]:
            shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in inputs)
            raise ValueError(f"xs is {shapes}; give arrays [T, *N] of one shape and dtype, with T at least 1")
        return inputs

    def _state(self, state: Mapping[str, Any], shape: Tuple[int, ...], plan: ForwardPlan) -> List[Any]:
        if {*state} != {*self.program.states}:
            raise ValueError(
                f"state has {', '.join(state) or 'nothing'}; {self.program.name} has {', '.join(self.program.states)}"
            )
        for name, value in state.items():
            if jnp.shape(value) != shape:
                raise ValueError(f"state {name!r} has shape {list(jnp.shape(value))}, one step has {list(shape)}")
        return [jnp.asarray(state[name], scan.DTYPES[plan.compute]) for name in self.program.states]

    def _placed(self, params: Mapping[str, Any], shape: Tuple[int, ...], plan: ForwardPlan) -> List[Any]:
        """The parameters that are no numbers of a surrogate, so that they broadcast against ``shape``."""
        if {*params} != {*self.params}:
            raise ValueError(f"params has {', '.join(params) or 'nothing'}; give {', '.join(self.params)}")
        placed = []
        for name in self.params:
            value = jnp.asarray(params[name], scan.DTYPES[plan.compute])
            dims, along = len(shape), self.channel_dim
            if value.ndim == 1 and dims > 1 and -dims <= along < dims and value.shape[0] == shape[along]:
                view = [1] * dims
                view[along] = value.shape[0]
                value = value.reshape(view)
            elif not _broadcasts(value.shape, shape):
                raise ValueError(f"params {name!r} has shape {list(value.shape)}, one step has {list(shape)}")
            placed.append(value)
        return placed

    # -- what JAX differentiates

    def _values(
        self, plan: Union[ForwardPlan, BackwardPlan], placed: Sequence[Any], x: Any, shape: Tuple[int, ...]
    ) -> Values:
        compute = scan.DTYPES[plan.compute]
        known = scan.constants(plan)
        each = iter(placed)
        params = [
            numbers([self._numbers[name]], compute)[0] if name in self._numbers else next(each)
            for name in self.program.params
        ]
        return Values(Table(_unknown(x, shape, compute), zip(known, numbers(known, compute))), params, shape, compute)

    def _forward(self, plan: ForwardPlan, inputs: List[Any], first: List[Any], placed: List[Any]) -> Any:
        values = self._values(plan, placed, inputs[0], inputs[0].shape[1:])
        outs, final, _ = scan.forward(plan, values, inputs, first)
        return outs, final

    def _saved(self, plan: ForwardPlan, inputs: List[Any], first: List[Any], placed: List[Any]) -> Any:
        return self._forward(plan, inputs, first, placed), (inputs, first, placed)

    def _backward(self, plan: ForwardPlan, saved: Any, cotangents: Any) -> Any:
        inputs, first, placed = saved
        names = tuple(self.params)
        spec = dataclasses.replace(plan.spec, learn=names)
        n = len(self.program.outputs)
        back = BackwardPlan(self.program, spec, True, (True,) * n, (), True, (True,) * len(inputs), True, names)
        values = self._values(back, placed, inputs[0], inputs[0].shape[1:])
        grad_outputs, grad_final = cotangents
        of_inputs, of_states, of_params = scan.backward(back, values, inputs, first, grad_outputs, grad_final, [])
        of_placed = [_summed(grad, like) for grad, like in zip(of_params, placed)]
        return _once((list(of_inputs), list(of_states), of_placed), (saved, cotangents))


def _given(gradients: Any, sources: Any) -> Any:
    """Gradients, which have none of their own by what they were computed from: an adjoint is derived once.

    JAX would give 0 for them, since no derivative passes the bits of a number.
    """
    return gradients


def _refused(kept: Any, cotangents: Any) -> Any:
    raise NotImplementedError(
        "neurons of spikecore have first derivatives in JAX, by jax.grad or jax.vjp; for second ones compute in "
        "PyTorch with backend='torch'"
    )


_once = jax.custom_vjp(_given)
_once.defvjp(lambda gradients, sources: (gradients, None), _refused)


def _checked(x: Any) -> jax.Array:
    if not isinstance(x, (jax.Array, np.ndarray)):
        raise TypeError(
            f"xs is a {type(x).__module__}.{type(x).__name__}; give an array of JAX or NumPy [T, *N], or a tuple of "
            "one for each input"
        )
    return jnp.asarray(x)


def _array(value: Any) -> jax.Array:
    if isinstance(value, torch.Tensor):
        return jnp.asarray(
            value.detach().to("cpu", torch.float64 if value.dtype == torch.float64 else torch.float32).numpy()
        )
    return jnp.asarray(value, jnp.float32)


def _unknown(x: Any, shape: Tuple[int, ...], compute: str) -> Any:
    """0 for each neuron, of which a compiler cannot know it: a function that is compiled with others has no argument
    of its own.
    """
    bits = "uint64" if compute == "float64" else "uint32"
    if x is None:
        return jnp.zeros(shape, bits)
    return (lax.bitcast_convert_type(x[0].astype(compute), bits) == np.dtype(bits).type(_NEVER[bits])).astype(bits)


def _broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    behind = to[len(to) - len(shape) :] if len(shape) <= len(to) else ()
    return len(behind) == len(shape) and all(have in (1, want) for have, want in zip(shape, behind))


def _tied(values: List[Any], x: Any) -> List[Any]:
    """The same values, as varying over devices as ``x`` is: ``shard_map`` adds up their gradients over the devices."""
    here = x[(0,) * x.ndim] == 0 if x.size else False
    return [jnp.where(here, value, value) for value in values]


def _summed(grad: Any, like: Any) -> Any:
    """The gradient of a value that was broadcast, from that of each neuron."""
    lead = grad.ndim - like.ndim
    axes = [*range(lead), *(lead + k for k, size in enumerate(like.shape) if size == 1 != grad.shape[lead + k])]
    return jnp.sum(grad, axis=tuple(axes), keepdims=False).reshape(like.shape) if axes else grad
