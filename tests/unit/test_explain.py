"""``sc.explain``: what is seen of a network in one run, the numbers of its rows, and advice."""

from __future__ import annotations

from typing import Any, Iterator, List

import pytest
import torch
from torch import Tensor, nn

import refusals
import spikecore as sc
from kernel_loop import Loop as KernelLoop
from plain_loop import Plain
from spikecore.context import COMPILES
from spikecore.plugins import selection
from spikecore.plugins.registry import Registry
from spikecore.testing import installed


def network() -> nn.Sequential:
    """Images in, counts of spikes out; the first layers see one step."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        sc.LIF(2.0, repeat=4, backend="torch"),
        sc.layers.TimeBatched(nn.Flatten(), nn.Linear(8 * 36, 10)),
        sc.PLIF(2.0, backend="torch"),
    )


def images() -> Tensor:
    return torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def row(found: Any, name: str) -> Any:
    (layer,) = [layer for layer in found.layers if layer.name == name]
    return layer


def has(found: Any, *words: str) -> bool:
    """True if one piece of advice has all these words."""
    return any(all(word in text for word in words) for text in found.advice)


class Both(sc.Neuron):
    """A potential, and its spikes."""

    states = {"v": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        v = 0.5 * s.v + x
        return (v, self.spike(v - 1.0)), {"v": v}


class LastOutput(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[-1]


def test_spikes_of_a_neuron_with_several_outputs() -> None:
    """Their rate, with and without feedback, and a layer that never fires."""
    x = 2.0 * torch.rand(6, 3, 4)
    for neuron in (Both(), sc.Recurrent(Both(), [sc.layers.Feedback(nn.Linear(4, 4), output=1)])):
        found = sc.explain(LastOutput(nn.Linear(4, 4), neuron), x)
        spikes = LastOutput(neuron)(x).mean().item()
        assert row(sc.explain(LastOutput(neuron), x), "0").rate == pytest.approx(spikes)
        assert row(found, "1").rate is not None
    silent = LastOutput(nn.Linear(4, 4), Both())
    nn.init.constant_(silent[0].bias, -9.0)
    assert has(sc.explain(silent, x), "1 (Both) never fired")


def test_words_of_vectors_and_inputs_that_broadcast() -> None:
    """Forward reads each input and writes a spike; backward reads these again, and its cotangent, and writes theirs."""
    x = torch.rand(6, 3, 5, 4, requires_grad=True)
    (vectors,) = sc.explain(sc.DHLIF(branches=4), x).layers
    assert vectors.floor == 4 + 1 + 4 + 1 + 4


@pytest.mark.parametrize("backend", [None, "plain"])
def test_a_row_for_each_layer(backend: Any) -> None:
    """In the order of the calls, on the backend that is asked for, with what each gives and keeps."""
    with installed(Plain):
        found = sc.explain(network(), images(), backend=backend)
    kinds = [layer.kind for layer in found.layers]
    assert kinds == ["Conv2d", "BatchNorm2d", "LIF", "Flatten", "Linear", "PLIF"]
    assert row(found, "0").notes == ("computed once for all time steps",)
    conv, lif = row(found, "0"), row(found, "2")
    assert (conv.dtype, conv.backend, conv.words, conv.rate) == ("float32", "", None, None)
    assert conv.shape == (2, 8, 6, 6)
    assert (lif.shape, lif.backend) == ((4, 2, 8, 6, 6), backend or "torch")
    assert lif.layout_in == "contiguous"
    assert lif.reason == ("asked for by explain()" if backend else "asked for by argument")
    assert lif.floor == 1 / 4 + 1 + 1 + 1 / 4 + 1 / 4
    assert lif.words is None if backend == "plain" else lif.words > 10.0
    assert row(found, "4").floor == 5.0
    assert lif.rate is not None
    assert 0 < lif.rate < 1
    assert row(found, "3.module.1").products == 4 * 2 * 10 * 288
    assert (found.device, found.training) == ("cpu", True)


def test_bytes_saved_are_those_that_autograd_keeps() -> None:
    """A linear layer keeps its input, a rectifier its output; what two layers keep counts once."""
    net = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU())
    found = sc.explain(net, torch.rand(3, 6))
    assert [layer.saved for layer in found.layers] == [0, 4 * 3 * 7, 0, 4 * 3 * 5]
    assert found.saved == 4 * 3 * 12
    asking = torch.rand(3, 6, requires_grad=True)
    assert sc.explain(net, asking).saved == 4 * 3 * 12
    assert sc.explain(net, asking, training=False).saved == 0


@pytest.mark.skipif(not COMPILES, reason="sc.checkpoint needs torch 2.6 or newer")
@pytest.mark.parametrize("modules", [None, ["1"]])
def test_groups_of_a_checkpoint_keep_their_inputs(modules: Any) -> None:
    """In whole or in part: layers in groups keep nothing, and are called once, although backward calls them again.

    The network's own input, which the first group keeps, is not counted.
    """
    layers = [layer for _ in range(4) for layer in (nn.Linear(5, 5), sc.LIF(threshold=0.1, backend="torch"))]
    net = nn.Sequential(*layers) if modules is None else nn.Sequential(nn.Linear(5, 5), nn.Sequential(*layers))
    x = torch.rand(4, 3, 5)
    plain, found = sc.explain(net, x), sc.explain(sc.checkpoint(net, 2, modules), x)
    one = 4 * 4 * 3 * 5
    groups = next(layer for layer in found.layers if layer.kind == "Checkpointed")
    assert found.saved == groups.saved == (3 if modules is None else 4) * one < plain.saved
    assert {layer.calls for layer in found.layers} == {1}
    rates = [[layer.rate for layer in each.layers if layer.kind == "LIF"] for each in (plain, found)]
    assert rates[0] == rates[1]


def test_what_is_computed_for_every_step_in_vain() -> None:
    """By stride, or because steps hold the same numbers; behind a neuron nothing repeats."""
    net = nn.Sequential(nn.Linear(6, 8), sc.LIF(backend="torch"), nn.Linear(8, 3))
    same, other = torch.rand(1, 2, 6).expand(5, 2, 6), torch.rand(5, 2, 6)
    for x in (same, same.contiguous()):
        found = sc.explain(net, x)
        assert [layer.repeated for layer in found.layers] == [True, False, False]
        assert has(
            found,
            "0 (Linear) computed the same 5 times",
            "67 % of the multiplications of linear",
            "give 1 (LIF) repeat=5",
        )
    found = sc.explain(net, other)
    assert not any(layer.repeated for layer in found.layers)
    # zeros say nothing about other inputs, and two images that are the same are no time steps
    assert not any(layer.repeated for layer in sc.explain(net, torch.zeros(5, 2, 6)).layers)
    single = nn.Sequential(nn.Linear(6, 8), sc.LIF(step="single", backend="torch"))
    assert not any(layer.repeated for layer in sc.explain(single, torch.rand(1, 6).expand(5, 6)).layers)


class Branches(nn.Module):
    """Two layers that get the same at every step, and one behind their neurons."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = sc.encode.Constant(4)
        self.a, self.b, self.c = nn.Linear(8, 5), nn.Linear(8, 5), nn.Linear(5, 5)
        self.fire_a, self.fire_b, self.fire_c = lif(), lif(), lif()

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(x)
        y: Tensor = self.fire_c(self.c(self.fire_a(self.a(x)) + self.fire_b(self.b(x))))
        return y


