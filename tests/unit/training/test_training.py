"""training_model and inference_model on backends that run eagerly; what a step says of time."""

from __future__ import annotations

import collections
import functools
import gc
import re
import warnings
import weakref
from typing import Any, Callable, List, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import refusals
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


NAN = float("nan")


def spoilt(where: str):
    """A network, a loss and a batch with one number that is not finite."""
    model, loss, (x, y) = net(), sc.losses.ce_count, batch()
    if where == "input":
        x[2, 3, 1] = NAN
    elif where == "weight":
        next(model.parameters()).data[1, 0] = NAN
    elif where == "loss":
        loss = lambda outputs, targets: sc.losses.ce_count(outputs, targets) / 0  # noqa: E731
    elif where == "backward":
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
        (
            "weight",
            r"the parameter '0\.weight' has 1 NaN among .*, the first at index \[1, 0\], and had it before this",
        ),
        ("loss", r"the loss has the value inf, and the output of the network is finite\. Look for a division by 0"),
        (
            "backward",
            r"the gradient of .* has .* NaN .*, and output and loss are finite; either the "
            r"forward .*explain\(net, inputs\) says where it began; or the backward pass, .*set_detect_anomaly",
        ),
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
        self.factor, self.calls = 1024.0, []

    def get_scale(self):
        return self.factor

    def scale(self, loss):
        self.calls = ["scale"]
        return loss * self.factor

    def unscale_(self, optimizer):
        self.calls.append("unscale_")
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad /= self.factor

    def step(self, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        self.fine = all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        self.calls.append("step")
        if self.fine:
            optimizer.step()

    def update(self):
        self.calls.append("update")
        self.factor *= 1.0 if self.fine else 0.5


def test_a_gradient_scaler_is_used_around_backward_and_update():
    """The scaler scales the loss, unscales before clipping, makes the step, and is updated, in this order."""
    ours, theirs = net(), net()
    options = sc.TrainingOptions(clip_norm=0.01, scaler=Halving())
    step = sc.training_model(ours, sc.losses.ce_count, torch.optim.SGD(ours.parameters(), 0.1), options=options)
    torch.manual_seed(0)
    step(*batch())
    torch.manual_seed(0)
    by_hand(theirs, sc.losses.ce_count, torch.optim.SGD(theirs.parameters(), 0.1), *batch(), clip=0.01)
    assert options.scaler.calls == ["scale", "unscale_", "step", "update"]
    torch.testing.assert_close(next(ours.parameters()), next(theirs.parameters()))


def test_a_scaled_step_says_that_it_was_skipped():
    """The scaler skips; a warning says where it began, and an error once no scale helps."""
    model, loss, x, y = spoilt("input")
    options = sc.TrainingOptions(scaler=Halving(), clip_norm=1.0)
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


def test_nothing_keeps_the_graph_alive():
    """The result of a step has no graph, and the inner activations are gone after it."""
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
    """predict switches dropout off, records no graph, and leaves each module's own mode, after an error too."""
    model = net()
    model[3].eval()
    predict = sc.inference_model(model)
    x, _ = batch()
    assert torch.equal(predict(x), predict(x))
    assert not predict(x).requires_grad
    with pytest.raises(RuntimeError):
        predict(torch.rand(5, 8, 7))
    assert [m.training for m in model] == [True, True, True, False, True]
    assert model.training


def test_sequences_that_are_not_padded_are_refused() -> None:
    """A list, a packed sequence, and samples of different lengths in a loader, with what pads them."""
    sequences = [torch.rand(length, 5) for length in (3, 7, 4)]
    packed = nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)
    for model in (functools.partial(step_of(mlp(), sc.losses.ce_count), targets=labels(3)), sc.inference_model(mlp())):
        with pytest.raises(TypeError, match=r"^inputs is a PackedSequence; give a padded tensor.*mask_of"):
            model(packed)
        with pytest.raises(TypeError, match=r"inputs is a list of 3, .*rnn\.pad_sequence\(inputs\), and a mask"):
            model(sequences)
    for time_first in (False, True):
        loader: Any = sc.DataLoader(list(zip(sequences, labels(3))), 3, time_first=time_first)
        with pytest.raises(ValueError, match=r"samples have different sizes, .* give a collate_fn that pads sequences"):
            next(iter(loader))


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


