"""A pipeline computes what nn.Sequential of its stages computes, trains so, and refuses the rest before it runs."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
from spikecore.context import COMPILES

T, B, N, C = 6, 8, 5, 3


def linear(inputs, outputs):
    """A layer whose products and sums are exact for inputs such as spikes, so that no order of them matters."""
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_((parameter * 32).round() / 16)
    return layer


def layers(step="multi", feedback=False):
    """Three stages, always with the same weights."""
    torch.manual_seed(0)
    second = sc.PLIF(1.8, threshold=0.5, step="multi" if feedback else step)
    return [
        nn.Sequential(linear(N, 16), sc.LIF(1.6, threshold=0.4, learn=("tau",), step=step)),
        sc.Recurrent(second, linear(16, 16), step=step) if feedback else nn.Sequential(linear(16, 16), second),
        nn.Sequential(linear(16, C), sc.LI(3.0, learn=("tau",), step=step)),
    ]


def plain(**kwargs):
    """The network that a pipeline is compared with."""
    return nn.Sequential(*layers(**kwargs))


def pipeline(*, step="multi", split=None, **kwargs):
    """The same network as a pipeline, all on the CPU: of ``[T, B, ...]``, or of ``[B, ...]`` in single steps."""
    stages = [(stage, "cpu") for stage in layers(step=step, **kwargs)]
    return sc.parallel.Pipeline(stages, **(split or {}), batch_dim=1 if step == "multi" else 0)


def inputs(dtype=torch.float32, steps=T):
    """Multiples of 1/16, which need a gradient."""
    drawn = torch.randn(steps, B, N, generator=torch.Generator().manual_seed(1))
    return ((drawn + 0.5) * 16).round().div(16).to(dtype).requires_grad_()


def gradients(net, x):
    """Of the input, then of all parameters."""
    return [x.grad, *[parameter.grad for parameter in net.parameters()]]


def assert_close(found, wanted, tolerance=1e-6):
    """Each tensor within the tolerance of the largest number of the one that it should be."""
    for a, b in zip(found, wanted):
        assert (a - b).abs().max() <= tolerance * b.abs().max().clamp(min=1e-30)


def states(net):
    """The states that the neurons of a network carry, in order."""
    return [value.detach() for m in sc.functional.stateful_modules(net) for value in (m.state or {}).values()]


SPLITS = pytest.mark.parametrize("split", [{}, {"chunks": 4}, {"split_sizes": [1, 4, 3]}], ids=str)


@SPLITS
@pytest.mark.parametrize("feedback", [False, True])
def test_outputs_and_gradients(split, feedback):
    """Outputs are those of the plain network bit for bit, gradients to rounding, and exactly so for one part."""
    one, many, x, y = plain(feedback=feedback), pipeline(split=split, feedback=feedback), inputs(), inputs()
    wanted, found = one(x), many(y)
    assert torch.equal(found, wanted)
    wanted.square().sum().backward()
    found.square().sum().backward()
    assert_close(gradients(many, y), gradients(one, x))
    if not split:
        assert all(torch.equal(a, b) for a, b in zip(gradients(many, y), gradients(one, x)))


@pytest.mark.parametrize("other", [{"split_sizes": [1, 7]}, {}], ids=str)
def test_single_step_neurons_have_a_state_for_each_part(other):
    """Steps go on from the state of their own part; between calls it is that of the batch, which any split may cut."""
    one, many = plain(step="single"), pipeline(step="single", split={"chunks": 4})
    x, y = inputs(), inputs()
    wanted, found = [], []
    for t in range(T):
        if t == 3:
            many.set_split(**other)
        wanted.append(one(x[t]))
        found.append(many(y[t]))
        assert all(torch.equal(a, b) for a, b in zip(states(many), states(one)))
    assert torch.equal(torch.stack(found), torch.stack(wanted))
    torch.stack(wanted).square().sum().backward()
    torch.stack(found).square().sum().backward()
    assert_close(gradients(many, y), gradients(one, x))
    sc.reset(many)
    assert states(many) == []


@SPLITS
def test_carried_state(split):
    """Within carry_state chunks of time go on from each other, part by part, and so do gradients."""
    one, many, x, y = plain(feedback=True), pipeline(split=split, feedback=True), inputs(), inputs()
    with sc.carry_state(one), sc.carry_state(many):
        wanted = torch.cat([one(chunk) for chunk in x.split(2)])
        found = torch.cat([many(chunk) for chunk in y.split(2)])
        assert torch.equal(found, wanted)
        assert all(torch.equal(a, b) for a, b in zip(states(many), states(one)))
        assert len(states(many)) > 0
    wanted.square().sum().backward()
    found.square().sum().backward()
    assert_close(gradients(many, y), gradients(one, x))


class Ends(nn.Module):
    """Raises in a real call when it is told to."""

    now = False

    def forward(self, x):
        if self.now:
            raise KeyError("now")
        return x


@pytest.mark.parametrize("chunks", [None, 2])
@pytest.mark.parametrize("step", ["single", "multi"])
def test_an_error_in_a_later_stage_leaves_the_states(step, chunks):
    """The first stage is not a call ahead of the others after an error in one part or several."""
    stages, ends, x = layers(step=step), Ends(), inputs().detach()
    x = x[0] if step == "single" else x
    many = sc.parallel.Pipeline(
        [(stages[0], "cpu"), (ends, "cpu"), (stages[1], "cpu")], chunks=chunks, batch_dim=x.ndim - 2
    )
    with sc.carry_state(many):
        many(x)
        before = states(many)
        ends.now = True
        with pytest.raises(KeyError, match="now"):
            many(x)
        assert len(states(many)) == len(before)
        assert all(torch.equal(a, b) for a, b in zip(states(many), before))


def test_images_that_an_encoder_gives_time():
    """With an encoder batch_dim says both: of the input the first dimension, of the output the second."""

    def stages():
        torch.manual_seed(0)
        front = sc.layers.TimeBatched(nn.Conv2d(1, 4, 3, padding=1))
        back = sc.layers.TimeBatched(nn.Flatten(), nn.Linear(4 * 16, C))
        return nn.Sequential(sc.encode.Constant(5), front, sc.LIF()), nn.Sequential(back, sc.LIF())

    images = torch.rand(6, 1, 4, 4)
    one = nn.Sequential(*stages())
    many = sc.parallel.Pipeline([(stage, "cpu") for stage in stages()], chunks=3, batch_dim=(0, 1))
    assert torch.equal(many(images), one(images))
    assert many(images).shape == (5, 6, C)


class Readout(nn.Module):
    """The mean over time, and the last step: outputs without time."""

    def forward(self, x):
        return {"rate": x.mean(0), "pair": (x[-1], x[0])}


def test_outputs_of_several_tensors():
    """Tensors in tuples and dicts pass between stages, and are put together along the batch of the output."""
    torch.manual_seed(0)
    fc = nn.Linear(N, 4)  # of the size of a part, so that shapes alone do not tell the batch

    class Both(nn.Module):
        def forward(self, pair):
            return pair["a"] + pair["b"][0]

    class Fork(nn.Module):
        def forward(self, x):
            return {"a": x, "b": (2 * x, x)}

    one = nn.Sequential(fc, sc.LIF(threshold=0.2), Fork(), Both(), Readout())
    parts = [(nn.Sequential(*copy.deepcopy(one)[:3]), "cpu"), (nn.Sequential(*one[3:]), "cpu")]
    many = sc.parallel.Pipeline(parts, chunks=2, batch_dim=(1, 0))
    wanted, found = one(inputs(steps=4)), many(inputs(steps=4))
    assert list(found) == ["rate", "pair"]
    assert isinstance(found["pair"], tuple)
    for a, b in zip([found["rate"], *found["pair"]], [wanted["rate"], *wanted["pair"]]):
        assert torch.equal(a, b)


def test_inputs_of_several_tensors():
    """Every tensor of an input is split; what has no dimensions, and what is no tensor, each part gets as it is."""

    class Add(nn.Module):
        def forward(self, pair, gain, name="x"):
            assert name == "y"
            return (pair[0] + pair[1]) * gain

    many = sc.parallel.Pipeline([(Add(), "cpu"), (sc.LIF(), "cpu")], chunks=4)
    x, y, gain = inputs(), torch.rand(T, B, N), torch.tensor(1.5)
    assert torch.equal(many((x, y), gain, name="y"), sc.LIF()((x + y) * gain))


def test_names_and_checkpoints():
    """Names in state_dict are those of nn.Sequential, and weights move both ways."""
    one, many = plain(), pipeline()
    assert list(many.state_dict()) == list(one.state_dict())
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.mul_(1.1)
    many.load_state_dict(one.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(many.state_dict().values(), one.state_dict().values()))
    one.load_state_dict(many.state_dict())


def test_statistics_of_parts_are_warned_of_once():
    """Batch normalisation in training, in parts, warns once and names the layer; in eval or one part it does not."""

    def made(**split):
        return sc.parallel.Pipeline([(nn.Sequential(nn.Linear(N, 4), nn.BatchNorm1d(4)), "cpu")], batch_dim=0, **split)

    x = torch.rand(B, N)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made()(x)
        made(chunks=2).eval()(x)
    net = made(chunks=2)
    says = r"'0.1' \(BatchNorm1d\) in training normalises each of 2 parts.*4 of 8 samples"
    with pytest.warns(UserWarning, match=says) as caught:
        net(x)
    with pytest.warns(UserWarning, match="each of 4 parts.*2 of 8 samples"):
        made(split_sizes=2)(x)
    if COMPILES:  # torch 2.0 calls a module through one frame less
        assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(x)


@pytest.mark.filterwarnings("ignore")  # torch's own while it traces: of .grad of inputs, of autograd.Function
def test_compiled_stages():
    """pipeline.compile() compiles the stages, which give the same numbers; torch.compile of a pipeline raises."""
    if torch.__version__ < "2.6":
        pytest.skip("before torch 2.6 a neuron cannot be compiled as a whole")
    torch._dynamo.reset()
    one, many, x = plain(step="single"), pipeline(step="single", split={"chunks": 2}), inputs().detach()
    many.compile(backend="eager")
    for x_t in x:
        assert torch.equal(many(x_t), one(x_t))
    with pytest.raises(Exception, match=r"torch.compile cannot follow a Pipeline.*pipeline.compile\(\)"):
        torch.compile(many, backend="eager")(x[0])


def test_training_model():
    """Steps of training_model give the losses and weights of one device; targets meet the outputs."""
    one, many = plain(), pipeline(split={"chunks": 4})
    targets = torch.randint(0, C, (B,), generator=torch.Generator().manual_seed(2))
    losses = []
    for net in (one, many):
        step = sc.training_model(net, sc.losses.ce_rate, torch.optim.SGD(net.parameters(), 0.5))
        losses.append([step(inputs().detach(), targets)[1].item() for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert_close(many.parameters(), one.parameters(), 1e-5)
    assert torch.allclose(sc.inference_model(many)(inputs().detach()), sc.inference_model(one)(inputs().detach()))


def pair(**kwargs):
    """Two stages on the CPU; the first counts its calls."""
    first = nn.Sequential(nn.Linear(N, 4), sc.LIF())
    return sc.parallel.Pipeline([(first, "cpu"), (nn.Sequential(nn.Linear(4, 3), sc.LI()), "cpu")], **kwargs)


def stages(*parts):
    """A pipeline of pairs, or of anything else."""
    return sc.parallel.Pipeline([*parts])


@pytest.mark.parametrize(
    ("split", "says"),
    [
        (
            {"chunks": 3},
            r"chunks=3 does not divide the batch of 8 \(dimension batch_dim=1 of the input, shape \(6, 8, 5\)\); "
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


def test_outputs_that_cannot_be_put_together():
    """A stage that joins the samples is refused for parts, and works in one."""

    class Last(nn.Module):
        def forward(self, x):
            return x[-1]

    x, stages = torch.rand(T, 4, 2), [(sc.LIF(), "cpu"), (Last(), "cpu")]
    with pytest.raises(
        ValueError, match=r"gives shape \(1, 2\) for a part of 1, in which dimension 1 is not the batch.*\(1, 0\)"
    ):
        sc.parallel.Pipeline(stages, chunks=4)(x)
    assert torch.equal(sc.parallel.Pipeline(stages, chunks=4, batch_dim=(1, 0))(x), sc.LIF()(x)[-1])

    class Mean(nn.Module):
        def forward(self, x):
            return x.mean()

    net = sc.parallel.Pipeline([(sc.LIF(), "cpu"), (Mean(), "cpu")], chunks=2)
    with pytest.raises(ValueError, match=r"gives shape \(\) .*what joins the samples"):
        net(torch.rand(T, B, N))
    net.set_split()
    assert net(torch.rand(T, B, N)).shape == ()

    class Named(nn.Module):
        def forward(self, x):
            return x, "spikes"

    with pytest.raises(TypeError, match="of which not everything is a tensor.*use chunks=1"):
        sc.parallel.Pipeline([(Named(), "cpu")], chunks=2, batch_dim=0)(torch.rand(B, N))


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


CHANNELS = 3


@pytest.mark.parametrize(
    "make",
    [
        sc.LIF,
        lambda: sc.Recurrent(sc.LIF(), nn.Linear(CHANNELS, CHANNELS)),
        lambda: sc.Delay(nn.Linear(CHANNELS, CHANNELS), 2),
    ],
)
def test_replicas_are_refused(make):
    """The method by which nn.DataParallel copies a network raises, and names the ways out."""
    neuron = make()
    with pytest.raises(
        RuntimeError, match=r"in an nn\.DataParallel, which .*DistributedDataParallel, or sc\.parallel\.Pipeline"
    ):
        neuron._replicate_for_data_parallel()


test_refused = refusals.table(__file__, globals())
