"""Kernels with feedback: on the CPU, with all threads of a cluster, and compiled by NVRTC for a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

import pytest
import torch
from torch import nn

import spikecore as sc
from cuda_texts import QUICK, built
from kernel_names import identifiers
from spikecore.backend import Feedback, Spec
from spikecore.core.checks import COMMON
from spikecore.dtypes import DTYPES, compute_dtype
from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.testing import CASES, Case, check_backend, installed
from spikecore.testing.naming import usable
from spikecore_cupy import launcher
from spikecore_cupy.device import headers
from spikecore_cupy.feedback_shape import MEMORY, Narrow, Shape, kept_of, length_of, parts_of, shapes, shapes_of, takes
from spikecore_cupy.host import HostClustersBackend, reason
from spikecore_cupy.launcher import print_feedback, shapes_for

pytestmark = [pytest.mark.kernels, pytest.mark.skipif(reason() is not None, reason=str(reason()))]

#: What is computed in float32.
SHORT = [dtype for dtype in DTYPES.values() if compute_dtype(dtype) is torch.float32]


@pytest.fixture(scope="module")
def host() -> Any:
    """The backend whose clusters are threads of the CPU."""
    with installed(HostClustersBackend, devices=("cpu",)) as name:
        yield name


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal numbers, the same in each run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def layer(neuron: Any, width: int) -> Any:
    """A recurrent layer whose weights are multiples of 1/8, with which sums of spikes are exact."""
    linear = nn.Linear(width, width)
    with torch.no_grad():
        for k, value in enumerate(linear.parameters()):
            value.copy_((drawn(*value.shape, seed=width + k) * 3).round() / 8)
    return sc.Recurrent(neuron, linear, fused=True)


def results(
    net: Any, x: torch.Tensor, record: Sequence[str], first: Optional[torch.Tensor] = None
) -> Tuple[List[torch.Tensor], Dict[str, Any]]:
    """All that a call gives, and all gradients for a cotangent of each."""
    net.zero_grad()
    x, start = x.clone().requires_grad_(), None
    if first is not None:
        start = {name: torch.zeros_like(first).requires_grad_() for name in net.neuron.states}
        start["feedback"] = first.clone().requires_grad_()
    out, state, trace = net.run(x, state=start, record=record)
    given = [out, *state.values(), *trace.values()]
    torch.autograd.backward(given, [drawn(*value.shape, dtype=value.dtype, seed=k) for k, value in enumerate(given)])
    gradients = {"x": x.grad, **{n: p.grad for n, p in net.named_parameters()}}
    gradients.update({f"first {name}": value.grad for name, value in (start or {}).items()})
    return [value.detach() for value in given], gradients


def compare(host: str, net: Any, x: torch.Tensor, record: Sequence[str], **more: Any) -> None:
    """The kernel's bits are those of the reference's loop, gradients are to rounding."""
    sc.set_backend(net, "torch")
    expected, its = results(net, x, record, **more)
    sc.set_backend(net, host)
    found, mine = results(net, x, record, **more)
    assert net.looped == ""
    assert expected[0].count_nonzero()
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    for name, value in its.items():
        if value is None or not value.any():
            assert mine[name] is None or not mine[name].any(), name
            continue
        assert (mine[name] - value).double().norm() <= 1e-6 * value.double().norm(), name


PARTS = parts_of(torch.float32)
#: Width, cluster, warps that share a sum, tiles of 8 rows; or width, lanes, sums that they share. Then steps and
#: rows of the batch: sizes that fill no tile, and several clusters.
LAYOUTS = [
    (Shape(5, 1, 1, 1, PARTS), 19, 2),
    (Shape(40, 1, 2, 1, PARTS), 5, 3),
    (Shape(20, 2, 2, 2, PARTS), 4, 17),
    (Shape(20, 1, 4, 2, PARTS), 4, 17),
    (Shape(33, 8, 1, 1, PARTS), 3, 1),
    (Shape(140, 10, 1, 2, PARTS), 3, 17),
    (Shape(37, 10, 2, 1, PARTS), 4, 20),
    (Shape(17, 10, 2, 1, PARTS), 21, 2),
    (Narrow(5, 8, 4), 19, 3),
    (Narrow(40, 4, 2), 13, 3),
    (Narrow(32, 1, 1), 5, 2),
    (Narrow(100, 4, 4), 3, 2),
]

GATED = [
    ("SpikingLSTM", Shape(5, 1, 1, 1, PARTS), 19, 2),
    ("SpikingGRU", Shape(20, 2, 1, 2, PARTS), 4, 17),
    ("SpikingLSTM", Shape(33, 2, 2, 2, PARTS), 3, 9),
    ("SpikingLSTM", Shape(130, 8, 1, 1, PARTS), 3, 1),
    ("SpikingLSTM", Narrow(33, 8, 4), 5, 3),
    ("SpikingGRU", Narrow(20, 8, 4), 19, 3),
]


def short(value: Any) -> str:
    """A layout by what a test chooses of it."""
    return f"{type(value).__name__}{value[:4]}" if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize(("shape", "steps", "batch"), LAYOUTS, ids=short)
def test_every_layout_gives_the_loop(
    host: str, monkeypatch: pytest.MonkeyPatch, shape: Any, steps: int, batch: int
) -> None:
    """Outputs, states and records to the bit."""
    monkeypatch.setattr(launcher, "shapes_of", lambda *_: (shape,))
    net = layer(sc.ALIF(learn=("threshold",), backend="torch"), shape.width)
    compare(host, net, drawn(steps, batch, shape.width) * 2, ("v", "a"))


@pytest.mark.parametrize(("kind", "shape", "steps", "batch"), GATED, ids=short)
def test_gates_take_one_launch(
    host: str, monkeypatch: pytest.MonkeyPatch, kind: str, shape: Any, steps: int, batch: int
) -> None:
    """Outputs that come back to three or four inputs, as spikes and as numbers: the bits of the reference's loop."""
    width = shape.width
    net = getattr(sc.layers, kind)(width, width)
    gates = net.recurrent.linear.out_features // width
    monkeypatch.setattr(launcher, "shapes_of", lambda *_: (shape._replace(gates=gates),))
    with torch.no_grad():
        for k, value in enumerate(net.parameters()):
            value.copy_((drawn(*value.shape, seed=k) * 3).round() / 8)
    outputs, gradients = [], []
    for backend in ("torch", host):
        sc.set_backend(net, backend)
        x = ((drawn(steps, batch, width) * 8).round() / 8).requires_grad_()
        out, *_ = y if isinstance(y := net(x), tuple) else (y,)
        assert net.recurrent.looped == ""
        outputs.append(out.detach())
        gradients.append(torch.autograd.grad(out, [x, *net.parameters()], drawn(*out.shape)))
    assert torch.equal(*outputs)
    assert outputs[0].count_nonzero()
    for mine, its in zip(*gradients):
        assert (mine - its).double().norm() <= 1e-6 * its.double().norm()


