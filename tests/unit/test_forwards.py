"""Tools that read a network, over drawn forwards: the result is that of the plain network, or is refused before
anything changed.

``FORWARDS=5000`` draws so many for each tool, counts, and lists the shortest network of each kind of failure;
``FORWARDS=5000-6000`` draws other ones::

    FORWARDS=5000 pytest -s tests/unit/test_forwards.py -k prepare
"""

from __future__ import annotations

import math
import os
import random
import re
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import shares
import spikecore as sc
from c_programs import differing, needs
from forwards import BLOCKS, NEURONS, Choose, Forward, T, Takes, compose
from spikecore.context import COMPILES

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


_RULES = ("d_rtrl", "d_rtrl", "eprop", "eprop", "pp_prop", "ottt", "sltt", "bptt", "stdp")
#: Blocks that are one layer of neurons.
_LAYERS = {
    "dense",
    "sequential",
    "norm",
    "two layers summed",
    "recurrent",
    "a functional layer",
    "a gain before a neuron",
}
pytestmark = pytest.mark.skipif(
    not COMPILES, reason="layers are packed, and weights normalised, with torch 2.6 or newer"
)

#: The seeds of the forwards that are drawn for each tool by hand.
BY_HAND = range(*map(int, os.environ.get("FORWARDS", "0").split("-")))
F32, F64 = torch.float32, torch.float64
KEEP = "soft_reset no_reset delayed_reset surrogate detach_reset gradient many_spikes initial_state".split()


def same(forward: Forward, net: nn.Module, named: Dict[str, nn.Parameter], choose: Choose) -> None:
    """A rewritten network computes what the plain one does, in both modes, and with frozen statistics."""
    plain, x = forward.net(), forward.x()
    for mode in (False, True):
        with torch.no_grad():
            near(forward, ran(net.train(mode), x), ran(plain.train(mode), x), 1e-9, 1e-9, F64)
    frozen = choose((False, False, True))
    try:
        want = trained(plain, x, dict(plain.named_parameters()), frozen)
    except RuntimeError:  # a value that backward needs is changed in place: torch trains no such network
        return
    got = trained(net, x, named, frozen)
    if got.keys() != want.keys():
        raise Wrong(f"no gradient or buffer {sorted(got.keys() ^ want.keys())}")
    largest = max(float(value.double().norm()) for value in want.values())
    for name, value in want.items():
        # the gradient of a bias in front of a normalisation is the rounding of others
        is_rounding = float((got[name] - value).double().norm()) <= 1e-9 * largest
        if distance(got[name], value) > 1e-7 and not is_rounding:
            raise Wrong(f"in training, {name} is {distance(got[name], value):.2g} off")


def trained(net: nn.Module, x: Sequence[Tensor], named: Dict[str, nn.Parameter], frozen: bool) -> Dict[str, Tensor]:
    """Outputs of a call in train mode, gradients of inputs and parameters, and statistics after it."""
    for part in net.train().modules():
        part.training = not (frozen and isinstance(part, _BatchNorm))
    x = [value.clone().requires_grad_() for value in x]
    y = ran(net, x)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    (y * weights).sum().backward()
    results = {"outputs": y, **{f"input {place}": value.grad for place, value in enumerate(x)}}
    results.update({name: p.grad for name, p in named.items()})
    results.update({name: value for name, value in net.state_dict().items() if "running" in name})
    net.eval()
    return {name: value.detach().clone() for name, value in results.items() if value is not None}


def fuse(forward: Forward, choose: Choose) -> None:
    """``sc.fuse``."""
    net = forward.net()
    named = dict(net.named_parameters())
    applied(net, lambda: sc.fuse(net), keeps=False)
    same(forward, net, named, choose)


def unfuse(forward: Forward, choose: Choose) -> None:
    """``sc.unfuse`` of what ``sc.fuse`` gave: the plain network again."""
    net = forward.net()
    named, before = dict(net.named_parameters()), [(name, type(part)) for name, part in net.named_modules()]
    applied(net, lambda: sc.fuse(net), keeps=False)
    applied(net, lambda: sc.unfuse(net), keeps=False)
    after = [(name, type(part)) for name, part in net.named_modules()]
    if before != after or any("forward" in vars(part) for part in net.modules()) != ("replaced" in forward.text):
        raise Wrong(f"modules are {after}, and were {before}")
    same(forward, net, named, choose)


def pack(forward: Forward, choose: Choose) -> None:
    """``sc.layers.pack``, alone or behind ``sc.fuse``."""
    net = forward.net()
    named = dict(net.named_parameters())
    if choose((False, True)):
        applied(net, lambda: sc.fuse(net), keeps=False)
    applied(net, lambda: sc.layers.pack(net), keeps=False)
    same(forward, net, named, choose)


