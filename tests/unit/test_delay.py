"""Delay: values and gradients against loops over connections and lags, its state, parameters and modes."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
from spikecore.context import COMPILES

# of older versions of torch; and of wide Gaussians, which most of these tests have
pytestmark = [
    pytest.mark.filterwarnings("ignore:Lazy modules are a new feature"),
    pytest.mark.filterwarnings("ignore:Delay. in eval"),
]

T, B, J, OUT, LONGEST = 7, 2, 3, 4, 3
PER = ("connection", "input")


def drawn(*shape, seed=0, dtype=torch.float64):
    """Normal values."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def made(per="connection", longest=LONGEST, dtype=torch.float64, **options):
    """A delay with weights and positions that are always the same."""
    torch.manual_seed(1)
    linear = nn.Linear(J, OUT, dtype=dtype)
    return sc.Delay(linear, longest, per=per, generator=torch.Generator().manual_seed(2), **options)


def by_hand(x, weight, bias, delay, sigma, longest=LONGEST):
    """The sums, written out in NumPy; ``sigma`` is None for delays that are rounded."""
    delay = np.broadcast_to(delay, weight.shape)
    out = np.zeros((*x.shape[:2], len(weight))) + bias
    for o in range(weight.shape[0]):
        for j in range(weight.shape[1]):
            share = [float(k == round(delay[o, j])) for k in range(longest + 1)]
            if sigma is not None:
                share = [np.exp(-((k - delay[o, j]) ** 2) / (2 * sigma**2)) for k in range(longest + 1)]
            for k in range(longest + 1):
                for t in range(k, len(x)):
                    out[t, :, o] += weight[o, j] * share[k] / sum(share) * x[t - k, :, j]
    return out


def numbers(layer):
    """Weight, bias, delay, sigma of a layer as arrays."""
    values = (layer.linear.weight, layer.linear.bias, layer.delay, layer.sigma)
    return tuple(None if value is None else value.detach().numpy() for value in values)


class TestValues:
    """Against the loop."""

    @pytest.mark.parametrize("per", PER)
    def test_a_gaussian_while_training(self, per):
        """Every lag has its normalised part of the weight."""
        layer, x = made(per, sigma=1.5), drawn(T, B, J)
        np.testing.assert_allclose(layer(x).detach(), by_hand(x.numpy(), *numbers(layer)), rtol=1e-12, atol=1e-13)

    @pytest.mark.parametrize("per", PER)
    @pytest.mark.parametrize("fixed", [True, False])
    def test_whole_steps_otherwise(self, per, fixed):
        """In eval mode, and for fixed delays in training, an input comes the rounded delay later."""
        layer, x = made(per, learn=() if fixed else ("delay",)).train(fixed), drawn(T, B, J)
        weight, bias, delay, _ = numbers(layer)
        assert not np.array_equal(delay, delay.round())
        np.testing.assert_allclose(layer(x).detach(), by_hand(x.numpy(), weight, bias, delay, None), rtol=1e-13)
        assert np.array_equal(layer.whole, np.vectorize(round)(delay))

    @pytest.mark.parametrize("per", PER)
    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("shape", [(0, B), (T, 0), (T,)])
    def test_layouts(self, per, training, shape):
        """No steps, one step, one sample or none, no batch, several leading dimensions."""
        layer, x = made(per).train(training), drawn(*shape, J).requires_grad_()
        out, state = layer.run(x)
        assert out.shape == (*shape, OUT)
        assert state["past"].shape == (*shape[1:], J, LONGEST)
        weight, bias, delay, sigma = numbers(layer)
        flat = x.detach().reshape(shape[0], int(np.prod(shape[1:])), J).numpy()
        want = by_hand(flat, weight, bias, delay, sigma if training else None)
        np.testing.assert_allclose(out.detach().reshape(want.shape), want, rtol=1e-12, atol=1e-13)
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert grad.shape == x.shape