class Smoothed(nn.CrossEntropyLoss):
    """A loss of torch with other defaults."""

    def __init__(self) -> None:
        super().__init__(label_smoothing=0.1)


class OverTime(nn.CrossEntropyLoss):
    """One with a ``forward`` of its own, which fails for a reason of its own."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        raise RuntimeError("one class is never drawn")


LOSSES = [nn.CrossEntropyLoss(), Smoothed(), functools.partial(F.nll_loss, reduction="sum")]


def loss_name(loss: Any) -> str:
    loss_type = nn.CrossEntropyLoss if isinstance(loss, Smoothed) else type(loss)
    return str(getattr(getattr(loss, "func", loss), "__name__", loss_type.__name__))


def step_of(net: nn.Module, loss: Any, **more: Any) -> sc.training.TrainingStep:
    return sc.training_model(net, loss, torch.optim.SGD(net.parameters(), 0.1), **more)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), sc.LIF(), nn.Linear(8, 3), sc.LI())


def labels(size: int) -> Tensor:
    return torch.randint(3, (size,))


class TestALossWithoutTime:
    @pytest.mark.parametrize("loss", LOSSES, ids=loss_name)
    @pytest.mark.parametrize("steps", [4, 16])
    def test_the_way_out_is_said(self, loss: Any, steps: int) -> None:
        said = rf"^loss={loss_name(loss)} takes outputs \[B, C\], .*got \[T, B, C\] = \[{steps}, 16, 3\] for .*ce_count"
        with pytest.raises(ValueError, match=said) as caught:
            step_of(mlp(), loss)(torch.rand(steps, 16, 5), labels(16))
        assert caught.value.__cause__ is not None

    @pytest.mark.parametrize("loss", [F.cross_entropy, lambda outputs, y: 2 * F.cross_entropy(outputs, y)])
    def test_a_class_for_each_step(self, loss: Any) -> None:
        y = torch.randint(3, (4, 16))
        said = r"a class for each step .*F\.cross_entropy\(outputs\.flatten\(0, 1\), targets"
        with pytest.raises((ValueError, RuntimeError), match=said):
            step_of(mlp(), loss)(torch.rand(4, 16, 5), y)
        step_of(mlp(), lambda outputs, y: F.cross_entropy(outputs.flatten(0, 1), y.flatten()))(torch.rand(4, 16, 5), y)

    def test_nothing_is_said_of_a_forward_of_ones_own(self) -> None:
        with pytest.raises(RuntimeError, match="^one class is never drawn$"):
            step_of(mlp(), OverTime())(torch.rand(4, 16, 5), labels(16))


class Mean(nn.Module):
    """The mean over time, of ``[T, B, C]``."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(0)


def images() -> nn.Sequential:
    first = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.MaxPool2d(2))
    return nn.Sequential(first, sc.LIF(), nn.Flatten(), nn.Linear(8, 3))


class Own(nn.Module):
    """A network with a ``forward`` of its own, whose layers nobody sees."""

    def __init__(self, step: str = "multi") -> None:
        super().__init__()
        self.first, self.neuron, self.last = nn.Linear(5, 8), sc.LIF(step=step), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.neuron(self.first(x)))


class StepByStep(Own):
    """The same, called once for each step."""

    def __init__(self) -> None:
        super().__init__("single")

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([super(StepByStep, self).forward(now) for now in x])


