"""How one case ended."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Mapping, Tuple

#: How a case can end. Only the last three are wrong.
OUTCOMES = ("passed", "xfailed", "unsupported", "unavailable", "failed", "error", "stale")
BAD = ("failed", "error", "stale")


@dataclass(frozen=True)
class Result:
    """How one case ended.

    ``passed``: it holds. ``unsupported``: a capability it needs is not declared, and asking for it was refused.
    ``xfailed``: it failed as expected. ``unavailable``: the backend is not usable here. ``failed``: it does not hold,
    or it failed in another way than expected. ``error``: it raised something unforeseen. ``stale``: it was expected to
    fail and did not, or the expected failure names no case.
    """

    id: str
    tier: str
    outcome: str
    seconds: float
    #: Why: the difference, the reason of an expected failure, what was refused.
    message: str = ""
    #: Capabilities that the case needs and the backend does not declare.
    lacking: Tuple[str, ...] = ()
    #: What the case drew its inputs from, by name, if it said so (:meth:`spikecore.testing._context.Context.seed`).
    seeds: Mapping[str, int] = field(default_factory=dict)
    #: Whether it ``xfailed`` by wrong numbers under an excuse that would cover any wrong number: one without a pattern.
    blanket: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.outcome not in BAD

    def as_dict(self) -> Dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)
