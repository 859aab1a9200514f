"""Delay as a module: its parameters and their ranges, what it refuses, and torch's and spikecore's functions of it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

import spikecore as sc
from spikecore._base.versions import COMPILES

T, B, J, OUT = 6, 2, 3, 4


def drawn(*shape, seed=0, dtype=torch.float32):
    """Normal values."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def made(longest=5, **options):
    """A delay that is always the same."""
    torch.manual_seed(1)
    return sc.Delay(nn.Linear(J, OUT), longest, **options)


def is_half_on_cpu():
    """Whether torch multiplies float16 on a CPU."""
    try:
        nn.functional.conv1d(torch.ones(1, 1, 1).half(), torch.ones(1, 1, 1).half())
    except RuntimeError:
        return False
    return True


class TestParameters:
    """Positions, and their width."""

    def test_what_is_drawn(self):
        """Positions all over the range, per connection or per input; half of the range is the first width."""
        layer = sc.Delay(nn.Linear(200, 10), 20, generator=torch.Generator().manual_seed(0))
        assert layer.delay.shape == (10, 200)
        assert layer.delay.min() < 0.1
        assert layer.delay.max() > 19.9
        assert abs(layer.delay.mean() - 10) < 0.5
        assert layer.sigma == 10
        assert sc.Delay(nn.Linear(200, 10), 20, per="input").delay.shape == (200,)
        again = sc.Delay(nn.Linear(200, 10), 20, generator=torch.Generator().manual_seed(0))
        assert torch.equal(again.delay, layer.delay)

    def test_what_is_learnt(self):
        """Parameters of an optimiser are those that learn names; the rest are buffers."""
        names = [[name for name, _ in made(learn=learn).named_parameters()] for learn in ((), ("delay",))]
        assert names == [["linear.weight", "linear.bias"], ["delay", "linear.weight", "linear.bias"]]
        assert isinstance(made(learn=("delay", "sigma")).sigma, nn.Parameter)
        shared = nn.Parameter(torch.ones(J))
        assert made(delay=shared).delay is shared
        given = torch.ones(J)
        fixed = made(delay=given, learn=())
        given.fill_(3)
        assert fixed.delay.tolist() == [1, 1, 1]

    def test_annealing_fills_the_same_tensor(self):
        """So what was compiled or captured computes with the new width, and a checkpoint has it."""
        layer, x = made(), drawn(T, B, J)
        held, wide = layer.sigma, layer(x)
        layer.sigma = 0.5
        assert layer.sigma is held
        assert held == 0.5
        assert not torch.allclose(layer(x), wide)
        other = made()
        other.load_state_dict(layer.state_dict())
        assert torch.equal(other(x), layer(x))
        layer.delay = 2
        assert layer.delay.eq(2).all()
        layer.delay = drawn(OUT, J).abs()
        assert torch.equal(layer.delay, drawn(OUT, J).abs())
        assert isinstance(layer.delay, nn.Parameter)

    def test_a_tensor_of_one_number(self):
        """Whatever its dimensions."""
        layer = made()
        for name in ("sigma", "delay"):
            for value in (torch.full((1,), 2.0), torch.full((1, 1, 1), 3.0)):
                setattr(layer, name, value)
                assert getattr(layer, name).eq(value.item()).all()
        assert (layer.sigma.shape, layer.delay.shape) == ((), (OUT, J))

    def test_made_without_memory(self):
        """Numbers are checked without a tensor."""
        with torch.device("meta"):
            layer = made()
            with pytest.raises(ValueError, match="sigma=0 must be at least"):
                made(sigma=0)
        assert layer.delay.is_meta

    @pytest.mark.parametrize("learn", [("delay",), ("delay", "sigma")])
    def test_the_least_width_in_another_dtype(self, learn):
        """0.01 of float32 is less than 0.01 of float64, and is loaded all the same."""
        layer = made(sigma=0.01, learn=learn).double()
        made(learn=learn).double().load_state_dict(layer.state_dict())

    def test_positions_are_kept_in_their_range(self):
        """A call computes with the nearest values; project, state_dict and a step of training put them inside."""
        for way in (sc.project, lambda layer: layer.state_dict()):
            layer, x = made(2, learn=("delay", "sigma")), drawn(T, B, J)
            with torch.no_grad():
                layer.delay[0] = torch.tensor([-3.0, 1.25, 7.0])
                layer.sigma.fill_(-1)
            found = layer(x)
            assert layer.sigma == -1
            way(layer)
            assert torch.equal(layer(x), found)
            assert layer.delay[0].tolist() == [0, 1.25, 2]
            assert layer.sigma.item() == pytest.approx(0.01)

    @pytest.mark.parametrize("per", ["connection", "input"])
    @pytest.mark.parametrize("training", [True, False])
    def test_nan_is_seen(self, per, training):
        """In both modes, at the outputs that it reaches, and at no other one."""
        layer = made(per=per).train(training)
        with torch.no_grad():
            layer.delay.view(-1)[0] = torch.nan
        reached = layer(torch.ones(T, B, J)).isnan().all(0).all(0)
        assert reached.tolist() == ([True] + [False] * 3 if per == "connection" else [True] * 4)

    def test_a_training_step_keeps_the_range(self):
        """As for the parameters of neurons."""
        net = nn.Sequential(made(2), sc.LI())
        step = sc.training_model(net, sc.losses.ce_max_membrane, torch.optim.SGD(net.parameters(), 1e4))
        before = net[0].delay.clone()
        step(drawn(T, B, J), torch.tensor([0, 1]))
        assert not torch.equal(net[0].delay, before)
        assert net[0].delay.min() >= 0
        assert net[0].delay.max() <= 2

    def test_outside_of_a_plain_call_the_parameter_stays(self):
        """A transform computes with the nearest value inside, with derivative 1."""
        layer, x = made(2), drawn(T, B, J)
        outside = torch.full((OUT, J), -1.0)

        def loss(delay):
            return torch.func.functional_call(layer, {"delay": delay}, (x,)).sum()

        at_zero = torch.func.grad(loss)(torch.zeros(OUT, J))
        torch.testing.assert_close(torch.func.grad(loss)(outside), at_zero)

    def test_a_checkpoint_outside_of_the_range(self):
        """Is refused by name, and nothing of the layer is loaded."""
        layer = made(5)
        state = {name: value.clone() for name, value in layer.state_dict().items()}
        with pytest.raises(RuntimeError, match=r"net\.delay: Delay: delay=.* must be in \[0, 2\], in time steps"):
            nn.ModuleDict({"net": made(2)}).load_state_dict({f"net.{name}": value for name, value in state.items()})

    def test_parametrizations(self):
        """Of the weight, as a mask, and of the delay."""

        class Half(nn.Module):
            def forward(self, x):
                return x / 2

        layer, x = made(), drawn(T, B, J)
        weight, delay = layer.linear.weight.detach().clone(), layer.delay.detach().clone()
        parametrize.register_parametrization(layer.linear, "weight", Half())
        parametrize.register_parametrization(layer, "delay", Half())
        plain = made(delay=delay / 2)
        with torch.no_grad():
            plain.linear.weight.copy_(weight / 2)
        torch.testing.assert_close(layer(x), plain(x))

    def test_said(self):
        """In repr, and by explain."""
        assert "max_delay=5, per='connection', learn=('delay',), sigma=2.5\n" in repr(made())
        assert "max_delay=5, per='input', learn=(), step='single'\n" in repr(made(per="input", learn=(), step="single"))
        net = nn.Sequential(made(per="input"), sc.LIF(), sc.Recurrent(sc.LIF(), sc.Delay(nn.Linear(OUT, OUT), 3)))
        rows = sc.explain(net, drawn(T, B, J)).layers
        assert rows[0].notes == ("delays of 0 to 5 steps per input, learnt",)
        assert rows[0].rate is None
        assert rows[2].notes == ("feeds back through delays of 0 to 3 steps per connection, learnt",)
        assert "a loop over the steps: linear is Delay" in rows[2].reason
        lags = [sc.explain(made(per=per), drawn(T, B, J)).layers[0].products for per in ("input", "connection")]
        assert lags == [T * B * J * OUT, T * B * J * OUT * 6]


