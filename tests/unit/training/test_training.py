"""training_model, inference_model and DataLoader on backends that run eagerly."""

from __future__ import annotations

import collections
import gc
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import spikecore as sc


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.5), sc.LIF(), nn.Linear(12, 3), sc.LIF())


def batch(seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(5, 8, 6, generator=generator) * 3, torch.randint(0, 3, (8,), generator=generator)


def by_hand(model, loss, optimizer, x, y, clip=None):
    optimizer.zero_grad()
    value = loss(model(x), y)
    value.backward()
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return value.detach()


@pytest.mark.parametrize("clip", [None, 0.01])
def test_a_step_is_the_usual_loop(clip):
    """Twenty steps leave the weights and losses of the loop that everybody writes, clipping included."""
    x, y = batch()
    ours, theirs = net(), net()
    step = sc.training_model(
        ours, sc.losses.ce_count, torch.optim.Adam(ours.parameters(), 0.01), options=sc.TrainingOptions(clip_norm=clip)
    )
    optimizer = torch.optim.Adam(theirs.parameters(), 0.01)
    for i in range(20):
        torch.manual_seed(i)
        _, loss = step(x, y)
        torch.manual_seed(i)
        expected = by_hand(theirs, sc.losses.ce_count, optimizer, x, y, clip)
        assert loss == expected
    for a, b in zip(ours.parameters(), theirs.parameters()):
        assert torch.equal(a, b)
    assert not torch.equal(next(ours.parameters()), next(net().parameters()))


def test_a_scheduler_moves_the_learning_rate():
    """The optimiser is read at every step: a schedule at rate 0 freezes the weights."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: float(epoch == 0))
    step = sc.training_model(model, sc.losses.ce_count, optimizer)
    step(*batch())
    schedule.step()
    before = [p.clone() for p in model.parameters()]
    step(*batch())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


def autocasts(dtype) -> bool:
    one = torch.ones(1, 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.autocast("cpu", dtype=dtype):
                return (one @ one).dtype == dtype
    except RuntimeError:
        return False


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_reaches_the_layers(dtype):
    """Under autocast the layers compute in the half type, the neurons return it, and training moves the weights."""
    if not autocasts(dtype):
        pytest.skip(f"this version of torch has no autocast to {dtype} on the CPU")
    model = net()
    seen = []
    model[2].register_forward_hook(lambda module, args, out: seen.append((args[0].dtype, out.dtype)))
    step = sc.training_model(
        model,
        sc.losses.ce_count,
        torch.optim.SGD(model.parameters(), 0.1),
        options=sc.TrainingOptions(autocast=dtype),
    )
    before = next(model.parameters()).clone()
    outputs, loss = step(*batch())
    assert seen == [(dtype, dtype)]
    assert outputs.dtype == dtype
    assert torch.isfinite(loss)
    assert not torch.equal(before, next(model.parameters()))


def test_a_gradient_scaler_is_used_around_backward_and_update():
    """The scaler scales the loss, unscales before clipping, makes the step, and is updated, in this order."""
    calls = []

    class Scaler:
        def scale(self, loss):
            calls.append("scale")
            return loss * 8

        def unscale_(self, optimizer):
            calls.append("unscale_")
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.grad /= 8

        def step(self, optimizer):
            calls.append("step")
            optimizer.step()

        def update(self):
            calls.append("update")

    ours, theirs = net(), net()
    options = sc.TrainingOptions(clip_norm=0.01, scaler=Scaler())
    step = sc.training_model(ours, sc.losses.ce_count, torch.optim.SGD(ours.parameters(), 0.1), options=options)
    torch.manual_seed(0)
    step(*batch())
    torch.manual_seed(0)
    by_hand(theirs, sc.losses.ce_count, torch.optim.SGD(theirs.parameters(), 0.1), *batch(), clip=0.01)
    assert calls == ["scale", "unscale_", "step", "update"]
    torch.testing.assert_close(next(ours.parameters()), next(theirs.parameters()))


NAN, INFINITY = float("nan"), float("inf")


def spoilt(where: str):
    """A network, a loss and a batch with one number that is not finite."""
    model, loss, (x, y) = net(), sc.losses.ce_count, batch()
    if where == "input":
        x[2, 3, 1] = NAN
    elif where == "inputs":
        x = (x.index_fill(0, torch.tensor([4]), INFINITY),)
    elif where == "weight":
        next(model.parameters()).data[1, 0] = NAN
    elif where == "loss":
        loss = lambda outputs, targets: sc.losses.ce_count(outputs, targets) / 0  # noqa: E731
    elif where.startswith("backward"):
        model[:3].requires_grad_(where == "backward")
        loss = lambda outputs, targets: sc.losses.ce_count(outputs, targets) + (0 * outputs.sum()).sqrt()  # noqa: E731
    elif where == "norm":
        loss = lambda outputs, targets: 1e25 * sc.losses.ce_count(outputs, targets)  # noqa: E731
    return model, loss, x, y


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (
            "input",
            r"no weight was changed: the input has 1 NaN among 240 numbers, the first at index \[2, 3, 1\]\. Leave",
        ),
        ("inputs", r"parameters have no NaN, .*explain\(net, inputs\) says where"),  # infinite ones are legitimate
        (
            "weight",
            r"the parameter '0\.weight' has 1 NaN among .*, the first at index \[1, 0\], and had it before this",
        ),
        ("loss", r"the output of the network is finite, and the loss is inf\. Look for a division by 0"),
        (
            "backward",
            r"output and loss are finite, and the gradient of .* has .* NaN .*, and so have 3 others; either the "
            r"forward .*explain\(net, inputs\) says where it began; or the backward pass, .*set_detect_anomaly",
        ),
        ("backward of one layer", r"the gradient of 3\.weight has .* NaN .*, and so has one other; either"),
        ("norm", r"each number is finite, and the gradient of .* has a norm of .*, whose square is not"),
    ],
)
def test_a_clipped_step_raises_for_gradients_that_are_not_finite(where, text):
    """It says where that began, and leaves weights and optimiser as they were."""
    model, loss, x, y = spoilt(where)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    step = sc.training_model(model, loss, optimizer, options=sc.TrainingOptions(clip_norm=1.0))
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(FloatingPointError, match=text):
        step(x, y)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, model.parameters()))
    assert not optimizer.state
    if where == "input":
        step(*batch())
        assert not torch.equal(before[0], next(model.parameters()))


class Halving:
    """A gradient scaler that skips what is not finite, as torch's does."""

    def __init__(self):
        self.factor, self.unscaled = 1024.0, False

    def get_scale(self):
        return self.factor

    def scale(self, loss):
        return loss * self.factor

    def unscale_(self, optimizer):
        self.unscaled = True
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad /= self.factor

    def step(self, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        self.fine = all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        if self.fine:
            if not self.unscaled:
                self.unscale_(optimizer)
            optimizer.step()

    def update(self):
        self.unscaled = False
        self.factor *= 1.0 if self.fine else 0.5


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_scaled_step_says_that_it_was_skipped(clip):
    """The scaler skips; a warning says where it began, and an error once no scale helps."""
    model, loss, x, y = spoilt("input")
    options = sc.TrainingOptions(scaler=Halving(), clip_norm=clip)
    step = sc.training_model(model, loss, torch.optim.SGD(model.parameters(), 0.1), options=options)
    before = [p.clone() for p in model.parameters()]
    with pytest.warns(RuntimeWarning, match=r"not due to the scale: the input has 1 NaN"):
        step(x, y)
    assert step.skipped == 1
    for _ in range(18):
        with pytest.warns(RuntimeWarning, match="not due to the scale"):
            step(x, y)
    with pytest.raises(
        FloatingPointError, match=r"in 20 steps in a row, each of which was skipped: the input has 1 NaN"
    ):
        step(x, y)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_a_scale_that_is_too_high_is_lowered_without_a_word():
    """That is what a scaler is for: the updates are skipped and counted until the scaled gradients are finite."""
    model, x, y = net(), *batch()
    options = sc.TrainingOptions(scaler=Halving())
    loss = lambda outputs, targets: 1e36 * sc.losses.ce_count(outputs, targets)  # noqa: E731
    step = sc.training_model(model, loss, torch.optim.SGD(model.parameters(), 1e-36), options=options)
    before = next(model.parameters()).clone()
    for _ in range(10):
        step(x, y)
    assert 0 < step.skipped < 10
    assert not torch.equal(before, next(model.parameters()))


def test_nothing_keeps_the_graph_alive():
    """What a step returns has no graph, and the inner activations are gone after it."""
    model = net()
    kept = []
    model[0].register_forward_hook(lambda module, args, out: kept.append(weakref.ref(out)))
    step = sc.training_model(model, sc.losses.ce_count, torch.optim.SGD(model.parameters(), 0.1))
    outputs, loss = step(*batch())
    gc.collect()
    assert not outputs.requires_grad
    assert not loss.requires_grad
    assert kept[0]() is None


def test_inference_is_in_eval_mode_and_restores_every_module():
    """predict switches dropout off, records no graph, and leaves each module's own mode as it found it."""
    model = net()
    model[3].eval()
    predict = sc.inference_model(model)
    x, _ = batch()
    assert torch.equal(predict(x), predict(x))
    assert not predict(x).requires_grad
    assert [m.training for m in model] == [True, True, True, False, True]
    assert model.training


def test_inference_restores_the_modes_after_an_error():
    """A failing forward leaves the training modes as they were."""
    model = net()
    with pytest.raises(RuntimeError):
        sc.inference_model(model)(torch.rand(5, 8, 7))
    assert all(m.training for m in model.modules())


def test_the_loader_yields_torch_batches():
    """Without a backend of its own kind, DataLoader is torch's."""
    x = torch.arange(10.0).view(10, 1)
    batches = list(sc.DataLoader(TensorDataset(x, x), batch_size=4, drop_last=True))
    assert [b[0].shape for b in batches] == [(4, 1), (4, 1)]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"net": "no"}, TypeError, "net='no' is a str; give the network"),
        ({"loss": nn.MSELoss}, TypeError, "loss=MSELoss is the class; give an object, MSELoss()"),
        (
            {"optimizer": torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)},
            ValueError,
            "optimizer holds no parameter of this network; make it from net.parameters()",
        ),
        ({"loss": None}, TypeError, "loss=None must be callable as loss(outputs, targets)"),
        ({"optimizer": "adam"}, TypeError, "optimizer='adam' must be a torch.optim.Optimizer"),
        ({"options": {"compile": True}}, TypeError, "; write options=sc.TrainingOptions(compile=True)"),
        ({"options": sc.TrainingOptions}, TypeError, "; write options=sc.TrainingOptions()"),
        ({"options": 3}, TypeError, "options=3 must be a spikecore.TrainingOptions"),
        ({"backend": "cudda"}, sc.UnknownBackend, "unknown backend 'cudda'"),
    ],
)
def test_wrong_arguments_are_named(change, error, text):
    """Each wrong argument gives a sentence with its name, its value and what would be right."""
    model = net()
    arguments = {
        "net": model,
        "loss": sc.losses.ce_count,
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
        "backend": None,
        "options": None,
        **change,
    }
    with pytest.raises(error) as caught:
        sc.training_model(
            arguments["net"],
            arguments["loss"],
            arguments["optimizer"],
            backend=arguments["backend"],
            options=arguments["options"],
        )
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"clip_norm": 0}, "clip_norm=0 must be above 0"),
        ({"clip_norm": "1"}, "clip_norm='1' must be a number above 0, or None for no clipping"),
        ({"clip_norm": True}, "clip_norm=True must be a number above 0, or None for no clipping"),
        ({"autocast": torch.float32}, "autocast=torch.float32 must be torch.float16, torch.bfloat16 or None"),
        ({"scaler": 1}, "scaler=1 must have the methods of torch.amp.GradScaler"),
    ],
)
def test_wrong_options_are_named(kwargs, text):
    """Options are checked when they are made."""
    with pytest.raises((TypeError, ValueError)) as caught:
        sc.TrainingOptions(**kwargs)
    assert text in str(caught.value)


