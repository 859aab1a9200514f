"""Random neurons against an oracle that uses nothing of the language.

:mod:`spikecore.testing.drawing` draws the text of a step and a call of it with Hypothesis. A backend runs the text as a
neuron class; the oracle runs it on NumPy's numbers. The two are compared as any configuration.

``python -m spikecore.testing.random_programs torch --seed 7 --count 100`` runs a hundred programs; one that differs is
made simpler, and printed whole, with the command that draws it again. A process with the same modules draws the same
programs from a seed. With others it may not: Hypothesis also draws numbers that stand in the modules that are loaded.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import secrets
import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Callable, Optional, Tuple

from spikecore.dtypes import DTYPES
from spikecore.plugins.registry import default_registry
from spikecore.testing._config import Config
from spikecore.testing._config_check import check as check_config
from spikecore.testing._context import Context
from spikecore.testing._fixed import NoFixedPoint
from spikecore.testing._inputs import NoInputsError
from spikecore.testing._install import installed
from spikecore.testing.compare import Mismatch

__all__ = ["Difference", "check", "check_many", "first_seed"]

#: Environment variable with the first seed of a run; random if it is not set.
VARIABLE = "SPIKECORE_SEED"
#: Examples of one seed: the first ones are the simplest.
EXAMPLES = 12


class Difference(Mismatch):
    """A backend and the oracle differ."""


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
    step: bool = False,
    fixed: bool = False,
    progress: Callable[[str], None] = print,
) -> int:
    """Check so many programs of a seed; raises :class:`Difference` for one that differs. Gives the seed.

    step: the neuron is in a network that the backend's ``inference_model`` and
    ``training_model`` run, instead of being called. fixed: it computes in fixed point.
    """
    seed = first_seed() if seed is None else seed
    progress(f"random programs{' in fixed point' if fixed else ''} on {backend}: {VARIABLE}={seed}, {count} of them")
    context = Context(default_registry().get(backend, "the random programs"), device)
    again = (
        f"again: {VARIABLE}={seed} python -m spikecore.testing.random_programs {backend} --count {count}"
        f"{' --step' if step else ''}{' --fixed' if fixed else ''}"
    )
    check_programs(context, count, seed, again, "model" if step else "", fixed)
    return seed


def check(seed: int, backend: str, **options: Any) -> None:
    """Raise :class:`Difference` where a program of a seed gives something else on a backend than in the oracle; takes
    what :func:`check_many` takes.
    """
    check_many(backend, EXAMPLES, seed, progress=lambda line: None, **options)


def check_programs(
    context: Context, count: int, seed: Optional[int], again: str, call: str = "", fixed: bool = False
) -> None:
    """Raise :class:`Difference` for a program that differs, made as simple as it still does. again: the command that
    repeats this.
    """
    from spikecore.testing.drawing import calls, examples  # needs Hypothesis

    def body(example: Tuple[Any, Config]) -> None:
        program, config = example
        try:
            check_config(context, replace(config, model=program.model()))
        except NoInputsError:
            raise
        except NoFixedPoint:
            return  # sc.quant.fixed refuses the program with every word that is tried
        except Exception as error:
            first = str(error) if isinstance(error, Mismatch) else f"{type(error).__name__}: {error}"
            raise Difference(f"{first}\n\n{program}\n{program.declared}\na call of it: {config}\n{again}") from error

    declared = tuple(name for name in DTYPES if context.declares(name))
    examples(calls(context.declares, declared, call, fixed), body, count, seed)


def kind_of(error: Exception) -> str:
    """Failures of one kind are taken for one fault."""
    if isinstance(error, Mismatch):
        return "gradient" if re.match(r"(gradient|input|state|parameter) gradient", str(error)) else "value"
    return type(error).__name__


# -- the command


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run them all, and say the simplest one that differs."""
    parser = argparse.ArgumentParser(
        prog="python -m spikecore.testing.random_programs", description="Random programs against the oracle"
    )
    parser.add_argument("backend")
    parser.add_argument("--count", type=int, default=100, help="how many programs")
    parser.add_argument("--seed", type=int, help=f"what they are drawn from; else ${VARIABLE}, else a random number")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--install", metavar="MODULE:CLASS", help="a backend that no distribution declares")
    parser.add_argument("--step", action="store_true", help="in a network, through inference_model and training_model")
    parser.add_argument("--fixed", action="store_true", help="in fixed point, to the bit")
    asked = parser.parse_args()
    with ExitStack() as stack:
        if asked.install:
            module, _, name = asked.install.partition(":")
            stack.enter_context(installed(getattr(importlib.import_module(module), name), devices=(asked.device,)))
        try:
            check_many(
                asked.backend,
                asked.count,
                asked.seed,
                device=asked.device,
                step=asked.step,
                fixed=asked.fixed,
                progress=_say,
            )
        except Difference as difference:
            _say(str(difference))
            return 1
    _say("none differs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