REFUSED = [
    (
        lambda: sc.Delay(nn.Conv1d(3, 3, 1), 5),
        TypeError,
        r"linear=Conv1d.* must be an nn.Linear whose forward is torch's",
    ),
    (lambda: sc.Delay(nn.LazyLinear(3), 5), TypeError, "linear has no weight before its first call"),
    (lambda: made(0), ValueError, "max_delay=0 must be 1 or more; without delays use the layer itself"),
    (lambda: made(2.5), TypeError, "max_delay=2.5 must be a whole number"),
    (lambda: made(delay=6), ValueError, r"delay=6 must be in \[0, 5\], in time steps"),
    (lambda: made(delay=torch.tensor([0.0, -1, 2])), ValueError, r"delay=tensor\(.* must be in \[0, 5\]"),
    (lambda: made(delay=float("nan")), ValueError, "delay is NaN"),
    (lambda: made(delay=torch.tensor([0, 1, 2])), TypeError, "delay has dtype torch.int64; give a floating-point"),
    (
        lambda: made(delay=torch.zeros(2)),
        ValueError,
        r"delay has shape \[2\]; give one number, or shape \[4, 3\] or \[3\]",
    ),
    (
        lambda: made(delay=torch.zeros(3), per="connection"),
        ValueError,
        r"give one number, or shape \[4, 3\] for per='conn",
    ),
    (lambda: made(per="output"), ValueError, "per='output' must be 'connection' or 'input'"),
    (lambda: made(learn="delay"), TypeError, r"learn='delay' must be a tuple of parameter names"),
    (lambda: made(learn=("tau",)), ValueError, "learn names 'tau', which is no parameter; parameters: delay, sigma"),
    (lambda: made(learn=("sigma",)), ValueError, "learn names 'sigma' alone, and fixed delays have none"),
    (lambda: made(sigma=0), ValueError, "sigma=0 must be at least 0.01"),
    (lambda: made(sigma=torch.ones(2)), ValueError, r"sigma has shape \[2\], wanted is \[4, 3\] or one number"),
    (lambda: made(sigma=1.0, learn=()), ValueError, "sigma=1.0 has no effect on fixed delays"),
    (lambda: made(step="both"), ValueError, "step='both' must be 'multi'"),
    (lambda: setattr(made(), "sigma", -1.0), ValueError, "sigma=-1.0 must be at least 0.01"),
    (lambda: setattr(made(learn=()), "sigma", 1.0), AttributeError, "fixed delays have no sigma; make a new one with"),
    (lambda: setattr(made(), "max_delay", 9), AttributeError, "max_delay is fixed when a Delay is made"),
    (lambda: setattr(made(), "learn", ()), AttributeError, "learn is fixed when a Delay is made"),
    (lambda: setattr(made(), "delay", torch.zeros(2)), ValueError, r"delay has shape \[2\], wanted is \[4, 3\] or one"),
    (
        lambda: setattr(made(), "delay", nn.Parameter(torch.zeros(1))),
        ValueError,
        r"delay is a Parameter of shape \[1\], wanted is \[4, 3\]; give a number",
    ),
    (lambda: setattr(made(), "sigmas", 1.0), AttributeError, "no attribute 'sigmas'"),
    (
        lambda: made()(drawn(T, B, 2)),
        ValueError,
        r"x must be \[T, ..., in_features\] with in_features=3, got shape \[6, 2, 2\]",
    ),
    (lambda: made()(drawn(J)), ValueError, r"x must be \[T, ..., in_features\] with in_features=3, got shape \[3\]"),
    (
        lambda: made(step="single")(drawn(2)),
        ValueError,
        r"x must be \[..., in_features\] of one step .* got shape \[2\]",
    ),
    (lambda: made()([1.0]), TypeError, "x is a list; give a tensor"),
    (
        lambda: made().run(drawn(T, B, J), state=3),
        TypeError,
        "state is an int; give a dict with past",
    ),
    (
        lambda: made().run(drawn(T, B, J), state={"v": 1}),
        ValueError,
        r"state has \['v'\]; give a value for past and no",
    ),
    (
        lambda: made().run(drawn(T, B, J), state={"past": 1}),
        TypeError,
        "state has past=1; give a floating-point tensor",
    ),
    (
        lambda: made().run(drawn(T, B, J), state={"past": drawn(B, J, 4)}),
        ValueError,
        r"wanted is \[2, 3, 5\]; give the inp",
    ),
    (lambda: made().to("meta")(drawn(T, B, J)), ValueError, "delay is on meta and the input is on cpu; move"),
    (lambda: sc.layers.TimeBatched(made()), ValueError, "module 0 of TimeBatched is Delay, which has state"),
]


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")  # of older versions of torch
@pytest.mark.parametrize(("refused", "error", "text"), REFUSED)
def test_refused(refused, error, text):
    """Errors name argument, value and a way out."""
    with pytest.raises(error, match=text):
        refused()


