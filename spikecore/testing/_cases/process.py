"""Nothing of the process is changed: random numbers, threads, arithmetic, modes, warnings, signals, environment."""
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
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence

import numpy as np
import torch

from spikecore.testing._calls import Call
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch
from spikecore.testing._context import Context
from spikecore.testing._subject import Subject
from spikecore.testing._threads import at_once

_BACK = ("gradients",)


def add_to(cases: Collection) -> None:
    """Add the cases of this theme."""

    def add(name: str, holds: str, run: Callable[[Context], None], needs: Sequence[str] = ()) -> None:
        cases.add(f"ownership/{name}", "ownership", holds, run, needs)

    for name, (what, look) in LOOKS.items():
        none = f"calls and backward passes change nothing of {what}"
        add(f"process-{name}", none, partial(process, look=look), _BACK)
    same = "the same in a thread that calls and runs backwards, and in one that begins after it"
    add("process-threads", f"subnormal numbers and modes are {same}", in_threads, _BACK)
    add("seeds", "results do not depend on the state of random numbers", seeds, _BACK)


# -- what there is to see


def _subnormals() -> Dict[str, Any]:
    """Whether products below the smallest normal number, and subnormal operands, are what they should be and not 0."""
    found: Dict[str, Any] = {}
    for name, kind, exponent in (("float32", torch.float32, -126), ("float64", torch.float64, -1022)):
        small = 1.5 * 2.0**exponent
        number = torch.full((33,), small, dtype=kind)
        array = number.numpy().copy()
        part = array.dtype.type(0.0078125)
        found[f"torch {name} keeps subnormal results"] = bool(((number * 0.0078125) * 128 == number).all())
        found[f"numpy {name} keeps subnormal results"] = bool((array * part * 128 == array).all())
        # read from bits, so that no arithmetic made it
        bits = torch.full((33,), 5, dtype=torch.int32 if name == "float32" else torch.int64).view(kind)
        found[f"torch {name} reads subnormal numbers"] = bool((bits * 2.0**60 > 0).all())
        found[f"numpy {name} reads subnormal numbers"] = bool((bits.numpy() * array.dtype.type(2.0**60) > 0).all())
    least = float(np.finfo(np.float64).tiny)
    found["python keeps subnormal results"] = least * 0.0078125 * 128 == least
    return found


def _digest(state: Any) -> str:
    return f"state {zlib.crc32(repr(state).encode()):08x}"


