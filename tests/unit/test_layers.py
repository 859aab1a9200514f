"""TimeBatched: the same as a loop over time, in one call, without copies; neurons are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
from spikecore.layers import TimeBatched

T, B = 4, 3


class Probe(nn.Module):
    """Passes its input on and remembers it."""

    def forward(self, x):
        """``x`` itself."""
        self.seen = x
        return x


def values(*shape, seed=0):
    """Normal values in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TestValues:
    """Values of the results."""

    def test_equals_a_loop_over_time(self):
        """y[t] is the modules, in order, applied to x[t]."""
        modules = (nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AvgPool2d(2))
        x = values(T, B, 2, 6, 6)
        layer = TimeBatched(*modules).double()
        expected = torch.stack([nn.Sequential(*modules)(step) for step in x])
        torch.testing.assert_close(layer(x), expected)

    def test_norm_sees_time_and_batch_together(self):
        """Batch normalisation has the statistics over T * B, and updates its running ones once a call."""
        norm = nn.BatchNorm1d(5).double()
        x = values(T, B, 5) + torch.arange(T).reshape(T, 1, 1)
        y = TimeBatched(norm)(x)
        spread = (x.var(dim=(0, 1), unbiased=False) + norm.eps).sqrt()
        torch.testing.assert_close(y, (x - x.mean(dim=(0, 1))) / spread)
        torch.testing.assert_close(norm.running_mean, 0.1 * x.mean(dim=(0, 1)))
        assert norm.num_batches_tracked == 1


class TestMemory:
    """Tensors that are not copied."""

    def test_folding_is_a_view(self):
        """The module sees the memory of x, and so does whoever gets the output of an identity."""
        probe, x = Probe(), values(T, B, 5)
        y = TimeBatched(probe)(x)
        assert probe.seen.shape == (T * B, 5)
        assert probe.seen.data_ptr() == x.data_ptr() == y.data_ptr()

    def test_channels_last_stays(self):
        """Steps in channels-last stay so, on the way in and on the way out, without a copy."""
        x = torch.zeros(T * B, 2, 6, 6).to(memory_format=torch.channels_last).unflatten(0, (T, B))
        probe = Probe()
        y = TimeBatched(probe)(x)
        assert probe.seen.is_contiguous(memory_format=torch.channels_last)
        assert probe.seen.data_ptr() == x.data_ptr()
        assert y.stride() == x.stride()


def test_in_a_single_step_network():
    """A step without a time dimension: what the module says, how x was taken, and what to do."""
    shape = (4, 2, 8, 8)
    net = nn.Sequential(TimeBatched(nn.Conv2d(2, 3, 3)), sc.LIF(step="single"))
    text = rf"^TimeBatched took x of shape \({shape[0]}, .* for 4 time steps of a batch of {shape[1]}, and its module "
    with pytest.raises(RuntimeError, match=text) as caught:
        net(torch.rand(shape))
    assert "A network of step='single' neurons has no time dimension" in str(caught.value)
    assert str(caught.value.__cause__) in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "way"),
    [
        (torch.float64, r"give x.to\(torch.float32\), or convert the network, as in net.to\(torch.float64\)$"),
        (torch.uint8, r"give x.to\(torch.float32\), scaled to what the network takes, as in x.float\(\) / 255 .*$"),
    ],
)
def test_an_input_of_another_dtype_is_told_from_one_of_another_shape(dtype: torch.dtype, way: str) -> None:
    """The way out is another dtype, and no other step mode."""
    layer = sc.layers.TimeBatched(nn.Linear(3, 2), step="multi")
    with pytest.raises(
        RuntimeError, match=f"x is {dtype}, and the module has parameters of torch.float32: {way}"
    ) as caught:
        layer(torch.ones(4, 2, 3, dtype=dtype))
    assert "set_step" not in str(caught.value)


test_refused = refusals.table(__file__, globals())
