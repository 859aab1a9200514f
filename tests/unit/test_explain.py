"""``sc.explain``: what is seen of a network in one run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from kernel_loop import Loop as KernelLoop
from spikecore._plugins import selection
from spikecore._plugins.registry import Registry
from spikecore.testing._loopback import Loopback, installed


def network(steps: int = 4) -> nn.Sequential:
    """Images in, counts of spikes out; the first layers get every image ``steps`` times."""
    return nn.Sequential(
        sc.encode.Constant(steps),
        sc.layers.TimeBatched(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)),
        sc.LIF(2.0, backend="torch"),
        sc.layers.TimeBatched(nn.Flatten(), nn.Linear(8 * 36, 10)),
        sc.PLIF(2.0, backend="torch"),
    )


def images() -> Tensor:
    return torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def row(found: Any, name: str) -> Any:
    (layer,) = [layer for layer in found.layers if layer.name == name]
    return layer


def has(found: Any, *words: str) -> bool:
    """Whether one piece of advice has all these words."""
    return any(all(word in text for word in words) for text in found.advice)


# -- rows


@pytest.mark.parametrize("backend", [None, "torch", "loopback"])
def test_a_row_for_each_layer(backend: Any) -> None:
    """In the order of the calls, on the backend that is asked for, with what each gives and keeps."""
    with installed(Loopback):
        found = sc.explain(sc.hoist(network()), images(), backend=backend)
    kinds = [layer.kind for layer in found.layers]
    assert kinds == ["Identity", "Conv2d", "BatchNorm2d", "LIF", "Flatten", "Linear", "PLIF"]
    assert row(found, "1.module.0").notes == ("computed once for all time steps",)
    conv, lif = row(found, "1.module.0"), row(found, "2")
    assert (conv.dtype, conv.backend, conv.words, conv.rate) == ("float32", "", None, None)
    assert conv.shape == (2, 8, 6, 6)
    assert (lif.shape, lif.backend) == ((4, 2, 8, 6, 6), backend or "torch")
    assert lif.layout_in == "contiguous"
    assert lif.reason == ("asked for by explain()" if backend else "asked for by argument")
    assert lif.floor == 1 / 4 + 1 + 1 + 1 / 4 + 1 / 4
    assert lif.words is None if backend == "loopback" else lif.words > 10.0
    assert row(found, "4").floor == 5.0
    assert lif.rate is not None
    assert 0 < lif.rate < 1
    assert row(found, "3.module.1").products == 4 * 2 * 10 * 288
    assert (found.device, found.training) == ("cpu", True)


def test_a_neuron_alone() -> None:
    """Its words are counted though it has no parameter that learns."""
    found = sc.explain(sc.LIF(backend="torch"), torch.rand(8, 4, 5))
    (layer,) = found.layers
    assert (layer.name, layer.kind, layer.floor) == ("", "LIF", 5.0)
    assert "(net)" in str(found)


def test_floor_of_a_step_that_repeats() -> None:
    """An input that is one step repeated is read once, and its gradient is the sum over time: 1/T word each."""
    found = sc.explain(sc.LIF(backend="torch"), torch.rand(1, 4, 5).expand(8, 4, 5))
    assert found.layers[0].floor == pytest.approx(1 / 8 + 1 + 1 + 1 / 8 + 1 / 8)
    assert sc.explain(sc.LIF(backend="torch"), torch.rand(8, 4), training=False).layers[0].floor == 2.0


def test_bytes_saved_are_those_that_autograd_keeps() -> None:
    """A linear layer keeps its input, a rectifier its output; what two layers keep counts once."""
    net = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU())
    found = sc.explain(net, torch.rand(3, 6))
    assert [layer.saved for layer in found.layers] == [0, 4 * 3 * 7, 0, 4 * 3 * 5]
    assert found.saved == 4 * 3 * 12
    asking = torch.rand(3, 6, requires_grad=True)
    assert sc.explain(net, asking).saved == 4 * 3 * 12
    assert sc.explain(net, asking, training=False).saved == 0


def test_words_of_the_reference_are_those_of_its_operations() -> None:
    """A neuron that adds: a step reads two numbers, and writes one."""

    class Adds(sc.Neuron):
        states = {"v": 0.0}

        def dynamics(self, x: Any, s: Any, p: Any) -> Any:
            return s.v + x, {"v": s.v + x}

    (layer,) = sc.explain(Adds(backend="torch"), torch.rand(4, 100), training=False).layers
    assert layer.floor == 2.0
    assert layer.words == 3.0


def test_copies() -> None:
    """A kernel's input whose steps are not dense; time and batch that cannot be folded; a reshape."""
    x = torch.rand(6, 4, 5).transpose(0, 2)[:, :, ::2]
    with installed(KernelLoop):
        found = sc.explain(sc.LIF(backend=KernelLoop.name), x)
        dense = sc.explain(sc.LIF(backend=KernelLoop.name), x.contiguous())
    # it is kept as it was given, and copied again in backward
    assert found.layers[0].copied >= dense.layers[0].copied + 2 * 4 * x.numel()
    assert has(found, "were copied to lay them out anew, in LIF. Make the data lie as [T, B, ...] once")

    swapped = torch.rand(4, 8, 5).transpose(0, 1)
    found = sc.explain(nn.Sequential(sc.layers.TimeBatched(nn.Linear(5, 5)), sc.LIF(backend="torch")), swapped)
    assert (row(found, "0").kind, row(found, "0").layout_in) == ("TimeBatched", "batch before time")
    assert row(found, "0").copied == 4 * 8 * 4 * 5
    assert "copied 640 B" in str(found)

    class Reshapes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.transpose(1, 2).reshape(len(x), -1)

    assert sc.explain(Reshapes(), torch.rand(2, 3, 4, requires_grad=True)).layers[0].copied == 4 * 2 * 3 * 4