def lif() -> sc.Neuron:
    return sc.LIF(threshold=0.1, backend="torch")


def behind(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(sc.encode.Constant(4), *layers)


BEHIND = "put sc.encode.Constant(4) behind them, before what sees time"
BATCHED = sc.layers.TimeBatched
ONCE = {
    "convolution": (lambda: behind(BATCHED(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), lif(), lif()), "give 2 (LIF) "),
    "flatten": (lambda: behind(nn.Flatten(2), nn.Linear(192, 5), nn.ReLU(), sc.PLIF()), "give 4 (PLIF) "),
    "fused": (
        lambda: sc.fuse(behind(BATCHED(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), lif())),
        "give 2 (NormNeuron) ",
    ),
    "recurrent": (lambda: behind(nn.Linear(8, 5), sc.Recurrent(lif(), nn.Linear(5, 5))), "give 2 (Recurrent) "),
    "branches": (Branches, "give fire_a (LIF), fire_b (LIF) "),
    "dropout": (lambda: behind(nn.Linear(8, 5), nn.Dropout(), nn.Linear(5, 5), lif()), BEHIND),
    "TEBN": (lambda: behind(BATCHED(nn.Conv2d(3, 4, 3)), sc.layers.TEBN(4, 4), lif()), BEHIND),
    "delay": (lambda: behind(nn.Linear(8, 5), sc.Delay(nn.Linear(5, 5), 3, sigma=1.0), lif()), BEHIND),
    "softmax over time": (lambda: behind(nn.Linear(8, 5), nn.Softmax(0), lif()), BEHIND),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ONCE)
def test_what_to_write_so_that_layers_compute_once(name: str, training: bool) -> None:
    """The neuron that repeats, where all in front of it sees no time; else where the encoder belongs. Dropout counts
    though the network is in ``eval()``.
    """
    make, way_out = ONCE[name]
    net = make()
    wide = any(isinstance(module, (nn.Conv2d, nn.Flatten)) for module in net.modules())
    x = 2.0 * (images() if wide else torch.rand(32, 8))
    found = sc.explain(net.train(training), x, training=training)
    way_out += "" if way_out == BEHIND else "repeat=4, as in sc.LIF(repeat=4), and leave out sc.encode.Constant(4)"
    assert has(found, "computed the same 4 times", f": give them one step, [B, ...], and {way_out}"), found.advice


@pytest.mark.parametrize("bias", [-100.0, 100.0])
def test_what_a_layer_that_fires_never_or_always_makes_constant_is_no_repetition(bias: float) -> None:
    """Only the neuron that gets the repeated input can repeat it: another one would make time twice."""
    net = nn.Sequential(sc.encode.Constant(6), nn.Linear(3, 5), sc.LIF(), nn.Linear(5, 2), sc.LI())
    nn.init.constant_(net[1].bias, bias)
    (sentence,) = [text for text in sc.explain(net, torch.rand(4, 3)).advice if "computed the same" in text]
    assert "give 2 (LIF) repeat=6, as in sc.LIF(repeat=6), and leave out sc.encode.Constant(6)" in sentence


class Quick(Plain):
    """Is chosen automatically, and refuses neurons with more than one state."""

    name = "quick"

    def compile(self, program: Any, spec: Any) -> Any:
        if len(program.states) > 1:
            raise sc.backend.Unsupported("more than one state")
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


def test_a_slower_backend_of_a_cpu_is_told_of_a_faster_one() -> None:
    """One that was measured beside numba."""

    class OpenCL(Plain):
        name = "opencl"

    with installed(OpenCL, devices=("cpu",)):
        found = sc.explain(sc.LIF(backend="opencl"), torch.rand(4, 3))
    assert has(found, "LIF ran on 'opencl'", "'opencl' is for GPUs, and for CPUs without Numba")


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

    class Runs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lif = sc.LIF(backend="torch")

        def forward(self, x: Tensor) -> Tensor:
            return self.lif.run(x)[0]

    assert [(layer.kind, layer.backend) for layer in sc.explain(Runs(), torch.rand(5, 2)).layers] == [("LIF", "torch")]
    found = sc.explain(sc.Recurrent(sc.LIF(backend="torch"), nn.Linear(3, 3)), torch.rand(5, 2, 3))
    assert [(layer.kind, layer.calls, layer.backend) for layer in found.layers] == [("Recurrent", 1, "torch")]


def test_a_dropout_between_neurons() -> None:
    """It has state over time and is no neuron: its states are not looked at."""
    net = nn.Sequential(nn.Linear(4, 8), sc.LIF(), sc.layers.SequenceDropout(0.1), nn.Linear(8, 3), sc.LIF())
    assert [layer.name for layer in sc.explain(net, torch.rand(3, 2, 4)).layers] == list("01234")


def test_layers_that_are_silent_are_named() -> None:
    """Never, and always; the first layer of either kind comes first, and its settings alone are said."""
    silent, always = sc.LIF(threshold=100.0, backend="torch"), sc.IF(threshold=0.0, backend="torch")
    for net, names in (
        ([silent, always], ["0 (LIF) never fired", "1 (IF) fired at every step"]),
        ([always, silent], ["0 (IF) fired at every step", "1 (LIF) never fired"]),
    ):
        found = sc.explain(nn.Sequential(*net), torch.rand(4, 5))
        assert {layer.rate for layer in found.layers} == {0.0, 1.0}
        (text,) = [text for text in found.advice if "on this batch" in text]
        first, second, settings, *_, again = text.split(". ")
        assert [first.split(" on ")[0], second.split(" on ")[0]] == names
        assert settings.startswith(f"{names[0][:7].strip()} is ")
        assert again == "Then explain the network again: the layers behind it get other spikes"
    assert sc.explain(sc.LI(backend="torch"), torch.rand(4, 5)).layers[0].rate is None


def test_text_and_html() -> None:
    """Both say the same; names of a user's classes are escaped."""
    found = sc.explain(network(), images())
    text = str(found)
    for part in ("layer", "0", "4x2x8x6x6", "backend torch: asked for by argument", "kept for backward"):
        assert part in text
    assert text.count("computed once for all time steps") == 2
    assert "Advice, the most valuable first:\n1. " in text
    html = found._repr_html_()
    remarks = [line for line in text.splitlines() if line.startswith("    ")]
    assert html.count("<tr>") == 1 + len(found.layers) + len(remarks)
    with sc.use_backend("torch"):
        last = sc.LIF()
    two = str(sc.explain(nn.Sequential(sc.LIF(backend="torch"), last), torch.rand(4, 2, 3)))
    assert "backend torch of 0: asked for by argument\nbackend torch of 1: " in two
    odd = nn.Sequential(type("A<b>", (nn.ReLU,), {})())
    assert "A&lt;b&gt;" in sc.explain(odd, torch.rand(3, requires_grad=True))._repr_html_()


class Cut(nn.Module):
    """No gradient comes through."""

    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


@pytest.mark.parametrize("look", [sc.explain, sc.energy])
def test_the_network_is_as_it_was(look: Any) -> None:
    """Values, gradients, statistics, modes, states, chosen backends, random streams, versions of tensors, hooks."""
    net = nn.Sequential(
        sc.encode.Poisson(4, generator=torch.Generator().manual_seed(3)),
        sc.layers.TimeBatched(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.5)),
        sc.LIF(2.0, learn=("tau",), backend="torch"),
    )
    single = sc.LIF(step="single", backend="torch")
    single(torch.rand(3))
    both, state = nn.ModuleDict({"net": net, "single": single}), single.state
    net(images()).sum().backward()
    with torch.no_grad():
        net[2].tau.fill_(0.5)  # outside of its range: a call puts it back, and here it must stay
    net.eval()
    net[1].train()

    def everything() -> List[Any]:
        tensors = [*both.parameters(), *both.buffers()]
        versions = [tensor._version for tensor in tensors]
        modules = [(module.training, len(module._forward_hooks), "run" in vars(module)) for module in both.modules()]
        streams = [torch.get_rng_state().tolist(), net[0].generator.get_state().tolist()]
        gradients = [parameter.grad for parameter in net.parameters()]
        return [[tensor.tolist() for tensor in tensors], versions, modules, streams, gradients, dict(net[2].bound)]

    x, step, before = images(), torch.ones(3), everything()
    look(net, x)
    look(single, step)
    assert everything() == before
    assert single.state is state


