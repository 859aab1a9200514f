"""What a pipeline refuses, and that it does so before anything is moved or runs."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
from torch import nn

import spikecore as sc

T, B, N = 5, 8, 6


def pair(**kwargs):
    """Two stages on the CPU; the first counts its calls."""
    first = nn.Sequential(nn.Linear(N, 4), sc.LIF())
    return sc.Pipeline([(first, "cpu"), (nn.Sequential(nn.Linear(4, 3), sc.LI()), "cpu")], **kwargs)


@pytest.mark.parametrize(
    ("stages", "error", "says"),
    [
        ([], ValueError, r"stages=\[\] has no stage"),
        (nn.Linear(2, 2), TypeError, r"must be a list of pairs, \[\(stage, device\), \.\.\.\]"),
        (None, TypeError, "stages=None must be a list of pairs"),
        ([nn.Linear(2, 2)], TypeError, r"stages\[0\]=Linear.* must be a pair \(stage, device\)"),
        ([(nn.ReLU(), "cpu"), (nn.ReLU, "cpu")], TypeError, "stage 1 is the class ReLU; give a module"),
        ([(torch.relu, "cpu")], TypeError, "stage 0 is a builtin_function_or_method; give a module"),
        ([(nn.ReLU(), 0)], TypeError, "the device of stage 0, 0, must be a torch.device or its name, such as 'cuda:0'"),
        (
            [(nn.ReLU(), "gpu")],
            ValueError,
            "the device of stage 0, 'gpu', is none that torch knows; there (is|are) cpu",
        ),
        (
            [(nn.ReLU(), "cpu"), (nn.ReLU(), "cuda:99")],
            ValueError,
            "stage 1 asks for 'cuda:99', which is not there; there",
        ),
        ([(nn.ReLU(), "ipu:0")], ValueError, r"stage 0 asks for 'ipu:0'; PopTorch places.*spikecore_ipu.pipeline"),
    ],
    ids=["empty", "module", "none", "no pair", "class", "function", "number", "no name", "absent", "ipu"],
)
def test_stages(stages, error, says):
    """Wrong stages and devices are named, with the devices that are there."""
    with pytest.raises(error, match=says):
        sc.Pipeline(stages)


def test_nothing_is_moved_before_all_is_checked():
    """A wrong last stage leaves the first one where it was."""
    first = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="stage 1 asks for 'cuda:99'"):
        sc.Pipeline([(first, "meta"), (nn.ReLU(), "cuda:99")])
    assert first.weight.device.type == "cpu"


def test_a_module_in_two_stages():
    """One module cannot be two stages, nor part of both."""
    shared = sc.LIF()
    with pytest.raises(
        ValueError, match="stages 0 and 1 share a LIF which can be on one device.*make one for each stage"
    ):
        sc.Pipeline([(shared, "cpu"), (shared, "cpu")])
    with pytest.raises(ValueError, match=r"stages 0 and 1 share a LIF, '1' in stage 1, which can be on one device"):
        sc.Pipeline([(shared, "cpu"), (nn.Sequential(nn.ReLU(), shared), "meta")])


def test_a_tensor_on_two_devices():
    """Tied weights need one device, where they are allowed."""
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    b.weight = a.weight
    with pytest.raises(ValueError, match=r"'weight' of stage 0 and 'weight' of stage 1 are one tensor.*cpu and meta"):
        sc.Pipeline([(a, "cpu"), (b, "meta")])
    tied = sc.Pipeline([(a, "cpu"), (b, "cpu")])
    assert len(list(tied.parameters())) == 3


@pytest.mark.parametrize(
    ("split", "error", "says"),
    [
        (
            {"chunks": 2, "split_sizes": 4},
            ValueError,
            "chunks=2 and split_sizes=4 each say how a batch is split; give one",
        ),
        ({"chunks": 0}, ValueError, "chunks=0 must be at least 1"),
        ({"chunks": 2.0}, TypeError, "chunks=2.0 must be a number of equal parts, a whole number"),
        ({"chunks": True}, TypeError, "chunks=True must be"),
        ({"split_sizes": "4"}, TypeError, "split_sizes='4' must be the size of a part, or a list of sizes"),
        ({"split_sizes": []}, ValueError, r"split_sizes=\[\] has no part"),
        ({"split_sizes": [4, 0]}, ValueError, r"split_sizes\[1\]=0 must be at least 1"),
        ({"batch_dim": -1}, ValueError, "batch_dim=-1 must count from the first dimension"),
        ({"batch_dim": "1"}, TypeError, "batch_dim='1' must be the number of a dimension"),
        ({"batch_dim": (0, 1, 2)}, ValueError, r"batch_dim=\(0, 1, 2\) must be one number, or two"),
    ],
    ids=str,
)
def test_settings(split, error, says):
    """Wrong settings are errors when the pipeline is made."""
    with pytest.raises(error, match=says):
        pair(**split)


@pytest.mark.parametrize(
    ("split", "says"),
    [
        (
            {"chunks": 3},
            r"chunks=3 does not divide the batch of 8 \(dimension batch_dim=1 of the input, shape \(5, 8, 6\)\); "
            r"numbers of equal parts that do: 1, 2, 4, 8; or give split_sizes",
        ),
        ({"split_sizes": 5}, r"split_sizes=5 does not divide the batch of 8 .* sizes that do: 1, 2, 4, 8"),
        ({"split_sizes": [4, 3]}, r"split_sizes=\[4, 3\] are 7 together, and the batch is 8 .*sum is 8"),
    ],
    ids=str,
)
def test_a_split_that_does_not_divide_the_batch(split, says):
    """The batch, its dimension, the split and what would work are in the sentence, and nothing ran."""
    net, calls = pair(**split), []
    net[0].register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(ValueError, match=says):
        net(torch.rand(T, B, N))
    assert calls == []


def test_many_divisors():
    """Of many numbers that would work those near to the one asked for are listed."""
    net = sc.Pipeline([(nn.ReLU(), "cpu")], chunks=59)
    with pytest.raises(ValueError, match="parts that do: 28, 30, .*, 56, 60, 63, .*, 90 and others"):
        net(torch.rand(5040, 1))


def test_no_batch():
    """Something without a batch is refused, and the argument that says where it is, is named."""
    with pytest.raises(ValueError, match=r"the batch is dimension batch_dim=1 of the input, and x has shape \(8,\)"):
        pair()(torch.rand(B))
    with pytest.raises(ValueError, match="the batch is empty"):
        pair()(torch.rand(T, 0, N))
    with pytest.raises(TypeError, match="x must be a tensor, or a tuple, list or dict of tensors, got 'image'"):
        pair()("image")
    with pytest.raises(ValueError, match=r"the tensors of the input have batches of \[4, 8\] in dimension batch_dim=1"):
        pair()((torch.rand(T, B, N), torch.rand(T, 4, N)))


def test_the_input_does_not_fit():
    """The first stage is named with the shape of the input, the part and the layer's own words."""
    net = pair(chunks=4)
    with pytest.raises(ValueError, match="does not take") as caught:
        net(torch.rand(T, B, N + 1))
    text = str(caught.value)
    assert "stage 0 (Sequential on cpu) does not take a part of 2 of the input, shape (5, 8, 7), whose batch" in text
    assert "batch_dim=1" in text
    assert "(in its layer '0', Linear)" in text
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert str(caught.value.__cause__) in text


