"""A row: one level of each factor and a seed, as text that reads back: ``T=17,size=3x5,dtype=float16,seed=4``.

What has its simplest level is not written: ``seed=0`` alone is the simplest row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Tuple

from spikecore.testing._generated.factors import FACTORS, agree, dimensions
from spikecore.testing._generated.programs import PROGRAMS

#: Needed by every program with this many inputs, or outputs, at least.
_SEVERAL = 2


@dataclass(frozen=True)
class Row:
    """Levels in the order of :data:`FACTORS`; ``seed`` is that of the values."""

    levels: Tuple[str, ...]
    seed: int = 0

    def __getitem__(self, factor: str) -> str:
        return self.levels[_PLACE[factor]]

    def __str__(self) -> str:
        said = [f"{name}={level}" for name, level in zip(FACTORS, self.levels) if level != FACTORS[name][0]]
        return ",".join([*said, f"seed={self.seed}"])

    def having(self, factor: str, level: str) -> Row:
        """The row with another level of one factor."""
        at = _PLACE[factor]
        return Row((*self.levels[:at], level, *self.levels[at + 1 :]), self.seed)

    def conflict(self) -> Optional[str]:
        """Two levels that exclude one another, in words; None where there are none."""
        named = list(zip(FACTORS, self.levels))
        for k, (one, level) in enumerate(named):
            for other, other_level in named[:k]:
                if not agree(one, level, other, other_level):
                    return f"{other}={other_level} excludes {one}={level}"
        return None

    @property
    def shape(self) -> Tuple[int, ...]:
        """Of one time step."""
        return dimensions(self["size"])

    @property
    def kinds(self) -> Dict[str, str]:
        """Parameter -> its kind."""
        names = PROGRAMS[self["program"]].ranges
        if self["kind"] == "mixed":
            return {name: ("full", "number", "scalar")[k % 3] for k, name in enumerate(names)}
        return dict.fromkeys(names, self["kind"])

    @property
    def learn(self) -> Tuple[str, ...]:
        """Names of learnt parameters: of those that are tensors."""
        tensors = [name for name, kind in self.kinds.items() if kind != "number"]
        return tuple(tensors[: {"none": 0, "first": 1}.get(self["learn"])])

    @property
    def needs(self) -> Tuple[str, ...]:
        """The capabilities that the case takes."""
        pooled, kinds = PROGRAMS[self["program"]], self.kinds.values()
        inputs = self["wanted"] in ("inputs", "both", "last-input")
        handed = self["call"] == "run" and (inputs or bool(self.learn))
        wants = {
            "gradients": inputs,
            "parameter_gradients": bool(self.learn),
            "state_gradients": self["wanted"] in ("state", "both") or handed,
            "channel_parameters": "channel" in kinds,
            "full_parameters": "full" in kinds or "spread" in kinds,
            "record": self["record"] != "none",
            "several_inputs": len(pooled.inputs) >= _SEVERAL,
            "several_outputs": pooled.outputs >= _SEVERAL,
        }
        return tuple(name for name, wanted in wants.items() if wanted)


_PLACE = {name: at for at, name in enumerate(FACTORS)}
SIMPLEST = Row(tuple(levels[0] for levels in FACTORS.values()))


def parse(text: str) -> Row:
    """The row that prints as ``text``. Raises ``ValueError`` for one that there is not."""
    row, seed = SIMPLEST, 0
    for part in filter(None, text.split(",")):
        name, _, level = part.partition("=")
        if name == "seed" and level.isdecimal():
            seed = int(level)
        elif name not in FACTORS:
            raise ValueError(f"{part!r} of the row {text!r}: a factor is one of {', '.join(FACTORS)}, or seed=NUMBER")
        elif level not in FACTORS[name]:
            raise ValueError(f"{part!r} of the row {text!r}: {name} must be one of {', '.join(FACTORS[name])}")
        else:
            row = row.having(name, level)
    found = Row(row.levels, seed)
    if found.conflict():
        raise ValueError(f"the row {text!r} cannot be: {found.conflict()}")
    return found