class Adapted(nn.Linear):
    """A layer that adds to what its weight gives, as fine-tuning libraries put in the place of another one."""

    def forward(self, x):
        """In place of torch's."""
        return super().forward(x) + 1


def test_another_layer_is_checked_when_it_is_set():
    """One with hooks, as of the old weight_norm, with a forward of its own, of another kind, or of another size."""
    hooked = nn.Linear(J, OUT)
    hooked.register_forward_hook(lambda *_: None)
    for linear, error, text in (
        (hooked, ValueError, "linear has hooks .* put hooks on the Delay"),
        (Adapted(J, OUT), TypeError, "linear=Adapted.* must be an nn.Linear whose forward is torch's"),
        (nn.Conv1d(J, OUT, 1), TypeError, "linear=Conv1d.* must be an nn.Linear whose forward is torch's"),
        (nn.Linear(J, OUT + 1), ValueError, rf"linear.weight has shape \[{OUT + 1}, {J}\], and delay \[{OUT}, {J}\]"),
    ):
        layer = made()
        with pytest.raises(error, match=f"^Delay: {text}"):
            layer.linear = linear
    with pytest.raises(ValueError, match="put hooks on the Delay"):
        sc.Delay(hooked, 3)


def test_an_input_of_another_dtype():
    """One sentence in the place of four of torch's, which speak of matrices and of a bias; autocast converts."""
    for layer in (made(), made().eval(), made(per="input")):
        with pytest.raises(TypeError, match="^Delay: x is torch.float64 and linear.weight is torch.float32; give both"):
            layer(drawn(T, B, J).double())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layer(drawn(T, B, J).bfloat16()).dtype == torch.bfloat16