def test_a_stage_does_not_fit_the_next():
    """Both stages are named with the shape between them, and no stage ran."""
    calls = []
    first, second = nn.Sequential(nn.Linear(N, 4), sc.LIF()), sc.layers.TimeBatched(nn.Flatten(), nn.Linear(5, 3))
    first.register_forward_hook(lambda *_: calls.append(1))
    net = sc.Pipeline([(first, "cpu"), (second, "cpu")], chunks=2)
    with pytest.raises(
        ValueError,
        match=r"stage 1 \(TimeBatched on cpu\) does not take what stage 0 \(Sequential on cpu\) gives, "
        r"shape \(5, 4, 4\), for a part of 4 of the input, shape \(5, 8, 6\)(.|\n)*'module.1', Linear",
    ):
        net(torch.rand(T, B, N))
    assert calls == []


def test_parts_of_other_sizes_are_checked():
    """A layer that does not take the smallest part, such as batch statistics of one sample, says so before."""
    net = sc.Pipeline([(nn.Linear(N, 4), "cpu"), (nn.BatchNorm1d(4), "cpu")], split_sizes=[7, 1])
    with pytest.warns(UserWarning, match="in training normalises"), pytest.raises(
        ValueError, match="stage 1 .* does not take .*more than 1 value per channel"
    ):
        net(torch.rand(B, N))