class TestGradients:
    """Against central differences of the loop."""

    @pytest.mark.parametrize("per", PER)
    def test_of_everything_while_training(self, per):
        """Inputs, weights, bias, positions and the width."""
        layer, x = made(per, learn=("delay", "sigma"), sigma=0.8), drawn(T, B, J).requires_grad_()
        cotangent = drawn(T, B, OUT, seed=5)
        wanted = [x, layer.linear.weight, layer.linear.bias, layer.delay, layer.sigma]
        found = torch.autograd.grad(layer(x), wanted, cotangent)
        values = [value.detach().numpy().copy() for value in wanted]
        for at, grad in enumerate(found):
            np.testing.assert_allclose(grad, slope(values, at, cotangent.numpy()), rtol=1e-6, atol=1e-8)
            assert grad.abs().max() > 0

    @pytest.mark.parametrize("per", PER)
    @pytest.mark.parametrize("longest", [LONGEST, 15])
    def test_whole_delays_pass_those_of_inputs_and_weights(self, per, longest):
        """In eval mode the positions have none; few steps of long delays are looked up, one for each connection."""
        layer, x = made(per, longest).eval(), drawn(T, B, J).requires_grad_()
        cotangent = drawn(T, B, OUT, seed=5)
        wanted = [x, layer.linear.weight, layer.linear.bias]
        found = torch.autograd.grad(layer(x), [*wanted, layer.delay], cotangent, allow_unused=True)
        values = [value.detach().numpy().copy() for value in (*wanted, layer.delay)] + [None]
        for at, grad in enumerate(found[:3]):
            np.testing.assert_allclose(grad, slope(values, at, cotangent.numpy(), longest), rtol=1e-6, atol=1e-8)
        assert found[3] is None


def slope(values, at, cotangent, longest=LONGEST, h=1e-6):
    """The derivative of the loop, weighted by the cotangent, with respect to one of its values."""
    found = np.zeros(values[at].shape)
    for index in np.ndindex(values[at].shape):
        ends = []
        for sign in (1, -1):
            moved = [value if k != at else value.copy() for k, value in enumerate(values)]
            moved[at][index] += sign * h
            ends.append((by_hand(*moved, longest) * cotangent).sum())
        found[index] = (ends[0] - ends[1]) / (2 * h)
    return found


class TestState:
    """The last inputs, carried as the state of a neuron is."""

    @pytest.mark.parametrize("per", PER)
    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("sizes", [(1, 1, 5), (2, 0, 5)])
    def test_parts_are_one_call(self, per, training, sizes):
        """Whatever the lengths of the parts, shorter and longer than the longest delay."""
        layer, x = made(per).train(training), drawn(T, B, J)
        with sc.carry_state(layer):
            parts = [layer(part) for part in x.split(sizes)]
            state = layer.state["past"]
        torch.testing.assert_close(torch.cat(parts), layer(x), rtol=1e-12, atol=1e-13)
        assert torch.equal(state, x[-LONGEST:].movedim(0, -1))
        assert layer.state is None

    @pytest.mark.parametrize("per", PER)
    @pytest.mark.parametrize("training", [True, False])
    def test_single_steps_are_one_call(self, per, training):
        """And reset puts zeros before the next one."""
        layer, single, x = made(per), made(per, step="single"), drawn(T, B, J)
        layer.train(training), single.train(training)
        for _ in range(2):
            out = torch.stack([single(now) for now in x])
            torch.testing.assert_close(out, layer(x), rtol=1e-12, atol=1e-13)
            sc.reset(single)
        assert single.state is None

    def test_another_batch(self):
        """A carried state that does not fit says reset."""
        layer = made(step="single")
        layer(drawn(B, J))
        with pytest.raises(ValueError, match=r"carried from the last call has past of shape \[2, 3, 3\], wanted is"):
            layer(drawn(5, J))
        sc.reset(layer)
        assert layer(drawn(5, J)).shape == (5, OUT)


#: Layers with places or without weights: shape of a step, what makes the layer, delays of each kind.
LAYERS = {
    "linear, one": ((3,), lambda: nn.Linear(3, 4), {"per": "layer"}),
    "axons, one": ((3,), nn.Identity, {}),
    "axons, each": ((3,), nn.Identity, {"delay": torch.tensor([0.0, 2.4, 1.3])}),
    "axons, channels": ((3, 2, 2), nn.Identity, {"delay": torch.tensor([0.0, 2.4, 1.3]).view(3, 1, 1)}),
    "conv1d": ((2, 6), lambda: nn.Conv1d(2, 4, 3, stride=2, padding=1, groups=2), {}),
    "conv1d, inputs": ((2, 6), lambda: nn.Conv1d(2, 4, 3, dilation=2), {"per": "input"}),
    "conv2d": ((2, 5, 4), lambda: nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), {}),
    "conv2d, inputs": ((2, 5, 4), lambda: nn.Conv2d(2, 3, 3), {"per": "input"}),
    "conv2d, one": ((2, 5, 4), lambda: nn.Conv2d(2, 3, 3), {"per": "layer"}),
}


