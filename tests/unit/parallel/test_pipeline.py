"""A pipeline computes what nn.Sequential of its stages computes: outputs, gradients, states, names."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

import spikecore as sc
from pipelines import B, C, N, T, assert_close, gradients, inputs, layers, pipeline, plain, states
from spikecore.parallel._pipeline import ticks
from spikecore.testing._loopback import Loopback, installed

SPLITS = pytest.mark.parametrize(
    "split", [{}, {"chunks": 1}, {"chunks": 4}, {"split_sizes": 2}, {"split_sizes": [1, 4, 3]}], ids=str
)
CPU = torch.device("cpu")


def test_order_of_work():
    """Stage i works on item k while stage i - 1 works on item k + 1, and each tick launches the last stage first."""
    seen = []
    done = list(ticks([CPU] * 4, 3, torch.tensor, lambda i, k, x: seen.append((i, k)) or x + 10))
    # the diagram of SpikingFlow's ModelPipeline: four modules, three parts
    assert seen == [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2), (3, 0), (2, 1), (1, 2), (3, 1), (2, 2), (3, 2)]
    assert [int(x) for x in done] == [40, 41, 42]


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
    if len(split) == 0 or split == {"chunks": 1}:
        assert all(torch.equal(a, b) for a, b in zip(gradients(many, y), gradients(one, x)))


def test_finite_differences():
    """Derivatives in float64 are those of finite differences, where nothing spikes."""
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(2, 3), sc.LI(2.0)), nn.Sequential(nn.Tanh(), nn.Linear(3, 2), sc.LI(1.5))]
    net = sc.Pipeline([(stage.double(), "cpu") for stage in stages], chunks=2)
    x = torch.rand(3, 4, 2, dtype=torch.float64, requires_grad=True)
    weights = list(net.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: net(x), (x, *weights))
    assert torch.autograd.gradcheck(
        lambda x, *_: net.constant_forward(x, 3), (x[0].detach().requires_grad_(), *weights)
    )


@pytest.mark.parametrize("other", [{"chunks": 2}, {"split_sizes": [1, 7]}, {}], ids=str)
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


def test_truncated_backward():
    """sc.detach ends the gradient; a forgotten one is torch's error in backward."""
    one, many, x = plain(), pipeline(split={"chunks": 2}), inputs().detach()
    for net in (one, many):
        with sc.carry_state(net):
            for chunk in x.split(2):
                net(chunk).square().sum().backward()
                sc.detach(net)
    assert_close([p.grad for p in many.parameters()], [p.grad for p in one.parameters()])
    with sc.carry_state(many):
        many(x).sum().backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            many(x).sum().backward()


def test_an_error_leaves_the_states():
    """A stage that raises in the middle of a call leaves every neuron with the state it had before."""

    class Fragile(nn.Module):
        calls = 0

        def forward(self, x):
            Fragile.calls += 1
            if Fragile.calls == 4:
                raise KeyError("the fourth call")
            return x

    stages = layers(step="single")
    many = sc.Pipeline([(stages[0], "cpu"), (Fragile(), "cpu"), (stages[1], "cpu")], chunks=2, batch_dim=0)
    x = inputs().detach()
    many(x[0])
    before = states(many)
    with pytest.raises(KeyError, match="the fourth call"):
        many(x[1])
    assert all(torch.equal(a, b) for a, b in zip(states(many), before))
    assert [a.shape[0] for a in states(many)] == [B] * len(before)


class Ends(nn.Module):
    """Raises in a real call when it is told to."""

    now = False

    def forward(self, x):
        if self.now:
            raise KeyError("now")
        return x


@pytest.mark.parametrize("chunks", [None, 1, 2])
@pytest.mark.parametrize("step", ["single", "multi"])
def test_an_error_in_a_later_stage_leaves_the_states(step, chunks):
    """The first stage is not a call ahead of the others after an error in one part or several."""
    stages, ends, x = layers(step=step), Ends(), inputs().detach()
    x = x[0] if step == "single" else x
    many = sc.Pipeline([(stages[0], "cpu"), (ends, "cpu"), (stages[1], "cpu")], chunks=chunks, batch_dim=x.ndim - 2)
    with sc.carry_state(many):
        many(x)
        before = states(many)
        ends.now = True
        with pytest.raises(KeyError, match="now"):
            many(x)
        assert len(states(many)) == len(before)
        assert all(torch.equal(a, b) for a, b in zip(states(many), before))