def spiking(backend: str = "torch") -> nn.Sequential:
    """Its second linear layer keeps 4 * 8 * 64 spikes for backward."""
    return nn.Sequential(nn.Linear(6, 64), sc.LIF(backend=backend), nn.Linear(64, 3))


@pytest.mark.skipif(not COMPILES, reason="spikes are kept as bits with torch 2.6 or newer")
def test_spikes_that_are_packed_are_counted_as_bits() -> None:
    """After ``sc.layers.pack`` the row has the bytes of the bits."""
    x, net = 4 * torch.rand(4, 8, 6), spiking()
    whole = sc.explain(net, x)
    found = sc.explain(sc.layers.pack(net), x)
    numbers = 4 * 8 * 64
    before, after = whole.layers[2], found.layers[2]
    assert (before.saved, before.saved_spikes) == (4 * numbers, 4 * numbers)
    # the bits, and a number that tells whether they are right
    assert (after.saved, after.saved_spikes) == (numbers // 8 + 4, 0)
    assert after.notes == ("keeps its input as bits",)


@pytest.fixture
def kernels() -> Iterator[str]:
    """The name of a backend on the CPU that normalises in its kernels."""
    with installed(KernelLoop, devices=("cpu",)) as name:
        yield name


def test_copies_are_named_with_their_causes(kernels: str) -> None:
    """Of steps with gaps, of another order, of time that lies within the batch, and between layouts of convolutions."""
    x = torch.rand(4, 2, 6, 5)
    last = x.transpose(2, 3).contiguous().transpose(2, 3)
    (lif,) = sc.explain(sc.LIF(backend=kernels), x[..., ::2]).layers
    shortcut = sc.layers.NormNeuron(nn.BatchNorm1d(6), sc.LIF(backend=kernels), shortcut="before")
    (normalising,) = sc.explain(shortcut, (x, last)).layers
    assert any("strided (60, 30, 5, 2): a kernel reads steps without gaps" in note for note in lif.notes)
    assert any("its shortcut, which lies channels-last" in note for note in normalising.notes)
    net = nn.Sequential(sc.layers.TimeBatched(nn.Conv1d(6, 7, 3), nn.BatchNorm1d(7)))
    folded = sc.explain(net, x.transpose(0, 1))
    assert any("batch before time: time and batch are one" in note for note in row(folded, "0").notes)
    found = sc.explain(net, last)
    assert any("torch's Conv1d computes what is contiguous" in note for note in row(found, "0.module.0").notes)
    assert has(found, "sc.layers.channels_last(net)")
    sc.layers.channels_last(net)
    assert any("contiguous: it computes channels-last" in note for note in row(sc.explain(net, x), "0.module.0").notes)
    without = sc.explain(net, last)
    assert not any("copies" in note for layer in without.layers for note in layer.notes)
    assert not has(without, "channels_last")


def test_fusing_is_advised_with_what_it_brings(kernels: str) -> None:
    """On a CPU it saves memory alone. One neuron follows, two follow."""
    first = nn.Sequential(
        sc.layers.TimeBatched(nn.Linear(5, 6), nn.BatchNorm1d(6)), nn.Identity(), sc.LIF(backend=kernels)
    )
    second = nn.Sequential(sc.layers.TimeBatched(nn.Linear(6, 6), nn.BatchNorm1d(6)), sc.LIF(backend=kernels))
    x = torch.rand(4, 3, 5)
    one = sc.explain(first, x)
    assert has(one, "2 (LIF) follows a batch normalisation", "on a CPU that saves memory, and no time", "sc.fuse(net)")
    assert has(sc.explain(nn.Sequential(first, second), x), "0.2 (LIF), 1.1 (LIF) follow a batch normalisation")
    assert not has(one, "NormNeuron")
    assert not has(sc.explain(sc.fuse(first), x), "batch normalisation")


@pytest.mark.parametrize("rate", ["silent", "saturated"])
@pytest.mark.parametrize("recurrent", [False, True])
def test_advice_on_rates_says_what_the_layer_was_given(recurrent: bool, rate: str) -> None:
    """Its settings, the ranges of its input and its potential, and ways that bring spikes or take them away."""
    torch.manual_seed(0)
    lif = sc.LIF(tau=4.0, learn=("tau",), backend="torch")
    net = nn.Sequential(nn.Linear(16, 12), sc.Recurrent(lif, nn.Linear(12, 12)) if recurrent else lif)
    net.requires_grad_(False)[0].bias.fill_(-0.5 if rate == "silent" else 90.0)
    x = torch.rand(20, 8, 16)
    explained = sc.explain(net, x, training=False)
    text = next(text for text in explained.advice if "on this batch" in text)
    currents = net[0](x)
    record = net[1].run(currents, record=("v",))[2]["v"]
    assert f"1 ({type(net[1]).__name__}) is {lif!r}; the ranges of its input and states are below its row" in text
    for name, values in (("its input", currents), ("v", record)):
        assert explained.layers[1].ranges[name] == (float(values.min()), float(values.max()))
        assert f"    {name:<9}  {float(values.min()):.3g} to {float(values.max()):.3g}" in str(explained)
    assert ("a larger input; a lower threshold; decay_input=False" in text) == (rate == "silent")
    assert ("a smaller input; a higher threshold." in text) == (rate == "saturated")
    assert "sc.functional.calibrate(net, x)" in text


def test_a_layer_whose_input_is_never_positive_needs_a_bias() -> None:
    """No factor makes it positive. So it is where ``v`` stays below 0; a normalising neuron fires by what it makes."""

    def way_out(net: Any, x: Tensor) -> str:
        text = next(text for text in sc.explain(net, x, training=False).advice if "never fired" in text)
        return text.partition("What raises the rate: ")[2]

    x = torch.rand(6, 5, 3)
    usual = ". Usual rates are 0.05 to 0.4"
    net = nn.Sequential(nn.Linear(3, 3), sc.LIF(backend="torch"))
    net.requires_grad_(False)[0].bias.fill_(-5.0)
    never = "a higher bias of the layer before, because its input was never positive"
    assert way_out(net, x).startswith(never + usual)
    hindered = torch.tensor([-5.0, 0.1, 0.1]).view(3, 1)
    never = "a higher bias of the layer before, because v was never positive"
    assert way_out(sc.LIF(backend="torch"), hindered).startswith(never + usual)
    normalised = sc.layers.NormNeuron(nn.BatchNorm1d(3), sc.LIF(threshold=9.0, backend="torch"))
    normalised.norm.running_mean.fill_(-5.0)
    assert way_out(normalised, -x - 1.0).startswith("a larger input; a lower threshold; decay_input=False")
    normalised.norm.running_mean.fill_(5.0)
    never = "a higher bias of its normalisation, because v was never positive"
    assert way_out(normalised, x).startswith(never + usual)


def test_what_is_wrong_comes_before_what_is_slow() -> None:
    """A layer that never fires comes first; where its input is 0, that is said."""
    x = torch.rand(8, 16, 6)
    net = nn.Sequential(nn.Linear(6, 512), sc.LIF(threshold=10.0, backend="torch"), nn.Linear(512, 3))
    first = sc.explain(net, x).advice[0]
    assert first.startswith("1 (LIF) never fired on this batch, so that next to nothing comes out. 1 (LIF) is LIF(")
    assert "The input of LIF is 0 at every step" in sc.explain(sc.LIF(backend="torch"), 0 * x).advice[0]
    carried = sc.LIF(step="single", backend="torch")
    carried(0 * x[0])
    assert "The input of LIF is 0" in sc.explain(carried, 0 * x[0]).advice[0]


def test_the_first_line_says_how_the_input_was_read():
    """So that a transposed batch is seen."""
    net = nn.Sequential(nn.Linear(6, 4), sc.LIF())
    explained = str(sc.explain(net, torch.rand(16, 3, 6)))
    assert explained.splitlines()[0] == "input 16x3x6, read as [T, B, ...]: T=16 steps, B=3 samples"
    encoded = str(sc.explain(nn.Sequential(sc.encode.Constant(5), *net), torch.rand(3, 6)))
    assert encoded.splitlines()[0] == "input 3x6, read as [B, ...]: B=3 samples, for which the network makes T=5 steps"


def test_neurons_that_never_fire_are_counted_beside_the_mean() -> None:
    """And what is behind neurons that give the same at every step does not count as computed for nothing."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 64), sc.LIF(), nn.Linear(64, 3), sc.LIF(decay_input=False))
    net.requires_grad_(False)[0].weight[:3] = 5.0
    net[0].weight[3:] = net[0].bias[3:] = 0.0
    explained = sc.explain(net, torch.rand(20, 8, 10), training=False)
    layer = explained.layers[1]
    assert (layer.silent, layer.saturated) == (61 / 64, 3 / 64)
    assert has(explained, "of 64 neurons of 1 (LIF) 61 never fired and 3 fired at every step", "hides")
    assert not has(explained, "computed the same")
    assert not any(layer.repeated for layer in explained.layers)
    assert "95.3 %   4.7 %" in str(explained)


def test_a_loop_of_ones_own_is_told_as_one() -> None:
    class Looped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.lif = nn.Linear(10, 6), sc.LIF(step="single")

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.lif(self.linear(x_t)) for x_t in x])

    explained = sc.explain(Looped(), 5 * torch.rand(20, 8, 10))
    assert explained.read == "input 20x8x10, read as [T, B, ...]: T=20 steps, B=8 samples"
    assert has(explained, "lif (LIF) took 20 single steps in a loop of forward", "step='multi'", "sc.Recurrent(neuron")


@pytest.mark.parametrize(("tau", "told"), [(10.0, True), (2.0, False)])
def test_a_read_out_that_divides_by_a_long_tau_is_told(tau: float, told: bool) -> None:
    net = nn.Sequential(nn.Linear(10, 6), sc.LIF(decay_input=False), nn.Linear(6, 3), sc.LI(tau=tau))
    text = "The input of 3 (LI) is divided by tau, so that potentials are small"
    assert has(sc.explain(net, torch.rand(20, 8, 10)), text) == told


test_refused = refusals.table(__file__, globals())
