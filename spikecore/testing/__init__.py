"""The conformance suite: whether a backend computes what the equations say; and the check of one neuron.

A backend's whole test file::

    from spikecore.testing import BackendConformance, ExpectedFailure


    class TestMine(BackendConformance):
        backend = "mine"
        expected_failures = {"language/exp": ExpectedFailure("exp has 10 bits, mine#12", match="size of rounding")}

The same from Python is :func:`check_backend`, with the verdict :func:`examine`, and from the shell
``spikecore conformance mine``.

Rules of this package:

- What is right is in :mod:`spikecore.testing._oracle`: operations and the library's neurons, written by hand, apart
  from the language and from every backend. A neuron that the suite itself wrote runs its equations on that.
- A case is data with an id that does not change (:mod:`spikecore.testing._case`).
- Only :mod:`spikecore.testing._conformance` imports pytest, and importing this package does not.
- Names are imported when they are used: a backend's module takes :class:`ExpectedFailure` from here, and must not load
  the suite for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spikecore.testing._case import TIERS, Case, Collection
    from spikecore.testing._cases import CASES
    from spikecore.testing._check import NeuronCheck, Row, check
    from spikecore.testing._conformance import BackendConformance
    from spikecore.testing._expected import Excuse, ExpectedFailure
    from spikecore.testing._install import installed
    from spikecore.testing._report import Report, check_backend, examine
    from spikecore.testing._verdict import Result, Verdict, conforms, judge
    from spikecore.testing.tolerances import TOLERANCES, Tolerance

__all__ = [
    "CASES",
    "TIERS",
    "TOLERANCES",
    "BackendConformance",
    "Case",
    "Collection",
    "Excuse",
    "ExpectedFailure",
    "NeuronCheck",
    "Report",
    "Result",
    "Row",
    "Tolerance",
    "Verdict",
    "check",
    "check_backend",
    "conforms",
    "examine",
    "installed",
    "judge",
]
__dir__ = __all__.copy

_MODULES = {
    "_case": ("TIERS", "Case", "Collection"),
    "_cases": ("CASES",),
    "_check": ("NeuronCheck", "Row", "check"),
    "_conformance": ("BackendConformance",),
    "_expected": ("Excuse", "ExpectedFailure"),
    "_install": ("installed",),
    "_report": ("Report", "check_backend", "examine"),
    "tolerances": ("TOLERANCES", "Tolerance"),
    "_verdict": ("Result", "Verdict", "conforms", "judge"),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
