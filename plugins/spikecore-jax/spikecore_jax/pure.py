"""Neurons as pure functions of JAX arrays, without a tensor of PyTorch in a call."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import spikecore as sc
from spikecore.backend import Spec
from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.lang import Program
from spikecore_jax import scan
from spikecore_jax.arguments import Arrays, array, checked, inputs_of, placed, state_of, tied
from spikecore_jax.operations import Table, numbers
from spikecore_jax.scan import Values

State = Dict[str, jax.Array]
_TORCH = {name: dtype for dtype, name in scan.DTYPES.items()}
#: Signalling NaNs that no arithmetic gives: where an input begins with one, which none does, :func:`_unknown` is 1.
_NEVER = {"uint32": 0x7FA1C5E3, "uint64": 0x7FF4A1C5E37B9D21}


def function(neuron: sc.Neuron) -> Function:
    """The neuron as a pure function ``(params, state, xs) -> (outs, state)``: see :class:`Function`.

    Raises ``TypeError`` for what is no neuron and for a neuron with a ``forward`` or ``run`` of its own, and what
    :attr:`spikecore.Neuron.program` raises. Of a :class:`spikecore.layers.NormNeuron` give the neuron, and normalise in
    JAX.
    """
    if not isinstance(neuron, sc.Neuron):
        raise TypeError(
            f"neuron={neuron!r} must be a spikecore neuron; of sc.Recurrent give its neuron, and write the loop with "
            "Function.step"
        )
    owner = type(neuron).__name__
    for name in ("forward", "run"):
        known = (getattr(sc.Neuron, name), getattr(sc.stochastic.Stochastic, name))
        if getattr(type(neuron), name) not in known or name in vars(neuron):
            raise TypeError(
                f"neuron={owner} has a {name} of its own, which would not be called in JAX, where only its dynamics is "
                "known: compute there what it does beside them"
            )
    named, program = neuron.named_values(), neuron.program
    own = [name for name in program.params if name not in program.numbers]
    return Function(
        program,
        neuron.channel_dim,
        {name: array(named[name]) for name in own},
        tuple(name for name in own if getattr(named[name], "requires_grad", False)),
        {name: float(named[name]) for name in program.numbers},
    )


class Function:
    """A neuron's equations as a pure function, for ``jit``, ``vmap``, ``grad`` and ``shard_map``.

    ``outs, state = f(f.params, None, xs)`` computes all steps of ``xs [T, *N]`` by ``lax.scan``. The spikes are those
    of every backend of spikecore, to the bit for neurons made of ``+ - * /``, and so are the gradients, by the same
    adjoint (``jax.custom_vjp``: reverse mode, once). It depends on nothing that changes: later changes of the neuron
    are not seen, functions of equal neurons are equal, and copies are the same object.

    A parameter that the neuron learns counts as the nearest value inside its range (``neuron.bounds``), with derivative
    1, so that one outside can come back. Make a neuron with ``learn=`` for the parameters that you train.

    Random numbers of a :class:`spikecore.stochastic.Stochastic` are inputs like any other, since JAX's keys are its
    user's: ``f(params, state, (x, jax.random.uniform(key, x.shape)))``.

    program: the equations. channel_dim: the dimension of one step that parameters of shape ``[C]`` lie along. learnt:
    the names of what the neuron learns.
    """

    def __init__(
        self,
        program: Program,
        channel_dim: int,
        values: Mapping[str, np.ndarray],
        learnt: Tuple[str, ...],
        surrogate: Mapping[str, float],
    ) -> None:
        self.program, self.channel_dim, self.learnt = program, channel_dim, learnt
        self._made_of = (program, channel_dim, dict(values), learnt, dict(surrogate))
        self._values, self._numbers = dict(values), dict(surrogate)
        bits = tuple((name, value.dtype.str, value.shape, value.tobytes()) for name, value in values.items())
        self._key = (program, channel_dim, learnt, bits, tuple(surrogate.items()))
        self._run = jax.custom_vjp(self._forward, nondiff_argnums=(0,))
        self._run.defvjp(self._saved, self._backward)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Function) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __reduce__(self) -> Any:
        return Function, self._made_of

    def __deepcopy__(self, memo: Any) -> Function:
        return self

    @property
    def params(self) -> Dict[str, jax.Array]:
        """The parameters' values in the neuron, by name, learnt or not, in a new dictionary.

        Calls take these names: scalars ``[]``, one value per channel ``[C]``, or any shape of two and more dimensions
        that broadcasts against ``[*N]``. Differentiate in those named in ``learnt``, or in others. Numbers of a neuron
        are float64 where JAX has it turned on, and float32 elsewhere.
        """
        return {name: jnp.asarray(value) for name, value in self._values.items()}

    def __repr__(self) -> str:
        return f"Function({self.program.name}: {', '.join(self._values)})"

    def initial(self, params: Mapping[str, Any], shape: Sequence[int], dtype: Any = jnp.float32) -> State:
        """The state at rest for one step of this shape, in the dtype of arithmetic for inputs of ``dtype``."""
        plan = self._plan(jnp.dtype(dtype).name)
        values = self._bound(plan, self._placed(params, tuple(shape), plan), None, tuple(shape))
        return dict(zip(self.program.states, scan.initial(plan, values)))

    def __call__(self, params: Mapping[str, Any], state: Optional[Mapping[str, Any]], xs: Arrays) -> Tuple[Any, State]:
        """Outputs ``[T, *N]`` in the dtype of ``xs``, one or a tuple as the neuron has, and the state after all steps.

        params: as :attr:`params`. state: by name, ``[*N]`` each; None starts at rest. xs: ``[T, *N]``, float16,
        bfloat16, float32 or float64, a tuple of them for a neuron with several inputs.

        Raises ``ValueError`` for names or shapes that do not fit.
        """
        inputs = inputs_of(self.program, xs)
        shape, plan = inputs[0].shape[1:], self._plan(inputs[0].dtype.name)
        params_ = self._placed(params, shape, plan)
        if state is None:
            first = scan.initial(plan, self._bound(plan, params_, None, shape))
        else:
            first = state_of(self.program, state, shape, scan.DTYPES[plan.compute])
        outs, final = self._run(plan, *tied(inputs, first, params_))
        return outs[0] if len(outs) == 1 else tuple(outs), dict(zip(self.program.states, final))

    def step(self, params: Mapping[str, Any], state: Mapping[str, Any], x: Arrays) -> Tuple[Any, State]:
        """One step ``[*N]``: for loops of one's own, such as one in which outputs come back through weights."""
        xs = [checked(one)[None] for one in (x if isinstance(x, (tuple, list)) else [x])]
        outs, state = self(params, state, xs)
        return outs[0] if len(self.program.outputs) == 1 else tuple(out[0] for out in outs), state

    # -- arguments

    def _plan(self, dtype: str) -> ForwardPlan:
        if dtype not in _TORCH:
            raise ValueError(f"xs has dtype {dtype}; give one of {', '.join(_TORCH)}")
        kinds = tuple("number" if name in self.program.numbers else "full" for name in self.program.params)
        return ForwardPlan(self.program, Spec(_TORCH[dtype], None, kinds, (), True), (), True, True)

    def _placed(self, params: Mapping[str, Any], shape: Tuple[int, ...], plan: ForwardPlan) -> List[Any]:
        """The parameters that are no numbers of a surrogate, so that they broadcast against ``shape``."""
        if {*params} != {*self._values}:
            raise ValueError(f"params has {', '.join(params) or 'nothing'}; give {', '.join(self._values)}")
        compute = scan.DTYPES[plan.compute]
        return [placed(name, params[name], shape, self.channel_dim, compute) for name in self._values]

    # -- what JAX differentiates

    def _bound(
        self, plan: Union[ForwardPlan, BackwardPlan], placed: Sequence[Any], x: Any, shape: Tuple[int, ...]
    ) -> Values:
        compute, known = scan.DTYPES[plan.compute], scan.constants(plan)
        zero = _unknown(x, shape, compute)
        # XLA computes with numbers that it knows before a call, in another order: Lapicque's potential differed. States
        # at rest, for which there is no x, are differentiated by JAX, which sees nothing through bits
        hidden: Callable[[Any], Any] = jnp.asarray if x is None else Table(zero, ()).kept
        each = iter(placed)
        params = [
            hidden(jnp.asarray(numbers([self._numbers[name]], compute)[0]) if name in self._numbers else next(each))
            for name in self.program.params
        ]
        constants = [hidden(jnp.asarray(value)) for value in numbers(known, compute)]
        return Values(Table(zero, zip(known, constants)), params, shape, compute)

    def _forward(self, plan: ForwardPlan, inputs: List[Any], first: List[Any], placed: List[Any]) -> Any:
        values = self._bound(plan, placed, inputs[0], inputs[0].shape[1:])
        outs, final, _ = scan.forward(plan, values, inputs, first)
        return outs, final

    def _saved(self, plan: ForwardPlan, inputs: List[Any], first: List[Any], placed: List[Any]) -> Any:
        return self._forward(plan, inputs, first, placed), (inputs, first, placed)

    def _backward(self, plan: ForwardPlan, saved: Any, cotangents: Any) -> Any:
        inputs, first, placed = saved
        names = tuple(self._values)
        spec = dataclasses.replace(plan.spec, learn=names)
        n = len(self.program.outputs)
        back = BackwardPlan(self.program, spec, True, (True,) * n, (), True, (True,) * len(inputs), True, names)
        values = self._bound(back, placed, inputs[0], inputs[0].shape[1:])
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


def _unknown(x: Any, shape: Tuple[int, ...], compute: str) -> Any:
    """0 for each neuron, of which a compiler cannot know it: a function that is compiled with others has no argument
    of its own.
    """
    bits = "uint64" if compute == "float64" else "uint32"
    if x is None or not x.size:
        return jnp.zeros(shape, bits)
    return (lax.bitcast_convert_type(x[0].astype(compute), bits) == np.dtype(bits).type(_NEVER[bits])).astype(bits)


def _summed(grad: Any, like: Any) -> Any:
    """The gradient of a value that was broadcast, from that of each neuron."""
    lead = grad.ndim - like.ndim
    axes = [*range(lead), *(lead + k for k, size in enumerate(like.shape) if size == 1 != grad.shape[lead + k])]
    return jnp.sum(grad, axis=tuple(axes), keepdims=False).reshape(like.shape) if axes else grad
