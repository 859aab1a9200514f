"""Result of a tool on a network, beside the plain network: right, refused, or a failure."""

from __future__ import annotations

import math
import random
import re
import traceback
from collections import Counter
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import spikecore as sc
from forwards import Forward

RIGHT, REFUSED, WRONG, CRASH, UNSURE = "right", "refused", "wrong", "crash", "unsure"
REFUSALS = (ValueError, TypeError, sc.Unsupported)


class Wrong(AssertionError):
    """A result that is not that of the plain network."""


class Refusal(Exception):
    """A tool refused a network, which is as it was."""


class Unsure(Exception):
    """The plain network's own outputs move as far where its numbers move in the last place that a tool keeps."""


class Verdict(NamedTuple):
    """The outcome, and its reason."""

    kind: str
    why: str


def judge(check: Callable[[], None]) -> Verdict:
    """The verdict of a tool's check on a network."""
    try:
        check()
    except Refusal as error:
        return Verdict(REFUSED, str(error))
    except Unsure as error:
        return Verdict(UNSURE, str(error))
    except Wrong as error:
        return Verdict(WRONG, str(error))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return Verdict(CRASH, f"{type(error).__name__} at {place.filename.rpartition('/')[2]}:{place.name}: {error}")
    return Verdict(RIGHT, "")


def applied(net: nn.Module, call: Callable[[], Any], keeps: bool = True) -> Any:
    """The result of a tool; where it refuses, and where it ``keeps`` its network, that must be as it was."""
    before = Picture(net)
    try:
        result = call()
    except REFUSALS as error:
        if not re.search(r"/spikecore(_\w+)?/", traceback.extract_tb(error.__traceback__)[-1].filename):
            raise RuntimeError(f"an error of torch: {error}") from error
        changed = before.changed(net)
        if changed:
            raise Wrong(f"refused, and changed: {changed}; {error}") from error
        raise Refusal(str(error)) from error
    changed = before.changed(net) if keeps else None
    if changed:
        raise Wrong(f"changed: {changed}")
    return result


def near(forward: Forward, got: Tensor, want: Tensor, most: float, moved: float, dtype: torch.dtype) -> None:
    """Outputs are those of the plain network up to ``most``; its numbers may be off by the part ``moved``."""
    apart = distance(got, want)
    if apart > most:
        least = unrest(forward, moved, dtype)
        if apart <= most + 3 * least:
            raise Unsure(f"outputs are {apart:.2g} off, and {least:.2g} where numbers move by {moved:.1g}")
        raise Wrong(f"outputs are {apart:.2g} off")


class Counts:
    """Verdicts of one tool, and the shortest network of each kind of failure."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.failures: Dict[Tuple[str, str, Tuple[str, ...]], Tuple[int, str]] = {}

    def add(self, forward: Forward, verdict: Verdict) -> None:
        """One more."""
        self.kinds[verdict.kind] += 1
        if verdict.kind == REFUSED:
            self.refusals[re.sub(r"'[^']*'|\b\w*\d\b|\d+", "_", verdict.why)[:100]] += 1
        if verdict.kind in (WRONG, CRASH):
            why = re.sub(r"\w*\d[\w.]*", "_", verdict.why.partition("\n")[0])[:80]
            kind = (verdict.kind, why, tuple(sorted(forward.odd)))
            count, shown = self.failures.get(kind, (0, ""))
            text = f"{verdict.kind}: {verdict.why}{forward!r}"
            self.failures[kind] = count + 1, text if not shown or len(text) < len(shown) else shown

    def __str__(self) -> str:
        share = self.kinds[REFUSED] / max(1, sum(self.kinds.values()))
        return f"{', '.join(f'{count} {kind}' for kind, count in self.kinds.most_common())}; refused {share:.0%}"

    def minimal(self) -> List[str]:
        """A network of each kind of failure, but for those whose reason is in a smaller one."""
        return [
            f"{count} times {shown}"
            for (kind, why, odd), (count, shown) in sorted(self.failures.items(), key=lambda item: len(item[0][2]))
            if not any((kind, why) == other[:2] and {*other[2]} < {*odd} for other in self.failures)
        ]


class Picture:
    """The parts that a tool must not change: modules, numbers, hooks and attributes."""

    def __init__(self, net: nn.Module) -> None:
        self._modules = {name: (module, type(module)) for name, module in net.named_modules(remove_duplicate=False)}
        self._numbers = {
            name: (value, value.detach().clone()) for name, value in net.state_dict(keep_vars=True).items()
        }
        self._attributes = {name: _attributes(module) for name, (module, _) in self._modules.items()}

    def changed(self, net: nn.Module) -> Optional[str]:
        """The first thing that is not as it was."""
        now = Picture(net)
        for what in ("_modules", "_attributes"):
            before, after = getattr(self, what), getattr(now, what)
            for name in sorted({*before, *after}):
                if before.get(name) != after.get(name):
                    return f"{what[1:]} of {name!r} are {after.get(name)}, and were {before.get(name)}"
        for name, (value, copied) in self._numbers.items():
            there = now._numbers.get(name)
            # what is not a tensor is written into one each time
            moved = there is not None and there[0] is not value and there[0].data_ptr() != value.data_ptr()
            if there is None or (moved and not name.endswith("_extra_state")):
                return f"{name} is another tensor"
            if not torch.equal(there[1], copied):
                return f"{name} has other numbers"
        return None if self._numbers.keys() == now._numbers.keys() else "state_dict has other names"


def _attributes(module: nn.Module) -> Dict[str, Any]:
    """Hooks, mode, and plain attributes by what they are; tensors that a forward sets are its own."""
    kept: Dict[str, Any] = {}
    for name, value in vars(module).items():
        if name.endswith("hooks") and value:
            kept[name] = [*value.items()]
        elif name == "training" or callable(value):
            kept[name] = value
        elif isinstance(value, list) and any(not isinstance(item, Tensor) for item in value):
            kept[name] = [type(item).__name__ for item in value]
    return kept


def distance(got: Tensor, want: Tensor) -> float:
    """The norm of the difference, relative to that of what is right; infinite for other shapes and NaN."""
    if got.shape != want.shape:
        return math.inf
    apart = (got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-3)
    return float(apart) if apart.isfinite() else math.inf


def ran(net: nn.Module, x: Sequence[Tensor]) -> Tensor:
    """Outputs, by the same random numbers each time."""
    random.seed(0)
    torch.manual_seed(0)
    return net(*x)  # type: ignore[no-any-return]  # a tensor


def unrest(forward: Forward, moved: float, dtype: torch.dtype = torch.float64) -> float:
    """Change of the plain network's outputs where its numbers, and what layers write, move by such a part of the
    largest: spikes at a threshold may turn.
    """
    worst = 0.0
    with torch.no_grad():
        want = ran(forward.net(dtype), forward.x(dtype))
        for seed in range(24):
            net, generator = forward.net(dtype), torch.Generator().manual_seed(seed)

            def near_by(value: Tensor, generator: torch.Generator = generator) -> Tensor:
                apart = moved * (2 * torch.rand(value.shape, generator=generator) - 1).to(dtype)
                return value + apart * value.abs().max()

            for part in net.modules():
                if isinstance(part, (nn.Linear, nn.Conv2d, _BatchNorm)):
                    part.register_forward_hook(lambda module, args, output: near_by(output))
            for p in net.parameters():
                p.copy_(near_by(p))
            worst = max(worst, distance(ran(net, [near_by(value) for value in forward.x(dtype)]), want))
    return worst