def test_a_loss_that_is_no_number_is_refused():
    """A loss of many numbers says how to reduce it, instead of torch's message about scalars."""
    model = net()
    step = sc.training_model(model, lambda out, y: out.sum(0), torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(ValueError, match=r"loss must give a tensor with one number, got shape \[8, 3\]"):
        step(*batch())


def test_the_backend_argument_reaches_every_neuron():
    """training_model(backend=...) asks for it in every neuron of the network."""
    model = net()
    sc.training_model(model, sc.losses.ce_count, torch.optim.SGD(model.parameters(), 0.1), backend="torch")
    assert all("backend=torch" in repr(m) for m in model.modules() if isinstance(m, sc.Neuron))


def test_a_carried_state_is_detached_after_a_step():
    """Steps under carry_state go on from each other without a graph: truncated backpropagation through time."""
    model = net()
    step = sc.training_model(model, sc.losses.ce_count, torch.optim.SGD(model.parameters(), 0.1))
    with sc.carry_state(model):
        step(*batch())
        step(*batch())
        assert model[2].state["v"].abs().sum() > 0
        assert not model[2].state["v"].requires_grad


def test_batches_of_any_structure():
    """Named tuples are spread, dicts become keywords, and outputs keep their structure, detached."""
    Batch = collections.namedtuple("Batch", ("x", "gain"))

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 3)
            self.lif = sc.LIF()

        def forward(self, x, gain):
            out = self.lif(self.fc(x) * gain)
            return {"out": out, "both": (out, [out])}

    model, (x, y) = Two(), batch()
    step = sc.training_model(
        model, lambda out, y: sc.losses.ce_count(out["out"], y), torch.optim.SGD(model.parameters(), 0.1)
    )
    for inputs in (Batch(x, torch.ones(())), {"gain": torch.ones(()), "x": x}):
        outputs, _ = step(inputs, y)
        assert not outputs["out"].requires_grad
        assert not outputs["both"][1][0].requires_grad


