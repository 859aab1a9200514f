"""Surroundings of a computation: autocast, regions of activation checkpointing, and the active tracer of torch.

:func:`world` is the active tracing mode: compiler, transform, dispatch mode, or reverse-mode autograd alone. A tensor
is not plain under a transform of torch.func, while torch.compile traces, in forward mode, under a dispatch mode, and
where it is of a subclass.

There are two oldest versions of torch. Neurons, losses and eager training need torch 2.0.1, on Python 3.8. Compilation,
capture, registered operations and packing need torch 2.6: they call :func:`require_compiler` before they begin.
"""

from __future__ import annotations

import functools
import sys
import threading
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Iterator, List, Optional, Tuple, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from spikecore._base.contract import Unsupported

#: The oldest torch for what compiles, captures, registers or packs.
SECOND_FLOOR = (2, 6)
#: True if this torch is new enough for that.
COMPILES = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= SECOND_FLOOR
#: Before torch 2.4 each type of device has functions of its own. This is not found out in a call, because the
#: torch.compile of torch 2.0 cannot trace a call that raises TypeError.
_BEFORE_2_4 = not hasattr(torch, "get_autocast_dtype")
#: Runs of a region of activation checkpointing: the first one, and the one again in backward.
FIRST, AGAIN = "first", "again"


def is_autocast(device: str) -> bool:
    """True if autocast is on for a type of device."""
    if _BEFORE_2_4:
        return torch.is_autocast_cpu_enabled() if device == "cpu" else device == "cuda" and torch.is_autocast_enabled()
    try:
        return torch.is_autocast_enabled(device)
    except RuntimeError:  # autocast does not support this type of device
        return False


def autocast_dtype(device: str) -> Optional[torch.dtype]:
    """The dtype in which autocast computes products now; None where it is off."""
    if not is_autocast(device):
        return None
    if _BEFORE_2_4:
        return torch.get_autocast_cpu_dtype() if device == "cpu" else torch.get_autocast_gpu_dtype()
    return torch.get_autocast_dtype(device)


def no_autocast(device: str) -> Any:
    """A context in which products have the dtypes of their factors."""
    return torch.autocast(device, enabled=False) if is_autocast(device) else nullcontext()


#: What a region's first run computed of modules, in order: a module, and a value, or None for what is computed again.
Results = List[Tuple[nn.Module, Any]]


class _Region(threading.local):
    run = ""
    #: In a first run the list that is written, in one again the iterator that reads it.
    results: Any = None
    #: True for a call that runs for what it saves alone.
    unread: bool = False


_region = _Region()


def region() -> str:
    """``FIRST`` or ``AGAIN`` within a region of activation checkpointing, else ""."""
    return _region.run


@contextmanager
def running(run: str, results: Results) -> Iterator[None]:
    """The block is a region's first run, which writes ``results``, or the one in backward, which reads them. All
    regions within one that runs again do so, too.
    """
    before = _region.run, _region.results
    _region.results = results if run == FIRST else iter(results)
    _region.run = AGAIN if before[0] == AGAIN else run
    try:
        yield
    finally:
        _region.run, _region.results = before
        if run == FIRST and isinstance(before[1], list):
            # the region around it does not have them: this one computes them again
            before[1].extend([(module, None) for module, _ in results])


def once(module: nn.Module, compute: Callable[[], Any]) -> Any:
    """The result of ``compute`` for a module: where a region is computed again, that of its first run."""
    results = None if is_compiling() else _region.results
    if results is None:
        return compute()
    if isinstance(results, list):
        results.append((module, compute()))
        return results[-1][1]
    return next((value for _, value in results if value is not None), None) or compute()


@contextmanager
def unread() -> Iterator[None]:
    """In the block nobody reads results: calls are made for what they save for backward."""
    before, _region.unread = _region.unread, True
    try:
        yield
    finally:
        _region.unread = before


def is_unread() -> bool:
    """True in such a block."""
    return _region.unread


def each_time(module: nn.Module) -> None:
    """Note that what a region computes for a module is computed again with it."""
    if not is_compiling() and isinstance(_region.results, list):
        _region.results.append((module, None))


# -- what of torch follows a computation

_Function = TypeVar("_Function", bound=Callable[..., Any])

_COMPILER = getattr(torch, "compiler", None)


