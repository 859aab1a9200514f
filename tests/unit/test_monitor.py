"""``sc.monitor`` sees what the neurons of a network did, and changes nothing of it."""

from __future__ import annotations

import copy
import gc
import sys
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import refusals
import spikecore as sc
from spikecore.context import COMPILES


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), sc.LIF(), nn.Linear(8, 4), sc.ALIF(learn=("tau",)), nn.Linear(4, 2), sc.LI())


def driven(*shape: int) -> torch.Tensor:
    return 3 * torch.rand(*shape, generator=torch.Generator().manual_seed(5))


def plainly(net: nn.Sequential, x: torch.Tensor):
    """Outputs and potentials of the first two neurons, from their functional core."""
    first, _, trace = net[1].run(net[0](x), record=("v",))
    second, _, other = net[3].run(net[2](first), record=("v", "a"))
    return (first, trace), (second, other)


def test_rates_and_states_are_those_of_the_neurons():
    """Rates of layers and neurons, potentials and spikes are what ``run`` gives; a read-out has states and no rate."""
    net, x = network(), driven(5, 3, 6)
    with sc.monitor(net, record=("v", "a"), spikes=True) as seen:
        out = net(x)
    (first, trace), (second, other) = plainly(net, x)
    assert seen.rates == {"1": pytest.approx(first.mean().item()), "3": pytest.approx(second.mean().item())}
    assert 0 < seen["1"].rate < 1
    assert torch.allclose(seen["1"].rates, first.mean((0, 1)))
    assert torch.equal(seen["1"].v, trace["v"])
    assert torch.equal(seen["3"].a, other["a"])
    assert torch.equal(seen["3"].spikes, second)
    assert sorted(seen["3"].states) == ["a", "v"]
    assert seen["5"].rate is None
    assert seen["5"].v.shape == out.shape
    assert list(seen) == ["1", "3", "5"]
    assert torch.equal(out, net(x))


def test_silent_and_saturated_neurons_are_counted_and_shown():
    """Of six neurons one never fires and two always do; the table says so."""
    net = sc.IF(reset="none")
    x = torch.tensor([0.0, 2.0, 2.0, 0.3, 0.3, 0.3]).expand(8, 2, 6)
    with sc.monitor(net) as seen:
        net(x)
    layer = seen[""]
    assert (layer.neurons, layer.silent, layer.saturated) == (6, 1, 2)
    table = str(seen)
    assert "(net)  IF        1        6" in table
    assert "1 (16.7 %)" in table
    assert "2 (33.3 %)" in table
    assert "<td>1 (16.7 %)</td>" in seen._repr_html_()


def test_several_calls_count_together_and_one_by_one():
    """Two batches of different sizes: the rate weighs time steps, each call has its own, and states are per call."""
    net = network()
    with sc.monitor(net, record=("v",)) as seen:
        net(driven(5, 3, 6))
        net(0.5 * driven(4, 7, 6))
    (first, trace), (second, later) = plainly(net, driven(5, 3, 6))[0], plainly(net, 0.5 * driven(4, 7, 6))[0]
    layer = seen["1"]
    assert [call.rate for call in layer.calls] == [
        pytest.approx(first.mean().item()),
        pytest.approx(second.mean().item()),
    ]
    assert [(call.steps, call.batch) for call in layer.calls] == [(5, 3), (4, 7)]
    together = torch.cat([first.flatten(0, 1), second.flatten(0, 1)])
    assert layer.rate == pytest.approx(together.mean().item())
    assert torch.allclose(layer.rates, together.mean(0))
    assert torch.equal(layer.calls[1].states["v"], later["v"])
    with pytest.raises(
        ValueError, match=r"layer '1' \(LIF\) was called 2 times, and each call has its own v: see seen\["
    ):
        _ = layer.v
    seen.clear()
    assert layer.calls == ()
    assert "LIF       0" in str(seen)
    assert torch.equal(trace["v"][0], plainly(net, driven(5, 3, 6))[0][1]["v"][0])


def test_single_steps_follow_one_another():
    """Calls of a single-step neuron, and of Recurrent, are one sequence."""
    for neuron, single in ((sc.LIF(), sc.LIF(step="single")), (sc.Recurrent(sc.LIF(), nn.Linear(6, 6)), None)):
        if single is None:
            single = copy.deepcopy(neuron)
            single.step = "single"
        x = driven(5, 3, 6)
        with sc.monitor(neuron, record=("v",), spikes=True) as whole:
            neuron(x)
        with sc.monitor(single, record=("v",), spikes=True) as seen:
            for now in x:
                single(now)
        assert torch.allclose(seen[""].v, whole[""].v)
        assert torch.equal(seen[""].spikes, whole[""].spikes)
        assert torch.allclose(seen[""].rates, whole[""].rates)
        assert len(seen[""].calls) == 5
        assert single.state is not None


