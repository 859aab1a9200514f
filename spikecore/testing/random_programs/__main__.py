"""``python -m spikecore.testing.random_programs BACKEND``: random programs against the oracle."""

from __future__ import annotations

import argparse
import importlib
import sys
from contextlib import ExitStack

from spikecore.testing._install import installed
from spikecore.testing.random_programs._check import VARIABLE, Difference, check_many


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run them all, and say the simplest one that differs."""
    parser = argparse.ArgumentParser(prog="python -m spikecore.testing.random_programs", description=__doc__)
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
