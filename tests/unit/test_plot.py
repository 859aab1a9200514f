"""``sc.plot`` draws what it is given, with named axes, and leaves the rest to matplotlib."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import refusals
import spikecore as sc

matplotlib = pytest.importorskip("matplotlib")


matplotlib.use("Agg")


plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(2))


def ticks(collection) -> list:
    """(time, neuron) of each tick."""
    return sorted(
        (float(segment[0, 0]), round(float(segment[:, 1].mean()), 6)) for segment in collection.get_segments()
    )


def test_a_raster_has_a_tick_for_each_spike():
    """Of the chosen sample, at its step and neuron; negative spikes apart; axes in milliseconds if asked."""
    spikes = (rand(12, 3, 2, 5) < 0.2).float() - (rand(12, 3, 2, 5) > 0.9).float()
    ax = sc.plot.raster(spikes, sample=1)
    one = spikes[:, 1].flatten(1)
    up, down = ax.collections
    assert ticks(up) == sorted((float(t), float(n)) for t, n in (one > 0).nonzero().tolist())
    assert len(ticks(down)) == int((one < 0).sum()) > 0
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("time step", "neuron")
    assert ax.get_xlim() == (-0.5, 11.5)
    into = plt.subplots()[1]
    assert sc.plot.raster(spikes[:, 1, 0].to(torch.bool), ax=into, dt=0.5, label="digit") is into
    assert (into.get_xlabel(), into.get_ylabel(), into.get_xlim()) == ("time (ms)", "digit", (-0.25, 5.75))
    assert max(time for time, _ in ticks(into.collections[0])) <= 5.5


def test_a_raster_of_many_neurons_is_a_picture_of_means():
    """10,000 neurons give one image of few pixels, whose mean over real neurons and steps is the rate."""
    spikes = (rand(90, 10_007) < 0.1).float()
    ax = sc.plot.raster(spikes)
    (image,) = ax.images
    means = torch.tensor(image.get_array())
    assert means.shape == (197, 90)
    assert not ax.collections
    rows = spikes[:, : 196 * 51].reshape(90, 196, 51).mean(2).T
    torch.testing.assert_close(means[:196], rows)
    torch.testing.assert_close(means[196], spikes[:, 196 * 51 :].mean(1))  # fewer neurons in the last row
    assert ax.get_ylim() == (-0.5, 10_006.5)
    assert ax.figure.axes[1].get_ylabel() == "spikes per step and neuron"


def test_traces_are_curves_with_threshold_and_spikes():
    """The chosen neurons' states, a dashed threshold, and a dot above them at each spike."""
    net = sc.LIF()
    with sc.monitor(net, record=("v",), spikes=True, grad=True) as seen:
        net((3 * rand(20, 2, 6)).requires_grad_())
    v, spikes = seen[""].v, seen[""].spikes
    ax = sc.plot.traces(v, sample=1, neurons=(4, 0), spikes=spikes, threshold=1.0)
    four, fired, zero, _, threshold = ax.lines
    assert list(four.get_ydata()) == v[:, 1, 4].tolist()
    assert list(zero.get_ydata()) == v[:, 1, 0].tolist()
    assert list(fired.get_xdata()) == spikes[:, 1, 4].nonzero()[:, 0].tolist() != []
    assert min(fired.get_ydata()) > 1.0
    assert set(threshold.get_ydata()) == {1.0}
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["neuron 4", "neuron 0", "threshold"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("time step", "membrane potential")
    assert len(sc.plot.traces(v[:, 0], neurons=3).lines) == 3


def test_rates_of_layers_and_of_neurons():
    """A bar for each layer that fires, with its silent share; of one tensor, a histogram of its neurons."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 30), sc.LIF(), nn.Linear(30, 4), sc.LI())
    with sc.monitor(net) as seen:
        net(8 * rand(10, 3, 6))
    ax = sc.plot.rates(seen)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["1"]
    assert ax.patches[0].get_width() == pytest.approx(seen.rates["1"])
    assert f"{100 * seen['1'].silent / 30:.0f} % silent" in [text.get_text() for text in ax.texts]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("spikes per time step", "layer")
    ax = sc.plot.rates(seen["1"].rates)
    assert sum(patch.get_height() for patch in ax.patches) == 30
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("spikes per time step", "neurons")
    assert len(sc.plot.rates({"a": torch.ones(3), "b": torch.zeros(2)}).patches) == 2


def test_surrogates_are_their_formulas():
    """A curve for each, of its derivative; all of them have a legend beside the curves."""
    every = [getattr(sc.surrogate, name)() for name in sc.surrogate.__all__ if name not in ("Surrogate",)]
    ax = sc.plot.surrogates(*every, span=(-1.0, 3.0), points=5)
    assert len(ax.lines) == len(every)
    atan = sc.plot.surrogates(sc.surrogate.ATan(alpha=2.0), points=3).lines[0]
    u = atan.get_xdata()
    assert list(atan.get_ydata()) == pytest.approx([1 / (1 + (torch.pi * at) ** 2) for at in u])
    assert sc.plot.surrogates(every[0]).get_xlabel() == "potential minus threshold, u"


def test_without_matplotlib_the_package_is_named(monkeypatch):
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(
        ImportError, match="sc.plot draws by matplotlib, which is not installed: pip install matplotlib"
    ):
        sc.plot.raster(torch.ones(3, 2))


test_refused = refusals.table(__file__, globals())