def test_chunks_of_a_stream_follow_one_another():
    """Within carry_state, of neurons and of Recurrent; a call from rest among them is a sequence of its own."""
    x = driven(6, 3, 6)
    for neuron in (sc.LIF(), sc.Recurrent(sc.LIF(), nn.Linear(6, 6))):
        with sc.monitor(neuron, record=("v",), spikes=True) as whole:
            neuron(x)
        with sc.monitor(neuron, record=("v",), spikes=True) as seen, sc.carry_state(neuron):
            for part in x.split(2):
                neuron(part)
        assert torch.allclose(seen[""].v, whole[""].v)
        assert torch.equal(seen[""].spikes, whole[""].spikes)
        assert (seen[""].steps, len(seen[""].calls)) == (6, 3)
        with sc.monitor(neuron, record=("v",)) as seen:
            neuron(x)
            with sc.carry_state(neuron):
                neuron(x)
        with pytest.raises(ValueError, match="was called 2 times, and each call has its own v"):
            _ = seen[""].v


def test_normalising_neurons_are_seen_as_they_compute():
    """They move running statistics once, and what is computed once stays so."""
    torch.manual_seed(0)
    norm_neuron = sc.layers.NormNeuron(nn.BatchNorm1d(8), sc.LIF(repeat=4))
    net = nn.Sequential(nn.Linear(6, 8), norm_neuron, nn.Linear(8, 3))
    other = copy.deepcopy(net)
    x = driven(16, 6)
    with sc.monitor(net, record=("v",)) as seen:
        out = net(x)
    assert torch.equal(out, other(x))
    for value, wanted in zip(net.state_dict().values(), other.state_dict().values()):
        assert torch.equal(value, wanted)
    assert seen["1"].v.shape == (4, 16, 8)
    assert seen["1"].kind == "LIF"
    assert norm_neuron.neuron.continues is False
    norm = sc.layers.NormNeuron(nn.BatchNorm1d(6), sc.LIF(), shortcut="after")
    with sc.monitor(norm, spikes=True) as seen:
        out = norm(driven(4, 16, 6), driven(4, 16, 6))
    # those of the neuron, without the shortcut
    assert torch.equal(seen[""].spikes + driven(4, 16, 6), out)
    assert seen[""].rate == pytest.approx(seen[""].spikes.mean().item())


def test_gradients_are_kept_when_asked_for_and_else_dropped():
    """``grad=True`` makes rates, spikes and states parts of the graph; the gradient is that of the functional core."""
    net, x = network(), driven(5, 3, 6)
    with sc.monitor(net, record=("v",), spikes=True) as seen:
        net(x)
    layer = seen["1"]
    assert [one.requires_grad for one in (layer.v, layer.spikes, layer.rates)] == [False] * 3
    with sc.monitor(net, record=("v",), spikes=True, grad=True) as seen:
        net(x)
        loss = seen["1"].rates.pow(2).sum() + seen["1"].v.mean() + seen["1"].spikes.sum()
    (gradient,) = torch.autograd.grad(loss, [net[0].weight])
    spikes, trace = plainly(net, x)[0]
    wanted = spikes.mean((0, 1)).pow(2).sum() + trace["v"].mean() + spikes.sum()
    assert torch.allclose(gradient, torch.autograd.grad(wanted, [net[0].weight])[0], rtol=1e-5)
    with torch.no_grad(), sc.monitor(net, grad=True) as seen:
        net(x)
    assert not seen["1"].rates.requires_grad


def test_after_the_block_nothing_is_left():
    """At the end, by an exception too, nobody watches, and what was seen is free once its user drops it."""
    net, x = network(), driven(5, 3, 6)
    before = {name: dict(vars(module)) for name, module in net.named_modules()}
    net(x)
    with sc.monitor(net, record=("v",)) as seen:
        net(x)
    kept = weakref.ref(seen["1"].v), weakref.ref(seen["1"])
    calls = len(seen["1"].calls)
    net(x)
    assert len(seen["1"].calls) == calls
    del seen
    gc.collect()
    assert [one() for one in kept] == [None, None]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), sc.monitor(net, record=("v",)):
        net(driven(5, 3, 7))
    for name, module in net.named_modules():
        assert vars(module).keys() == before[name].keys(), name
        assert not module._forward_hooks