def by_taps(layer, x, share):
    """The layer once for each lag, with the part of its weights that this lag has."""
    out = 0
    for lag in range(LONGEST + 1):
        late = torch.cat([torch.zeros_like(x[:lag]), x[: len(x) - lag]])
        part = share[..., lag].to(x)
        inner = layer.linear
        if isinstance(inner, nn.Identity):
            out = out + late * part
            continue
        if part.ndim < 2:  # of inputs
            late, part = late * part.view(-1, *[1] * (inner.weight.ndim - 2)), torch.ones(())
        weights = {"weight": inner.weight * part}
        if inner.bias is not None:
            weights["bias"] = inner.bias * (lag == 0)
        out = out + torch.func.functional_call(inner, weights, (late.flatten(0, 1),)).unflatten(0, late.shape[:2])
    return out


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("mode", ["train", "eval", "fixed"])
def test_layers_with_places_and_axons(name, mode):
    """Values, gradients, and parts of a sequence, beside one call of the layer for each lag."""
    step, make, options = LAYERS[name]
    torch.manual_seed(0)
    learn = () if mode == "fixed" else ("delay",)
    layer = sc.Delay(make().double(), LONGEST, learn=learn, **options).double().train(mode == "train")
    x = drawn(T, B, *step).requires_grad_()
    lags = torch.arange(LONGEST + 1)
    share = (lags == layer.whole.unsqueeze(-1)).double()
    if mode == "train":
        share = torch.softmax(-0.5 * ((lags - layer.delay.unsqueeze(-1)) / layer.sigma).square(), -1)
    want, out = by_taps(layer, x, share), layer(x)
    torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-12)
    cotangent = drawn(*out.shape, seed=3)
    wanted = [x, *[p for p in layer.parameters() if mode == "train" or p is not layer.delay]]
    torch.testing.assert_close(
        torch.autograd.grad(out, wanted, cotangent), torch.autograd.grad(want, wanted, cotangent), rtol=1e-9, atol=1e-12
    )
    with sc.carry_state(layer):
        parts = [layer(part) for part in x.split((1, 1, 5))]
    torch.testing.assert_close(torch.cat(parts), out, rtol=1e-12, atol=1e-12)


def test_one_fixed_delay_is_one_number():
    """It feeds back, compiles, is loaded, and comes at its step; ``explain`` says it."""
    layer = sc.Delay(nn.Linear(3, 3), 5, delay=2.0, learn=())
    assert layer.delay.shape == ()
    x = normal(STEPS, SAMPLES, 3)
    each = sc.Delay(layer.linear, 5, delay=2.0, learn=(), per="input")
    assert torch.equal(layer(x), each(x))
    fed = [sc.Recurrent(sc.LIF(), delay)(3 * x) for delay in (layer, each)]
    assert torch.equal(*fed)
    other = sc.Delay(nn.Linear(3, 3), 5, delay=4.0, learn=())
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    assert "a delay of 2 steps, fixed" in str(sc.explain(nn.Sequential(layer, sc.LIF()), x))
    if COMPILES:
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), layer(x))


def test_annealing_by_training_steps():
    """From the first width to 0.5 in that many steps, by one factor, and not further; a checkpoint goes on."""
    layer = layer_of(20, sigma=8.0, anneal=4)
    step = sc.training_model(
        layer, lambda out, target: (out - target).square().mean(), torch.optim.SGD(layer.parameters(), 0.1)
    )
    x, widths = normal(STEPS, SAMPLES, INPUTS), []
    for _ in range(3):
        step(x, torch.zeros(STEPS, SAMPLES, OUTPUTS))
        widths.append(layer.sigma.item())
    assert widths == pytest.approx([4.0, 2.0, 1.0])
    again = layer_of(20, anneal=4)  # of another first width: that of the checkpoint counts
    again.load_state_dict(layer.state_dict())
    sc.functional.project(again)
    assert again.sigma == layer.sigma
    for _ in range(2):
        sc.functional.anneal(again)
        assert again.sigma.item() == pytest.approx(0.5)
    plain = layer_of(20)  # the first width is of annealing
    plain.load_state_dict(layer.state_dict())
    assert plain.sigma == layer.sigma
    again.sigma = 0.3  # annealing narrows, and widens nothing
    sc.functional.anneal(again)
    assert again.sigma.item() == pytest.approx(0.3)


