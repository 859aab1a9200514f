"""Delay: values and gradients against a loop over lags, its state, parameters and modes."""

from __future__ import annotations

import warnings

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
PER = pytest.mark.parametrize("per", ["connection", "input"])
TRAINING = pytest.mark.parametrize("training", [True, False])


def drawn(*shape, seed=0):
    """Normal values."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layer_of(longest=5, **options):
    """A delay that is always the same."""
    torch.manual_seed(1)
    return sc.Delay(nn.Linear(J, OUT), longest, **options)


class TestState:
    """The last inputs, carried as the state of a neuron is."""

    @PER
    @TRAINING
    def test_single_steps_are_one_call(self, per, training):
        """And reset puts zeros before the next one."""
        layer, single, x = layer_of(LONGEST, per=per), layer_of(LONGEST, per=per, step="single"), drawn(T, B, J)
        layer.train(training), single.train(training)
        for _ in range(2):
            out = torch.stack([single(now) for now in x])
            torch.testing.assert_close(out, layer(x))
            sc.reset(single)
        assert single.state is None

    def test_another_batch(self):
        """A carried state that does not fit says reset."""
        layer = layer_of(LONGEST, step="single")
        layer(drawn(B, J))
        with pytest.raises(ValueError, match=r"carried from the last call has past of shape \[2, 3, 3\], wanted is"):
            layer(drawn(5, J))
        sc.reset(layer)
        assert layer(drawn(5, J)).shape == (5, OUT)


#: Layers, also without weights, and delays longer than the sequence: shape of a step, what makes it, delays.
LAYERS = {
    "linear": ((3,), lambda: nn.Linear(3, 4), {}),
    "linear, inputs": ((3,), lambda: nn.Linear(3, 4), {"per": "input"}),
    "linear, long": ((3,), lambda: nn.Linear(3, 4), {"longest": 15}),
    "linear, inputs, long": ((3,), lambda: nn.Linear(3, 4), {"per": "input", "longest": 15}),
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


def by_taps(layer, x):
    """The layer once for each lag, with the part of its weights that this lag has: that of a Gaussian while delays are
    learnt, or all at the nearest lag.
    """
    lags, delay, out = torch.arange(layer.max_delay + 1), layer.delay.unsqueeze(-1), 0
    if layer.training and layer.sigma is not None:
        share = torch.exp(-0.5 * ((lags - delay) / layer.sigma.unsqueeze(-1)).square())
        share = share / share.sum(-1, keepdim=True)
    else:
        share = (lags == delay.detach().round()).to(x)
    for lag in lags.tolist():
        late = torch.cat([torch.zeros_like(x[:lag]), x[: max(len(x) - lag, 0)]])[: len(x)]
        part = share[..., lag]
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
def test_layers_are_a_loop_over_lags(name, mode):
    """Values, gradients, and parts of a sequence. Whole delays have no gradient."""
    step, make, options = LAYERS[name]
    torch.manual_seed(0)
    learn = () if mode == "fixed" else ("delay", "sigma")
    options = {"longest": LONGEST, "learn": learn, **options}
    layer = sc.Delay(make().double(), options.pop("longest"), **options).double().train(mode != "eval")
    x = drawn(T, B, *step).double().requires_grad_()
    want, out = by_taps(layer, x), layer(x)
    torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-12)
    cotangent, wanted = drawn(*out.shape, seed=3).double(), [x, *layer.parameters()]
    found, grads = (torch.autograd.grad(y, wanted, cotangent, allow_unused=True) for y in (out, want))
    torch.testing.assert_close(found, grads, rtol=1e-9, atol=1e-12)
    with sc.carry_state(layer):
        parts = [layer(part) for part in x.split((1, 0, 1, 5))]
        past = layer.state["past"]
    torch.testing.assert_close(torch.cat(parts), out, rtol=1e-12, atol=1e-12)
    assert torch.equal(past[..., -T:], x[-layer.max_delay :].movedim(0, -1))
    assert layer.state is None


@PER
@TRAINING
@pytest.mark.parametrize("shape", [(0, B), (T, 0), (T,)])
def test_layouts(per, training, shape):
    """No steps, no samples, and no batch."""
    layer, x = layer_of(LONGEST, per=per).train(training), drawn(*shape, J).requires_grad_()
    out, state = layer.run(x)
    assert out.shape == (*shape, OUT)
    assert state["past"].shape == (*shape[1:], J, LONGEST)
    torch.testing.assert_close(out, by_taps(layer, x if x.ndim == 3 else x[:, None]).view(out.shape))
    out.sum().backward()


def test_one_fixed_delay_is_one_number():
    """It feeds back, compiles, is loaded, and comes at its step; ``explain`` says it."""
    layer = sc.Delay(nn.Linear(3, 3), 5, delay=2.0, learn=())
    assert layer.delay.shape == ()
    x = drawn(T, B, 3)
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
    x, widths = drawn(T, B, J), []
    for _ in range(3):
        step(x, torch.zeros(T, B, OUT))
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
    x, target = drawn(T, B, J), torch.zeros(T, B, OUT)
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
        shared = nn.Parameter(torch.ones(J))
        assert layer_of(delay=shared).delay is shared
        given = torch.ones(J)
        fixed = layer_of(delay=given, learn=())
        given.fill_(3)
        assert fixed.delay.tolist() == [1, 1, 1]

    def test_annealing_fills_the_same_tensor(self):
        """So what was compiled or captured computes with the new width, and a checkpoint has it."""
        layer, x = layer_of(), drawn(T, B, J)
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
        layer.delay = drawn(OUT, J).abs()
        assert torch.equal(layer.delay, drawn(OUT, J).abs())
        assert isinstance(layer.delay, nn.Parameter)

    def test_positions_are_kept_in_their_range(self):
        """A call computes with the nearest values; project, state_dict and a step of training put them inside."""
        for way in (sc.functional.project, lambda layer: layer.state_dict()):
            layer, x = layer_of(2, learn=("delay", "sigma")), drawn(T, B, J)
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
    "a width for each": {"sigma": torch.full((OUT, J), 2.0)},
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
        return sc.Recurrent(sc.LIF(), sc.Delay(nn.Linear(J, J), 5, **square))

    saved = layer().to(dtype)
    state = saved.state_dict()
    with torch.device("meta"):
        on_meta = layer()
    x = drawn(T, B, J).to(dtype)
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
    x = drawn(T, B, J)
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
            layer(drawn(T, B, J).double())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layer(drawn(T, B, J).bfloat16()).dtype == torch.bfloat16


class TestBesideTorch:
    """Other things that are done to modules."""

    def test_half_types_move_no_delay(self):
        """bfloat16 has 17.5, which is rounded to 18, and 300; its gradient and its width move with a delay."""
        learn = ("delay",)
        layer, x = layer_of(400, delay=17.45, learn=learn, per="input").eval(), torch.zeros(302, 1, J)
        nn.init.ones_(layer.linear.weight)
        x[0] = 1
        layer.delay.grad = torch.ones_like(layer.delay) if learn else None
        for dtype in (torch.bfloat16, torch.float16, torch.float64):
            layer.to(dtype)
            assert layer.linear.weight.dtype == dtype
            assert layer.delay.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            assert layer.whole.tolist() == [round(17.45)] * J
            assert not learn or layer.delay.grad.dtype == layer.sigma.dtype == layer.delay.dtype
        assert layer.double()(x.double()).sum(-1).argmax() == round(17.45)

    def test_autocast(self):
        """Products are 16-bit, shares of lags are not, and gradients arrive in float32."""
        layer, x = layer_of(per="connection", sigma=0.7), drawn(T, B, J)
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
        layer, x = layer_of(per="connection"), drawn(T, B, J)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        for sigma in (2.0, 0.5):
            layer.sigma = sigma
            torch.testing.assert_close(compiled(x), layer(x))
        (grad,) = torch.autograd.grad(compiled(x).square().sum(), layer.delay)
        torch.testing.assert_close(grad, torch.autograd.grad(layer(x).square().sum(), layer.delay)[0])
        layer.eval()
        torch.testing.assert_close(compiled(x), layer(x))


test_refused = refusals.table(__file__, globals())
