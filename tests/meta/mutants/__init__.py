"""Mutants: deliberately wrong backends, one file for each class of faults. The suite must find every one of them."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from mutants.registry import MUTANTS as MUTANTS
from mutants.registry import Mutant as Mutant

#: Files that hold no mutants.
HELPERS = ("registry", "tape", "use")
#: The classes of faults.
KINDS = tuple(sorted(found.name for found in pkgutil.iter_modules(__path__) if found.name not in HELPERS))

for kind in KINDS:
    import_module(f"{__name__}.{kind}")