TAKEN = {
    "linear": (mlp, (16, 5), ""),
    "a forward": (Own, (16, 5), ""),
    "images": (
        images,
        (16, 1, 6, 6),
        r" and 0.0 \(Conv2d\), 0.1 \(BatchNorm2d\), 0.2 \(MaxPool2d\), 2 \(Flatten\) into",
    ),
    "recurrent": (lambda: nn.Sequential(nn.Linear(5, 3), sc.Recurrent(sc.LIF(), nn.Linear(3, 3))), (16, 5), ""),
}
RIGHT = {
    "a mean over time": (lambda: nn.Sequential(sc.encode.Constant(4), mlp(), Mean()), (16, 5)),
    "time in a forward": (lambda: nn.Sequential(nn.Unflatten(0, (1, 16)), mlp(), Mean()), (16, 5)),
    "one step a call": (lambda: nn.Sequential(nn.Linear(5, 3), sc.LIF(step="single")), (16, 5)),
    "one sample": (mlp, (1, 5)),
    "as many steps as samples": (lambda: nn.Sequential(Own(), Mean()), (16, 16, 5)),
    "time in a neuron": (lambda: nn.Sequential(nn.Linear(5, 3), sc.LIF(repeat=16), Mean()), (16, 5)),
}


class TestABatchAsTime:
    """Inputs ``[B, ...]`` without an encoder."""

    @pytest.mark.parametrize(("made", "shape", "within"), TAKEN.values(), ids=TAKEN.keys())
    def test_it_is_said_once(self, made: Callable[[], nn.Module], shape: Tuple[int, ...], within: str) -> None:
        net = made()
        step = step_of(net, nn.CrossEntropyLoss())
        sizes = ", ".join(map(str, shape))
        said = rf"dimension 0 of inputs \[{sizes}\] .* each of the 16 targets .* in front of the network{within}"
        with pytest.warns(UserWarning, match=said) as caught:
            step(torch.rand(shape), labels(16))
        assert len(caught) == 1
        assert "TimeBatched" in str(caught[0].message) or not within
        step(torch.rand(shape), labels(16))  # a second warning would be an error

    @pytest.mark.parametrize(("made", "shape"), RIGHT.values(), ids=RIGHT.keys())
    def test_nothing_is_said_of_right_ones(self, made: Callable[[], nn.Module], shape: Tuple[int, ...]) -> None:
        step_of(made(), nn.CrossEntropyLoss())(torch.rand(shape), labels(shape[0]))

    @pytest.mark.parametrize(
        ("loss", "targets"),
        [
            (nn.MSELoss(), torch.zeros(16, 3)),
            (lambda outputs, targets: F.cross_entropy(outputs.mean(0, True), targets), torch.tensor([1])),
        ],
        ids=["values", "one target"],
    )
    def test_one_sequence_is_right(self, loss: Any, targets: Tensor) -> None:
        """With what its outputs should be at each step, and with one target."""
        step_of(mlp(), loss)(torch.rand(16, 5), targets)

    def test_a_loss_of_ones_own(self) -> None:
        """Which loss it is does not matter: outputs [B, C] of neurons over time are steps of one sample."""
        step = step_of(Own(), lambda outputs, targets: F.cross_entropy(outputs, targets, label_smoothing=0.1))
        with pytest.warns(UserWarning, match=r"dimension 0 of inputs \[16, 5\] for time"):
            step(torch.rand(16, 5), labels(16))


class TutorialLoop(Own):
    """A loop over time around neurons that take all steps in a call; one output or two."""

    def __init__(self, pair: bool) -> None:
        super().__init__()
        self.pair = pair

    def forward(self, x: Tensor) -> Any:
        out = torch.stack([super(TutorialLoop, self).forward(x) for _ in range(4)])
        return (out, out) if self.pair else out


class TestALoopOverTheBatch:
    """snnTorch's loop over time, with neurons of ``step="multi"``."""

    @pytest.mark.parametrize("pair", [False, True])
    def test_it_is_said_once(self, pair: bool) -> None:
        step = step_of(TutorialLoop(pair), lambda outputs, y: sc.losses.ce_rate(outputs[1] if pair else outputs, y))
        said = r"\(LIF\) was called 4 times in this step, .* of size 16, as time.*sc\.set_step\(net, 'single'\)"
        with pytest.warns(UserWarning, match=said) as caught:
            step(torch.rand(16, 5), labels(16))
        assert len(caught) == 1
        step(torch.rand(16, 5), labels(16))

    def test_nothing_is_said_of_sequences(self) -> None:
        """A neuron that is called several times on [T, B, ...]."""
        net = TutorialLoop(False)
        step_of(net, lambda outputs, y: sc.losses.ce_count(outputs[0], y))(torch.rand(4, 16, 5), labels(16))


