"""The process and its devices: nothing of it is changed, and threads, streams and other devices give the same."""
# ruff: noqa: NPY002  # NumPy's global random state is what is looked at

from __future__ import annotations

import gc
import locale
import logging
import os
import random
import signal
import sys
import threading
import warnings
import zlib
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Callable, Dict, Iterator, Mapping

import numpy as np
import torch

from spikecore.testing._calls import Call, backward_together, pair
from spikecore.testing._case import Collection
from spikecore.testing._context import Context
from spikecore.testing._subject import Subject, subject
from spikecore.testing.compare import Mismatch
from spikecore.testing.threads import at_once

CASES = Collection()
_BACK = ("gradients",)

# -- what there is to see


def _subnormals() -> Dict[str, Any]:
    """Flags of correct products below the smallest normal number, and of subnormal operands that are not 0."""
    facts: Dict[str, Any] = {}
    for name, kind, exponent in (("float32", torch.float32, -126), ("float64", torch.float64, -1022)):
        number = torch.full((33,), 1.5 * 2.0**exponent, dtype=kind)
        array = number.numpy().copy()
        part = array.dtype.type(0.0078125)
        facts[f"torch {name} keeps subnormal results"] = bool(((number * 0.0078125) * 128 == number).all())
        facts[f"numpy {name} keeps subnormal results"] = bool((array * part * 128 == array).all())
        # read from bits, so that no arithmetic made it
        bits = torch.full((33,), 5, dtype=torch.int32 if name == "float32" else torch.int64).view(kind)
        facts[f"torch {name} reads subnormal numbers"] = bool((bits * 2.0**60 > 0).all())
        facts[f"numpy {name} reads subnormal numbers"] = bool((bits.numpy() * array.dtype.type(2.0**60) > 0).all())
    least = float(np.finfo(np.float64).tiny)
    facts["python keeps subnormal results"] = least * 0.0078125 * 128 == least
    return facts


def subnormals_are_kept(when: str) -> None:
    """Raise :class:`Mismatch` if this thread flushes them: NumPy then flushes expected values, too, and a comparison of
    before with after is blind once an earlier call has set it.
    """
    lost = [fact for fact, kept in _subnormals().items() if not kept]
    if lost:
        raise Mismatch(
            f"{when} this thread takes subnormal numbers for 0 ({lost[0]}: no): flush-to-zero was set for the "
            "whole thread, and other libraries compute in it; set it back"
        )


def _digest(state: Any) -> str:
    return f"state {zlib.crc32(repr(state).encode()):08x}"