@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
def test_wrapped_and_compiled_networks_keep_their_names():
    """A wrapper is no part of a name; a compiled network runs eagerly in the block and compiled after it."""
    from torch._dynamo.testing import CompileCounter

    net, x = network(), driven(5, 3, 6)
    with sc.monitor(nn.DataParallel(net)) as seen:
        net(x)
    assert list(seen) == ["1", "3", "5"]
    wanted = seen.rates
    if sys.version_info >= (3, 14) or not hasattr(torch, "compiler") or not hasattr(torch.compiler, "set_stance"):
        return  # torch before 2.6, or one that does not compile
    counter = CompileCounter()
    compiled = torch.compile(net, backend=counter)
    if not COMPILES:
        with pytest.raises(sc.backend.Unsupported, match="sc.monitor of a compiled network"), sc.monitor(compiled):
            pass
        return
    compiled(x)
    frames = counter.frame_count
    for given in (compiled, net):
        with sc.monitor(given, record=("v",)) as seen:
            compiled(x)
        assert seen.rates == pytest.approx(wanted)
        assert seen["1"].v.shape == (5, 3, 8)
    compiled(x)
    assert counter.frame_count == frames > 0


@pytest.mark.skipif(not COMPILES, reason="sc.checkpoint needs torch 2.6")
def test_activation_checkpointing_is_seen_once():
    """The second run, in backward, is nobody's to see; a record would be lacking there, and is refused."""
    net, x = network(), driven(5, 3, 6).requires_grad_()
    again = {"use_reentrant": False, "context_fn": sc.parallel.checkpoint_contexts(net)}
    for call in (sc.checkpoint(net, every=2), lambda x: checkpoint(net, x, **again)):
        with sc.monitor(net) as seen:
            call(x).sum().backward()
        assert len(seen["1"].calls) == 1
        text = "LIF: sc.monitor is to record v of a call within activation checkpointing"
        with sc.monitor(net, record=("v",)), pytest.raises(RuntimeError, match=text):
            call(x)


def logged_network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 30), sc.LIF(), nn.Linear(30, 4), sc.LI())


@pytest.fixture
def tensorboard():
    pytest.importorskip("matplotlib").use("Agg")
    return pytest.importorskip("torch.utils.tensorboard")


def read(folder) -> dict:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder), size_guidance={"histograms": 0})
    found.Reload()
    return found


def test_rates_states_and_pictures_are_in_the_log(tmp_path, tensorboard):
    """Scalars and histograms of each layer that fires, of states that were recorded, and pictures of both."""
    net, x = logged_network(), 8 * torch.rand(10, 3, 6)
    with tensorboard.SummaryWriter(str(tmp_path)) as writer, sc.monitor(net, record=("v",), spikes=True) as seen:
        for step in (3, 4):
            seen.clear()
            net(x / step)
            seen.log(writer, step)
    tags = read(tmp_path).Tags()
    assert sorted(tags["scalars"]) == ["rate/1", "saturated/1", "silent/1"]
    assert sorted(tags["histograms"]) == ["rates of neurons/1", "v/1", "v/3"]
    assert sorted(tags["images"]) == ["raster/1", "traces of v/1", "traces of v/3"]
    rates = read(tmp_path).Scalars("rate/1")
    assert [event.step for event in rates] == [3, 4]
    assert rates[1].value == pytest.approx(seen.rates["1"])
    assert read(tmp_path).Scalars("silent/1")[1].value == pytest.approx(seen["1"].silent / 30)
    histogram = read(tmp_path).Histograms("rates of neurons/1")[1].histogram_value
    assert histogram.num == 30
    assert histogram.sum == pytest.approx(float(seen["1"].rates.sum()), rel=1e-5)


def test_a_block_that_is_not_entered_says_so() -> None:
    """Errors for a key and an attribute, and its print."""
    block = sc.monitor(network())
    said = r"^sc\.monitor records within a block; write `with sc\.monitor\(\.\.\.\) as seen: net\(x\)`, and read seen$"
    with pytest.raises(TypeError, match=said):
        block["1"]
    with pytest.raises(AttributeError, match=said):
        block.rates  # noqa: B018  # asked for, and not there
    assert repr(block).startswith("<sc.monitor records within a block")
    with pytest.raises(AttributeError, match=r"^sc\.record records within a block"):
        sc.record(network(), "v").take()


test_refused = refusals.table(__file__, globals())