def checkpoint(forward: Forward, choose: Choose) -> None:
    """``sc.checkpoint`` in groups between spikes: outputs and statistics have the bits of the plain network, and
    gradients, but for the order in which they are added up.
    """
    net, plain = forward.net(), forward.net()
    changes = [change for change in (sc.fuse, sc.layers.pack) if choose((False, True))]
    for change in changes:
        change(net)
        change(plain)
    saving = applied(net, lambda: sc.checkpoint(net, "spikes"), keeps=False)
    frozen = choose((False, False, True))
    try:
        want = trained(plain, forward.x(), dict(plain.named_parameters()), frozen)
    except RuntimeError:  # a value that backward needs is changed in place: torch trains no such network
        return
    got = trained(saving, forward.x(), dict(saving.named_parameters()), frozen)
    if got.keys() != want.keys():
        raise Wrong(f"no gradient or buffer {sorted(got.keys() ^ want.keys())}")
    largest = max(float(value.double().norm()) for value in want.values())
    for name, value in want.items():
        adds = name not in ("outputs",) and "running" not in name
        apart = float((got[name] - value).double().norm()) / (largest if adds else 1e-30)
        if apart > 1e-12 or not str(saving):
            raise Wrong(f"in training, {name} is {apart:.2g} off")


def prepared(net: nn.Module, x: Sequence[Tensor], choose: Choose, dtype: torch.dtype = F64, word: int = 24) -> Any:
    """The network in formats that hold its numbers."""
    options = {"per_channel": choose((False, True)), "ranges": choose(("data", "learnt"))}
    given: Any = x[0] if len(x) == 1 else tuple(x)
    return applied(net, lambda: sc.quant.prepare(net, given, 8, word=word, activations=8, dtype=dtype, **options))


def prepare(forward: Forward, choose: Choose) -> None:
    """``sc.quant.prepare``, and ``sc.quant.report`` of what it gives."""
    net, x = forward.net(), forward.x()
    new = prepared(net, x, choose)
    with torch.no_grad():
        want, got = ran(net, x), ran(new.eval(), x)
    near(forward, got, want, 0.05, 2**-7, F64)  # half a step of 8 bits, where the largest is just above a power of two
    report = sc.quant.report(new, x[0] if len(x) == 1 else tuple(x), beside=net)
    if not report.rows or not str(report):
        raise Wrong("the report is empty")


def export_float(forward: Forward, choose: Choose) -> None:
    """``sc.export_c`` in floats, built and run on this machine."""
    net, x = forward.net(F32), forward.x(F32)
    with tempfile.TemporaryDirectory() as folder:
        applied(net, lambda: sc.export_c(net, _only(x), folder, dtype="float32"))
        wrong, count = differing(Path(folder), "test", "FLAGS=-O0")
    if wrong:
        near(forward, torch.tensor([0.0, wrong / count]), torch.tensor([1.0, 0.0]), 0.0, 1e-5, F32)


def export_fixed(forward: Forward, choose: Choose) -> None:
    """``sc.export_c`` of a prepared network, bit for bit."""
    net, x = forward.net(F32), forward.x(F32)
    new = prepared(net, x, choose, F32, 16).eval()
    with tempfile.TemporaryDirectory() as folder:
        applied(new, lambda: sc.export_c(new, _only(x), folder))
        wrong, count = differing(Path(folder), "test", "FLAGS=-O0")
    if wrong:
        raise Wrong(f"{wrong} of {count} integers differ")


def nir(forward: Forward, choose: Choose) -> None:
    """``sc.nir.save``, and ``sc.nir.load`` of the file."""
    net, x = forward.net(F32), forward.x(F32)
    how = choose(("euler", "exp"))
    shape = choose((None, forward.shape)) if forward.shape == (4,) else forward.shape
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.nir"
        applied(net, lambda: sc.nir.save(net, file, dt=1e-4, discretization=how, input_shape=shape, keep=KEEP))
        loaded = sc.nir.load(file)
    with torch.no_grad():
        near(forward, ran(loaded.eval(), x), ran(net, x), 1e-5, 1e-6, F32)


def ann2snn(forward: Forward, choose: Choose) -> None:
    """``sc.ann2snn``: rates over many steps are activations."""
    net, x = forward.net(), forward.x()
    snn, report = applied(net, lambda: sc.ann2snn(net, _only(x), steps=1024, quantile=choose((1.0, None))))
    with torch.no_grad():
        near(forward, snn(x[0]).mean(0) * report.scale, ran(net, x), 0.1, 1e-2, F64)


