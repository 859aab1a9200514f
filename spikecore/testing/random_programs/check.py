"""Cases on a backend, compared with the oracle."""

from __future__ import annotations

import os
import secrets
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch

from spikecore.registry import default_registry
from spikecore.testing.random_programs.call import Difference, by_call
from spikecore.testing.random_programs.case import Case, draw, rounded
from spikecore.testing.random_programs.oracle import Run
from spikecore.testing.random_programs.rules import Array
from spikecore.testing.random_programs.step import RATE, by_step
from spikecore.testing.random_programs.tree import source

#: Where the first seed of a run comes from, if it is set; else it is random.
VARIABLE = "SPIKECORE_SEED"
#: Results may differ by so many times what the errors that were tried made of them, and by so many units in the last
#: place.
FACTOR, ULPS = 4.0, 32.0
#: Relative error of a sum of many terms, to their sizes.
SUMMED = {"float64": 1e-13}
#: Half a unit in the last place of a result that is rounded to 16 bits, and its smallest number; generous by two.
ROUNDED = {"float16": (2.0**-10, 2.0**-23), "bfloat16": (2.0**-7, 2.0**-120)}


def first_seed() -> int:
    """The seed of this run: that of the environment, or a random one. Whoever asks prints it."""
    text = os.environ.get(VARIABLE, "").strip() or str(secrets.randbelow(1 << 40))
    if not text.isdecimal():
        raise ValueError(f"{VARIABLE}={text!r} must be a whole number, 0 or more; unset it for a random one")
    return int(text)


def check_many(
    backend: str,
    count: int,
    seed: Optional[int] = None,
    *,
    device: str = "cpu",
    dtypes: Sequence[str] = (),
    inexact: Sequence[str] = (),
    hostile: bool = True,
    step: bool = False,
    progress: Callable[[str], None] = print,
) -> int:
    """Check so many programs, from a seed on; raises :class:`Difference` at the first that differs. Gives the seed."""
    seed = first_seed() if seed is None else seed
    progress(f"random programs on {backend}: {VARIABLE}={seed}, {count} of them")
    for k in range(count):
        check(seed + k, backend, device=device, dtypes=dtypes, inexact=inexact, hostile=hostile, step=step)
    return seed


def check(
    seed: int,
    backend: str,
    *,
    device: str = "cpu",
    dtypes: Sequence[str] = (),
    inexact: Sequence[str] = (),
    hostile: bool = True,
    step: bool = False,
) -> None:
    """Raise :class:`Difference` where the program of a seed gives something else on a backend than in the oracle.

    The neuron is called; with ``step`` it is in a network that the backend's ``inference_model`` and
    ``training_model`` run. There a program without steps is left out.
    """
    case = draw(seed, tuple(dtypes or _dtypes(backend, device)), hostile, inexact)
    told = _told(case, backend, step)
    try:
        runs = by_step(case, backend, device) if step else [("", by_call(case, backend, device))]
    except Exception as error:
        raise Difference(f"{type(error).__name__}: {error}\n{told}") from error
    for where, found in runs:
        for what, ours, wanted, tolerance in _compared(case, found, step):
            _compare(f"{where}{what}", ours, wanted, tolerance, told)


def _compare(what: str, ours: Any, wanted: Array, tolerance: Optional[Array], told: str) -> None:
    if ours is None or ours.shape != wanted.shape:
        shape = "None" if ours is None else f"of shape {ours.shape}"
        raise Difference(f"{what} is {shape}, should be of shape {wanted.shape}\n{told}")
    if tolerance is None:
        same = (ours == wanted) & (np.signbit(ours) == np.signbit(wanted))
    else:
        same = np.abs(ours - wanted) <= tolerance
    if not same.all():
        at = tuple(int(i) for i in np.argwhere(~same)[0])
        within = "" if tolerance is None else f" to within {np.broadcast_to(tolerance, wanted.shape)[at]:.3g}"
        raise Difference(
            f"{what}{list(at)} is {ours[at]!r}, should be {wanted[at]!r}{within}; {(~same).sum()} of {same.size} "
            f"differ\n{told}"
        )


def _dtypes(backend: str, device: str) -> Tuple[str, ...]:
    """The dtypes that a backend declares on a device."""
    capabilities = default_registry().get(backend, "the random programs").capabilities_on(torch.device(device).type)
    return tuple(n for n in ("float32", "float16", "bfloat16", "float64") if getattr(capabilities, n))


