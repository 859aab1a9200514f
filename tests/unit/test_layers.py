"""TimeBatched: the same as a loop over time, in one call, without copies; neurons are refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.layers import TimeBatched
from spikecore.neuron import Stateful

T, B = 4, 3


class Neuron(Stateful):
    """A stateful module whose construction is no concern of this test."""

    def __init__(self):
        nn.Module.__init__(self)


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
    """What comes out."""

    @pytest.mark.parametrize(
        ("modules", "shape"),
        [
            ((nn.Linear(5, 2),), (5,)),
            ((nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AvgPool2d(2)), (2, 6, 6)),
            ((nn.Flatten(),), (2, 3)),
            ((nn.Identity(),), ()),
        ],
    )
    def test_equals_a_loop_over_time(self, modules, shape):
        """y[t] is the modules, in order, applied to x[t]."""
        x = values(T, B, *shape)
        layer = TimeBatched(*modules).double()
        expected = torch.stack([nn.Sequential(*modules)(step) for step in x])
        torch.testing.assert_close(layer(x), expected)

    def test_gradient_equals_that_of_a_loop(self):
        """Input and weights get the gradient of a loop over time."""
        linear = nn.Linear(5, 2).double()
        x = values(T, B, 5).requires_grad_()
        loss = TimeBatched(linear)(x).square().sum()
        expected = torch.stack([linear(step) for step in x]).square().sum()
        found = torch.autograd.grad(loss, [x, *linear.parameters()])
        torch.testing.assert_close(found, torch.autograd.grad(expected, [x, *linear.parameters()]))

    def test_norm_sees_time_and_batch_together(self):
        """Batch normalisation has the statistics over T * B, and updates its running ones once a call."""
        norm = nn.BatchNorm1d(5).double()
        x = values(T, B, 5) + torch.arange(T).reshape(T, 1, 1)
        y = TimeBatched(norm)(x)
        spread = (x.var(dim=(0, 1), unbiased=False) + norm.eps).sqrt()
        torch.testing.assert_close(y, (x - x.mean(dim=(0, 1))) / spread)
        torch.testing.assert_close(norm.running_mean, 0.1 * x.mean(dim=(0, 1)))
        assert norm.num_batches_tracked == 1

    @pytest.mark.parametrize("shape", [(0, B), (T, 0), (0, 0)])
    def test_no_steps_or_no_samples(self, shape):
        """Nothing in, nothing out, in the right shape."""
        layer = TimeBatched(nn.Conv2d(2, 4, 3), nn.Flatten())
        assert layer(torch.zeros(*shape, 2, 5, 5)).shape == (*shape, 36)

    def test_nests_and_copies(self):
        """It is a module as any other: its parameters are the modules', copies work, and it may contain another."""
        layer = TimeBatched(nn.Linear(5, 5), nn.ReLU())
        assert [name for name, _ in layer.named_parameters()] == ["module.0.weight", "module.0.bias"]
        assert [name for name, _ in TimeBatched(nn.Linear(5, 5)).named_parameters()] == ["module.weight", "module.bias"]
        x = values(T, B, 5).float()
        torch.testing.assert_close(copy.deepcopy(layer)(x), layer(x))
        assert TimeBatched(TimeBatched(nn.Identity()))(values(2, 3, 4, 5)).shape == (2, 3, 4, 5)


class TestMemory:
    """What is not copied."""

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

    def test_other_strides_are_copied(self):
        """A batch-first sequence, transposed, is copied and right."""
        x = values(B, T, 5).transpose(0, 1)
        assert torch.equal(TimeBatched(nn.Identity())(x), x)


