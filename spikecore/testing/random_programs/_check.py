"""Cases on a backend, compared with the oracle."""

from __future__ import annotations

import os
import secrets
from typing import Callable, Optional, Sequence, Tuple

import torch

from spikecore._plugins.registry import default_registry
from spikecore.dtypes import DTYPES
from spikecore.testing.random_programs._call import Difference, by_call
from spikecore.testing.random_programs._case import Case, draw
from spikecore.testing.random_programs._comparison import compare, compared
from spikecore.testing.random_programs._step import by_step
from spikecore.testing.random_programs._tree import source

#: Where the first seed of a run comes from, if it is set; else it is random.
VARIABLE = "SPIKECORE_SEED"


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
    text = told(case, backend, step)
    try:
        runs = by_step(case, backend, device) if step else [("", by_call(case, backend, device))]
    except Exception as error:
        raise Difference(f"{type(error).__name__}: {error}\n{text}") from error
    for where, found in runs:
        for what, ours, wanted, tolerance in compared(case, found, step):
            compare(f"{where}{what}", ours, wanted, tolerance, text)


def _dtypes(backend: str, device: str) -> Tuple[str, ...]:
    """The dtypes that a backend declares on a device."""
    capabilities = default_registry().get(backend, "the random programs").capabilities_on(torch.device(device).type)
    return tuple(name for name in DTYPES if getattr(capabilities, name))


def told(case: Case, backend: str, step: bool) -> str:
    """A case in words: its source, what is around it, and the command that repeats it."""
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


__all__ = ["VARIABLE", "Difference", "check", "check_many", "first_seed", "told"]
