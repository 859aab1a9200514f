"""Steps that cannot be captured as a CUDA graph are refused with a reason, and options and optimizers are checked.

On the CPU a stand-in for the capture runs the work again where a graph would be replayed.
"""

from __future__ import annotations

import copy
import inspect
import warnings

import pytest
import torch
from torch import nn

import spikecore as sc
from graphed import GRAPH, batch, net, same, sgd, training, without_a_gpu
from spikecore.training import _graphed
from spikecore.training._capture import Capture


@pytest.fixture
def capture(monkeypatch):
    """A function that gives the stand-in of the step made last."""
    return without_a_gpu(monkeypatch)


class TestRefusals:
    """What cannot be captured is an error in words; nothing has happened then."""

    def test_a_failed_capture_leaves_everything_as_it_was(self, capture):
        """Weights, buffers, gradients and optimiser are those before the call; torch's error is the cause."""
        train, model, optimizer = training()
        for _ in range(3):
            train(*batch())
        before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
        gradients = [p.grad for p in model.parameters()]
        capture().error = RuntimeError("operation not permitted when stream is capturing")
        with pytest.raises(sc.Unsupported, match=r"cannot be captured.*RuntimeError: operation not.*graph=False") as e:
            train(*batch())
        assert e.value.__cause__ is capture().error
        assert same(before, (model.state_dict(), optimizer.state_dict()["state"]))
        assert all(p.grad is gradient for p, gradient in zip(model.parameters(), gradients))
        with pytest.raises(sc.Unsupported):
            train(*batch())
        assert capture().recorded == 1
        sc.training_model(model, sc.losses.ce_count, optimizer)(*batch())

    def test_what_stood_in_the_way_can_be_changed(self, capture):
        """After a change of the network a capture is tried again."""
        train, model, _ = training()
        for _ in range(3):
            train(*batch())
        capture().error = RuntimeError("no")
        with pytest.raises(sc.Unsupported):
            train(*batch())
        capture().error = None
        model[2].p = 0.1
        for _ in range(5):
            train(*batch())
        assert capture().replayed == 2

    def test_a_step_that_waits_for_the_gpu(self, capture):
        """The last eager step sees it; the next call says where, before it runs anything."""
        train, model, _ = training()
        capture().waits = ["loss.py:7", "loss.py:7"]
        for _ in range(3):
            train(*batch())
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(sc.Unsupported, match=r"makes the host wait for the GPU at loss.py:7, as .item\(\)"):
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
        with pytest.raises(sc.Unsupported, match=r"sets attributes or replaces tensors of module '1' \(Remembers\),"):
            train(*batch())
        assert model[1].calls == calls
        assert model[1].mean is mean

    def test_an_optimizer_that_counts_on_the_host(self, capture):
        """A replay would not move its counts on."""

        class Counts(torch.optim.SGD):
            def step(self, closure=None):
                super().step(closure)
                for p in self.param_groups[0]["params"]:
                    self.state[p]["step"] = self.state[p].get("step", 0) + 1

        model = net()
        train, *_ = training(model, optimizer=Counts(model.parameters(), 0.1))
        for _ in range(3):
            train(*batch())
        with pytest.raises(sc.Unsupported, match="Counts keeps step on the host; use an optimiser that does not"):
            train(*batch())

    def test_states_elsewhere_are_found(self):
        """Adagrad's step is a tensor on the CPU."""
        model = net()
        optimizer = torch.optim.Adagrad(model.parameters(), 0.1)
        training(model, optimizer=optimizer, options=None)[0](*batch())
        assert _graphed.on_host(optimizer, torch.device("cuda", 0)) == ["step", "sum"]
        assert _graphed.on_host(optimizer, torch.device("cpu")) == []

    def test_lbfgs(self, capture):
        """An optimiser with a closure."""
        model = net()
        with pytest.raises(TypeError, match="optimizer=LBFGS runs the network several times in a step"):
            training(model, optimizer=torch.optim.LBFGS(model.parameters()))

    def test_a_batch_of_something_else(self, capture):
        """What can be neither copied nor compared is named."""
        train, *_ = training()
        with pytest.raises(TypeError, match=r"the batch holds \{1\}, a set; with graph=True it is made of tensors"):
            train(batch()[0], {1})

    def test_a_network_on_the_cpu(self):
        """The parameter and its device are named, and the way out."""
        with pytest.raises(ValueError, match="needs the network on one GPU, and 0.weight is on cpu; move it"):
            training()
        with pytest.raises(ValueError, match="it has none; use graph=False"):
            sc.inference_model(nn.ReLU(), options=GRAPH)

    def test_a_network_on_several_devices_or_wrapped(self):
        """One GPU, one process."""
        with pytest.raises(sc.Unsupported, match="a DataParallel cannot be captured"):
            sc.inference_model(nn.DataParallel(net()), options=GRAPH)

    def test_a_step_of_a_backend_of_its_own(self):
        """Only the eager step of spikecore can be captured."""
        with pytest.raises(TypeError, match="this backend has its own, object; use graph=False"):
            _graphed.GraphedTraining(object(), GRAPH)
        with pytest.raises(TypeError, match="this backend has its own, object; use graph=False"):
            _graphed.GraphedInference(object(), GRAPH)

    def test_a_learning_rate_on_the_cpu(self):
        """A graph would not read it again."""
        optimizer = sgd(net(), torch.tensor(0.5), foreach=False)
        with pytest.raises(ValueError, match="lr=0.5 of the optimiser is a tensor on cpu.*make it a tensor on cuda:0"):
            _graphed.make_capturable(optimizer, torch.device("cuda", 0))


