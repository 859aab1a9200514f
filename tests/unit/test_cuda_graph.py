"""CudaOptions(graph=True): what is replayed, what is not, and what is refused.

On the CPU a stand-in for the capture runs the work again where a graph would be replayed, into the same tensors. What
only a GPU can show is marked ``gpu``.
"""

from __future__ import annotations

import copy
import functools
import inspect
import warnings

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.cuda_graph import facts, step
from spikecore.cuda_graph.capture import Capture

GRAPH = sc.CudaOptions(graph=True)


class Rerun:
    """Stands for Capture on the CPU: a replay runs the work again and fills the tensors of the first time."""

    made: list[Rerun] = []

    def __init__(self, device):
        self.device = device
        self.eager = self.recorded = self.replayed = self.forgotten = 0
        self.waits, self.error, self.executes = [], None, False
        self.made.append(self)

    def run(self, work):
        self.eager += 1
        return work()

    def watch(self, work):
        return self.run(work), self.waits

    def record(self, work, generators):
        self.recorded += 1
        if self.error is not None:
            raise self.error
        if self.executes:
            work()
        held = []

        def replay():
            self.replayed += 1
            result = work()
            if not held:
                held.append(result)
            for mine, new in zip(step.flattened(held[0]), step.flattened(result)):
                mine.copy_(new)
            return held[0]

        return replay

    def forget(self):
        self.forgotten += 1


@pytest.fixture
def capture(monkeypatch):
    """A function that gives the stand-in of the step made last."""
    monkeypatch.setattr(step, "Capture", Rerun)
    monkeypatch.setattr(facts, "gpu_of", lambda net: torch.device("cpu"))
    monkeypatch.setattr(Rerun, "made", [])
    return lambda: Rerun.made[-1]


def net(device="cpu", backend="torch", seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 12),
        sc.layers.TimeBatched(nn.BatchNorm1d(12)),
        nn.Dropout(0.2),
        sc.LIF(learn=("tau",), backend=backend),
        nn.Linear(12, 3),
        sc.LIF(backend=backend),
    ).to(device)