class TestErrors:
    """A wrong argument is named, with its value and what would be right."""

    @pytest.mark.parametrize(
        ("modules", "text"),
        [
            ((Neuron(),), "module 0 of TimeBatched is Neuron, which has state .*place it after"),
            ((nn.Linear(2, 2), Neuron()), "module 1 of TimeBatched is Neuron, which has state"),
            (
                (nn.Sequential(nn.Linear(2, 2), nn.Sequential(Neuron())),),
                "module 0, at '1.0', of TimeBatched is Neuron, which has state",
            ),
        ],
    )
    def test_neurons_are_refused(self, modules, text):
        """A neuron needs the time dimension; one in any depth is refused at construction, by its place."""
        with pytest.raises(ValueError, match=text):
            TimeBatched(*modules)

    @pytest.mark.parametrize("encoder", [sc.encode.Delta(), sc.encode.Poisson(4), sc.encode.Latency(4)])
    def test_encoders_are_refused(self, encoder):
        """Delta took the rows of a batch for steps: it returned spikes of the right shape and of wrong numbers."""
        name = type(encoder).__name__
        with pytest.raises(ValueError, match=f"module 1 of TimeBatched is {name}, which needs the time dimension"):
            TimeBatched(nn.Linear(2, 2), encoder)

    def test_modules_are_checked(self):
        """There is at least one module, and nothing else."""
        with pytest.raises(ValueError, match="TimeBatched needs at least one module"):
            TimeBatched()
        with pytest.raises(
            TypeError, match=r"module 1 of TimeBatched must be an nn\.Module, got builtin_function_or_method"
        ):
            TimeBatched(nn.Linear(2, 2), torch.relu)

    def test_input_is_checked(self):
        """x is a tensor with time and batch."""
        with pytest.raises(ValueError, match=r"x must be \[T, B, \.\.\.\] \(time, batch\), got shape \(3,\)"):
            TimeBatched(nn.Identity())(torch.zeros(3))
        with pytest.raises(TypeError, match="TimeBatched: x is a list; give a tensor"):
            TimeBatched(nn.Identity())([1.0])

    def test_output_is_checked(self):
        """The module keeps the leading dimension and returns one tensor."""
        text = (
            r"must keep the leading dimension, T \* B = 12 for x of shape \(4, 3, 8\), got an output of shape \(48, 2\)"
        )
        with pytest.raises(ValueError, match=text):
            TimeBatched(nn.Unflatten(1, (4, 2)), nn.Flatten(0, 1))(torch.zeros(T, B, 8))
        with pytest.raises(TypeError, match="the module of TimeBatched must return a tensor, got tuple"):
            TimeBatched(nn.GRU(8, 2))(torch.zeros(T, B, 8))


@pytest.mark.parametrize(
    ("module", "shape", "error"),
    [(nn.Conv2d(2, 3, 3), (4, 2, 8, 8), RuntimeError), (nn.BatchNorm1d(3), (4, 3), ValueError)],
    ids=["conv", "norm"],
)
def test_in_a_single_step_network(module, shape, error):
    """A step without a time dimension: what the module says, how x was taken, and what to do."""
    net = nn.Sequential(TimeBatched(module), sc.LIF(step="single"))
    text = rf"^TimeBatched took x of shape \({shape[0]}, .* for 4 time steps of a batch of {shape[1]}, and its module "
    with pytest.raises(error, match=text) as caught:
        net(torch.rand(shape))
    assert "A network of step='single' neurons has no time dimension" in str(caught.value)
    assert str(caught.value.__cause__) in str(caught.value)


@pytest.mark.parametrize("step", ["multi", "single"])
@pytest.mark.parametrize(
    ("dtype", "way"),
    [
        (torch.float64, r"give x.to\(torch.float32\), or convert the network, as in net.to\(torch.float64\)$"),
        (torch.uint8, r"give x.to\(torch.float32\), scaled to what the network takes, as in x.float\(\) / 255 .*$"),
    ],
)
def test_an_input_of_another_dtype_is_told_from_one_of_another_shape(step: str, dtype: torch.dtype, way: str) -> None:
    """The way out is another dtype, and no other step mode."""
    layer = sc.layers.TimeBatched(nn.Linear(3, 2), step=step)
    with pytest.raises(
        RuntimeError, match=f"x is {dtype}, and the module has parameters of torch.float32: {way}"
    ) as caught:
        layer(torch.ones(4, 2, 3, dtype=dtype))
    assert "set_step" not in str(caught.value)


@pytest.mark.parametrize("fused", [False, None])
def test_one_sample_of_one_step_has_its_gradients_in_channels_last_memory(fused):
    """``flatten(0, 1)`` gives strides of which torch's batch normalisation computes wrong gradients on a CPU."""
    generator = torch.Generator().manual_seed(0)
    x, g = (torch.randn(1, 1, *size, generator=generator) for size in ((3, 6, 6), (4, 4, 4)))
    conv, found = nn.Conv2d(3, 4, 3, bias=False), []
    for memory in (torch.contiguous_format, torch.channels_last):
        conv.to(memory_format=memory)
        layer = sc.layers.NormNeuron(nn.BatchNorm2d(4), sc.LI(backend="torch"), fused=fused)
        for behind in (sc.layers.TimeBatched(nn.BatchNorm2d(4)), layer):
            net = nn.Sequential(sc.layers.TimeBatched(conv), behind)
            y = net(x[0].to(memory_format=memory).unsqueeze(0))
            found.append([y, *torch.autograd.grad(y, list(net.parameters())[:3], g)])
    for mine, its in zip(found[0] + found[1], found[2] + found[3]):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)