def test_copies_that_no_layout_takes_away_are_not_advised() -> None:
    """An encoder and a layer that write a repeated step out; Recurrent, of its weight and of one step's state."""
    net = nn.Sequential(nn.Linear(16, 16), sc.LIF(backend="torch"))
    found = sc.explain(net, torch.rand(8, 16).expand(6, 8, 16))
    assert found.layers[0].copied == 4 * 6 * 8 * 16
    assert not has(found, "copied")
    found = sc.explain(network(), images())
    assert found.layers[0].copied == 4 * 4 * images().numel()
    assert not has(found, "copied")
    recurrent = sc.Recurrent(sc.LIF(backend="torch"), nn.Linear(3, 3))
    assert not sc.explain(recurrent, torch.rand(5, 2, 3)).layers[0].copied
    with installed(KernelLoop):
        # a state of one step is more than the nothing that the layers give
        assert not has(sc.explain(sc.LIF(backend=KernelLoop.name), torch.rand(0, 2, 4)), "copied")


def test_conversions_are_told_from_copies() -> None:
    """Under autocast a layer converts its input and weights, which no advice speaks of."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = sc.explain(nn.Sequential(nn.Linear(64, 64)), torch.rand(32, 64))
    (layer,) = found.layers
    assert layer.dtype == "bfloat16"
    assert layer.copied == 0
    assert not has(found, "copied")


def test_what_is_computed_for_every_step_in_vain() -> None:
    """By stride, or because steps hold the same numbers; behind a neuron nothing repeats."""
    net = nn.Sequential(nn.Linear(6, 8), sc.LIF(backend="torch"), nn.Linear(8, 3))
    same, other = torch.rand(1, 2, 6).expand(5, 2, 6), torch.rand(5, 2, 6)
    for x in (same, same.contiguous()):
        found = sc.explain(net, x)
        assert [layer.repeated for layer in found.layers] == [True, False, False]
        assert has(
            found, "0 (Linear) computed the same 5 times", "67 % of the multiplications of linear", "Constant(5)"
        )
    found = sc.explain(net, other)
    assert not any(layer.repeated for layer in found.layers)
    # zeros say nothing about other inputs, and two images that are the same are no time steps
    assert not any(layer.repeated for layer in sc.explain(net, torch.zeros(5, 2, 6)).layers)
    single = nn.Sequential(nn.Linear(6, 8), sc.LIF(step="single", backend="torch"))
    assert not any(layer.repeated for layer in sc.explain(single, torch.rand(1, 6).expand(5, 6)).layers)


def test_what_is_computed_once_for_all_steps() -> None:
    """After sc.hoist: layers of TimeBatched, batch normalisation among them, and linear ones."""
    first = sc.layers.TimeBatched(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten())
    net = nn.Sequential(sc.encode.Constant(5), first, nn.Linear(72, 4), sc.LIF(backend="torch"))
    for hoisted in (False, True):
        text = str(sc.explain(sc.hoist(net) if hoisted else net, torch.rand(3, 1, 8, 8)))
        assert text.count("computed once for all time steps") == (5 if hoisted else 0)
        assert ("(Linear) computed the same 5 times" in " ".join(text.split())) is not hoisted
        assert "BatchNorm2d" in text
    assert first.module[1].num_batches_tracked == 0
    assert net(torch.rand(3, 1, 8, 8)).shape == (5, 3, 4)


def test_layouts_in_words() -> None:
    """Images channels-last, with and without time."""
    net = nn.Sequential(sc.LIF(backend="torch"))
    for shape, order in (((4, 2, 3, 5, 6), (0, 1, 3, 4, 2)), ((2, 3, 5, 6), (0, 2, 3, 1))):
        x = torch.rand([shape[d] for d in order]).permute([order.index(d) for d in range(len(order))])
        assert sc.explain(net, x).layers[0].layout_in == "channels-last", shape
    assert sc.explain(net, torch.rand(4, 6)[:, ::2]).layers[0].layout_in == "strided (6, 2)"
    assert sc.explain(net, torch.rand(2, 4, 3, 5).permute(1, 0, 3, 2)).layers[0].layout_in == (
        "dimensions in the order 1, 0, 3, 2"
    )


# -- backends


class Quick(Loopback):
    """Is chosen automatically, and refuses neurons with more than one state."""

    name = "quick"

    def compile(self, program: Any, spec: Any) -> Any:
        if len(program.states) > 1:
            raise sc.Unsupported("more than one state")
        return super().compile(program, spec)


def test_a_backend_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row says what computes instead, and why; the first call of another neuron asks it again."""
    monkeypatch.setattr(selection, "AUTO", {"cpu": ("quick", "torch")})
    monkeypatch.setattr(Registry, "offers", lambda self, name: True)
    net = nn.Sequential(sc.LIF(), sc.Synaptic())
    with installed(Quick):
        with pytest.warns(RuntimeWarning, match="'torch' computes instead of 'quick'"):
            net(torch.rand(4, 3))
        found = sc.explain(net, torch.rand(4, 3))
    first, second = found.layers
    assert (first.backend, first.notes) == ("quick", ())
    assert second.backend == "torch"
    assert second.notes == ("quick refused, torch computes: more than one state",)
    assert has(found, "1 (Synaptic) ran step by step on the reference backend", "backend 'quick', which is installed")