class TestAStaleOptimiser:
    """An optimiser that was made before a layer was replaced."""

    def test_it_is_said(self) -> None:
        net = mlp()
        optimizer = torch.optim.Adam(net.parameters())
        net[0] = nn.Linear(5, 8)
        net.append(nn.Linear(3, 3))
        said = r"Adam does not hold 0\.weight, 0\.bias, 4\.weight and 1 more, and holds 2 parameters that the network"
        with pytest.warns(UserWarning, match=said):
            sc.training_model(net, sc.losses.ce_rate, optimizer)(torch.rand(4, 16, 5), labels(16))

    def test_nothing_is_said_of_others(self) -> None:
        """Parameters that are left out, and those of a loss, are right."""
        net, scale = mlp(), nn.Parameter(torch.ones(()))
        for held in ([net[0].weight], [*net.parameters(), scale]):
            optimizer = torch.optim.Adam(held)
            sc.training_model(net, sc.losses.ce_rate, optimizer)(torch.rand(4, 16, 5), labels(16))


class TestALossOfSomethingElse:
    """Losses that compute without an error, but something else than meant."""

    @pytest.mark.parametrize("loss", [sc.losses.ce_max_membrane, functools.partial(sc.losses.mse_membrane)])
    def test_a_loss_of_membranes_gets_spikes(self, loss: Any) -> None:
        net = nn.Sequential(nn.Linear(5, 3), sc.LIF(threshold=0.1))
        with pytest.warns(UserWarning, match=r"_membrane is one of membrane potentials, and all outputs are 0 or 1"):
            step_of(net, loss)(10 * torch.rand(4, 16, 5), labels(16))
        step_of(nn.Sequential(nn.Linear(5, 3), sc.LI()), loss)(torch.rand(4, 16, 5), labels(16))

    @pytest.mark.parametrize(
        "loss", [sc.losses.ce_count, sc.losses.ce_temporal, functools.partial(sc.losses.mse_count)]
    )
    def test_a_loss_of_spikes_gets_membranes(self, loss: Any) -> None:
        with pytest.warns(UserWarning, match=r"is one of spikes, and outputs are negative, .*\.ce_max_membrane"):
            step_of(nn.Sequential(nn.Linear(5, 3), sc.LI()), loss)(torch.randn(4, 16, 5), labels(16))
        step_of(nn.Sequential(nn.Linear(5, 3), sc.TernaryLIF()), loss)(10 * torch.randn(4, 16, 5), labels(16))

    @pytest.mark.parametrize("loss", [nn.MSELoss(), F.smooth_l1_loss])
    @pytest.mark.filterwarnings("ignore:Using a target size")
    def test_targets_without_time(self, loss: Any) -> None:
        with pytest.warns(UserWarning, match=r"outputs \[4, 16, 3\] and targets \[16, 3\], .*outputs\.mean\(0\)"):
            step_of(mlp(), loss)(torch.rand(4, 16, 5), torch.zeros(16, 3))
        step_of(mlp(), loss)(torch.rand(4, 16, 5), torch.zeros(4, 16, 3))


class TwoOutputs(sc.Neuron):
    """A potential without a reset, and spikes of it."""

    states = {"v": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Any]:
        v = 0.5 * s.v + x
        return (v, self.spike(v - 100.0)), {"v": v}


