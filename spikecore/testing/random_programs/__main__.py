"""``python -m spikecore.testing.random_programs BACKEND``: random programs against the oracle, or one seed again."""

from __future__ import annotations

import argparse
import importlib
import sys

from spikecore.testing._loopback import installed
from spikecore.testing.random_programs._check import VARIABLE, Difference, check, first_seed


def main() -> int:
    """Run them all, and say which differ."""
    parser = argparse.ArgumentParser(prog="python -m spikecore.testing.random_programs", description=__doc__)
    parser.add_argument("backend")
    parser.add_argument("--count", type=int, default=100, help="how many programs")
    parser.add_argument("--seed", type=int, help=f"the first one's seed; else ${VARIABLE}, else a random one")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--plain-names", action="store_true", help="names that no kernel uses")
    parser.add_argument("--install", metavar="MODULE:CLASS", help="a backend that no distribution declares")
    parser.add_argument("--step", action="store_true", help="in a network, through inference_model and training_model")
    parser.add_argument("--stop", action="store_true", help="stop at the first difference")
    asked = parser.parse_args()
    if asked.install:
        module, _, name = asked.install.partition(":")
        with installed(getattr(importlib.import_module(module), name), devices=(asked.device,)):
            return _run(asked)
    return _run(asked)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _run(asked: argparse.Namespace) -> int:
    seed = first_seed() if asked.seed is None else asked.seed
    _say(f"random programs on {asked.backend}: {VARIABLE}={seed}, {asked.count} of them")
    failed = 0
    for k in range(asked.count):
        try:
            check(seed + k, asked.backend, device=asked.device, hostile=not asked.plain_names, step=asked.step)
        except Difference as difference:
            failed += 1
            _say(f"seed {seed + k}: {difference}\n")
            if asked.stop:
                break
    _say(f"{failed} of {asked.count} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