def _random() -> Dict[str, Any]:
    legacy: Any = np.random.get_state()
    facts = {
        "torch.get_rng_state()": _digest(torch.get_rng_state().numpy().tobytes()),
        "numpy.random.get_state()": _digest((legacy[1].tobytes(), legacy[2:])),
        "random.getstate()": _digest(random.getstate()),
        "torch.initial_seed()": torch.initial_seed(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        every = [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()]
        facts["torch.cuda.get_rng_state_all()"] = _digest(every)
    return facts


def _called(module: Any, names: str) -> Dict[str, Any]:
    """Results of functions of a module, by the text of their calls."""
    functions = {name: getattr(module, name) for name in names.split()}
    return {f"{module.__name__}.{name}()": function() for name, function in functions.items()}


def _torch() -> Dict[str, Any]:
    return {
        **_called(torch, "get_default_dtype get_num_threads get_num_interop_threads get_float32_matmul_precision"),
        **_called(torch, "are_deterministic_algorithms_enabled"),
        "the default device": torch.empty(0).device,
        "torch.backends.cudnn": [getattr(torch.backends.cudnn, name) for name in ("benchmark", "deterministic")],
        "torch.backends.cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        **_modes(),
    }


def _modes() -> Dict[str, Any]:
    return {
        **_called(torch, "is_grad_enabled is_inference_mode_enabled is_anomaly_enabled is_autocast_enabled"),
        **_called(torch, "is_autocast_cache_enabled"),
        "torch.is_autocast_cpu_enabled()": _autocast_cpu(),
        "numpy.geterr()": np.geterr(),
    }


def _autocast_cpu() -> bool:
    """torch 2.4 names the device as an argument; the older function warns there."""
    try:
        return bool(torch.is_autocast_enabled("cpu"))
    except TypeError:
        return bool(torch.is_autocast_cpu_enabled())


def _environment() -> Dict[str, Any]:
    return {
        **{f"the environment variable {name}": value for name, value in os.environ.items()},
        **{f"the handler of {number!s}": signal.getsignal(number) for number in signal.valid_signals()},
        **_called(os, "getcwd"),
        **_called(sys, "getrecursionlimit getswitchinterval gettrace"),
        **_called(gc, "isenabled get_threshold"),
        "locale.setlocale(LC_ALL)": locale.setlocale(locale.LC_ALL, None),
        "warnings.filters": list(warnings.filters),
        "warnings.showwarning": warnings.showwarning,
        "sys.excepthook": sys.excepthook,
        "threading.excepthook": threading.excepthook,
        "sys.stdout": sys.stdout,
        "sys.stderr": sys.stderr,
        "the root logger": (logging.root.level, list(logging.root.handlers)),
    }


def _unchanged(of: str, before: Mapping[str, Any], after: Mapping[str, Any], when: str) -> None:
    for name in {**before, **after}:
        earlier, later = before.get(name, "unset"), after.get(name, "unset")
        if earlier != later:
            raise Mismatch(
                f"{name}: {earlier!r:.200} before, {later!r:.200} after {when} of {of}: a process is its user's\n"
                "  hint: restore what is changed for a call, in a finally clause, or pass a setting to what needs it"
            )


@contextmanager
def _other_settings() -> Iterator[None]:
    """Other settings and random states: who sets one anew at each call is seen, whatever it sets."""
    dtype, strict = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    states = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng():
            for seed in (random.seed, np.random.seed, torch.manual_seed):
                seed(20011)
            torch.set_default_dtype(torch.float32 if dtype == torch.float64 else torch.float64)
            torch.use_deterministic_algorithms(not strict, warn_only=True)
            yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warn_only)
        torch.set_default_dtype(dtype)
        np.random.set_state(states[0])
        random.setstate(states[1])


def _process(context: Context, look: Callable[[], Dict[str, Any]]) -> None:
    """Compiled anew, run, run backwards, under settings as they are and under others, and in a thread of its own."""
    if look is _subnormals:
        subnormals_are_kept(f"before a call of backend {context.name!r}")
    # torch imports modules, which add filters of warnings, in the first backward pass of a process
    torch.zeros(1, requires_grad=True).backward(torch.ones(1))
    # a program and step counts that other cases have not, so that it is compiled here
    for steps in (13, 37):
        s = subject(context, "leaky", "soft", shape=(steps, 2, 9))
        with _other_settings() if steps == 37 else nullcontext():
            _nothing_changes(s, look)
    at_once(lambda _: _nothing_changes(s, look, " in a thread"), 1)


def _nothing_changes(s: Subject, look: Callable[[], Dict[str, Any]], where: str = "") -> None:
    call = Call(s, f"a call{where}")
    before = look()
    call.forward()
    _unchanged(s.of, before, look(), call.which)
    call.backward()
    _unchanged(s.of, before, look(), f"the backward pass of {call.which}")
    call.check_outputs().check_inputs()
    with torch.no_grad():
        s.neuron(s.x())
    _unchanged(s.of, before, look(), f"{call.which} under no_grad")


def _add_looks() -> None:
    for name, (what, look) in {
        "subnormals": ("how numbers near zero are computed (flush-to-zero)", _subnormals),
        "random": ("random states", _random),
        "torch": ("torch's defaults, threads and modes", _torch),
        "environment": ("the environment, warnings, signals, locale and hooks", _environment),
    }.items():
        holds = f"calls and backward passes change nothing of {what}"
        CASES.add(f"ownership/process-{name}", "ownership", holds, partial(_process, look=look), _BACK)


_add_looks()


# -- threads


@CASES.case("robust/threads", "robust", "neurons compute the same from several threads at once")
def _threads(context: Context) -> None:
    """One neuron for all, not used before, so that its first use is a race too; and one for each."""
    shared = subject(context, "synaptic", "hard")
    apart = [subject(context, "lif", reset) for reset in ("hard", "soft", "none", "hard")]
    x = shared.x()

    def work(i: int) -> None:
        for _ in range(5):
            shared.check_outputs(shared.neuron(x), " in a thread")
            apart[i].check_outputs(apart[i].neuron(apart[i].x()), " in a thread")

    at_once(work)


@CASES.case(
    "sequences/threads-shapes",
    "sequences",
    "threads that share a neuron, with other shapes and values, get their own gradients",
    *_BACK,
)
def _threads_shapes(context: Context) -> None:
    shapes = ((12, 3, 7), (12, 5), (20, 4, 3), (5, 2, 3, 2))
    neuron = subject(context, "lif", "hard").neuron
    subjects = [subject(context, "lif", "hard", shape=shape, draw=i, neuron=neuron) for i, shape in enumerate(shapes)]

    def work(i: int) -> None:
        for again in range(3):
            Call(subjects[i], f"call {again + 1} of thread {i + 1}, of shape {list(shapes[i])},").check()

    at_once(work, len(shapes))


@CASES.case(
    "sequences/threads-backward",
    "sequences",
    "a backward pass in another thread than its call gives the same gradients",
    *_BACK,
    there="backward",
)
@CASES.case(
    "sequences/threads-forward",
    "sequences",
    "a call in a thread that has ended is run backwards in another",
    *_BACK,
    there="forward",
)
def _elsewhere(context: Context, there: str) -> None:
    """Two calls here and one backward in a thread, or the reverse."""
    calls = pair(subject(context, "lif", "hard"))
    for call in calls:
        if there == "forward":
            at_once(lambda _, call=call: call.forward(), 1)  # type: ignore[misc]  # mypy does not infer the default's type
        else:
            call.forward()
    if there == "backward":
        at_once(lambda _: backward_together(calls), 1)
    else:
        backward_together(calls)
    for call in calls:
        call.check_outputs().check_inputs()


# -- streams and devices. A CPU has one device, and streams that order nothing.

#: Products of two matrices of this size that keep a stream busy for some milliseconds.
_TIMES, _SIZE = 40, 2048


def _module(context: Context) -> Any:
    """``torch.cuda`` or its like; None for a device that torch has no module of."""
    return getattr(torch, context.device.type, None)


@CASES.case(
    "robust/stream", "robust", "forward and backward are computed in the order of the stream that is current", *_BACK
)
def _stream(context: Context) -> None:
    """An input that a busy stream writes at last; the default stream would read zeros."""
    s = subject(context, "lif", "soft")
    ready, buffer = s.x(), torch.zeros_like(s.x())
    s.neuron(ready)  # compiled before
    module = _module(context)
    stream: Any = module.Stream() if hasattr(module, "Stream") else None
    if stream is not None:
        stream.wait_stream(module.current_stream())
    cotangent = s.cotangent(buffer)
    context.synchronize()
    with nullcontext() if stream is None else module.stream(stream):
        if stream is not None and context.device.type != "cpu":
            work = torch.zeros(_SIZE, _SIZE, device=context.device)
            for _ in range(_TIMES):
                work = work @ work
        buffer.copy_(ready)
        x = buffer.requires_grad_()
        output = s.neuron(x)
        (gradient,) = torch.autograd.grad(output, x, cotangent)
    context.synchronize()
    s.check_outputs(output.detach(), " on a stream of its own (zeros as input give those of the default stream)")
    s.check("input gradient", gradient, s.gradients(cotangent).inputs[0], name="a call on a stream of its own")


@CASES.case(
    "robust/other-device", "robust", "the device of the tensors counts, whichever is current", *_BACK, "state_gradients"
)
def _other_device(context: Context) -> None:
    """The last device of this kind, while another is current; where there is but one, that one."""
    module = _module(context)
    count = module.device_count() if hasattr(module, "device_count") else 1
    there = context
    if count > 1:
        index = count - 1 if context.device.index != count - 1 else 0
        there = Context(context.backend, f"{context.device.type}:{index}", context.witness, context.seeds)
    s = subject(there, "alif", "hard")
    call = Call(s, f"a call on {there.device}")
    output, final = s.neuron.run(call.x)
    for name, value in {"the output": output, **{f"the final {name}": v for name, v in final.items()}}.items():
        if value.device != call.x.device:
            raise Mismatch(f"{name} of {s.of} is on {value.device}, the input on {call.x.device}")
    call.check(output)
