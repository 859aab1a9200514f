"""CudaOptions(graph=True): what is replayed, what a change between two steps does, and what is refused.

On the CPU a stand-in for the capture runs the work again where a graph would be replayed, into the same tensors.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
from graphed import GRAPH, batch, net, same, training, without_a_gpu


@pytest.fixture
def capture(monkeypatch):
    """A function that gives the stand-in of the step made last."""
    return without_a_gpu(monkeypatch)


class TestReplay:
    """Captured work, and its results."""

    def test_the_weights_are_those_of_the_eager_step(self, capture):
        """Weights, buffers, optimiser, outputs and losses, with a schedule, a short batch and dropout."""
        runs = []
        for options in (None, GRAPH):
            train, model, optimizer = training(options=options)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 8)
            results = []
            for i in range(20):
                torch.manual_seed(i)
                results.append(train(*batch(i, size=5 if i % 4 == 3 else 8)))
                schedule.step()
            runs.append((results, model.state_dict(), optimizer.state_dict()["state"]))
        assert same(*runs)
        assert capture().replayed > 5

    def test_gradients_that_are_not_finite_count_as_zero(self, capture):
        """The host cannot raise: a replay leaves the weights finite, and ``skipped`` counts it."""
        model = net()
        model[1] = nn.Identity()  # averages of a batch normalisation would take the NaN of the input
        train, model, _ = training(
            model, optimizer=torch.optim.SGD(model.parameters(), 0.1), options=sc.CudaOptions(graph=True, clip_norm=1.0)
        )
        for _ in range(5):
            train(*batch())
        before, replayed = copy.deepcopy(model.state_dict()), capture().replayed
        x, y = batch()
        x[2, 3, 1] = float("nan")
        train(x, y)
        train(x, y)
        assert (train.skipped, capture().replayed) == (2, replayed + 2)
        assert same(before, model.state_dict())
        train(*batch())
        assert train.skipped == 2
        assert not same(before, model.state_dict())

    def test_the_batch_of_a_call_is_the_one_trained_on(self, capture):
        """The caller's tensors are copied at every call, and never written."""
        train, *_ = training()
        x, y = batch()
        kept = x.clone()
        for _ in range(5):
            train(x, y)
        before = capture().replayed
        _, loss = train(x * 0, y)
        assert capture().replayed == before + 1
        assert loss == pytest.approx(float(torch.log(torch.tensor(3.0))), abs=1e-5)
        assert torch.equal(x, kept)

    def test_each_kind_of_batch_has_its_graph(self, capture):
        """Shape, dtype, strides and numbers in a batch make a kind; each is warmed up, captured and replayed."""

        class Scaled(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(6, 3)

            def forward(self, x, gain):
                return self.fc(x.float()) * gain

        train, *_ = training(Scaled(), loss=lambda outputs, y: outputs.square().mean())
        x, y = batch()
        kinds = [(x, 1.0), (x[:, :4], 1.0), (x.transpose(0, 1).contiguous().transpose(0, 1), 1.0), (x, 2.0)]
        for _ in range(5):
            for inputs in kinds:
                train(inputs, y)
        assert (capture().recorded, capture().replayed) == (4, 8)

    def test_kinds_beyond_max_graphs_run_eagerly(self, capture):
        """With one warning, which says what to do."""
        train, *_ = training(options=sc.CudaOptions(graph=True, max_graphs=1))

        def loop():
            for _ in range(6):
                train(*batch())
                train(*batch(size=4))

        with pytest.warns(RuntimeWarning, match="beyond max_graphs=1 runs eagerly") as told:
            loop()
        assert len(told) == 1
        assert (capture().recorded, capture().replayed, capture().eager) == (1, 3, 9)

    @pytest.mark.parametrize("single", [False, True])
    def test_carried_states_go_in_and_out(self, capture, single):
        """Under carry_state and in single-step mode the steps go on from each other, as eager ones do."""
        runs = []
        for options in (None, GRAPH):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(6, 3), sc.LIF(tau=4.0, step="single" if single else "multi"))
            loss = (lambda outputs, y: outputs.mean()) if single else sc.losses.ce_count
            train, *_ = training(model, loss, torch.optim.SGD(model.parameters(), 0.1), options)
            results = []
            for block in range(2):
                with sc.carry_state(model):
                    for i in range(7):
                        x, y = batch(10 * block + i)
                        results.append((train(x[0] if single else x, y), {**model[1].state}))
                sc.reset(model)
            runs.append((results, model.state_dict()))
        assert same(*runs)
        assert capture().replayed > 5

    def test_inference(self, capture):
        """predict replays eval mode, sees trained weights, and leaves the modes as they were."""
        train, model, _ = training(options=None)
        predict = sc.inference_model(model, options=GRAPH)
        expected = sc.inference_model(model)
        x, y = batch()
        for _ in range(5):
            assert torch.equal(predict(x), expected(x))
            train(x, y)
        assert capture().replayed == 2
        assert model.training