def batch(seed=1, size=8, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(5, size, 6, generator=generator) * 3
    return x.to(device), torch.randint(0, 3, (size,), generator=generator).to(device)


def sgd(model, lr=0.1, **kwargs):
    return torch.optim.SGD(model.parameters(), lr, momentum=0.9, **kwargs)


def training(model=None, loss=sc.losses.ce_count, optimizer=None, options=GRAPH):
    model = net() if model is None else model
    optimizer = sgd(model) if optimizer is None else optimizer
    return sc.training_model(model, loss, optimizer, options=options), model, optimizer


def same(a, b):
    """Whether two structures have equal tensors, bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


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
        assert told[0].filename == __file__
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
                neuron._keep({"v": torch.cat([expected[0, :1], expected.flatten()])[1:].view(expected.shape)})
                reference._keep({"v": expected})
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
        assert facts.on_host(optimizer, torch.device("cuda", 0)) == ["step", "sum"]
        assert facts.on_host(optimizer, torch.device("cpu")) == []

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
        with pytest.raises(ValueError, match=r"graph=True needs the network on a GPU, and 0.weight is on cpu; move it"):
            training()
        with pytest.raises(ValueError, match="it has none; use graph=False"):
            sc.inference_model(nn.ReLU(), options=GRAPH)

    def test_a_network_on_several_devices_or_wrapped(self):
        """One GPU, one process."""
        with pytest.raises(sc.Unsupported, match="a DataParallel cannot be captured"):
            sc.inference_model(nn.DataParallel(net()), options=GRAPH)

    def test_a_step_of_a_backend_of_its_own(self):
        """Only the eager step of spikecore can be captured."""
        with pytest.raises(TypeError, match="this backend trains with its own, object; use graph=False"):
            step.GraphedTraining(object(), GRAPH)
        with pytest.raises(TypeError, match="this backend has its own, object; use graph=False"):
            step.GraphedInference(object(), GRAPH)

    def test_a_learning_rate_on_the_cpu(self):
        """A graph would not read it again."""
        optimizer = sgd(net(), torch.tensor(0.5), foreach=False)
        with pytest.raises(ValueError, match="lr=0.5 of the optimiser is a tensor on cpu.*make it a tensor on cuda:0"):
            facts.make_capturable(optimizer, torch.device("cuda", 0))


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
        facts.make_capturable(optimizer, torch.device("meta"))
        assert all(group["capturable"] for group in optimizer.param_groups)
        state = optimizer.state[model[0].weight]
        assert state["step"].device.type == "meta"
        assert state["exp_avg"].device.type == "cpu"

    def test_others_stay_as_they_are(self):
        """SGD has no counts."""
        optimizer = sgd(net())
        before = optimizer.state_dict()
        facts.make_capturable(optimizer, torch.device("cuda", 0))
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


def usable(backend):
    return any(status.name == backend and status.state == "ready" for status in sc.backends(probe=True))


OPTIMIZERS = {
    "SGD": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "SGD fused": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "Adam": functools.partial(torch.optim.Adam, lr=0.01, capturable=True),
    "Adam fused": functools.partial(torch.optim.Adam, lr=0.01, capturable=True, fused=True),
    "AdamW": functools.partial(torch.optim.AdamW, lr=0.01, capturable=True),
    "RMSprop": functools.partial(torch.optim.RMSprop, lr=0.01, capturable=True),
}


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True")
class TestOnAGpu:
    """Real graphs: the same bits as eager steps."""

    def both(self, optimizer, steps=20, options=None, backend="torch", schedule=None, between=None, loss=None):
        """Results, weights, optimiser and random state after eager steps, and after graphed ones on the same data."""
        runs = []
        for graphed in (False, True):
            model = net("cuda", backend)
            made = optimizer(model.parameters())
            keywords = options or {}
            chosen = sc.CudaOptions(graph=True, **keywords) if graphed else sc.TrainingOptions(**keywords)
            train, *_ = training(model, loss or sc.losses.ce_count, made, chosen)
            rates = schedule(made) if schedule else None
            torch.cuda.manual_seed(0)
            results = []
            for i in range(steps):
                if between is not None:
                    between(i, model, made)
                outputs, value = train(*batch(i, size=5 if i % 4 == 3 else 8, device="cuda"))
                results.append((outputs, value, [p.grad.clone() for p in model.parameters()]))
                if rates is not None:
                    rates.step()
            states = [list(made.state[p].values()) for p in model.parameters()]
            runs.append((results, model.state_dict(), states, torch.cuda.get_rng_state()))
        return runs, train

    @pytest.mark.parametrize("backend", ["torch", "cupy"])
    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_the_same_bits(self, optimizer, backend):
        """20 steps with a schedule, short batches, batch statistics and dropout: weights, states, gradients."""
        if not usable(backend):
            pytest.skip(f"{backend} is not usable here")
        runs, train = self.both(
            OPTIMIZERS[optimizer],
            backend=backend,
            schedule=lambda made: torch.optim.lr_scheduler.StepLR(made, 10, 0.5),
        )
        assert same(*runs)
        assert len(train._graphs) == 1

    def test_under_autocast_with_clipping(self):
        """The options of an eager step hold in a graph."""
        options = {"clip_norm": 0.1, "autocast": torch.bfloat16}
        runs, train = self.both(OPTIMIZERS["AdamW"], options=options)
        assert same(*runs)
        assert train._graphs

    @pytest.mark.parametrize("optimizer", ["SGD fused", "Adam", "AdamW", "RMSprop"])
    def test_a_learning_rate_that_is_a_tensor(self, optimizer):
        """A schedule changes it at each step; one graph per kind of batch, and the same bits."""
        runs, train = self.both(
            lambda parameters: OPTIMIZERS[optimizer](parameters, lr=torch.tensor(0.02, device="cuda")),
            steps=24,
            schedule=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        )
        assert same(*runs)
        assert len(train._graphs) == 2

    def test_adam_is_made_capturable(self):
        """An Adam made without capturable trains in a graph, also from a state that there was."""
        model = net("cuda")
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        training(model, optimizer=optimizer, options=None)[0](*batch(device="cuda"))
        train, *_ = training(model, optimizer=optimizer)
        for _ in range(6):
            train(*batch(device="cuda"))
        assert train._graphs
        assert float(optimizer.state[model[0].weight]["step"]) == 7

    def test_interruptions(self):
        """zero_grad, an optimiser that is loaded, a mode, a moved weight: between steps all is as with eager ones."""

        def between(i, model, optimizer):
            if i % 3 == 0:
                optimizer.zero_grad()
            if i == 8:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            if i == 16:
                model[4].weight.data = model[4].weight.data.clone()
            model.train(i not in (5, 6))

        runs, train = self.both(OPTIMIZERS["Adam"], steps=30, between=between)
        assert same(*runs)
        assert train._graphs

    def test_on_other_streams(self):
        """Calls from any stream: what a call returns can be used on the stream that it was made on."""
        runs = []
        streams = [torch.cuda.Stream() for _ in range(3)]
        for graphed in (False, True):
            model = net("cuda")
            train, *_ = training(model, options=GRAPH if graphed else None)
            torch.cuda.manual_seed(0)
            torch.cuda.synchronize()
            results = []
            for i in range(15):
                stream = streams[i % 3]
                stream.wait_stream(streams[(i - 1) % 3])
                with torch.cuda.stream(stream):
                    x, y = batch(i, device="cuda")
                    results.append([value * 2 for value in train(x, y)])
            torch.cuda.synchronize()
            runs.append((results, model.state_dict()))
        assert same(*runs)

    def test_batches_from_the_host(self):
        """Pageable and pinned tensors on the CPU are copied in."""
        runs = []
        for graphed in (False, True):
            model = net("cuda")
            train, *_ = training(model, options=GRAPH if graphed else None)
            torch.cuda.manual_seed(0)
            batches = [batch(i) for i in range(10)]
            results = [train(x.pin_memory(), y) if i % 2 else train(x, y) for i, (x, y) in enumerate(batches)]
            runs.append((results, model.state_dict()))
        assert same(*runs)

    @pytest.mark.parametrize("view", ["anywhere", "part", "expanded"])
    def test_batches_that_lie_anywhere(self, view):
        """No kernel is loaded in a capture that the first steps had no use for."""
        if not usable("cupy"):
            pytest.skip("cupy is not usable here")
        look = {
            "anywhere": lambda x: torch.cat([x[0, 0, :1], x.flatten()])[1:].view(x.shape),
            "part": lambda x: torch.cat([x, x], 2)[..., 3:9],
            "expanded": lambda x: x[:1].expand(x.shape),
        }[view]
        runs = []
        for graphed in (False, True):
            torch.manual_seed(0)
            model = nn.Sequential(sc.LIF(3.25, backend="cupy"), nn.Linear(6, 3), sc.LIF(backend="cupy")).cuda()
            train, *_ = training(model, options=GRAPH if graphed else None)
            results = []
            for i in range(8):
                x, y = batch(i, device="cuda")
                results.append(train(look(x), y))
            runs.append((results, model.state_dict()))
        assert same(*runs)
        assert train._graphs

    def test_results_are_copies(self):
        """Later steps write neither outputs nor losses of earlier ones."""
        train, *_ = training(net("cuda"))
        results = [train(*batch(i, device="cuda")) for i in range(6)]
        kept = [(outputs.clone(), loss.clone()) for outputs, loss in results]
        for i in range(6, 12):
            train(*batch(i, device="cuda"))
        assert same(results, kept)

    def test_carried_states(self):
        """Under carry_state graphs take the state in and give it back."""
        runs = []
        for graphed in (False, True):
            model = net("cuda")
            train, *_ = training(model, options=GRAPH if graphed else None)
            torch.cuda.manual_seed(0)
            results = []
            for block in range(2):
                with sc.carry_state(model):
                    for i in range(10 * block, 10 * block + 8):
                        result = train(*batch(i, device="cuda"))
                        results.append((result, {**model[5].state}))
            runs.append((results, model.state_dict()))
        assert same(*runs)

    def test_an_encoder_with_a_generator(self):
        """A generator of an encoder goes on from replay to replay."""
        runs = []
        for graphed in (False, True):
            generator = torch.Generator("cuda").manual_seed(3)
            model = nn.Sequential(sc.encode.Poisson(5, generator=generator), net("cuda"))
            train, *_ = training(model, options=GRAPH if graphed else None)
            torch.cuda.manual_seed(0)
            results = []
            for i in range(8):
                x, y = batch(i, device="cuda")
                results.append(train(x[0] / 3, y))
            runs.append((results, model.state_dict(), generator.get_state()))
        assert same(*runs)

    def test_inference(self):
        """predict from a graph sees the weights as they are trained."""
        model = net("cuda")
        train, *_ = training(model)
        predict, expected = sc.inference_model(model, options=GRAPH), sc.inference_model(model)
        for i in range(8):
            x, y = batch(i, device="cuda")
            assert torch.equal(predict(x), expected(x))
            train(x, y)
        assert predict._graphs

    def healthy(self):
        """The process draws, frees and captures as if nothing had happened."""
        before = torch.cuda.current_stream()
        torch.rand(4, device="cuda").sum().item()
        torch.cuda.empty_cache()
        assert torch.cuda.current_stream() == before
        runs, train = self.both(OPTIMIZERS["Adam"], steps=10)
        assert same(*runs)
        assert train._graphs

    def test_a_loss_that_reads_a_value(self):
        """It is seen before a capture is tried; the message has the line."""

        def loss(outputs, y):
            value = sc.losses.ce_count(outputs, y)
            return value * 2 if value.item() > 1e9 else value

        model = net("cuda")
        train, *_ = training(model, loss)
        for i in range(3):
            train(*batch(i, device="cuda"))
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(sc.Unsupported, match=r"wait for the GPU at .*test_cuda_graph.py:\d+"):
            train(*batch(device="cuda"))
        assert same(before, model.state_dict())
        self.healthy()

    @pytest.mark.parametrize("how", ["a wait", "an exception"])
    def test_a_capture_that_fails(self, how):
        """Weights, optimiser and random numbers are as before, and the process goes on."""

        def loss(outputs, y):
            value = sc.losses.ce_count(outputs, y)
            if torch.cuda.is_current_stream_capturing():
                if how == "an exception":
                    raise KeyError("no such thing")
                value.item()
            return value

        model = net("cuda")
        train, _, optimizer = training(model, loss, torch.optim.Adam(model.parameters(), 0.01))
        for i in range(3):
            train(*batch(i, device="cuda"))
        before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"], torch.cuda.get_rng_state()))
        with pytest.raises(sc.Unsupported, match="cannot be captured in a CUDA graph") as caught:
            train(*batch(device="cuda"))
        assert caught.value.__cause__ is not None
        assert ("KeyError" in str(caught.value)) == (how == "an exception")
        after = model.state_dict(), optimizer.state_dict()["state"], torch.cuda.get_rng_state()
        assert same(before, after)
        self.healthy()

    def test_an_optimizer_that_reads_a_value(self):
        """SGD without fused=True reads a learning rate that is a tensor on the host."""
        model = net("cuda")
        optimizer = torch.optim.SGD(model.parameters(), torch.tensor(0.1, device="cuda"))
        train, *_ = training(model, optimizer=optimizer)
        for _ in range(3):
            train(*batch(device="cuda"))
        with pytest.raises(sc.Unsupported, match="wait for the GPU"):
            train(*batch(device="cuda"))

    def test_adagrad(self):
        """Its step count is on the host."""
        model = net("cuda")
        train, *_ = training(model, optimizer=torch.optim.Adagrad(model.parameters(), 0.1))
        for _ in range(3):
            train(*batch(device="cuda"))
        with pytest.raises(sc.Unsupported, match="Adagrad keeps step on the host"):
            train(*batch(device="cuda"))