class First(nn.Sequential):
    """The first output of a chain."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]


class TestASilentLayer:
    """Spiking neurons that give no spike: usual in the first step, a fault after thirty where no layer fires, and after
    a hundred in any.
    """

    def steps(self, later: float, made: Callable[[], nn.Module] = mlp) -> None:
        torch.manual_seed(0)
        net = made()
        step = sc.training_model(net, sc.losses.ce_max_membrane, torch.optim.Adam(net.parameters(), 1e-2))
        for number in range(101):
            step((later if number else 0.0) * torch.rand(4, 16, 5), labels(16))

    def test_it_is_said_once(self) -> None:
        said = r"^1 \(LIF\) gave no spike in the batches of steps 1 and 30: .*sc\.explain\(net, x\)"
        with pytest.warns(UserWarning, match=said) as caught:
            self.steps(0.0)
        assert len(caught) == 1

    @pytest.mark.parametrize(
        ("made", "name"),
        [
            (lambda: First(nn.Linear(5, 3), TwoOutputs()), "1 (TwoOutputs)"),
            (lambda: First(sc.Recurrent(TwoOutputs(), nn.Linear(5, 5), output=0)), "0 (Recurrent)"),
            (lambda: sc.layers.SLSTM(5, 3), "recurrent (Recurrent)"),
            (lambda: sc.layers.SpikingLSTM(5, 3), "recurrent (Recurrent)"),
        ],
    )
    def test_outputs_that_are_spikes_count(self, made: Callable[[], nn.Module], name: str) -> None:
        """Beside a potential that is not 0, and within gated layers."""

        def never() -> nn.Module:
            net = made()
            for parameter in net.parameters():
                nn.init.constant_(parameter, -1.0)
            return net

        with pytest.warns(UserWarning, match=rf"^{re.escape(name)} gave no spike in the batches of steps 1 and 30"):
            self.steps(8.0, never)

    def test_behind_a_layer_that_fires_it_has_a_hundred_steps(self) -> None:
        def net() -> nn.Module:
            return nn.Sequential(nn.Linear(5, 8), sc.LIF(), nn.Linear(8, 3), sc.LIF(threshold=1e9))

        with pytest.warns(UserWarning, match=r"^3 \(LIF\) gave no spike in the batches of steps 1 and 100") as caught:
            self.steps(8.0, net)
        assert len(caught) == 1

    def test_nothing_is_said_of_one_that_wakes_up(self) -> None:
        self.steps(8.0)
        self.steps(8.0, lambda: nn.Sequential(sc.layers.SLSTM(5, 3, threshold=0.01), nn.Linear(3, 3)))

    def test_nothing_is_said_of_neurons_that_do_not_spike(self) -> None:
        self.steps(0.0, lambda: nn.Sequential(nn.Linear(5, 3, bias=False), sc.LI()))


class TestSingleSteps:
    """``step="single"`` and inputs ``[T, B, ...]``."""

    def test_all_steps_taken_for_one_are_said_once(self) -> None:
        step = step_of(Own("single"), sc.losses.ce_rate)
        said = (
            r"^inputs \[4, 16, 5\] for 16 targets are \[T, B, \.\.\.\]\. .*step='single'.*sc\.set_step\(net, 'multi'\)"
        )
        with pytest.warns(UserWarning, match=said) as caught:
            step(torch.rand(4, 16, 5), labels(16))
        assert len(caught) == 1
        step(torch.rand(4, 16, 5), labels(16))

    def test_a_loss_without_time(self) -> None:
        with pytest.raises(ValueError, match=r"takes outputs \[B, C\], .*step='single': a call is one time step"):
            step_of(Own("single"), F.cross_entropy)(torch.rand(4, 16, 5), labels(16))

    def test_nothing_is_said_of_right_ones(self) -> None:
        """A loop over time, one step without time, and as many steps as samples, which prove nothing."""
        step_of(StepByStep(), sc.losses.ce_rate)(torch.rand(4, 16, 5), labels(16))
        step_of(Own("single"), F.cross_entropy)(torch.rand(16, 5), labels(16))
        step_of(Own("single"), sc.losses.ce_rate)(torch.rand(16, 16, 5), labels(16))


class TestPlaces:
    """A neuron that carries its state and is called at one or two places of a network, in a loop over steps."""

    class Net(nn.Module):
        """A loop over steps."""

        def __init__(self, twice: bool) -> None:
            super().__init__()
            self.fc, self.twice = nn.Linear(5, 12), twice
            self.lif, self.last = sc.LIF(step="single"), sc.LI(step="single")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outputs = []
            for x_t in x:
                hidden = self.lif(self.fc(x_t))
                outputs.append(self.last(self.lif(hidden) if self.twice else hidden))
            return torch.stack(outputs)

    def warned(self, twice: bool) -> List[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step_of(self.Net(twice), sc.losses.ce_max_membrane)(torch.rand(4, 16, 5), labels(16))
        return [str(each.message) for each in caught]

    def test_two_places_are_said(self) -> None:
        (said,) = self.warned(True)
        assert said.startswith("lif (LIF) carries its state and was called 8 times in this step, and other neurons 4")
        assert said.endswith("If it takes several time steps for one of the others, this is right")

    def test_one_place_is_right(self) -> None:
        assert self.warned(False) == []


class TestSizesAsTimeConstants:
    """``sc.LIF(8)`` for a layer of 8 neurons."""

    def warned(self, first: nn.Module, last: nn.Module) -> List[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step = step_of(nn.Sequential(nn.Linear(5, 8), first, nn.Linear(8, 12), last), sc.losses.ce_rate)
            step(torch.rand(4, 16, 5), labels(16))
            step(torch.rand(4, 16, 5), labels(16))
        return [str(each.message) for each in caught]

    @pytest.mark.parametrize("last", [sc.LI(12), sc.Leaky(0.9), sc.LIF(12.0, step="multi")])
    def test_they_are_said_once(self, last: nn.Module) -> None:
        (said,) = self.warned(sc.LIF(8), last)
        assert said.startswith("1 (LIF) has tau=8, and its input has 8 channels. Neurons have no size: if 8 was meant")

    def test_within_a_recurrent(self) -> None:
        (said,) = self.warned(sc.Recurrent(sc.LIF(8), nn.Linear(8, 8)), sc.LI(12))
        assert said.startswith("1.neuron (LIF) has tau=8, and its input has 8 channels")

    @pytest.mark.parametrize("last", [sc.LIF(), sc.LI(8)])
    def test_one_of_several_is_a_coincidence(self, last: nn.Module) -> None:
        """One is tau = 20 ms in front of the 20 classes of spoken digits."""
        assert self.warned(sc.LIF(8), last) == []


def test_a_neuron_without_a_gradient_is_said_once() -> None:
    """A spike written as a number: nothing before it would learn. In front of all layers it may be meant."""

    def dynamics(self: Any, x: Any, s: Any, p: Any) -> Any:
        return sc.ops.where(s.v + x >= 1.0, 1.0, 0.0), {"v": s.v + x}

    mine = type("Mine", (sc.Neuron,), {"states": {"v": 0.0}, "dynamics": dynamics})
    step = step_of(nn.Sequential(nn.Linear(5, 3), mine(), nn.Linear(3, 3), sc.LI()), sc.losses.ce_rate)
    with pytest.warns(UserWarning, match=r"^1 \(Mine\) passes no gradient .*; write self.spike\(h - 1.0\)") as caught:
        step(torch.rand(4, 16, 5), labels(16))
    assert len(caught) == 1
    step(torch.rand(4, 16, 5), labels(16))  # a second warning would be an error
    step_of(nn.Sequential(mine(), nn.Linear(5, 3), sc.LIF()), sc.losses.ce_count)(torch.rand(4, 16, 5), labels(16))


@pytest.mark.parametrize("encoder", [sc.encode.Poisson(4), sc.encode.Latency(4)])
@pytest.mark.parametrize("scale", [255.0, -1.0])
def test_inputs_that_an_encoder_clamps_are_said_once(encoder: Any, scale: float) -> None:
    """Images of bytes, and normalised ones; a tenth may be outside."""
    step = step_of(nn.Sequential(encoder, nn.Linear(5, 3), sc.LIF()), sc.losses.ce_count)
    x = torch.rand(16, 5, generator=torch.Generator().manual_seed(0))
    said = rf"^0 \({type(encoder).__name__}\) is for values from 0 to 1, and \d+ % of its input are outside"
    with pytest.warns(UserWarning, match=said) as caught:
        step(scale * x, labels(16))
    assert len(caught) == 1
    step(scale * x, labels(16))  # a second warning would be an error
    step_of(nn.Sequential(encoder, nn.Linear(5, 3), sc.LIF()), sc.losses.ce_count)(1.05 * x, labels(16))


def test_a_first_step_calls_forward_once() -> None:
    """Its warnings ask for no further call, which prints and draws as the first one does."""

    class Counts(nn.Sequential):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Counts.calls += 1
            return super().forward(x)  # type: ignore[no-any-return]  # a tensor

    step_of(Counts(nn.Linear(5, 3), sc.LIF()), sc.losses.ce_count)(torch.rand(4, 16, 5), labels(16))
    assert Counts.calls == 1


class TestABatchBeforeTime:
    """Inputs ``[B, T, ...]``."""

    @pytest.mark.parametrize(
        "loss",
        [sc.losses.ce_count, F.cross_entropy, lambda outputs, targets: F.cross_entropy(outputs.mean(0), targets)],
        ids=["count", "cross entropy", "a mean"],
    )
    def test_losses_name_the_transpose(self, loss: Any) -> None:
        said = (
            r"16 targets, and .* inputs \[16, 4, 5\] for time: .*\[B, T, .*inputs\.transpose\(0, 1\), .*time_first=True"
        )
        with pytest.raises(ValueError, match=said):
            step_of(Own(), loss)(torch.rand(16, 4, 5), labels(16))

    def test_a_loader_turns_inputs(self) -> None:
        """Those of a batch, and nothing else of it."""
        x, y, lengths = torch.rand(7, 4, 5), torch.rand(7, 6), torch.arange(7)
        for parts in ((x, y), (x, y, lengths)):
            loader: Any = sc.DataLoader(TensorDataset(*parts), batch_size=3, time_first=True)
            first, *others = next(iter(loader))
            assert len(loader) == 3
            assert first.is_contiguous()
            assert torch.equal(first, x[:3].transpose(0, 1))
            assert all(torch.equal(one, part[:3]) for one, part in zip(others, parts[1:]))

    def test_a_loader_turns_every_tensor_of_the_inputs(self) -> None:
        """A tuple or a dict of them, a batch that is a tensor, one from a collate function, and whole batches."""
        x = torch.rand(6, 4, 5)
        pairs = [((one, {"gate": one + 1}), 0) for one in x]
        (first, gates), targets = next(iter(sc.DataLoader(pairs, 6, time_first=True)))
        assert torch.equal(first, x.transpose(0, 1))
        assert torch.equal(gates["gate"], x.transpose(0, 1) + 1)
        assert targets.shape == (6,)
        for loader in (
            sc.DataLoader(list(x), 6, time_first=True),
            sc.DataLoader([x], None, time_first=True),  # type: ignore[arg-type]  # torch's word for no batches
            sc.DataLoader(list(x), 6, time_first=True, collate_fn=torch.stack),
        ):
            assert torch.equal(next(iter(loader)), x.transpose(0, 1))


class TestInputsOfAnotherDtype:
    """Integers, and numbers of NumPy, which are float64."""

    @pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
    def test_the_error_names_the_dtypes(self, dtype: torch.dtype) -> None:
        x = torch.ones(4, 16, 5, dtype=dtype)
        said = rf"Inputs are {dtype}, and weights torch\.float32: give inputs\.to\(torch\.float32\)$"
        with pytest.raises(ValueError, match=said):
            step_of(mlp(), sc.losses.ce_count)(x, labels(16))
        with pytest.raises(ValueError, match=said):
            sc.inference_model(mlp())(x)


class TestLayersWithoutTime:
    """Layers of torch that get ``[T, B, ...]``."""

    @pytest.mark.parametrize(
        ("first", "shape", "names"),
        [
            ([nn.Conv2d(1, 2, 3), sc.LIF(), nn.Flatten()], (4, 16, 1, 6, 6), r"0 \(Conv2d\), 2 \(Flatten\)"),
            ([nn.Linear(5, 3), nn.BatchNorm1d(3), sc.LIF()], (4, 16, 5), r"1 \(BatchNorm1d\)"),
        ],
        ids=["convolution", "normalisation"],
    )
    def test_the_error_names_them(self, first: List[nn.Module], shape: Tuple[int, ...], names: str) -> None:
        step = step_of(nn.Sequential(*first, nn.Linear(3, 3)), sc.losses.ce_count)
        with pytest.raises(ValueError, match=rf"Beside neurons over time, {names} take .*TimeBatched") as caught:
            step(torch.rand(shape), labels(16))
        assert str(caught.value).startswith(str(caught.value.__cause__))
        with pytest.raises(ValueError, match=rf"Beside neurons over time, {names} take"):
            sc.inference_model(nn.Sequential(*first, nn.Linear(3, 3)).train())(torch.rand(shape))


class NotFollowed(nn.Module):
    """A ``forward`` of one's own with a branch on values, and a convolution that gets all steps."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.neuron, self.last = nn.Conv2d(2, 3, 3), sc.LIF(), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of each step."""
        if x.max() > 0:
            x = self.neuron(self.conv(x))
        return self.last(x.mean((-1, -2)))