def test_annealing_goes_on_from_a_checkpoint_of_a_step():
    """Widths and weights are those of training without a break, bit for bit; the first width stays in float32."""

    def made():
        layer = layer_of(20, sigma=7.0, anneal=9)
        optimizer = torch.optim.Adam(layer.parameters(), 0.1)
        return layer, sc.training_model(layer, lambda out, target: (out - target).square().mean(), optimizer)

    (layer, step), (again, resumed) = made(), made()
    again.sigma = 2.0
    again.first_sigma.fill_(3.0)
    x, target = normal(STEPS, SAMPLES, INPUTS), torch.zeros(STEPS, SAMPLES, OUTPUTS)
    for number in range(6):
        step(x, target)
        if number >= 3:
            resumed(x, target)
        if number == 2:
            resumed.load_state_dict(step.state_dict())
    assert torch.equal(again.sigma, layer.sigma)
    assert torch.equal(again.delay, layer.delay)
    assert layer.half().first_sigma == 7.0
    assert layer.first_sigma.dtype == torch.float32


def test_whole_delays_of_wide_gaussians_warn():
    """Once narrow, or narrowed, they do not."""
    with pytest.warns(UserWarning, match=r"sigma is above 1 step: outputs differ. Narrow it while training, by anneal"):
        nn.Sequential(layer_of(20), sc.LIF()).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for layer in (layer_of(20, sigma=1.0), layer_of(20, anneal=10), layer_of(20, delay=2.0, learn=())):
            layer.eval()


STEPS, SAMPLES, INPUTS, OUTPUTS = 6, 2, 3, 4


def normal(*shape, seed=0, dtype=torch.float32):
    """Normal values."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def layer_of(longest=5, **options):
    """A delay that is always the same."""
    torch.manual_seed(1)
    return sc.Delay(nn.Linear(INPUTS, OUTPUTS), longest, **options)


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
        names = [[name for name, _ in layer_of(learn=learn).named_parameters()] for learn in ((), ("delay",))]
        assert names == [["linear.weight", "linear.bias"], ["delay", "linear.weight", "linear.bias"]]
        assert isinstance(layer_of(learn=("delay", "sigma")).sigma, nn.Parameter)
        shared = nn.Parameter(torch.ones(INPUTS))
        assert layer_of(delay=shared).delay is shared
        given = torch.ones(INPUTS)
        fixed = layer_of(delay=given, learn=())
        given.fill_(3)
        assert fixed.delay.tolist() == [1, 1, 1]

    def test_annealing_fills_the_same_tensor(self):
        """So what was compiled or captured computes with the new width, and a checkpoint has it."""
        layer, x = layer_of(), normal(STEPS, SAMPLES, INPUTS)
        held, wide = layer.sigma, layer(x)
        layer.sigma = 0.5
        assert layer.sigma is held
        assert held == 0.5
        assert not torch.allclose(layer(x), wide)
        other = layer_of()
        other.load_state_dict(layer.state_dict())
        assert torch.equal(other(x), layer(x))
        layer.delay = 2
        assert layer.delay.eq(2).all()
        layer.delay = normal(OUTPUTS, INPUTS).abs()
        assert torch.equal(layer.delay, normal(OUTPUTS, INPUTS).abs())
        assert isinstance(layer.delay, nn.Parameter)

    def test_positions_are_kept_in_their_range(self):
        """A call computes with the nearest values; project, state_dict and a step of training put them inside."""
        for way in (sc.functional.project, lambda layer: layer.state_dict()):
            layer, x = layer_of(2, learn=("delay", "sigma")), normal(STEPS, SAMPLES, INPUTS)
            with torch.no_grad():
                layer.delay[0] = torch.tensor([-3.0, 1.25, 7.0])
                layer.sigma.fill_(-1)
            found = layer(x)
            assert layer.sigma == -1
            way(layer)
            assert torch.equal(layer(x), found)
            assert layer.delay[0].tolist() == [0, 1.25, 2]
            assert layer.sigma.item() == pytest.approx(0.01)


def tensors_of(layer):
    return {name: value for name, value in layer.state_dict(keep_vars=True).items() if not name.startswith("linear")}


ASSIGNED = {
    "learnt delays": {},
    "both learnt": {"learn": ("delay", "sigma")},
    "a width for each": {"sigma": torch.full((OUTPUTS, INPUTS), 2.0)},
    "of inputs": {"per": "input"},
    "fixed delays": {"delay": 2.0, "learn": ()},
}


@pytest.mark.skipif(not COMPILES, reason="assign= of load_state_dict needs torch 2.1")
@pytest.mark.parametrize("fed_back", [False, True], ids=["alone", "fed back"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("options", ASSIGNED.values(), ids=ASSIGNED)
def test_a_checkpoint_is_assigned(options, dtype, fed_back):
    """With ``assign=True`` each tensor is that of the file, in its dtype, also of a layer on the meta device."""

    def layer():
        torch.manual_seed(0)
        if not fed_back:
            return layer_of(**options)
        square = {name: torch.full((3, 3), 2.0) if name == "sigma" else value for name, value in options.items()}
        return sc.Recurrent(sc.LIF(), sc.Delay(nn.Linear(INPUTS, INPUTS), 5, **square))

    saved = layer().to(dtype)
    state = saved.state_dict()
    with torch.device("meta"):
        on_meta = layer()
    x = normal(STEPS, SAMPLES, INPUTS).to(dtype)
    for loaded in (on_meta, layer()):
        assert loaded.load_state_dict(state, assign=True).missing_keys == []
        assert {name: value.dtype for name, value in loaded.state_dict().items()} == dict.fromkeys(state, dtype)
        assert [value.data_ptr() for value in loaded.state_dict().values()] == [v.data_ptr() for v in state.values()]
        learnt = [name for name, _ in loaded.named_parameters()]
        assert learnt == [name for name, _ in saved.named_parameters()]
        for mode in (True, False):
            assert torch.equal(loaded.train(mode)(x), saved.train(mode)(x))


@pytest.mark.parametrize("options", ASSIGNED.values(), ids=ASSIGNED)
def test_tensors_set_on_the_meta_device(options):
    """They take the place of those without memory, as libraries do that load large networks; a value for all, too."""
    saved = layer_of(**options)
    with torch.device("meta"):
        loaded = layer_of(**options)
    loaded.linear = saved.linear
    for name, value in tensors_of(saved).items():
        setattr(loaded, name, value.detach())
    assert [isinstance(value, nn.Parameter) for value in tensors_of(loaded).values()] == [
        isinstance(value, nn.Parameter) for value in tensors_of(saved).values()
    ]
    x = normal(STEPS, SAMPLES, INPUTS)
    assert torch.equal(loaded(x), saved(x))
    with torch.device("meta"):
        loaded = layer_of(**options)
    loaded.delay = torch.tensor([1.5])
    assert loaded.delay.eq(1.5).all()
    assert loaded.delay.shape == saved.delay.shape


def test_an_input_of_another_dtype():
    """One sentence in the place of four of torch's, which speak of matrices and of a bias; autocast converts."""
    for layer in (layer_of(), layer_of().eval(), layer_of(per="input")):
        with pytest.raises(TypeError, match="^Delay: x is torch.float64 and linear.weight is torch.float32; give both"):
            layer(normal(STEPS, SAMPLES, INPUTS).double())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layer(normal(STEPS, SAMPLES, INPUTS).bfloat16()).dtype == torch.bfloat16


