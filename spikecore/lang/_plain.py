"""What follows a computation, which :func:`world` says, and the reference's fast paths where only reverse mode does.

A tensor is not plain under a transform of torch.func, while torch.compile or torch.jit traces, in forward mode, under a
dispatch mode, and where it is of a subclass.
There the same values take fewer and quicker operations of torch than the forms that torch.func and torch.compile need.
"""

from __future__ import annotations

import ctypes
import functools
import math
import operator
import sys
import warnings
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, TypeVar, Union

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

_Function = TypeVar("_Function", bound=Callable[..., Any])

_FLOAT32_MAX = torch.finfo(torch.float32).max


_COMPILER = getattr(torch, "compiler", None)


def _never() -> bool:
    return False


# Which parts of torch, beside reverse-mode autograd, may be tracking a computation: torch has no one test for all.

#: Whether torch.compile traces now. Torch says so from 2.3 on; it compiles kernels from 2.4 on, the reference from 2.6.
is_compiling: Callable[[], bool] = getattr(_COMPILER, "is_compiling", _never)
#: Whether a transform of torch.func is at work: vmap, grad, jvp and those made of them.
is_transforming: Callable[[], bool] = torch._C._are_functorch_transforms_active
#: How many modes look at every op that torch dispatches, such as those that record a graph.
dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", int)
#: Not None while torch.jit.trace records: a function of C, without a call of Python.
tracing_state: Callable[[], object] = torch._C._get_tracing_state
#: Tensors with memory of their own; others, such as those that stand for shapes only, go through torch's dispatcher.
PLAIN = (Tensor, nn.Parameter)


def is_exporting() -> bool:
    """Whether torch.export traces now, which torch.onnx.export does, too. Torch says so from 2.7 on.

    Its flag is read, since its function of this name is True for the front end of torch.compile as well (seen in torch
    2.11; 2.13 reads the flag there): a compiled network took the ways of an exported one, unfused.
    """
    return bool(getattr(_COMPILER, "_is_exporting_flag", False))


def is_batched(value: Tensor) -> bool:
    """Whether vmap hides a dimension of the tensor, beneath other transforms as well."""
    functorch: Any = torch._C._functorch
    while functorch.is_gradtrackingtensor(value):
        value = functorch.get_unwrapped(value)
    return bool(functorch.is_batchedtensor(value))


def is_batched_by_autograd(value: Tensor) -> bool:
    """Whether the tensor is of the vmap that autograd itself starts for ``is_grads_batched``.

    That vmap gives its tensors the dispatch key ``Batched``; tensors of ``torch.func.vmap`` have another one.
    """
    torch_: Any = torch._C
    return bool(torch_._dispatch_keys(value).has(torch_._dispatch_key_parse("Batched")))


def is_jit_tracing() -> bool:
    """Whether torch.jit.trace records now."""
    return not is_compiling() and tracing_state() is not None


def with_traced_sizes(function: _Function) -> _Function:
    """Lets torch.jit.trace record a function that decides by sizes, without a warning of torch's for each decision.

    A trace is of one number of time steps, whatever is decided: called with another number, it raises.
    """

    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        if not is_jit_tracing():
            return function(*args, **kwargs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit._trace.TracerWarning)
            return function(*args, **kwargs)

    return traced  # type: ignore[return-value]  # of the same arguments


def in_forward_mode() -> bool:
    """Whether tensors may have tangents now: within ``forward_ad.dual_level``, ``torch.func.jvp``, or ``jacfwd``."""
    return not is_compiling() and forward_ad._current_level >= 0


def wants_tangents() -> bool:
    """As :func:`in_forward_mode`, for an ``autograd.Function``.

    Raises NotImplementedError in forward mode within forward mode: there torch takes the tangent that a ``Function``
    gives for a constant, and the second derivative would be 0 in silence.
    """
    if not in_forward_mode():
        return False
    if getattr(sys.modules.get("torch._functorch.eager_transforms"), "JVP_NESTING", 0) > 1:
        raise NotImplementedError(
            "spike, select, minimum, maximum and clamp have no forward-mode derivative within another one; take the "
            "inner one in reverse mode, as in torch.func.jacfwd(torch.func.jacrev(f))"
        )
    return True