def test_the_output_before_the_first_step_may_be_any_number(host: str) -> None:
    """Where outputs are spikes it is the only number with more than one part."""
    net = layer(sc.LIF(tau=2.0, backend="torch"), 6)
    # 20 bits: their products with multiples of 1/8 are exact in float32
    first = (drawn(3, 6, seed=7) * 2**16).round() / 2**16
    compare(host, net, drawn(10, 3, 6) * 2, ("v",), first=first)


@pytest.mark.matrix(turn=1)
@pytest.mark.parametrize("case", CASES.select(ids=["recurrent/*"]), ids=lambda case: case.id)
def test_what_the_suite_says_of_feedback(host: str, case: Case) -> None:
    """All threads of a cluster compute it."""
    (result,) = check_backend(host, cases=[case.id])
    assert result.outcome == "passed", result.message


# -- shapes


def plans(neuron: Any, dtype: torch.dtype, full: bool) -> Tuple[ForwardPlan, BackwardPlan]:
    """The plans of a call, of the plainest or of one that has and wants everything."""
    program = neuron.program
    own = tuple([name for name in program.params if name not in program.numbers]) if full else ()
    kinds = tuple(["number" if name in program.numbers else "full" if full else "scalar" for name in program.params])
    spec = Spec(dtype, None, kinds, own, final=full, feedback=Feedback())
    states = program.states if full else ()
    backward = BackwardPlan(
        program, spec, has_initial_state=True, outputs=(True,) * len(program.outputs), trace=states, final=full,
        inputs=(True,) * len(program.inputs), state=full, learn=own,
    )  # fmt: skip
    return ForwardPlan(program, spec, states, True, full, True), backward


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_every_width_has_a_shape_that_fits_or_none(dtype: torch.dtype) -> None:
    """Registers and shared memory hold what is said to fit; the widest are those of the documentation."""
    widest = {torch.float32: 1024, torch.float16: 1536, torch.bfloat16: 3072}[dtype]
    assert [width for width in range(1, 3200) if not shapes_of(width, dtype)] == list(range(widest + 1, 3200))
    for width in range(1, widest + 1, 13):
        for shape in shapes_of(width, dtype):
            assert shape.threads * shape.weights < 65536
            assert shape.memory <= MEMORY or shape.tiles > 1
            assert shape.cluster <= 132
            assert shape.apart or shape in shapes(width, dtype)