def look(forward: Forward, choose: Choose) -> None:
    """``sc.explain`` and ``sc.energy``: nothing changes, and nothing is refused."""
    net, x = forward.net(), forward.x()
    given: Any = x[0] if len(x) == 1 else tuple(x)
    net.train(choose((False, True)))
    before = Picture(net)
    texts = [
        str(applied(net, lambda: sc.explain(net, given))),
        str(applied(net, lambda: sc.explain(net, given, training=False))),
        str(applied(net, lambda: sc.energy(net, given))),
    ]
    if before.changed(net) or not all(texts):
        raise Wrong(f"changed: {before.changed(net)}")
    with torch.no_grad():
        if not torch.equal(ran(net.eval(), x), ran(forward.net(), x)):
            raise Wrong("outputs changed")


def calibrate(forward: Forward, choose: Choose) -> None:
    """``sc.functional.calibrate``: its report has the rates of the network, and ``undo`` brings the plain one."""
    net, x, rate = forward.net(), forward.x(), choose((0.05, 0.2))
    net.train(choose((False, True)))
    before = Picture(net)
    report = applied(net, lambda: sc.functional.calibrate(net, _only(x) if len(x) == 1 else x, rate), keeps=False)
    buffers = [*net.buffers()]
    kept = [buffer.clone() for buffer in buffers]
    with sc.monitor(net) as seen:
        net(*x)
    with torch.no_grad():
        for buffer, value in zip(buffers, kept):
            buffer.copy_(value)
    rates = {name: value for name, value in seen.rates.items() if value is not None}
    for name, value in report.rates.items():
        if abs(rates[name] - value) > 1e-6:
            raise Wrong(f"the rate of {name} is {rates[name]}, and the report says {value}")
    for row in report.rows:
        if not (row.remark or rate / 2 <= row.after <= rate * 2):
            raise Wrong(f"the rate of {row.name} is {row.after} without a remark")
    report.undo()
    if before.changed(net):
        raise Wrong(f"changed: {before.changed(net)}")


def online(forward: Forward, choose: Choose) -> None:
    """Online rules: gradients of backpropagation through time where a rule is exact, and of each weight."""
    rule, chunk = choose(_RULES), choose((1, 2, T))
    feedback = "exact" if rule in ("bptt", "stdp") else choose(("exact", "exact", "random"))
    net, plain, x = forward.net(), forward.net(), _only(forward.x())
    for part in (*net.modules(), *plain.modules()):
        part.train(not isinstance(part, _BatchNorm))
    y = ran(plain, [x])
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    try:
        (y * weights).sum().backward()
    except RuntimeError:  # a value that backward needs is changed in place: torch trains no such network
        return
    options = sc.OnlineOptions(rule=rule, chunk=chunk, feedback=feedback, time_targets=True)

    def trains() -> None:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        step = sc.training_model(net, lambda y, targets: (y * targets).sum(), optimizer, options=options)
        step(x, weights)

    applied(net, trains, keeps=False)
    if rule == "stdp":  # its own gradients
        return
    exact = feedback == "exact" and _is_exact(forward, plain, rule, chunk)
    for (name, p), wanted in zip(net.named_parameters(), plain.parameters()):
        if wanted.grad is None or not wanted.grad.abs().sum():
            continue
        if p.grad is None or not p.grad.isfinite().all():
            raise Wrong(f"{rule}, chunk {chunk}: the gradient of {name} is {p.grad}")
        if exact and distance(p.grad, wanted.grad) > 1e-6:
            raise Wrong(f"{rule}, chunk {chunk}: the gradient of {name} is {distance(p.grad, wanted.grad):.2g} off")


def _is_exact(forward: Forward, net: nn.Module, rule: str, chunk: int) -> bool:
    """True if a rule says that its gradient is that of backpropagation through time."""
    neurons = [part for part in net.modules() if isinstance(part, sc.Neuron)]
    detached = all(part.detach_reset or isinstance(part, sc.LI) for part in neurons)
    if rule not in ("bptt", "d_rtrl", "eprop") or (rule == "eprop" and not detached):
        return False
    *blocks, end = forward.blocks
    is_layer = forward.shape == (4,) and len(blocks) == 1 and {*blocks} <= _LAYERS
    return chunk == T or (rule != "bptt" and is_layer and (not end or (rule == "eprop" and end.startswith("h = G1"))))


def _only(x: Tuple[Tensor, ...]) -> Tensor:
    (value,) = x
    return value


class Tool(NamedTuple):
    """A tool's check, what it takes, and how many forwards the ordinary run draws for it."""

    check: Callable[[Forward, Any], None]
    takes: Takes
    examples: int = 40