class Shard(torch.Tensor):
    """What ``fully_shard`` leaves outside of the module that it was given, as far as spikecore looks at it."""

    def full_tensor(self):
        """All of it."""


class TestBesideTorch:
    """What else is done to modules."""

    @pytest.mark.parametrize("name", ["delay", "linear.weight"])
    def test_shards_are_refused(self, name):
        """As those of a neuron, where nothing gathered them."""
        layer = made()
        owner, _, last = name.rpartition(".")
        owner = layer.get_submodule(owner)
        owner._parameters[last] = nn.Parameter(owner._parameters[last].detach().as_subclass(Shard))
        with pytest.raises(RuntimeError, match=f"Delay: {name} is sharded over processes"):
            layer(drawn(T, B, J))

    def test_a_checkpoint_file(self, tmp_path):
        """Brings positions and the width back, so that annealing goes on."""
        layer, other = made(), made(delay=1.0)
        layer.sigma = 0.7
        steps = []
        for one in (layer, other):
            optimizer = torch.optim.Adam(one.parameters())
            steps.append(sc.training_model(one, sc.losses.ce_max_membrane, optimizer))
            steps[-1](drawn(T, B, J), torch.tensor([0, 1]))
        sc.save_checkpoint(tmp_path / "file.pt", {}, step=steps[0].state_dict())
        steps[1].load_state_dict(sc.load_checkpoint(tmp_path / "file.pt", {}, ["step"])["step"])
        torch.testing.assert_close(other.state_dict(), layer.state_dict(), rtol=0, atol=0)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("per", ["connection", "input"])
    def test_half_types(self, dtype, per):
        """Of a whole network, and near what float32 gives with the same rounded values."""
        layer, x = made(per=per).to(dtype), drawn(T, B, J, dtype=dtype)
        if dtype == torch.float16 and not is_half_on_cpu():
            pytest.skip("this torch has no products of float16 on a CPU")
        out, state = layer.run(x)
        assert (out.dtype, state["past"].dtype) == (dtype, dtype)
        torch.testing.assert_close(out.float(), layer.float()(x.float()), rtol=0.05, atol=0.05)

    def test_long_delays_in_half_types(self):
        """Lags that bfloat16 has no numbers for are told apart."""
        layer, x = made(400, delay=300.0, sigma=0.4).bfloat16(), drawn(303, B, J, dtype=torch.bfloat16)
        torch.testing.assert_close(layer(x).float(), layer.float()(x.float()), rtol=0.05, atol=0.05)

    @pytest.mark.parametrize("learn", [("delay",), ()])
    @pytest.mark.parametrize("delay", [17.45, 299.0])
    def test_half_types_move_no_delay(self, delay, learn):
        """bfloat16 has 17.5, which is rounded to 18, and 300; its gradient and its width move with a delay."""
        layer, x = made(400, delay=delay, learn=learn, per="input").eval(), torch.zeros(302, 1, J)
        nn.init.ones_(layer.linear.weight)
        x[0] = 1
        layer.delay.grad = torch.ones_like(layer.delay) if learn else None
        for dtype in (torch.bfloat16, torch.float16, torch.float64):
            layer.to(dtype)
            assert layer.linear.weight.dtype == dtype
            assert layer.delay.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            assert layer.whole.tolist() == [round(delay)] * J
            assert not learn or layer.delay.grad.dtype == layer.sigma.dtype == layer.delay.dtype
        assert layer.double()(x.double()).sum(-1).argmax() == round(delay)

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("feeds_back", [True, False])
    def test_a_parametrisation_is_computed_once(self, training, feeds_back):
        """In a call: that of torch.nn.utils.parametrizations.spectral_norm goes on with its iteration each time."""
        calls = []

        class Counted(nn.Module):
            def forward(self, weight):
                calls.append(1)
                return weight

        layer = sc.Delay(nn.Linear(J, J), 5)
        nn.utils.parametrize.register_parametrization(layer.linear, "weight", Counted())
        net = (sc.Recurrent(sc.LIF(), layer) if feeds_back else layer).train(training)
        calls.clear()
        net(drawn(T, B, J))
        assert len(calls) == 1

    def test_a_state_of_another_dtype(self):
        """Is taken in the input's."""
        layer, x = made().bfloat16(), drawn(T, B, J, dtype=torch.bfloat16)
        state = {"past": drawn(B, J, 5).bfloat16()}
        out, _ = layer.run(x, state={"past": state["past"].float()})
        assert torch.equal(out, layer.run(x, state=state)[0])

    @pytest.mark.parametrize("per", ["connection", "input"])
    def test_autocast_of_whole_delays(self, per):
        """Few steps, which are looked up, and many have one dtype."""
        layer = made(per=per).eval()
        for steps in (1, 30):
            x = drawn(steps, B, J)
            with torch.autocast("cpu", torch.bfloat16):
                out = layer(x)
            assert out.dtype == torch.bfloat16
            torch.testing.assert_close(out.float(), layer(x), rtol=0.05, atol=0.05)

    @pytest.mark.parametrize("per", ["connection", "input"])
    def test_autocast(self, per):
        """Products are 16-bit, shares of lags are not, and gradients arrive in float32."""
        layer, x = made(per=per, sigma=0.7), drawn(T, B, J)
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(x)
        assert out.dtype == torch.bfloat16
        torch.testing.assert_close(out.float(), layer(x), rtol=0.05, atol=0.05)
        out.sum().backward()
        assert layer.delay.grad.dtype == torch.float32
        assert layer.delay.grad.abs().max() > 0

    @pytest.mark.skipif(not COMPILES, reason="torch.compile needs torch 2.6 here")
    @pytest.mark.parametrize("per", ["connection", "input"])
    def test_compiled_whole(self, per):
        """In one graph, in both modes, and with another width."""
        layer, x = made(per=per), drawn(T, B, J)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        for sigma in (2.0, 0.5):
            layer.sigma = sigma
            torch.testing.assert_close(compiled(x), layer(x))
        (grad,) = torch.autograd.grad(compiled(x).square().sum(), layer.delay)
        torch.testing.assert_close(grad, torch.autograd.grad(layer(x).square().sum(), layer.delay)[0])
        layer.eval()
        torch.testing.assert_close(compiled(x), layer(x))

    def test_vmap_and_trace(self):
        """Over the batch; and a trace of this number of steps."""
        layer, x = made(), drawn(T, B, J)
        over = torch.func.vmap(lambda one: layer(one.unsqueeze(1)).squeeze(1), 1, 1)
        torch.testing.assert_close(over(x), layer(x))
        torch.testing.assert_close(torch.jit.trace(layer, x)(2 * x), layer(2 * x))

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpointed(self, reentrant):
        """A part that runs again begins with the inputs that it began with."""
        layer, x = made(), drawn(T, B, J).requires_grad_()
        (want,) = torch.autograd.grad(layer(x).square().sum(), x)
        if reentrant:
            out = checkpoint(layer, x, use_reentrant=True)
            out.square().sum().backward()
            torch.testing.assert_close(x.grad, want)
            return
        with sc.carry_state(layer):
            again = {"use_reentrant": False, "context_fn": sc.parallel.checkpoint_contexts(layer)}
            out = torch.cat([checkpoint(layer, part, **again) for part in x.split(2)])
        (found,) = torch.autograd.grad(out.square().sum(), x)
        torch.testing.assert_close(found, want)

    def test_checkpointed_by_spikecore(self):
        """As plain."""
        net, x = nn.Sequential(made(), sc.LIF()), drawn(T, B, J)
        plain = torch.autograd.grad(net(x).sum(), net[0].delay)
        net = sc.checkpoint(net, every=2)
        assert torch.equal(torch.autograd.grad(net(x).sum(), net[0].delay)[0], plain[0])

    def test_pipeline(self):
        """Parts of the batch go on from their own inputs."""
        net, x = nn.Sequential(made(), sc.LIF()), drawn(T, 4, J)
        pipeline = sc.Pipeline([(net[0], "cpu"), (net[1], "cpu")], chunks=2)
        with sc.carry_state(pipeline):
            parts = torch.cat([pipeline(x[:2]), pipeline(x[2:])])
        torch.testing.assert_close(parts, net(x))

    def test_copies(self):
        """Values of a single-step state go along, that of a multi-step one does not."""
        layer, x = made(step="single"), drawn(T, B, J)
        layer(x[0])
        copies = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
        want = layer(x[1])
        for other in copies:
            assert torch.equal(other(x[1]), want)
            assert repr(other) == repr(layer)

    def test_one_layer_at_two_places(self):
        """As a neuron that carries its state, it is refused."""
        layer = sc.Delay(nn.Linear(J, J), 3)
        net = nn.Sequential(layer, sc.LIF(), layer)
        with pytest.raises(ValueError, match="Delay carries its state and is in the network twice"), sc.carry_state(
            net
        ):
            pass