def _random() -> Dict[str, Any]:
    legacy: Any = np.random.get_state()
    found = {
        "torch.get_rng_state()": _digest(torch.get_rng_state().numpy().tobytes()),
        "numpy.random.get_state()": _digest((legacy[1].tobytes(), legacy[2:])),
        "random.getstate()": _digest(random.getstate()),
        "torch.initial_seed()": torch.initial_seed(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        every = [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()]
        found["torch.cuda.get_rng_state_all()"] = _digest(every)
    return found


def _torch() -> Dict[str, Any]:
    return {
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "the default device": torch.empty(0).device,
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.get_num_interop_threads()": torch.get_num_interop_threads(),
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision(),
        "torch.backends.cudnn.benchmark": torch.backends.cudnn.benchmark,
        "torch.backends.cudnn.deterministic": torch.backends.cudnn.deterministic,
        "torch.backends.cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        **_modes(),
    }


def _modes() -> Dict[str, Any]:
    return {
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.is_inference_mode_enabled()": torch.is_inference_mode_enabled(),
        "torch.is_anomaly_enabled()": torch.is_anomaly_enabled(),
        "torch.is_autocast_enabled()": torch.is_autocast_enabled(),
        "torch.is_autocast_cpu_enabled()": _autocast_cpu(),
        "torch.is_autocast_cache_enabled()": torch.is_autocast_cache_enabled(),
        "numpy.geterr()": np.geterr(),
    }


def _autocast_cpu() -> bool:
    """torch 2.4 names the device as an argument; the older function warns there."""
    try:
        return bool(torch.is_autocast_enabled("cpu"))
    except TypeError:
        return bool(torch.is_autocast_cpu_enabled())


def _python() -> Dict[str, Any]:
    handlers = {}
    for number in signal.valid_signals():
        try:
            handlers[f"the handler of {signal.Signals(number).name}"] = signal.getsignal(number)
        except ValueError:  # a real-time signal has no name
            continue
    return {
        "warnings.filters": list(warnings.filters),
        "warnings.showwarning": warnings.showwarning,
        "locale.setlocale(LC_ALL)": locale.setlocale(locale.LC_ALL, None),
        "os.getcwd()": os.getcwd(),
        "sys.excepthook": sys.excepthook,
        "threading.excepthook": threading.excepthook,
        "sys.stdout": sys.stdout,
        "sys.stderr": sys.stderr,
        "sys.getrecursionlimit()": sys.getrecursionlimit(),
        "sys.getswitchinterval()": sys.getswitchinterval(),
        "sys.gettrace()": sys.gettrace(),
        "gc.isenabled()": gc.isenabled(),
        "gc.get_threshold()": gc.get_threshold(),
        "the root logger": (logging.root.level, list(logging.root.handlers)),
        **handlers,
    }


def _environment() -> Dict[str, Any]:
    return {f"the environment variable {name}": value for name, value in os.environ.items()}


LOOKS: Mapping[str, Any] = {
    "subnormals": ("how numbers near zero are computed (flush-to-zero)", _subnormals),
    "random": ("random states", _random),
    "torch": ("torch's defaults, threads and modes", _torch),
    "python": ("warnings, signals, locale and hooks", _python),
    "environment": ("the environment", _environment),
}

# -- cases


def _unchanged(of: str, before: Mapping[str, Any], after: Mapping[str, Any], when: str) -> None:
    for name in {**before, **after}:
        was, now = before.get(name, "unset"), after.get(name, "unset")
        if was != now:
            raise Mismatch(
                f"{name}: {_short(was)} before, {_short(now)} after {when} of {of}: a process is its user's\n"
                "  hint: restore what is changed for a call, in a finally clause, or pass a setting to what needs it"
            )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}..."


@contextmanager
def _other_settings() -> Iterator[None]:
    """Other settings and random states: who sets one anew at each call is seen, whatever it sets."""
    dtype, states = torch.get_default_dtype(), (np.random.get_state(), random.getstate())
    strict, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    try:
        with torch.random.fork_rng():
            torch.manual_seed(20011)
            np.random.seed(20011)
            random.seed(20011)
            torch.set_default_dtype(torch.float32 if dtype == torch.float64 else torch.float64)
            torch.use_deterministic_algorithms(not strict, warn_only=True)
            yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warn_only)
        torch.set_default_dtype(dtype)
        np.random.set_state(states[0])
        random.setstate(states[1])


def process(context: Context, look: Callable[[], Dict[str, Any]]) -> None:
    """Compiled anew, run, run backwards, under settings as they are and under others."""
    # a program and step counts that other cases have not, so that it is compiled here
    for steps in (13, 37):
        s = Subject(context, "leaky", "soft", shape=(steps, 2, 9))
        with _other_settings() if steps == 37 else nullcontext():
            call = Call(s, "a call")
            before = look()
            call.forward()
            _unchanged(s.of, before, look(), "a call")
            call.backward()
            _unchanged(s.of, before, look(), "the backward pass of a call")
            call.check_outputs().check_inputs()
            with torch.no_grad():
                s.neuron(s.x())
            _unchanged(s.of, before, look(), "a call under no_grad")


def in_threads(context: Context) -> None:
    """What a thread sees before and after its calls, and a new thread afterwards."""
    s = Subject(context, "leaky", "soft", shape=(14, 2, 9))

    def look() -> Dict[str, Any]:
        return {**_subnormals(), **_modes()}

    seen: List[Dict[str, Any]] = []

    def work(i: int) -> None:
        before = look()
        Call(s, "a call in a thread").forward().backward().check_inputs()
        _unchanged(s.of, before, look(), "a call in a thread")

    at_once(lambda _: seen.append(look()), 1)
    at_once(work, 2)
    Call(s, "a call").forward().backward()
    at_once(lambda _: seen.append(look()), 1)
    _unchanged(s.of, seen[0], seen[1], "calls, as a thread that began later sees it,")


def seeds(context: Context) -> None:
    """Three seeds."""
    s = Subject(context, "lif", "hard")
    states = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng():
            for seed in (0, 1, 2):
                random.seed(seed)
                np.random.seed(seed)
                torch.manual_seed(seed)
                Call(s, f"a call after manual_seed({seed})").forward().check_outputs().backward().check_inputs()
    finally:
        np.random.set_state(states[0])
        random.setstate(states[1])