def test_the_reference_alone_is_told_what_would_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing else is installed, the advice says what is not."""
    monkeypatch.setattr(selection, "AUTO", {"cpu": ("torch",)})
    found = sc.explain(sc.LIF(), torch.rand(4, 3))
    assert has(found, "LIF ran step by step", "spikecore-numba has kernels")


# -- loops


def test_single_steps_and_recurrence() -> None:
    """A neuron that is called for each step has one row with the number of calls."""

    class Loops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.lif = nn.Linear(6, 6), sc.LIF(step="single", backend="torch")

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.lif(self.linear(step)) for step in x])

    found = sc.explain(Loops(), torch.rand(5, 2, 6))
    assert [(layer.kind, layer.calls) for layer in found.layers] == [("Linear", 5), ("LIF", 5)]
    assert has(found, "lif (LIF) was called for one time step at a time, 5 times", "step='multi'")

    class Runs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lif = sc.LIF(backend="torch")

        def forward(self, x: Tensor) -> Tensor:
            return self.lif.run(x)[0]

    assert [(layer.kind, layer.backend) for layer in sc.explain(Runs(), torch.rand(5, 2)).layers] == [("LIF", "torch")]
    found = sc.explain(sc.Recurrent(sc.LIF(backend="torch"), nn.Linear(3, 3)), torch.rand(5, 2, 3))
    assert [(layer.kind, layer.calls, layer.backend) for layer in found.layers] == [("Recurrent", 1, "torch")]


def test_layers_that_are_silent_are_named() -> None:
    """Never, and always; the first layer of either kind comes first, and settings are tried for it alone."""
    silent, always = sc.LIF(threshold=100.0, backend="torch"), sc.IF(threshold=0.0, backend="torch")
    for net, names in (
        ([silent, always], ["0 (LIF) never fired", "1 (IF) fired at every step"]),
        ([always, silent], ["0 (IF) fired at every step", "1 (LIF) never fired"]),
    ):
        found = sc.explain(nn.Sequential(*net), torch.rand(4, 5))
        assert {layer.rate for layer in found.layers} == {0.0, 1.0}
        (text,) = [text for text in found.advice if "on this batch" in text]
        first, second, tried, again = text.split(". ")
        assert [first.split(" on ")[0], second.split(" on ")[0]] == names
        assert names[0][:7].strip() in tried
        assert again == "Then explain the network again: the layers behind it get other spikes"
    assert sc.explain(sc.LI(backend="torch"), torch.rand(4, 5)).layers[0].rate is None


# -- fused, hoisted, packed


def test_fused_normalisation_is_named() -> None:
    """The neuron's row says that it normalises; the floor counts statistics and the sums of their gradient."""
    net = nn.Sequential(sc.layers.TimeBatched(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)), sc.LIF(backend="torch"))
    sc.fuse(net)
    found = sc.explain(net, torch.rand(4, 2, 2, 6, 6))
    assert row(found, "0.module.1").notes == ()
    (note,) = row(found, "1").notes
    assert note.startswith("normalises its input; not in one kernel: ")
    assert row(found, "1").floor == 8.0
    assert row(sc.explain(net, torch.rand(4, 2, 2, 6, 6), training=False), "1").floor == 2.0