_PLAIN = ("dense", "residual", "loop", "sequential", "own module", "two layers summed")
_NORMED = (*_PLAIN, "norm", "norm and residual")
_IMAGES = ("features", "features", "an image")
_NORMED_IMAGES = (*_IMAGES, "a convolution with a norm")
_FUSED = Takes(
    (*_NORMED, "norm by flatten", "norm by unflatten", "shortcut with a layer", "concatenation", "delay", "recurrent"),
    (*_NORMED_IMAGES, "a norm of tokens"),
    inputs=2,
)
#: Without time there are no such calls.
_TIMED = {
    name for name, lines in BLOCKS.items() if any(word in " ".join(lines) for word in ("T, B", "flatten(0", "J1", "E1"))
}
_TIMED |= {"a norm of tokens", "several outputs", "one of several outputs", "a norm over the batch", "a stride"}
_OF_NEURONS = {*NEURONS, "graded", "a permutation", "a norm over steps", "a name with a slash"}
TOOLS = {
    "fuse": Tool(fuse, _FUSED),
    "unfuse": Tool(unfuse, _FUSED),
    "pack": Tool(pack, _FUSED),
    "checkpoint": Tool(checkpoint, _FUSED),
    "prepare": Tool(
        prepare, Takes((*_NORMED, "delay", "recurrent", "delay and norm"), _NORMED_IMAGES, inputs=2, odd=(0, 1))
    ),
    "export_float": Tool(export_float, Takes((*_NORMED, "delay", "recurrent"), _NORMED_IMAGES, odd=(0, 1)), 12),
    "export_fixed": Tool(export_fixed, Takes((*_NORMED, "delay", "recurrent"), _NORMED_IMAGES, odd=(0, 1)), 12),
    "nir": Tool(nir, Takes((*_PLAIN, "delay"), _IMAGES, odd=(0, 0, 1), pools=("nn.AvgPool2d(2)",), delays=("input",))),
    "ann2snn": Tool(
        ann2snn,
        Takes(
            (*_NORMED, "shortcut with a layer"),
            ("features", "features", "a convolution with a norm"),
            never=frozenset(_TIMED | _OF_NEURONS),
            relu=True,
            odd=(0, 0, 1),
            ends=("h = A1(h)",),
        ),
    ),
    "online": Tool(
        online,
        Takes(
            (*_PLAIN, "recurrent"),
            never=frozenset(
                {"drop-path", "spectral_norm", "a norm over steps", *_TIMED}
                - {"recurrent", "several outputs", "one of several outputs", "a stride"}
            ),
            more=", detach_reset=True",
            counts=(1, 1, 1, 2),
            ends=("", "", "h = G1(A1(h))", "h = A1(h)"),
        ),
    ),
    "look": Tool(look, _FUSED, 20),
    # a hook may change spikes behind the neuron, where calibrate counts them and monitor does not
    "calibrate": Tool(calibrate, _FUSED._replace(never=frozenset({"a hooked neuron"})), 20),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TOOLS)
def test_each_forward_is_computed_or_declined(name: str) -> None:
    tool, counts = TOOLS[name], Counts()
    if name == "nir":
        pytest.importorskip("nir", reason="the package nir, which needs Python 3.10, is not installed")
    if tool.check in (export_float, export_fixed):
        needs("test")

    def check(forward: Forward) -> Verdict:
        verdict = judge(lambda: tool.check(forward, random.Random(forward.seed).choice))
        counts.add(forward, verdict)
        return verdict

    examples = tool.examples if shares.chosen()[1] == 1 else tool.examples // 3  # a part of the run, a part of these

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=[*HealthCheck]
    )
    @given(st.composite(lambda draw: compose(lambda values: draw(st.sampled_from(values)), tool.takes))())
    def hypothesis(forward: Forward) -> None:
        verdict = check(forward)
        event(verdict.kind)
        assert verdict.kind not in (WRONG, CRASH), f"{verdict.kind}: {verdict.why}"

    if BY_HAND:
        for seed in BY_HAND:
            check(compose(random.Random(seed).choice, tool.takes))
        print(f"\n{name}: {counts}", *(f"{n} {why}" for why, n in counts.refusals.most_common(20)), sep="\n")
        print("", *counts.minimal(), sep="\n\n")
    else:
        hypothesis()
    assert not counts.failures, f"{name}: {counts}"
    if BY_HAND:  # some hundred draws are enough for shares
        assert counts.kinds[REFUSED] * 3 <= sum(counts.kinds.values()), f"{name}: {counts}"
        assert counts.kinds[UNSURE] * 20 <= sum(counts.kinds.values()), f"{name}: {counts}"
    assert counts.kinds[RIGHT]