@pytest.mark.parametrize("options", [None, sc.OnlineOptions("sltt")], ids=["plain", "online"])
@pytest.mark.parametrize("of", ["sizes", "dtypes"])
def test_layers_in_a_forward_of_one_s_own_are_named(options: Any, of: str) -> None:
    """Layers without time, and inputs of another dtype than weights."""
    net = NotFollowed() if of == "sizes" else Own()
    x = torch.rand(4, 16, 2, 6, 6) if of == "sizes" else torch.rand(4, 16, 5).double()
    said = {
        "sizes": r"conv \(Conv2d\) take inputs \[B, \.\.\.\].*write sc\.layers\.TimeBatched\(layer, \.\.\.\) around",
        "dtypes": r"Inputs are torch\.float64, and weights torch\.float32: give inputs\.to\(torch\.float32\)",
    }[of]
    with pytest.raises(ValueError, match=said):
        step_of(net, sc.losses.ce_rate, options=options)(x, labels(16))


@pytest.mark.parametrize("spoilt", [1, 2, 100])
def test_gradients_are_looked_at_in_the_first_step_and_each_hundredth(spoilt: int) -> None:
    """An update by NaN is refused there, with its origin; between them it is not seen."""
    net = nn.Sequential(nn.Linear(3, 4), sc.LIF(backend="torch"), nn.Linear(4, 2))
    step = sc.training_model(net, sc.losses.ce_rate, torch.optim.SGD(net.parameters(), 0.0))
    x, y = 9.0 * torch.rand(2, 5, 3), torch.zeros(5, dtype=torch.long)
    for _ in range(spoilt - 1):
        step(x, y)
    x[0, 0, 0] = float("nan")
    if spoilt == 2:
        step(x, y)
        return
    with pytest.raises(FloatingPointError, match=r"no weight was changed: the input has 1 NaN among 30 numbers"):
        step(x, y)
    assert all(parameter.isfinite().all() for parameter in net.parameters())