class TestOptimizers:
    """Optimisers of torch are made capturable."""

    @pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam])
    def test_counts_go_to_the_device(self, cls):
        """capturable=True in every group; counts that there are move, other states stay."""
        model = net()
        optimizer = cls(model.parameters(), 0.1)
        if "capturable" not in optimizer.param_groups[0]:
            pytest.skip("this version of torch has no capturable form of it")
        training(model, optimizer=optimizer, options=None)[0](*batch())
        _graphed.make_capturable(optimizer, torch.device("meta"))
        assert all(group["capturable"] for group in optimizer.param_groups)
        state = optimizer.state[model[0].weight]
        assert state["step"].device.type == "meta"
        assert state["exp_avg"].device.type == "cpu"

    def test_others_stay_as_they_are(self):
        """SGD has no counts."""
        optimizer = sgd(net())
        before = optimizer.state_dict()
        _graphed.make_capturable(optimizer, torch.device("cuda", 0))
        assert optimizer.state_dict() == before


class TestOptions:
    """CudaOptions are TrainingOptions with three fields more."""

    @pytest.mark.parametrize(
        ("kwargs", "text"),
        [
            ({"graph": 1}, "graph=1 must be True or False"),
            ({"warmup": 1}, "warmup=1 must be a whole number, 2 or more"),
            ({"warmup": 2.5}, "warmup=2.5 must be a whole number"),
            ({"max_graphs": True}, "max_graphs=True must be a whole number, 1 or more"),
            ({"clip_norm": -1}, "clip_norm=-1 must be above 0"),
        ],
    )
    def test_wrong_ones_are_named(self, kwargs, text):
        """Argument, value, and what would be right."""
        with pytest.raises((TypeError, ValueError)) as caught:
            sc.CudaOptions(**kwargs)
        assert text in str(caught.value)

    def test_a_scaler_is_refused_with_a_graph(self):
        """It reads on the host whether the gradients are finite."""
        if not hasattr(torch.amp, "GradScaler"):
            pytest.skip("this version of torch has torch.cuda.amp only")
        made = torch.amp.GradScaler("cpu")
        assert sc.CudaOptions(scaler=made).scaler is made
        with pytest.raises(ValueError, match="use autocast=torch.bfloat16, which needs no scaler, or graph=False"):
            sc.CudaOptions(graph=True, scaler=made)

    def test_without_a_graph_they_are_training_options(self):
        """On any device."""
        train, model, _ = training(options=sc.CudaOptions(clip_norm=1e-3))
        train(*batch())
        assert type(train).__name__ == "EagerTraining"
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()]))
        assert norm == pytest.approx(1e-3, rel=1e-3)


def test_the_watch_sees_waits_and_passes_other_warnings_on(monkeypatch):
    """Waiting is reported with its place; torch's word on its prototype is dropped; the mode is put back."""
    modes = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    capture = object.__new__(Capture)
    monkeypatch.setattr(capture, "run", lambda work: work())
    line = inspect.currentframe().f_lineno + 4

    def work():
        warnings.warn("Synchronization debug mode is a prototype feature", UserWarning, stacklevel=1)
        warnings.warn("called a synchronizing CUDA operation (Triggered internally)", UserWarning, stacklevel=1)
        warnings.warn("mine", UserWarning, stacklevel=1)
        return 3

    with pytest.warns(UserWarning, match="mine") as seen:
        assert capture.watch(work) == (3, [f"{__file__}:{line}"])
    assert len(seen) == 1
    assert modes == [0, "warn", 0]