class TestChanges:
    """A graph is not replayed once what it was made for has changed."""

    CHANGES = {
        "learning rate": lambda model, optimizer: optimizer.param_groups[0].update(lr=0.01),
        "optimiser state": lambda model, optimizer: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
        "mode": lambda model, optimizer: model.eval(),
        "number of a neuron": lambda model, optimizer: setattr(model[5], "threshold", 0.5),
        "backend": lambda model, optimizer: sc.set_backend(model, None),
        "frozen layer": lambda model, optimizer: model[0].requires_grad_(False),
        "other layer": lambda model, optimizer: model.__setitem__(2, nn.Identity()),
        "other buffer": lambda model, optimizer: model[1].module.register_buffer("running_var", torch.full((12,), 2.0)),
        "other weight": lambda model, optimizer: setattr(model[4].weight, "data", model[4].weight.data.clone()),
    }

    @pytest.mark.parametrize("change", CHANGES)
    def test_between_steps(self, capture, change):
        """The graphs are dropped, eager steps come first again, and the weights are those of the eager step."""
        runs = []
        for options in (None, GRAPH):
            train, model, optimizer = training(options=options)
            for i in range(10):
                torch.manual_seed(i)
                if i == 5:
                    self.CHANGES[change](model, optimizer)
                train(*batch(i))
            runs.append(model.state_dict())
        assert same(*runs)
        assert capture().recorded == 2
        assert capture().eager == 6
        assert capture().forgotten == 1

    def test_of_the_value_of_a_tensor(self, capture):
        """A learning rate that is a tensor may change at each step; one graph serves all its values."""
        lr = torch.tensor(0.1)
        model = net()
        train, _, optimizer = training(model, optimizer=torch.optim.SGD(model.parameters(), lr, foreach=False))
        for i in range(8):
            optimizer.param_groups[0]["lr"].fill_(0.1 / (i + 1))
            train(*batch())
        assert (capture().recorded, capture().eager) == (1, 3)

    def test_at_each_step_is_told(self, capture):
        """A schedule that sets a number at each step runs eagerly, rightly, and warns once with the way out."""
        train, _, optimizer = training()
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)

        def loop():
            for _ in range(50):
                train(*batch())
                schedule.step()

        with pytest.warns(RuntimeWarning, match=r"23 steps in a row ran eagerly.*lr=torch.tensor") as told:
            loop()
        assert len(told) == 1
        assert capture().eager == 50


class TestRefusals:
    """Work that cannot be captured is an error in words; nothing has happened then."""

    def test_a_failed_capture_leaves_everything_as_it_was(self, capture):
        """Weights, buffers, gradients and optimiser are those before the call; torch's error is the cause."""
        train, model, optimizer = training()
        for _ in range(3):
            train(*batch())
        before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
        gradients = [p.grad for p in model.parameters()]
        capture().error = RuntimeError("operation not permitted when stream is capturing")
        with pytest.raises(
            sc.backend.Unsupported, match=r"cannot be captured.*RuntimeError: operation not.*graph=False"
        ) as e:
            train(*batch())
        assert e.value.__cause__ is capture().error
        assert same(before, (model.state_dict(), optimizer.state_dict()["state"]))
        assert all(p.grad is gradient for p, gradient in zip(model.parameters(), gradients))
        with pytest.raises(sc.backend.Unsupported):
            train(*batch())
        assert capture().recorded == 1
        sc.training_model(model, sc.losses.ce_count, optimizer)(*batch())

    def test_a_step_that_waits_for_the_gpu(self, capture):
        """The last eager step sees it; the next call says where, before it runs anything."""
        train, model, _ = training()
        capture().waits = ["loss.py:7", "loss.py:7"]
        for _ in range(3):
            train(*batch())
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(sc.backend.Unsupported, match=r"makes the host wait for the GPU at loss.py:7, as .item\(\)"):
            train(*batch())
        assert same(before, model.state_dict())
        assert capture().recorded == 0

    def test_a_forward_that_sets_attributes(self, capture):
        """Counters and states in attributes would stand still in replays; the module is named and put back."""

        class Remembers(nn.Module):
            def __init__(self):
                super().__init__()
                self.calls = 0
                self.register_buffer("mean", torch.zeros(3))

            def forward(self, x):
                self.calls += 1
                self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
                return x - self.mean

        model = nn.Sequential(nn.Linear(6, 3), Remembers())
        train, *_ = training(model, loss=lambda outputs, y: outputs.square().mean())
        capture().executes = True
        for _ in range(3):
            train(*batch())
        calls, mean = model[1].calls, model[1].mean
        with pytest.raises(
            sc.backend.Unsupported, match=r"sets attributes or replaces tensors of module '1' \(Remembers\),"
        ):
            train(*batch())
        assert model[1].calls == calls
        assert model[1].mean is mean

    def test_a_network_on_the_cpu(self):
        """The parameter and its device are named, and the way out."""
        with pytest.raises(ValueError, match="needs the network on one GPU, and 0.weight is on cpu; move it"):
            training()
        with pytest.raises(ValueError, match="it has none; use graph=False"):
            sc.inference_model(nn.ReLU(), options=GRAPH)


class TestOptions:
    """CudaOptions are TrainingOptions with three fields more."""

    def test_a_scaler_is_refused_with_a_graph(self):
        """It reads on the host whether the gradients are finite."""
        if not hasattr(torch.amp, "GradScaler"):
            pytest.skip("this version of torch has torch.cuda.amp only")
        made = torch.amp.GradScaler("cpu")
        assert sc.CudaOptions(scaler=made).scaler is made
        with pytest.raises(ValueError, match="use autocast=torch.bfloat16, which needs no scaler, or graph=False"):
            sc.CudaOptions(graph=True, scaler=made)


test_refused = refusals.table(__file__, globals())