@pytest.mark.parametrize("steps", [2, 8])
def test_floor_of_a_step_that_repeats_before_a_normalisation(steps: int) -> None:
    """The cotangent summed over time is written and read again; more than is moved the floor never says."""
    net = nn.Sequential(sc.encode.Constant(steps), sc.layers.TimeBatched(nn.BatchNorm2d(2)), sc.LIF(backend="torch"))
    sc.hoist(sc.fuse(net))
    x = torch.rand(2, 2, 6, 6).requires_grad_()
    layer = row(sc.explain(net, x), "2")
    assert layer.floor == pytest.approx(2 + 3 / steps + 4 / steps)
    assert layer.words > layer.floor
    block = sc.layers.NormNeuron(nn.BatchNorm2d(3), sc.LIF(backend="torch"), shortcut="after")

    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            return self.block(x, x * 2)

    layer = row(sc.explain(Adds(), torch.rand(4, 2, 3, 5, 5)), "block")
    assert layer.notes[0].startswith("normalises its input, and adds a shortcut to its spikes")


def test_spikes_that_are_kept_are_told() -> None:
    """Those that a layer with weights keeps, and no other tensor."""
    net = nn.Sequential(nn.Linear(6, 8), sc.LIF(backend="torch"), nn.Linear(8, 3), nn.Linear(3, 3))
    found = sc.explain(net, 4 * torch.rand(5, 2, 6))
    assert [layer.saved_spikes for layer in found.layers] == [0, 0, 4 * 5 * 2 * 8, 0]
    assert has(found, "320 B of the", "sc.TrainingOptions(pack_spikes=True)")
    assert not has(sc.explain(net, torch.rand(5, 2, 6), training=False), "pack_spikes")