def _never() -> bool:
    return False


# Which parts of torch, beside reverse-mode autograd, may be tracking a computation: torch has no one test for all.

#: True while torch.compile traces. Torch says so from 2.3 on; it compiles kernels from 2.4 on, the reference from 2.6.
is_compiling: Callable[[], bool] = getattr(_COMPILER, "is_compiling", _never)
#: True within a transform of torch.func: vmap, grad, jvp and those made of them.
is_transforming: Callable[[], bool] = torch._C._are_functorch_transforms_active
#: Number of dispatch modes, which see every op that torch dispatches, such as those that record a graph.
dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", int)
#: Not None while torch.jit.trace records: a function of C, without a call of Python.
tracing_state: Callable[[], object] = torch._C._get_tracing_state
#: Tensors with memory of their own; others, such as those that stand for shapes only, go through torch's dispatcher.
PLAIN = (Tensor, nn.Parameter)


def is_exporting() -> bool:
    """True while torch.export traces, as torch.onnx.export does, too. Torch says so from 2.7 on.

    The flag is read: torch's function of this name is True under torch.compile, too, before 2.13.
    """
    return bool(getattr(_COMPILER, "_is_exporting_flag", False))


def is_batched(value: Tensor) -> bool:
    """True if vmap hides a dimension of the tensor, also beneath other transforms."""
    functorch: Any = torch._C._functorch
    while functorch.is_gradtrackingtensor(value):
        value = functorch.get_unwrapped(value)
    return bool(functorch.is_batchedtensor(value))


def is_batched_by_autograd(value: Tensor) -> bool:
    """True if the tensor is of the vmap that autograd itself starts for ``is_grads_batched``.

    That vmap gives its tensors the dispatch key ``Batched``; tensors of ``torch.func.vmap`` have another one.
    """
    torch_: Any = torch._C
    return bool(torch_._dispatch_keys(value).has(torch_._dispatch_key_parse("Batched")))


def wants_tangents() -> bool:
    """True where an ``autograd.Function`` may get tangents: within ``forward_ad.dual_level``, ``torch.func.jvp``, or
    ``jacfwd``.

    Raises NotImplementedError in forward mode within forward mode: there torch takes the tangent that a ``Function``
    gives for a constant, and the second derivative would be 0 in silence.
    """
    if is_compiling() or forward_ad._current_level < 0:
        return False
    if getattr(sys.modules.get("torch._functorch.eager_transforms"), "JVP_NESTING", 0) > 1:
        raise NotImplementedError(
            "spike, select, minimum, maximum and clamp have no forward-mode derivative within another one; take the "
            "inner one in reverse mode, as in torch.func.jacfwd(torch.func.jacrev(f))"
        )
    return True


#: Tracing modes: reverse-mode autograd alone; torch.compile or torch.export; a transform of torch.func, or forward
#: mode; a dispatch mode, for which a runner has operations.
EAGER, COMPILED, TRANSFORMED, OBSERVED = "eager", "compiled", "transformed", "observed"


def world() -> str:
    """Active tracer of torch: none (``EAGER``), compiler (``COMPILED``), functorch transform or forward mode
    (``TRANSFORMED``), or dispatch mode (``OBSERVED``).

    Raises :class:`spikecore.backend.Unsupported` while torch.jit.trace records.
    """
    if is_compiling():
        return COMPILED
    if tracing_state() is not None:
        raise Unsupported(
            "torch.jit.trace, and torch.onnx.export with dynamo=False, cannot record operations of spikecore; use "
            "torch.export.export(net, (x,)), torch.onnx.export(..., dynamo=True), torch.compile(net) or "
            "sc.export_c(net, x)"
        )
    if is_transforming() or forward_ad._current_level >= 0:
        return TRANSFORMED
    return OBSERVED if dispatch_modes() else EAGER


def is_plain(x: Tensor) -> bool:
    """True if ``x`` is a plain tensor, and no tracer but reverse-mode autograd is active."""
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


def require_compiler(what: str) -> None:
    """Raise :class:`spikecore.backend.Unsupported` for a torch below the second floor; ``what`` begins the text."""
    if not COMPILES:
        needed = ".".join(map(str, SECOND_FLOOR))
        raise Unsupported(f"{what} needs torch {needed} or newer; this is {torch.__version__}")
