"""CudaOptions(graph=True): what is replayed, and what a change between two steps does.

On the CPU a stand-in for the capture runs the work again where a graph would be replayed, into the same tensors.
"""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn

import spikecore as sc
from graphed import GRAPH, Rerun, batch, net, same, training, without_a_gpu
from spikecore._shell.state import keep
from spikecore.training import _graphed


@pytest.fixture
def capture(monkeypatch):
    """A function that gives the stand-in of the step made last."""
    return without_a_gpu(monkeypatch)


class TestReplay:
    """What is captured, and what comes out."""

    def test_the_first_steps_are_eager_and_the_others_replayed(self, capture):
        """Three eager steps, one capture, and a replay for every call from then on."""
        train, *_ = training()
        for _ in range(8):
            train(*batch())
        assert (capture().eager, capture().recorded, capture().replayed) == (3, 1, 5)

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

    def test_results_are_copies(self, capture):
        """Outputs and loss of a step stay as they are through the next ones."""
        train, *_ = training()
        results = [train(*batch(i)) for i in range(8)]
        first = [(outputs.clone(), loss.clone()) for outputs, loss in results]
        train(*batch(9))
        assert same(results, first)
        assert not results[-1][0].requires_grad
        assert len({loss.data_ptr() for _, loss in results}) == 8

    @pytest.mark.parametrize("options", [GRAPH, sc.CudaOptions(fast=True, compile=False, channels_last=False)])
    def test_gradients_that_are_not_finite_count_as_zero(self, capture, options):
        """The host cannot raise: a replay leaves the weights finite, and ``skipped`` counts it."""
        model = net()
        model[1] = nn.Identity()  # averages of a batch normalisation would take the NaN of the input
        train, model, _ = training(
            model,
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
            options=dataclasses.replace(options, clip_norm=1.0),
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

    def test_structures_and_keywords(self, capture):
        """Dicts become keywords, and inputs and targets may be named."""

        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(6, 3)

            def forward(self, x, gain=None):
                return {"out": (self.fc(x), [gain])}

        train, *_ = training(Two(), loss=lambda outputs, y: outputs["out"][0].square().mean())
        x, y = batch()
        for _ in range(6):
            outputs, _ = train(inputs={"x": x, "gain": None}, targets=y)
        assert outputs["out"][0].shape == (5, 8, 3)
        assert outputs["out"][1] == [None]
        assert capture().replayed == 3

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

    def test_the_first_steps_are_on_memory_like_the_captured_one(self, capture):
        """Wherever a batch lies: a warm-up loads what a capture needs, such as a kernel for aligned numbers."""
        seen = []

        class Looks(nn.Linear):
            def forward(self, x):
                seen.append((x.storage_offset(), x.stride(), x.untyped_storage().nbytes(), x.requires_grad))
                return super().forward(x)

        x, y = batch()
        views = {
            "anywhere": torch.cat([x[0, 0, :1], x.flatten()])[1:].view(x.shape),
            "expanded": x[:1].expand(x.shape),
            "part": torch.cat([x, x], 2)[..., 3:9],
            "leaf": x.clone().requires_grad_(),
        }
        for name, view in views.items():
            train, *_ = training(Looks(6, 3), loss=lambda outputs, y: outputs.square().mean())
            seen.clear()
            for _ in range(5):
                train(view, y)
            assert (capture().eager, capture().recorded) == (3, 1), name
            assert set(seen) == {(0, x.stride(), x.numel() * 4, False)}, name
            assert view.grad is None, name

    def test_the_first_steps_go_on_from_states_like_the_captured_one(self, capture):
        """A carried state that lies anywhere is copied, too, and stays what it is."""
        seen = []

        class Looks(nn.Linear):
            def forward(self, x):
                seen.append((neuron.state["v"].storage_offset(), neuron.state["v"].requires_grad))
                return super().forward(x)

        neuron = sc.LIF(tau=4.0, step="single")
        model, expected = nn.Sequential(Looks(6, 3), neuron), torch.zeros(8, 3)
        x, _ = batch()
        predict, reference = sc.inference_model(model, options=GRAPH), copy.deepcopy(neuron)
        with sc.carry_state(model):
            for _ in range(6):
                keep(neuron, {"v": torch.cat([expected[0, :1], expected.flatten()])[1:].view(expected.shape)})
                keep(reference, {"v": expected})
                with torch.no_grad():
                    out = reference(nn.functional.linear(x[0], model[0].weight, model[0].bias))
                assert torch.equal(predict(x[0]), out)
                expected = reference.state["v"]
                assert torch.equal(neuron.state["v"], expected)
        assert (capture().eager, capture().recorded) == (3, 1)
        assert set(seen) == {(0, False)}

    def test_single_steps_begin_at_rest(self, capture):
        """A network that loops over single-step neurons begins each step at rest, eager or replayed."""

        class Looped(nn.Sequential):
            def forward(self, x):
                return torch.stack([self[1](self[0](x_t)) for x_t in x])

        model = Looped(nn.Linear(6, 3), sc.LIF(tau=4.0, threshold=0.2, step="single"))
        x, y = batch()
        expected = model(x)
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        step = sc.training_model(model, sc.losses.ce_count, optimizer, options=GRAPH)
        for _ in range(6):
            assert torch.equal(step(x, y)[0], expected)
            assert model[1].state is None
        assert (capture().eager, capture().recorded) == (3, 1)

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
        "momentum": lambda model, optimizer: optimizer.param_groups[0].update(momentum=0.5),
        "optimiser state": lambda model, optimizer: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
        "cleared state": lambda model, optimizer: optimizer.state.clear(),
        "mode": lambda model, optimizer: model.eval(),
        "dropout": lambda model, optimizer: setattr(model[2], "p", 0.5),
        "number of a neuron": lambda model, optimizer: setattr(model[5], "threshold", 0.5),
        "surrogate": lambda model, optimizer: setattr(model[3], "surrogate", sc.surrogate.Sigmoid()),
        "number of a surrogate": lambda model, optimizer: setattr(model[3], "surrogate", sc.surrogate.ATan(3.0)),
        "backend": lambda model, optimizer: sc.set_backend(model, None),
        "frozen layer": lambda model, optimizer: model[0].requires_grad_(False),
        "other layer": lambda model, optimizer: model.__setitem__(2, nn.Identity()),
        "no bias": lambda model, optimizer: setattr(model[4], "bias", None),
        "other buffer": lambda model, optimizer: model[1].module.register_buffer("running_var", torch.full((12,), 2.0)),
        "new number": lambda model, optimizer: setattr(model[0], "new", 1.0),
        "other attributes": lambda model, optimizer: setattr(model[2], "__dict__", {**vars(model[2]), "p": 0.5}),
        "one state": lambda model, optimizer: optimizer.state[model[0].weight].update(
            momentum_buffer=torch.ones_like(model[0].weight)
        ),
        "other weights of the optimiser": lambda model, optimizer: optimizer.param_groups[0]["params"].pop(),
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

    def test_replays_look_at_nothing_that_is_the_same_object(self, capture, monkeypatch):
        """Once a graph is there. A number in the place of an equal one has the next step look again, and no more."""

        def record(self, work, generators):
            result = work()
            return lambda: result

        # the stand-in's replays call modules, which a graph's do not
        monkeypatch.setattr(Rerun, "record", record)
        looked = []
        plain = _graphed.of_module
        monkeypatch.setattr(_graphed, "of_module", lambda module: looked.append(module) or plain(module))
        train, model, optimizer = training()
        for i in range(6):
            train(*batch(i))
        looked.clear()
        for i in range(4):
            train(*batch(i))
        assert not looked
        optimizer.param_groups[0]["lr"] = float(str(optimizer.param_groups[0]["lr"]))
        for i in range(4):
            train(*batch(i))
        assert len(looked) == len(list(model.modules()))
        assert capture().eager == 3

    def test_of_a_loss(self, capture):
        """A loss that is a module counts, too."""
        train, *_ = training(nn.Sequential(nn.Linear(6, 3)), nn.MSELoss())
        x, _ = batch()
        for _ in range(5):
            train(x, torch.zeros(5, 8, 3))
        train.loss.reduction = "sum"
        train(x, torch.zeros(5, 8, 3))
        assert capture().eager == 4

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