# -- shown


def test_text_and_html() -> None:
    """Both say the same; names of a user's classes are escaped."""
    found = sc.explain(sc.hoist(network()), images())
    text = str(found)
    for part in ("layer", "1.module.0", "4x2x8x6x6", "backend torch: asked for by argument", "kept for backward"):
        assert part in text
    assert text.count("computed once for all time steps") == 3
    assert "Advice, the most valuable first:\n1. " in text
    html = found._repr_html_()
    remarks = [line for line in text.splitlines() if line.startswith("    ")]
    assert html.count("<tr>") == 1 + len(found.layers) + len(remarks)
    odd = nn.Sequential(type("A<b>", (nn.ReLU,), {})())
    assert "A&lt;b&gt;" in sc.explain(odd, torch.rand(3, requires_grad=True))._repr_html_()


# -- errors


LINEAR = nn.Linear(3, 3)
CUT = nn.Sequential(LINEAR, type("Cut", (nn.Module,), {"forward": lambda self, x: x.detach()})())


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.parametrize(
    ("net", "options", "error", "text"),
    [
        ("x", {}, TypeError, "net='x' is a str; give the network"),
        (LINEAR, {"x": None}, TypeError, "x=None has no tensor; give the network's input"),
        (LINEAR, {"training": "no"}, TypeError, "training='no' must be True, or False"),
        (LINEAR, {"loss": 3}, TypeError, "loss=3 must be a function of the outputs of net, or None"),
        (LINEAR, {"loss": lambda out: out}, ValueError, r"loss must give one number with a .* got shape \(2, 3\)"),
        (LINEAR, {"loss": lambda out: 1.0}, ValueError, "got a float"),
        (CUT, {}, ValueError, "training=False explains the forward pass alone"),
        (nn.LazyLinear(3), {}, ValueError, "'weight' has no values before its first call"),
        (nn.Linear(3, 3, device="meta"), {}, ValueError, "on the meta device, which holds no numbers to run on"),
        (sc.LIF(), {"backend": "nope"}, sc.UnknownBackend, r"unknown backend 'nope' \(from explain\(\)\)"),
    ],
)
def test_errors_name_the_argument(net: Any, options: Any, error: Any, text: str) -> None:
    """Each says what to give."""
    with pytest.raises(error, match=text):
        sc.explain(net, **{"x": torch.rand(2, 3), **options})


def test_a_running_profiler_is_named() -> None:
    """torch has one at a time."""
    with torch.autograd.profiler.profile(), pytest.raises(RuntimeError, match="torch's profiler, which is running"):
        sc.explain(LINEAR, torch.rand(2, 3))


def test_what_normalises_is_said() -> None:
    """A normalisation that the neuron's kernel could compute is advised of; a fused one is said, and why one is not."""

    def net(backend: str) -> nn.Sequential:
        return nn.Sequential(
            sc.layers.TimeBatched(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)),
            sc.LIF(2.0, backend=backend),
        )

    x = torch.rand(4, 2, 3, 8, 8)
    with installed(KernelLoop, devices=("cpu",)) as name:
        apart, fused = net(name), sc.fuse(net(name))
        assert has(sc.explain(apart, x), "1 (LIF)", "sc.fuse(net)")
        found = sc.explain(fused, x)
        assert not has(found, "sc.fuse")
        assert row(found, "1").reason == "asked for by argument; normalises its input in the same kernel"
    found = sc.explain(sc.fuse(net("torch")), x)
    assert "normalised before it: backend 'torch'" in row(found, "1").reason
    assert not has(found, "sc.fuse")