def test_a_gpu_of_few_multiprocessors_takes_what_they_hold() -> None:
    """All blocks of a row run at once: a part of a GPU takes no layer whose blocks are more than it has."""
    program = sc.LIF().program
    spec = plans(sc.LIF(), torch.float32, False)[0].spec
    assert takes(program, spec, 1024, 32)
    assert not takes(program, spec, 1024, 31)
    assert takes(program, spec, 512, 16)


def test_what_takes_a_launch_for_each_step() -> None:
    """Wide layers, float64, and programs that keep more of a step than shared memory holds of two."""
    program = sc.LIF().program
    spec = plans(sc.LIF(), torch.float32, False)[0].spec
    assert takes(program, spec, 1024)
    assert not takes(program, spec, 1025)
    assert not takes(program, replace(spec, dtype=torch.float64), 8)


def log_of(plan: Any, width: int, which: int) -> str:
    """The assembler's log of a kernel for an H100."""
    found = shapes_of(width, plan.dtype, gates=len(plan.spec.drives))[which]
    shape = found._replace(length=length_of(plan.program, plan.spec))
    source, _ = print_feedback(plan, shape)
    return built(source.text, "-arch=sm_90", "--ptxas-options=-v")[1]


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("model", ["LIF", "ALIF", "LI", "Izhikevich"])
@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_every_neuron_compiles(model: str, dtype: torch.dtype) -> None:
    """With everything that a call may have and want."""
    for plan in plans(getattr(sc, model)(), dtype, True):
        assert "error" not in log_of(plan, 40, 0)
    assert kept_of(plan.program, plan.spec) < 24


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("kind", ["SpikingLSTM", "SpikingGRU", "SLSTM"])
@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_every_gated_layer_compiles(kind: str, dtype: torch.dtype) -> None:
    """The widest that its registers hold does not spill; a wider one takes a launch for each step."""
    layer = getattr(sc.layers, kind)(8, 8).recurrent
    numbers = [layer.neuron.inputs.index(name) for name in layer.into]
    widest = {torch.float32: 256, torch.float16: 256, torch.bfloat16: 384}[dtype]
    for plan in plans(layer.neuron, dtype, False):
        feedback = Feedback(into=numbers[0], further=tuple(numbers[1:]))
        plan = replace(plan, spec=replace(plan.spec, feedback=feedback))
        assert "error" not in log_of(plan, widest, 0)
        assert not shapes_of(16 * widest, dtype, gates=len(numbers))


# -- names


def named(params: Sequence[str], states: Sequence[str]) -> Any:
    """A neuron whose values have these names."""

    def dynamics(self: Any, x: Any, s: Any, p: Any) -> Any:
        total = x
        for k, value in enumerate([getattr(p, name) for name in params] + [getattr(s, name) for name in states]):
            total = total + value * (0.1 + 0.01 * k)
        return self.spike(total - 0.4), {name: total / getattr(p, params[0]) for name in states}

    body = {"params": dict.fromkeys(params, 0.5), "states": dict.fromkeys(states, 0.0), "dynamics": dynamics}
    return type("Named", (sc.Neuron,), body)()


@pytest.mark.usefixtures("nvrtc")
def test_a_kernel_means_the_same_with_its_own_words_as_names() -> None:
    """Words of the headers and of the kernels' own lines, as parameters and states: NVRTC compiles them."""
    both = plans(sc.ALIF(), torch.float32, True)
    texts = [print_feedback(plan, shapes_for(plan, width)[0])[0].text for plan in both for width in (40, 200)]
    included = headers("\n".join(texts))
    words = usable({word for text in (*texts, *included.values()) for word in identifiers(text)})
    words = [word for word in words if word not in (*COMMON, "training", "x", *dir(sc.Neuron))]
    for k in range(0, len(words), 26):
        part = words[k : k + 26]
        for plan in plans(named(part[2:] or ["p"], part[:2]), torch.float32, False):
            text = print_feedback(plan, shapes_for(plan, 16)[0])[0].text
            built(text, base=QUICK)