def test_sparse_gradients_are_looked_at() -> None:
    """The index is that of the whole gradient, of which a sparse one has a few rows."""
    net = nn.Sequential(nn.Embedding(10, 2, sparse=True), sc.LIF(backend="torch"))
    net[0].register_forward_hook(lambda _, __, y: y.register_hook(lambda grad: grad * float("nan")) and None)
    step = sc.training_model(net, sc.losses.ce_rate, torch.optim.SGD(net.parameters(), 0.1))
    words = torch.tensor([[7, 4, 7]])
    text = r"gradient of 0.weight has 4 NaN among 4 numbers, the first at index \[4, 0\]"
    with pytest.raises(FloatingPointError, match=text):
        step(words, torch.zeros(3, dtype=torch.long))
    assert net[0].weight.isfinite().all()


def test_a_scaler_that_is_not_enabled_is_none() -> None:
    """A scaler of CUDA on a machine without: it skips no update, so that the first step looks."""
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("torch before 2.3 has no scaler of a CPU")
    net, scaler = nn.Sequential(nn.Linear(3, 2), sc.LIF(backend="torch")), torch.amp.GradScaler("cpu", enabled=False)
    optimizer, options = torch.optim.SGD(net.parameters(), 0.1), sc.TrainingOptions(scaler=scaler)
    step = sc.training_model(net, sc.losses.ce_rate, optimizer, options=options)
    with pytest.raises(FloatingPointError, match="the input has 30 NaN"):
        step(torch.full((2, 5, 3), float("nan")), torch.zeros(5, dtype=torch.long))


test_refused = refusals.table(__file__, globals())