def has_tangent(tensors: Sequence[Tensor]) -> bool:
    """Whether one of them has a tangent."""
    return in_forward_mode() and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)


#: What may follow a computation: reverse-mode autograd alone; torch.compile or torch.export; a transform of torch.func,
#: forward mode or torch.jit.trace; a mode that looks at every operation, for which a runner has operations.
EAGER, COMPILED, TRANSFORMED, OBSERVED = "eager", "compiled", "transformed", "observed"


def world() -> str:
    """What follows what is computed now: ``EAGER``, ``COMPILED``, ``TRANSFORMED`` or ``OBSERVED``."""
    if is_compiling():
        return COMPILED
    if is_transforming() or forward_ad._current_level >= 0 or tracing_state() is not None:
        return TRANSFORMED
    return OBSERVED if dispatch_modes() else EAGER


def is_plain(x: Tensor) -> bool:
    """Whether only reverse-mode autograd may be tracking what is computed from ``x``."""
    return type(x) in PLAIN and world() is EAGER


# How torch.compile meets functions of spikecore.


def uncompiled(function: Callable[..., Any]) -> Any:
    """Keep torch.compile out of a function, without an import of the compiler, which takes seconds."""
    guarded = getattr(torch, "_disable_dynamo", lambda same: same)(function)  # imports it when it is called

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (guarded if "torch._dynamo" in sys.modules else function)(*args, **kwargs)

    return call


def compile_time(function: _Function) -> _Function:
    """Have torch.compile run a function when it meets it, and take what it returns as a constant.

    For what cannot be traced, such as hashing and loading, and for errors. What was compiled is used again as long as
    the arguments, which torch guards, are the same. As torch.compiler.assume_constant_result, without importing the
    compiler with spikecore.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # functions take attributes
    return function


#: dtype -> the integers of that size.
_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}
#: From so many values on, torch.where takes longer on a CPU than a choice bit by bit.
_MANY = 1 << 12


def step(u: Tensor, strict: bool) -> Tensor:
    """1 where ``u >= 0`` (``u > 0`` if strict), else 0, in the dtype of ``u``. Of plain tensors, without a graph."""
    # written as numbers at once: torch's kernels for truth values take four times as long on a CPU
    return (torch.gt if strict else torch.ge)(u, _zero(u), out=torch.empty_like(u))


def choice(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``a`` where ``z`` is not 0, else ``b``, bit for bit. Of plain tensors, without a graph."""
    zero = _zero(z)
    bits = None if is_few(z) else _BITS.get(z.dtype)
    if bits is None or a.dtype != z.dtype or b.dtype != z.dtype or not z.is_cpu:
        return torch.where(torch.ne(z, zero), a, b)
    # torch.where branches at every element there, and where spikes are irregular the CPU guesses half of them wrong
    a, b = a.resolve_neg().view(bits), b.resolve_neg().view(bits)
    if not a.shape and b.shape == z.shape and not a.item():
        # a reset to 0, whose bits are all 0; a NaN among the spikes equals no 0 here, and differs from it below
        mask = torch.eq(z, zero, out=torch.empty_like(z)).to(bits).neg_()  # all bits 1 or all 0
        return mask.bitwise_and_(b).view(z.dtype)
    mask = torch.ne(z, zero, out=torch.empty_like(z)).to(bits).neg_()
    return (mask & (a ^ b)).bitwise_xor_(b).view(z.dtype)


def is_few(z: Tensor) -> bool:
    """Whether torch.where on truth values is the fastest choice by ``z``: it is for few numbers on a CPU."""
    return z.numel() < _MANY and z.is_cpu


