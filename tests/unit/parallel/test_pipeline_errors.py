"""What a pipeline refuses, and that it does so before anything is moved or runs."""

from __future__ import annotations

import sys

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
            "stage 0 asks for 'gpu', which is not there; there (is|are) cpu",
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
        ({"batch_dim": -1}, ValueError, "batch_dim=-1 must be the number of a dimension, from 0 on"),
        ({"batch_dim": "1"}, ValueError, "batch_dim='1' must be the number of a dimension"),
        ({"batch_dim": (0, 1, 2)}, ValueError, r"batch_dim=\(0, 1, 2\) must be the number .* or a pair"),
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


def test_no_batch():
    """Something without a batch is refused, and the argument that says where it is, is named."""
    with pytest.raises(ValueError, match=r"the batch is dimension batch_dim=1 of the input, and x has shape \(8,\)"):
        pair(chunks=2)(torch.rand(B))
    with pytest.raises(TypeError, match=r"a tensor, or a tuple, list or dict of tensors, got \['image'\]"):
        pair()("image")
    with pytest.raises(ValueError, match=r"the tensors of the input have batches of \[4, 8\] in dimension batch_dim=1"):
        pair(chunks=2)((torch.rand(T, B, N), torch.rand(T, 4, N)))


def test_an_encoder_needs_both_dimensions():
    """What makes time takes [B, ...]: another batch_dim of the input is refused, with the one to give."""
    stages = [(nn.Sequential(sc.encode.Constant(T), nn.Linear(N, 4)), "cpu"), (sc.LIF(), "cpu")]
    with pytest.raises(ValueError, match=r"make time of an input \[B, ...\], and batch_dim=1 .* batch_dim=\(0, 1\)"):
        sc.Pipeline(stages, chunks=2)(torch.rand(B, N))
    assert sc.Pipeline(stages)(torch.rand(B, N)).shape == (T, B, 4)  # one part needs none


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes from Python 3.11 on")
def test_a_stage_that_does_not_fit_the_next():
    """The error is the layer's own, with a note that names the stage, its device and the shape that it got."""
    net = sc.Pipeline([(nn.Linear(N, 4), "cpu"), (nn.Linear(5, 3), "cpu")], chunks=2)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes") as caught:
        net(torch.rand(T, B, N))
    assert caught.value.__notes__ == ["Pipeline: in stage 1 (Linear on cpu), whose input has shape (5, 4, 4)"]


def test_outputs_that_cannot_be_put_together():
    """A stage that joins the samples is refused for parts, and works in one."""

    class Last(nn.Module):
        def forward(self, x):
            return x[-1]

    x, stages = torch.rand(T, 4, 2), [(sc.LIF(), "cpu"), (Last(), "cpu")]
    with pytest.raises(
        ValueError, match=r"gives shape \(1, 2\) for a part of 1, in which dimension 1 is not the batch.*\(1, 0\)"
    ):
        sc.Pipeline(stages, chunks=4)(x)
    assert torch.equal(sc.Pipeline(stages, chunks=4, batch_dim=(1, 0))(x), sc.LIF()(x)[-1])

    class Mean(nn.Module):
        def forward(self, x):
            return x.mean()

    net = sc.Pipeline([(sc.LIF(), "cpu"), (Mean(), "cpu")], chunks=2)
    with pytest.raises(ValueError, match=r"gives shape \(\) .*what joins the samples"):
        net(torch.rand(T, B, N))
    net.set_split()
    assert net(torch.rand(T, B, N)).shape == ()

    class Named(nn.Module):
        def forward(self, x):
            return x, "spikes"

    with pytest.raises(TypeError, match="of which not everything is a tensor.*use chunks=1"):
        sc.Pipeline([(Named(), "cpu")], chunks=2, batch_dim=0)(torch.rand(B, N))


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