class Reads(nn.Module):
    """Takes the way that a value says."""

    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_a_stage_that_reads_values_is_not_checked(caplog):
    """What cannot run without data is left out of the check; an attribute and the debug log say so, and it runs."""
    net = sc.Pipeline([(Reads(), "cpu"), (nn.Linear(N, 2), "cpu")], chunks=2)
    with caplog.at_level(logging.DEBUG, "spikecore"):
        out = net(torch.rand(B, N))
    assert out.shape == (B, 2)
    assert "stage 0 does not run without data" in net.unchecked
    assert net.unchecked in caplog.text
    bad = sc.Pipeline([(Reads(), "cpu"), (nn.Linear(N + 1, 2), "cpu")], chunks=2)
    with pytest.raises(RuntimeError):  # by the layer itself
        bad(torch.rand(B, N))


def test_what_autocast_makes_fit_is_not_refused():
    """Dtypes that only autocast makes equal end the check, since tensors without data know no autocast."""
    net, x = sc.Pipeline([(nn.Conv1d(N, 5, 1), "cpu"), (nn.ReLU(), "cpu")], chunks=2), torch.rand(B, N, 3).bfloat16()
    with pytest.raises((ValueError, RuntimeError), match="should be the same"):  # before torch 2.1 meta tells no dtypes
        net(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert net(x).dtype == torch.bfloat16


def test_lazy_layers():
    """Parameters that get their shapes in the first call cannot be checked before it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: lazy modules are new
        net = sc.Pipeline([(nn.Linear(N, 4), "cpu"), (nn.LazyLinear(2), "cpu")], chunks=2)
        assert net(torch.rand(B, N)).shape == (B, 2)
    assert "stage 1 cannot be copied" in net.unchecked
    net(torch.rand(1, N).expand(B + 2, N))
    assert net.unchecked == ""


def test_a_stage_that_cannot_be_copied():
    """A module that cannot be copied runs all the same."""

    class Fixed(nn.Module):
        def forward(self, x):
            return x

        def __deepcopy__(self, memo):
            raise TypeError("no copies")

    net = sc.Pipeline([(Fixed(), "cpu"), (nn.ReLU(), "cpu")], chunks=2)
    assert net(torch.ones(B, N)).shape == (B, N)
    assert net.unchecked == "stage 0 cannot be copied (TypeError: no copies)"


def test_where_the_batch_is_in_outputs_of_parts():
    """What cannot be told is asked for; a wrong answer is refused."""

    class Last(nn.Module):
        def forward(self, x):
            return x[-1]

    x = torch.rand(T, 4, 2)
    guess = sc.Pipeline([(sc.LIF(), "cpu"), (nn.Sequential(Reads(), Last()), "cpu")], chunks=2)
    with pytest.raises(
        ValueError, match=r"gives shape \(2, 2\) for a part of 2, .*several dimensions could be.*batch_dim=\(1, 0\)"
    ):
        guess(x)
    told = sc.Pipeline(list(guess.placed), chunks=2, batch_dim=(1, 0))
    assert torch.equal(told(x), sc.LIF()(x)[-1])
    wrong = sc.Pipeline(list(guess.placed), chunks=4, batch_dim=(1, 1))
    with pytest.raises(
        ValueError, match=r"gives shape \(1, 2\) for a part of 1, in which dimension 1 is not the batch"
    ):
        wrong(x)


@pytest.mark.parametrize("dim", [0, 1])
def test_outputs_of_stages_that_are_not_checked(dim):
    """Where no dry run tells it, the batch of the output is where that of the input is, or behind an encoder's time."""
    net, x = sc.Pipeline([(Reads(), "cpu"), (nn.ReLU(), "cpu")], chunks=2, batch_dim=dim), torch.rand(4, 6)
    assert torch.equal(net(x), x)
    made = sc.Pipeline([(nn.Sequential(Reads(), sc.encode.Constant(T)), "cpu"), (sc.LIF(), "cpu")], chunks=2)
    assert made(x).shape == (T, 4, 6)


def test_outputs_that_cannot_be_put_together():
    """A stage that joins the samples is refused for parts, and works in one."""

    class Mean(nn.Module):
        def forward(self, x):
            return x.mean()

    net = sc.Pipeline([(sc.LIF(), "cpu"), (Mean(), "cpu")], chunks=2)
    with pytest.raises(ValueError, match="no dimension of it is the batch.*Leave what joins the samples"):
        net(torch.rand(T, B, N))
    net.set_split()
    assert net(torch.rand(T, B, N)).shape == ()

    class Named(nn.Module):
        def forward(self, x):
            return x, "spikes"

    with pytest.raises(TypeError, match="of which not everything is a tensor.*use chunks=1"):
        sc.Pipeline([(Named(), "cpu")], chunks=2)(torch.rand(B, N))


@pytest.mark.parametrize(
    "move",
    [lambda net: net.to("meta"), lambda net: net.to_empty(device="meta"), lambda net: nn.Sequential(net).to("meta")],
)
def test_a_pipeline_is_not_moved(move):
    """.to(device) and its kin would undo the placement: the error says what to do, and nothing moved."""
    net = pair()
    with pytest.raises(
        RuntimeError, match=r"would move stage 0 of a Pipeline from cpu to meta; .*nn.Sequential\(\*pipeline\)"
    ):
        move(net)
    assert {parameter.device.type for parameter in net.parameters()} == {"cpu"}


def test_a_stage_that_was_moved():
    """A stage that its user moved behind the pipeline's back is named."""
    net = pair()
    net[1].to("meta")
    with pytest.raises(ValueError, match=r"stage 1 of a Pipeline is placed on cpu, and its '0.weight' is on meta"):
        net(torch.rand(T, B, N))


@pytest.mark.parametrize(
    "made", [sc.training_model, lambda net, loss, optimizer, options: sc.inference_model(net, options=options)]
)
def test_no_graph_of_several_devices(made):
    """A CUDA graph is of one GPU."""
    net = nn.Sequential(pair())
    with pytest.raises(
        ValueError, match=r"CudaOptions\(graph=True\) captures the work of one GPU.*Pipeline over cpu, cpu"
    ):
        made(net, sc.losses.ce_rate, torch.optim.SGD(net.parameters(), 0.1), options=sc.CudaOptions(graph=True))


def test_neurons_called_for_some_parts_only():
    """A neuron that carries its state must take part in every part of the batch."""

    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.neuron = sc.LIF(step="single")

        def forward(self, x):
            return self.neuron(x) if x.sum() > 0 else x

    net = sc.Pipeline([(Sometimes(), "cpu")], chunks=2)
    x = torch.ones(4, 3)
    x[2:] = -1
    with pytest.raises(RuntimeError, match="LIF carries its state, and was called for some parts of the batch and not"):
        net(x)
    assert net[0].neuron.state is None


def test_states_without_a_batch():
    """A state whose first dimension is not the batch cannot be that of a part."""

    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.neuron = sc.LIF(step="single")

        def forward(self, x):
            return self.neuron(x.flatten()).view(x.shape)

    net = sc.Pipeline([(Flat(), "cpu")], chunks=2)
    with pytest.raises(RuntimeError, match=r"for a part of 2 its state 'v' has shape \(6,\)"):
        net(torch.ones(4, 3))
    net.set_split(chunks=1)
    assert net(torch.ones(4, 3)).shape == (4, 3)