def is_chosen(z: Tensor) -> Tensor:
    """Where ``z`` is not 0, as truth values for torch.where."""
    return torch.ne(z, _zero(z))


def _zero(like: Tensor) -> Any:
    # a CPU compares with a 0-d tensor in half the time that a number takes; a GPU would have to fill the tensor first
    return ZERO.of_plain(like)[0] if like.is_cpu else 0.0


class Constants:
    """Numbers as 0-d tensors. Kept on a CPU only: a tensor of a GPU belongs to the stream that made it."""

    def __init__(self, values: Sequence[float]) -> None:
        # as text: torch.compile would make variables of floats, and then cannot look into a surrogate
        self.values: List[str] = [repr(float(value)) for value in values]
        self._made: Dict[torch.dtype, List[Tensor]] = {}

    def __call__(self, like: Tensor) -> List[Tensor]:
        """The numbers in the dtype and on the device of ``like``."""
        if not self.values:
            return []
        if not is_plain(like):
            return [number(float(value), like) for value in self.values]
        return self.of_plain(like)

    def of_plain(self, like: Tensor) -> List[Tensor]:
        """The same where ``like`` is plain."""
        if not like.is_cpu:
            return [number(float(value), like) for value in self.values]
        made = self._made.get(like.dtype)
        if made is None:
            with torch.inference_mode(False):  # what is made in inference mode cannot be saved for backward later
                made = self._made[like.dtype] = [number(float(value), like) for value in self.values]
        return made


def number(value: float, like: Tensor) -> Tensor:
    """A number as a 0-d tensor of the dtype and on the device of ``like``; beyond float32 it is infinite.

    A number given to torch as it is would be divided by through its reciprocal on some devices, and no longer correctly
    rounded.
    """
    if like.dtype == torch.float32 and _FLOAT32_MAX < abs(value) < math.inf:
        value = ctypes.c_float(value).value  # which torch.compile cannot trace, so only where torch.full would raise
    return torch.full((), value, dtype=like.dtype, device=like.device)


#: What depends on parameters alone: the values that every step reads, and the initial states.
Before = Tuple[List[Tensor], List[Tensor]]


class Held:
    """Computes what depends on parameters alone. On a CPU the last result is used again for the same number objects."""

    def __init__(self) -> None:
        self._numbers: Dict[int, Tuple[float, Tensor]] = {}
        self._last: Optional[Tuple[Sequence[Any], Before]] = None

    def __call__(
        self,
        params: Sequence[Union[float, Tensor]],
        like: Tensor,
        compute: Callable[[Sequence[Tensor], Tensor], Before],
    ) -> Before:
        """``compute(values, like)`` of the parameters as tensors of the dtype and on the device of ``like``."""
        if not (like.is_cpu and is_plain(like)):
            return compute([_as_tensor(value, like) for value in params], like)
        last = self._last
        # compared by identity, since 0.0 == -0.0
        if last is not None and all(map(operator.is_, last[0], params)):
            return last[1]
        values = [self._as_tensor(position, value, like) for position, value in enumerate(params)]
        if any(isinstance(value, Tensor) for value in params):
            return compute(values, like)
        with torch.inference_mode(False):
            before = compute(values, like)
        self._last = params, before
        return before

    def _as_tensor(self, position: int, value: Union[float, Tensor], like: Tensor) -> Tensor:
        if isinstance(value, Tensor):
            return value.to(like.dtype)
        known = self._numbers.get(position)
        if known is None or known[0] is not value:
            with torch.inference_mode(False):  # what is made in inference mode cannot be saved for backward later
                known = self._numbers[position] = value, number(value, like)
        return known[1]


def _as_tensor(value: Union[float, Tensor], like: Tensor) -> Tensor:
    return value.to(like.dtype) if isinstance(value, Tensor) else number(value, like)


#: The number 0.
ZERO = Constants([0.0])