def test_an_error_where_outputs_are_put_together_leaves_the_states():
    """A call that raises because its outputs are no tensors has not advanced the neurons."""

    class Named(nn.Module):
        def forward(self, x):
            return x, "spikes"

    many = sc.Pipeline([(nn.Sequential(sc.LIF(step="single"), Named()), "cpu")], chunks=2, batch_dim=0)
    with pytest.raises(TypeError, match="not everything is a tensor"):
        many(torch.rand(4, 3))
    assert many[0][0].state is None


def test_a_state_of_another_batch():
    """A carried state that does not fit the batch is an error that says sc.reset."""
    many, x = pipeline(step="single", split={"chunks": 2}), inputs().detach()
    many(x[0])
    with pytest.raises(
        ValueError, match=r"carries a state 'v' of shape \(8, 16\), and the batch of this call is 4.*sc.reset"
    ):
        many(x[1, :4])


def test_images_that_an_encoder_gives_time():
    """With an encoder batch_dim says both: of the input the first dimension, of the output the second."""

    def stages():
        torch.manual_seed(0)
        front = sc.layers.TimeBatched(nn.Conv2d(1, 4, 3, padding=1))
        back = sc.layers.TimeBatched(nn.Flatten(), nn.Linear(4 * 16, C))
        return nn.Sequential(sc.encode.Constant(5), front, sc.LIF()), nn.Sequential(back, sc.LIF())

    images = torch.rand(6, 1, 4, 4)
    one = nn.Sequential(*stages())
    many = sc.Pipeline([(stage, "cpu") for stage in stages()], chunks=3, batch_dim=(0, 1))
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
    many = sc.Pipeline(parts, chunks=2, batch_dim=(1, 0))
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

    many = sc.Pipeline([(Add(), "cpu"), (sc.LIF(), "cpu")], chunks=4)
    x, y, gain = inputs(), torch.rand(T, B, N), torch.tensor(1.5)
    assert torch.equal(many((x, y), gain, name="y"), sc.LIF()((x + y) * gain))


@pytest.mark.parametrize("step", ["multi", "single"])
def test_names_and_checkpoints(step):
    """Names in state_dict are those of nn.Sequential, and weights move both ways."""
    one, many = plain(step=step), pipeline(step=step)
    assert list(many.state_dict()) == list(one.state_dict())
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.mul_(1.1)
    many.load_state_dict(one.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(many.state_dict().values(), one.state_dict().values()))
    one.load_state_dict(many.state_dict())


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["deepcopy", "pickle"]
)
def test_copies(copied):
    """A copy computes the same and is independent."""
    many, x = pipeline(split={"chunks": 4}), inputs()
    wanted = many(x)
    other = copied(many)
    assert torch.equal(other(x), wanted)
    assert other.devices == many.devices
    assert other.chunks == 4
    assert all(a is not b for a, b in zip(other.parameters(), many.parameters()))


def test_backends_of_stages():
    """A stage can ask for a backend of its own, and a training step takes what each asks for on its own device."""
    many = pipeline(split={"chunks": 2})
    sc.set_backend(many[1], "torch")
    assert "backend=torch" in repr(many[1])
    assert "backend=torch" not in repr(many[0])
    sc.set_backend(many, "torch")
    step = sc.training_model(many, sc.losses.ce_rate, torch.optim.SGD(many.parameters(), 0.1))
    step(inputs().detach(), torch.zeros(B, dtype=torch.long))
    assert {used.backend.name for m in many.modules() if isinstance(m, sc.Neuron) for used in m.bound.values()} == {
        "torch"
    }


def test_a_backend_of_one_stages_device():
    """A backend that takes the CPU only serves a stage there, in a network that begins elsewhere."""
    with installed(Loopback, devices=("cpu",)) as name:
        last = sc.LIF(backend=name)
        many = sc.Pipeline([(nn.Linear(N, C), "meta"), (last, "cpu")])
        sc.training_model(many, sc.losses.ce_rate, torch.optim.SGD(many.parameters(), 0.1))
        assert {place: used.backend.name for place, used in last.bound.items()} == {"cpu": name}