class Looped(nn.Module):
    """Single-step neurons in a loop over time that nobody resets."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(6, 3)
        self.lif = sc.LIF(3.0, threshold=0.3, step="single")

    def forward(self, x):
        return torch.stack([self.lif(self.fc(x_t)) for x_t in x])


def test_a_step_begins_at_rest():
    """Without an update the same batch gives the same numbers, in training and in inference, and leaves no state."""
    model, (x, y) = Looped(), batch()
    step = sc.training_model(model, sc.losses.ce_count, torch.optim.SGD(model.parameters(), 0.0))
    predict = sc.inference_model(model)
    expected = model(x)
    assert expected.sum() > 0
    for _ in range(2):
        assert torch.equal(step(x, y)[0], expected)
        assert model.lif.state is None
        assert torch.equal(predict(x), expected)
        assert model.lif.state is None


def test_a_step_goes_on_where_state_is_carried_on_purpose():
    """Within carry_state single-step neurons go on from step to step, without a graph, and keep their state."""
    model, (x, y) = Looped(), batch()
    step = sc.training_model(model, sc.losses.ce_count, torch.optim.SGD(model.parameters(), 0.0))
    predict = sc.inference_model(model)
    expected = model(torch.cat([x] * 4)).chunk(4)
    sc.reset(model)
    with sc.carry_state(model):
        for call, whole in zip((step, predict) * 2, expected):
            found = call(x, y)[0] if call is step else call(x)
            assert torch.equal(found, whole)
            assert not model.lif.state["v"].requires_grad


def test_a_failed_step_leaves_no_state():
    """An error in the loss leaves the neurons at rest."""
    model, (x, _) = Looped(), batch()
    step = sc.training_model(model, lambda out, y: out, torch.optim.SGD(model.parameters(), 0.0))
    with pytest.raises(ValueError, match="one number"):
        step(x, x)
    assert model.lif.state is None


@pytest.mark.parametrize(
    ("ask", "who"),
    [
        (lambda net, opt: sc.training_model(net, sc.losses.ce_count, opt, backend="troch"), "training_model()"),
        (lambda net, opt: sc.inference_model(net, backend="troch"), "inference_model()"),
        (lambda net, opt: sc.DataLoader([1, 2], backend="troch"), "DataLoader()"),
    ],
)
def test_a_wrong_backend_is_an_error_that_names_who_asked(ask, who):
    """At once, and by the name of the function that was called."""
    net = nn.Sequential(nn.Linear(3, 2), sc.LIF())
    with pytest.raises(sc.UnknownBackend) as caught:
        ask(net, torch.optim.SGD(net.parameters(), 0.1))
    assert str(caught.value).startswith(f"unknown backend 'troch' (from {who}); did you mean 'torch'? Known: ")


def test_an_optimiser_with_a_closure_is_refused() -> None:
    """LBFGS runs the network again within its step, which torch says as a missing argument."""
    net = nn.Linear(3, 2)
    with pytest.raises(TypeError, match=r"optimizer=LBFGS runs the network several times.*optimizer\.step\(closure\)"):
        sc.training_model(net, nn.MSELoss(), torch.optim.LBFGS(net.parameters()))