class TestBesideTorch:
    """Other things that are done to modules."""

    def test_half_types_move_no_delay(self):
        """bfloat16 has 17.5, which is rounded to 18, and 300; its gradient and its width move with a delay."""
        learn = ("delay",)
        layer, x = layer_of(400, delay=17.45, learn=learn, per="input").eval(), torch.zeros(302, 1, INPUTS)
        nn.init.ones_(layer.linear.weight)
        x[0] = 1
        layer.delay.grad = torch.ones_like(layer.delay) if learn else None
        for dtype in (torch.bfloat16, torch.float16, torch.float64):
            layer.to(dtype)
            assert layer.linear.weight.dtype == dtype
            assert layer.delay.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            assert layer.whole.tolist() == [round(17.45)] * INPUTS
            assert not learn or layer.delay.grad.dtype == layer.sigma.dtype == layer.delay.dtype
        assert layer.double()(x.double()).sum(-1).argmax() == round(17.45)

    def test_autocast(self):
        """Products are 16-bit, shares of lags are not, and gradients arrive in float32."""
        layer, x = layer_of(per="connection", sigma=0.7), normal(STEPS, SAMPLES, INPUTS)
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(x)
        assert out.dtype == torch.bfloat16
        torch.testing.assert_close(out.float(), layer(x), rtol=0.05, atol=0.05)
        out.sum().backward()
        assert layer.delay.grad.dtype == torch.float32
        assert layer.delay.grad.abs().max() > 0

    @pytest.mark.skipif(not COMPILES, reason="torch.compile needs torch 2.6 here")
    def test_compiled_whole(self):
        """In one graph, in both modes, and with another width."""
        layer, x = layer_of(per="connection"), normal(STEPS, SAMPLES, INPUTS)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        for sigma in (2.0, 0.5):
            layer.sigma = sigma
            torch.testing.assert_close(compiled(x), layer(x))
        (grad,) = torch.autograd.grad(compiled(x).square().sum(), layer.delay)
        torch.testing.assert_close(grad, torch.autograd.grad(layer(x).square().sum(), layer.delay)[0])
        layer.eval()
        torch.testing.assert_close(compiled(x), layer(x))


test_refused = refusals.table(__file__, globals())