def test_autocast():
    """Under autocast outputs are those of the plain network under autocast."""
    one, many = plain(), pipeline(split={"chunks": 4})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted, found = one(inputs()), many(inputs())
    assert found.dtype == wanted.dtype == torch.bfloat16
    assert torch.equal(found, wanted)


def test_inside_torchs_checkpoint():
    """A pipeline within a checkpointed region gives the same gradients, carried state included."""
    one, many, x, y = plain(), pipeline(split={"chunks": 4}), inputs(), inputs()
    with sc.carry_state(one), sc.carry_state(many):
        wanted = [one(chunk) for chunk in x.split(2)]
        again = {"use_reentrant": False, "context_fn": sc.parallel.checkpoint_contexts(many)}
        found = [torch.utils.checkpoint.checkpoint(many, chunk, **again) for chunk in y.split(2)]
    torch.cat(wanted).square().sum().backward()
    torch.cat(found).square().sum().backward()
    assert torch.equal(torch.cat(found), torch.cat(wanted))
    assert_close(gradients(many, y), gradients(one, x))


def test_one_device_between_others():
    """The values that a stage on another device gets are sent there, and what it gives goes on from there."""
    many = sc.Pipeline(
        [(nn.Linear(N, 4), "cpu"), (nn.Linear(4, 4), "meta"), (nn.ReLU(), torch.device("meta"))], chunks=2, batch_dim=0
    )
    out = many(torch.rand(B, N))
    assert (out.device.type, out.shape) == ("meta", (B, 4))
    assert [device.type for device in many.devices] == ["cpu", "meta", "meta"]


def test_statistics_of_parts_are_warned_of_once():
    """Batch normalisation in training, in parts, warns once and names the layer; in eval or one part it does not."""

    def made(**split):
        return sc.Pipeline([(nn.Sequential(nn.Linear(N, 4), nn.BatchNorm1d(4)), "cpu")], batch_dim=0, **split)

    x = torch.rand(B, N)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made()(x)
        made(chunks=2).eval()(x)
    net = made(chunks=2)
    says = r"'0.1' \(BatchNorm1d\) in training normalises each of 2 parts.*4 of 8 samples"
    with pytest.warns(UserWarning, match=says) as caught:
        net(x)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(x)


def test_repr_len_and_stages():
    """The devices and the split are in the repr; stages have numbers."""
    many = pipeline(split={"chunks": 4})
    assert "devices=[cpu, cpu, cpu], chunks=4, batch_dim=1" in repr(many)
    assert len(many) == len(list(many)) == 3
    assert many[-1] is many[2]
    assert many.placed[0] == (many[0], CPU)
    many.set_split(split_sizes=[3, 5])
    assert (many.chunks, many.split_sizes) == (None, (3, 5))
    with pytest.raises(IndexError):
        many[3]


def test_dtype_of_a_pipeline():
    """.to(dtype) works, since it moves nothing."""
    many = pipeline(split={"chunks": 4}).double()
    assert many(inputs(torch.float64)).dtype == torch.float64
    assert many.to("cpu") is many


@pytest.mark.filterwarnings("ignore")  # torch's own while it traces: of .grad of inputs, of autograd.Function
@pytest.mark.parametrize("step", ["multi", "single"])
def test_compiled_stages(step):
    """pipeline.compile() compiles the stages, which give the same numbers; torch.compile of a pipeline raises."""
    if torch.__version__ < "2.6":
        pytest.skip("before torch 2.6 a neuron cannot be compiled as a whole")
    torch._dynamo.reset()
    one, many, x = plain(step=step), pipeline(step=step, split={"chunks": 2}), inputs().detach()
    many.compile(backend="eager")
    chunks = [x] if step == "multi" else [*x]
    for chunk in chunks:
        assert torch.equal(many(chunk), one(chunk))
    with pytest.raises(Exception, match=r"torch.compile cannot follow a Pipeline.*pipeline.compile\(\)"):
        torch.compile(many, backend="eager")(chunks[0])