def _told(case: Case, backend: str, step: bool) -> str:
    tree = case.tree
    return (
        f"\n{source(tree)}\n"
        f"class {tree.name!r}: inputs {tree.inputs}, states {tree.states}, params {tree.params}, "
        f"detach_reset {tree.detach_reset}, reset_states {tree.reset_states}, "
        f"surrogate {tree.surrogate!r} {tree.fields}\n"
        f"{case.dtype}, {len(case.inputs[0])} steps of {case.shape}, inputs {case.layouts}, parameters {case.kinds}, "
        f"learn {case.learn}, state given {case.state is not None}, record {case.record}, short call {case.short}, "
        f"cotangents {case.cotangent_layout}\n"
        f"again: {VARIABLE}={case.seed} python -m spikecore.testing.random_programs {backend} --count 1"
        f"{' --step' if step else ''}"
    )


# -- the comparison


def _compared(case: Case, found: Dict[str, Any], step: bool) -> List[Tuple[str, Any, Array, Optional[Array]]]:
    """(what, found, wanted, tolerance), None for the very bits, of everything that was found."""
    names = _rows(case)
    rows: List[Tuple[str, Any, Array, Optional[Array]]] = []
    for name, ours in found.items():
        base, others, kind = names[name]
        wanted = base.astype(np.float64)
        spread = np.max([np.abs(other.astype(np.float64) - wanted) for other in others], axis=0)
        stored = case.dtype if kind in ("output", "input") else ("float64" if case.dtype == "float64" else "float32")
        if kind in ("output", "state") and case.exact:
            rows.append((name, ours, rounded(base, stored).astype(np.float64), None))
            continue
        eps = float(np.finfo(case.compute).eps)
        top = np.abs(wanted).max(axis=0, initial=0.0) if kind in ("output", "input") else np.abs(wanted)
        tolerance = FACTOR * spread + ULPS * eps * (top + np.abs(wanted)) + 1e-30
        if kind == "param":
            # a parameter that a state starts from has two sums, added in its own dtype
            sizes = _shaped(case, name, case.expected.sizes)
            if step:  # the gradient is the change of a float32 value, which was rounded
                tolerance = tolerance + float(np.finfo(np.float32).eps) * (
                    np.abs(case.params[name[len("gradient of ") :]]) / RATE + np.abs(wanted)
                )
            tolerance = tolerance + (SUMMED.get(case.dtype, 4e-6) + float(np.finfo(np.float32).eps)) * sizes
        relative, least = ROUNDED.get(stored, (0.0, 0.0))
        rows.append((name, ours, wanted, tolerance + relative * np.abs(wanted) + least))
    return rows


def _rows(case: Case) -> Dict[str, Tuple[Array, List[Array], str]]:
    """Name -> what the oracle gives without and with errors, and which kind of result it is."""
    runs = [case.expected, *case.others]

    def row(pick: Callable[[Run], Array], kind: str) -> Tuple[Array, List[Array], str]:
        base, *others = [pick(run) for run in runs]
        return base, others, kind

    def of(part: str, key: Any) -> Callable[[Run], Array]:
        return lambda run: np.asarray(getattr(run, part)[key])

    def of_param(name: str) -> Callable[[Run], Array]:
        return lambda run: _shaped(case, name, run.params)

    rows: Dict[str, Tuple[Array, List[Array], str]] = {}
    for k in range(len(case.tree.outputs)):
        rows[f"output {k}"] = row(of("outputs", k), "output")
    for n in case.tree.states:
        rows[f"trace of {n}"] = row(of("trace", n), "state")
        rows[f"final {n}"] = row(of("final", n), "state")
        rows[f"gradient of state {n}"] = row(of("state", n), "gradient")
    for k, n in enumerate(case.tree.inputs):
        rows[f"gradient of input {n}"] = row(of("inputs", k), "input")
    for n in case.tree.params:
        rows[f"gradient of {n}"] = row(of_param(f"gradient of {n}"), "param")
    return rows


def _shaped(case: Case, name: str, per_neuron: Dict[str, Array]) -> Array:
    """A parameter's numbers summed over the neurons that share it."""
    name = name[len("gradient of ") :]
    value, kind = per_neuron[name], case.kinds[name]
    if kind == "full":
        return value
    if kind == "channel":
        summed = value.sum(axis=tuple(d for d in range(value.ndim) if d != 1))
        return np.asarray(summed.reshape(case.params[name].shape))
    return np.asarray(value.sum())


__all__ = ["VARIABLE", "Difference", "check", "check_many", "first_seed"]
