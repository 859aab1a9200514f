"""``sc.training_model``, ``sc.inference_model`` and ``sc.DataLoader`` on backend ``ipu``: what a script may expect."""

from __future__ import annotations

import copy
import functools
import gc
import io
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import spikecore as sc
import spikecore_ipu
from spikecore_ipu import emulator as poptorch
from spikecore_ipu import functions


class Net(nn.Module):
    """Images ``[B, 4]`` to spikes ``[6, B, 3]``."""

    def __init__(self, backend="ipu"):
        super().__init__()
        torch.manual_seed(0)
        self.encode = sc.encode.Constant(6)
        self.fc1 = nn.Linear(4, 8)
        self.lif1 = sc.LIF(threshold=0.1, backend=backend)
        self.fc2 = nn.Linear(8, 3)
        self.lif2 = sc.LIF(threshold=0.1, backend=backend)

    def forward(self, x):
        return self.lif2(self.fc2(self.lif1(self.fc1(self.encode(x)))))


class Stepwise(Net):
    """The same, one step at a time, with the state on the neurons."""

    def __init__(self, backend="ipu", resets=True):
        super().__init__(backend)
        self.lif1.step = self.lif2.step = "single"
        self.resets = resets

    def forward(self, x):
        if self.resets:
            sc.reset(self)
        return torch.stack([self.lif2(self.fc2(self.lif1(self.fc1(x)))) for _ in range(6)])


def data(size=5, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(size, 4, generator=generator), torch.randint(3, (size,), generator=generator)


def adam(net):
    return torch.optim.Adam(net.parameters(), lr=0.01)


def trained(net, optimizer=None, loss=sc.losses.ce_count, **keywords):
    return sc.training_model(net, loss, adam(net) if optimizer is None else optimizer, **keywords)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def same_weights(one, other):
    for ours, theirs in zip(one.parameters(), other.parameters()):
        close(ours.detach(), theirs.detach())


def count_and_spikes(net):
    """The network with a second output."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            spikes = self.net(x)
            return {"spikes": spikes, "counts": spikes.sum(0)}

    return Two()


class TestTheSameScript:
    """What a script sees is what it sees on other backends."""

    @pytest.mark.parametrize("make", [Net, Stepwise, functools.partial(Stepwise, resets=False)])
    def test_outputs_and_losses(self, make):
        results = []
        for backend in ("torch", "ipu"):
            step = trained(make(None), backend=backend)
            results.append([step(*data()) for _ in range(3)])
        for (spikes, loss), (others, theirs) in zip(*results):
            assert loss.shape == theirs.shape == ()
            assert not any(value.requires_grad for value in (loss, spikes))
            close(spikes, others)
            close(loss, theirs)
        assert results[0][0][0].sum() > 0

    @pytest.mark.parametrize("pack", [lambda x: (x,), lambda x: [x], lambda x: {"x": x}])
    def test_inputs_may_be_packed(self, pack, recwarn):
        inputs, targets = data()
        close(trained(Net())(pack(inputs), targets)[1], trained(Net())(inputs, targets)[1])

    def test_outputs_keep_their_structure(self):
        options = poptorch.Options().deviceIterations(3).outputMode(poptorch.OutputMode.All)
        net = count_and_spikes(Net())
        step = trained(net, loss=lambda out, y: sc.losses.ce_count(out["spikes"], y), options=options)
        outputs, losses = step(*data(12))
        assert {name: tuple(value.shape) for name, value in outputs.items()} == {
            "spikes": (6, 12, 3),
            "counts": (12, 3),
        }
        assert losses.shape == (3,)
        close(outputs["counts"], outputs["spikes"].sum(0))

    def test_a_built_in_loss_with_arithmetic_after_it(self):
        """PopTorch would start the backward pass at the built-in loss; ``identity_loss`` is applied last."""
        nets = []
        for backend in ("torch", "ipu"):
            net = Net(backend)
            step = trained(
                net, loss=lambda out, y: 0.5 * nn.functional.cross_entropy(out.mean(0), y) + 1e-3 * out.sum()
            )
            for _ in range(3):
                step(*data())
            nets.append(net)
        same_weights(*nets)

    def test_a_loss_of_several_numbers(self):
        with pytest.raises(ValueError, match=r"loss must give a tensor with one number, got shape \[5\]; reduce it"):
            trained(Net(), loss=lambda out, y: out.sum((0, 2)))(*data())


class TestSchedules:
    @pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
    def test_a_learning_rate_schedule_acts(self, kind):
        nets = []
        for backend in ("torch", "ipu"):
            net = Net(backend)
            optimizer = kind(net.parameters(), lr=0.05)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            step = trained(net, optimizer)
            for seed in range(4):
                step(*data(seed=seed))
                schedule.step()
            nets.append(net)
        same_weights(*nets)

    def test_groups_keep_their_own_numbers(self):
        nets = []
        for backend in ("torch", "ipu"):
            net = Net(backend)
            groups = [{"params": net.fc1.parameters(), "lr": 0.1}, {"params": net.fc2.parameters(), "momentum": 0.5}]
            optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9, weight_decay=0.1)
            step = trained(net, optimizer)
            for seed in range(4):
                step(*data(seed=seed))
                optimizer.param_groups[0]["lr"] *= 0.5
            nets.append(net)
        same_weights(*nets)


class TestOptimizers:
    def test_one_that_poptorch_has_not(self):
        net = Net()
        with pytest.raises(
            sc.Unsupported, match="optimizer is Adagrad, which PopTorch cannot run; use torch.optim's SGD"
        ):
            trained(net, torch.optim.Adagrad(net.parameters()))

    @pytest.mark.parametrize(
        ("make", "says"),
        [
            (
                lambda held: torch.optim.Adam(held, amsgrad=True),
                "amsgrad=True in a group: PopTorch has only non-amsgrad",
            ),
            (
                lambda held: torch.optim.SGD(held, lr=0.1, maximize=True),
                "maximize=True in a group: PopTorch ignores it",
            ),
            (
                lambda held: torch.optim.SGD(held, 0.1, 0.9, 0.1),
                "dampening=0.1 in a group: PopTorch damps the first step",
            ),
        ],
    )
    def test_an_option_that_poptorch_has_not(self, make, says):
        net = Net()
        with pytest.raises(sc.Unsupported, match=says):
            trained(net, make(net.parameters()))

    def test_one_of_another_network(self):
        with pytest.raises(ValueError, match="optimizer holds no parameter of this network"):
            trained(Net(), adam(Net()))

    def test_one_that_holds_more(self):
        net, other = Net(), nn.Linear(2, 2)
        with pytest.raises(ValueError, match="optimizer holds 2 parameters that are not the network's"):
            trained(net, torch.optim.SGD([*net.parameters(), *other.parameters()], lr=0.1))

    def test_a_parameter_left_out(self):
        net = Net()
        with pytest.raises(
            ValueError, match=r"optimizer holds no net\.fc1\.weight, net\.fc1\.bias, which PopTorch would"
        ):
            trained(net, adam(net.fc2))

    def test_a_frozen_parameter(self):
        net = Net()
        net.fc1.requires_grad_(False)
        before = net.fc1.weight.clone()
        trained(net, adam(net.fc2))(*data())
        assert torch.equal(net.fc1.weight, before)
        assert not torch.equal(net.fc2.weight, Net().fc2.weight)

    def test_one_of_poptorchs_own(self):
        net, reference = Net(), Net("torch")
        optimizer = poptorch.optim.AdamW(net.parameters(), lr=0.01)
        step, other = trained(net, optimizer), trained(reference, torch.optim.AdamW(reference.parameters(), lr=0.01))
        for rate in (0.01, 0.1):
            optimizer.param_groups[0]["lr"] = other.optimizer.param_groups[0]["lr"] = rate
            step(*data())
            other(*data())
        same_weights(net, reference)

    def test_what_a_program_cannot_follow(self):
        """New groups, and what was off and a constant, are refused until the program is compiled anew."""
        changes = {
            "momentum, 0 in all groups, has become 0.9": lambda opt, net: opt.param_groups[0].update(momentum=0.9),
            "groups hold other parameters": lambda opt, net: opt.param_groups[0]["params"].pop(),
            "maximize=True in a group": lambda opt, net: opt.param_groups[0].update(maximize=True),
            "requires_grad": lambda opt, net: net.fc1.requires_grad_(False),
        }
        for says, change in changes.items():
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            step = trained(net, optimizer)
            step(*data())
            change(optimizer, net)
            for _ in range(2):
                with pytest.raises(sc.Unsupported, match=says):
                    step(*data())

    def test_what_was_off_after_compiling_anew(self):
        nets = []
        for backend in ("torch", "ipu"):
            net = Net(backend)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            step = trained(net, optimizer)
            step(*data())
            optimizer.param_groups[0]["momentum"] = 0.9
            if backend == "ipu":
                step.destroy()
            step(*data())
            step(*data())
            nets.append(net)
        same_weights(*nets)


class TestWeights:
    def test_a_step_that_is_dropped_leaves_the_network_as_it_was(self):
        """As when the cell of a notebook runs again."""
        net = nn.Sequential(Net(), nn.BatchNorm1d(3))
        for _ in range(2):
            step = sc.training_model(net, lambda out, y: out.square().mean(), adam(net))
            step(torch.rand(3, 4), torch.zeros(3, dtype=torch.long))
            del step
            gc.collect()
        assert not any(module._load_state_dict_post_hooks for module in net.modules())

    def test_after_a_compilation_that_failed(self):
        net = Net()
        reads = [True]

        def loss(out, y):
            return out.sum() * out.sum().item() if reads[0] else sc.losses.ce_count(out, y)

        step = trained(net, loss=loss)
        with pytest.raises(poptorch.Error, match="aten::item is only supported in eager mode"):
            step(*data())
        step.destroy()
        reads[0] = False
        step(*data())
        step.destroy()
        trained(net)(*data())

    def test_loaded_into_a_part_of_the_network(self):
        net = Net()
        step = trained(net, torch.optim.SGD(net.parameters(), lr=0.0))
        step(*data())
        net.fc2.load_state_dict({name: torch.full_like(value, 9.0) for name, value in net.fc2.state_dict().items()})
        assert step(*data())[0].sum() > 0
        assert net.fc2.weight.eq(9.0).all()

    def test_are_read_where_they_are_looked_at(self):
        net = Net()
        before = copy.deepcopy(net.state_dict())
        trained_ = trained(net)
        trained_(*data())
        assert not torch.equal(net.state_dict()["fc1.weight"], before["fc1.weight"])

    def test_outlive_the_step(self):
        net, reference = Net(), Net("torch")
        for one in (net, reference):
            step = trained(one)
            step(*data())
            step(*data())
        del step
        gc.collect()
        same_weights(net, reference)

    def test_loaded_after_compilation_reach_the_device(self):
        net, start = Net(), copy.deepcopy(Net().state_dict())
        step = trained(net, torch.optim.SGD(net.parameters(), lr=0.1))
        first = step(*data())[1]
        assert step(*data())[1] != first
        net.load_state_dict(start)
        assert step(*data())[1] == first

    def test_checkpoint_and_resume(self):
        """Four steps are two, a file, and two more in another process's objects."""
        whole, first = Net(), Net()
        step = trained(whole)
        for seed in range(4):
            step(*data(seed=seed))
        begun = trained(first)
        for seed in range(2):
            begun(*data(seed=seed))
        file = io.BytesIO()
        torch.save(begun.state_dict(), file)
        file.seek(0)
        rest = Net()
        resumed = trained(rest)
        resumed.load_state_dict(torch.load(file))
        for seed in range(2, 4):
            resumed(*data(seed=seed))
        same_weights(rest, whole)

    def test_the_state_of_an_optimizer_that_ran_elsewhere(self):
        elsewhere = trained(Net("torch"))
        elsewhere(*data())
        step = trained(Net())
        with pytest.raises(ValueError, match="did not run on an IPU, and PopTorch takes only its own"):
            step.load_state_dict(elsewhere.state_dict())
        step(*data())
        with pytest.raises(ValueError, match="ran on an IPU, which keeps its state in a form of its own"):
            elsewhere.load_state_dict(step.state_dict())

    @pytest.mark.parametrize("compiled", [False, True])
    def test_a_state_that_does_not_fit_changes_nothing(self, compiled):
        """Neither on the host nor on the device, nor the optimiser: training goes on as if nothing had been tried."""
        losses = []
        for tries in (False, True):
            net = Net()
            step = trained(net)
            if compiled:
                step(*data())
            other = trained(Net())
            other(*data(seed=5))
            state = other.state_dict()
            for spoilt, error, text in (
                (
                    ({"net": state["net"]}, ValueError, "state has no 'optimizer'"),
                    (
                        {**state, "net": {**state["net"], "fc2.bias": torch.zeros(77)}},
                        RuntimeError,
                        "size mismatch for fc2",
                    ),
                    ({**state, "net": {"fc1.weight": state["net"]["fc1.weight"] + 1}}, RuntimeError, "Missing key"),
                    ({**state, "optimizer": {"ipu_state": {}}}, Exception, "."),
                )
                if tries
                else ()
            ):
                with pytest.raises(error, match=text):
                    step.load_state_dict(spoilt)
            losses.append([step(*data(seed=seed))[1] for seed in range(3)])
        assert torch.equal(torch.stack(losses[0]), torch.stack(losses[1]))

    def test_a_checkpoint_after_a_schedule_moved(self):
        """The rate of the checkpoint is the one in force, and the one set after loading is the one that counts."""
        nets = []
        for backend in ("torch", "ipu"):
            steps, schedules = [], []
            for _ in range(2):
                net = Net(backend)
                optimizer = adam(net)
                steps.append(trained(net, optimizer))
                schedules.append(torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1))
            for seed in range(3):
                steps[0](*data(seed=seed))
                schedules[0].step()
            saved = copy.deepcopy(steps[0].state_dict())
            assert saved["optimizer"]["param_groups"][0]["lr"] == pytest.approx(1e-5)
            steps[1].load_state_dict(copy.deepcopy(saved))
            steps[1](*data(seed=3))
            steps[1].load_state_dict(saved)  # once compiled, too
            steps[1].optimizer.param_groups[0]["lr"] = 0.1
            steps[1](*data(seed=4))
            nets.append(steps[1].net)
        same_weights(*nets)

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
    def test_a_copy_is_in_no_step(self, duplicate):
        net = Net()
        step = trained(net)
        step(*data())
        twin = duplicate(net)
        same_weights(twin, net)
        step(*data())
        with torch.no_grad():
            assert not torch.equal(twin.fc1.weight, net.fc1.weight)
        twin.load_state_dict(Net().state_dict())  # and loading into it changes nothing on the device
        loss = step(*data())[1]
        other = trained(Net())
        other(*data())
        other(*data())
        close(loss, other(*data())[1])

    def test_a_second_step_of_one_network(self):
        net = Net()
        step = trained(net)
        step(*data())
        with pytest.raises(sc.Unsupported, match="trained by another training_model, which holds its weights"):
            trained(net)(*data())
        step.destroy()
        trained(net)(*data())


class TestInference:
    def test_destroying_it_leaves_the_training_alone(self):
        """Also before it was compiled: weights are read from the trainer all the same."""
        net, reference = Net(), Net("torch")
        step, other = trained(net), trained(reference)
        step(*data())
        other(*data())
        predict = sc.inference_model(net)
        assert predict.executor is predict.executor
        predict.destroy()
        step(*data())
        other(*data())
        same_weights(net, reference)

    def test_weights_are_handed_over(self):
        net, reference = Net(), Net("torch")
        ours, theirs = [(trained(one), sc.inference_model(one)) for one in (net, reference)]
        for seed in range(3):
            ours[0](*data(seed=seed))
            theirs[0](*data(seed=seed))
            close(ours[1](data()[0]), theirs[1](data()[0]))

    def test_two_of_one_network(self):
        """PopTorch tells only the first that weights have changed."""
        net = Net()
        step, predictions = trained(net, torch.optim.SGD(net.parameters(), lr=1.0)), None
        models = [sc.inference_model(net) for _ in range(2)]
        for seed in range(3):
            step(*data(seed=seed))
            predictions = [predict(data(64)[0]) for predict in models]
            assert torch.equal(*predictions)

    def test_weights_written_on_the_host(self):
        net = Net()
        predict = sc.inference_model(net)
        assert predict(data()[0]).sum() > 0
        with torch.no_grad():
            net.fc2.weight.zero_()
            net.fc2.bias.zero_()
        assert predict(data()[0]).sum() == 0

    def test_eval_mode_and_back(self):
        net = nn.Sequential(Net(), nn.Dropout(1.0))
        predict = sc.inference_model(net)
        assert predict(data()[0]).sum() > 0
        assert net.training
        assert net[1].training

    def test_several_micro_batches(self):
        inputs = data(12)[0]
        predict = sc.inference_model(Net(), options=poptorch.Options().deviceIterations(4))
        assert torch.equal(predict(inputs), sc.inference_model(Net("torch"))(inputs))


class TestRefusals:
    def test_options_of_another_kind(self):
        with pytest.raises(TypeError, match=r"must be a poptorch\.Options on backend 'ipu', or None"):
            trained(Net(), options=sc.TrainingOptions())

    def test_a_carried_state(self):
        net = Net()
        step = trained(net)
        with sc.carry_state(net), pytest.raises(sc.Unsupported, match="an IPU keeps none"):
            step(*data())

    def test_the_state_on_the_host_is_left_alone(self):
        net = Stepwise(resets=True)
        net(data()[0])
        before = {name: value.clone() for name, value in net.lif1.state.items()}
        trained(net)(*data())
        assert torch.equal(net.lif1.state["v"], before["v"])

    def test_modes_changed_after_compilation(self):
        net = Net()
        step = trained(net)
        step(*data())
        net.eval()
        with pytest.raises(sc.Unsupported, match=r"train\(\) or eval\(\) was called on a part of this network"):
            step(*data())
        step.destroy()
        step(*data())

    def test_another_batch_size(self):
        step = trained(Net())
        step(*data(5))
        with pytest.raises(poptorch.Error, match=r"Shape mismatch for .*expected torch.Size\(\[5, 4\]\) but got"):
            step(*data(6))

    def test_time_first_inputs_that_would_be_cut(self):
        net = nn.Sequential(nn.Linear(4, 3), sc.LIF(backend="ipu"))
        step = trained(net, options=poptorch.Options().deviceIterations(2))
        with pytest.raises(ValueError, match="put the batch first everywhere"):
            step(torch.rand(6, 4, 4), torch.zeros(4, dtype=torch.long))

    def test_outputs_that_could_be_cut_either_way(self):
        step = trained(Net(), options=poptorch.Options().deviceIterations(2).outputMode(poptorch.OutputMode.All))
        with pytest.raises(ValueError, match=r"an output of shape \[6, 6, 3\] may be \[B, ...\] or \[T, B, ...\]"):
            step(*data(12))

    def test_empty_input(self):
        net = nn.Sequential(nn.Linear(4, 3), sc.LIF(backend="ipu"))
        with pytest.raises((sc.Unsupported, poptorch.Error), match="empty|Zero-sized"):
            sc.inference_model(net)(torch.rand(0, 2, 4))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    def test_dtypes_poptorch_narrows(self, dtype):
        with pytest.raises(sc.Unsupported, match="does not support"):
            sc.LIF(backend="ipu")(torch.rand(3, 2, dtype=dtype))

    def test_the_torch_backend_on_an_ipu(self):
        """Its spike is an autograd.Function, whose backward PopTorch drops."""

        class Wrapped(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = Net("torch")

            def forward(self, x, y):
                return poptorch.identity_loss(sc.losses.ce_count(self.net(x), y), "none")

        with pytest.raises(sc.BackendUnavailable, match="backend 'torch' .* does not compute on ipu"):
            poptorch.trainingModel(Wrapped())(*data())


def test_a_module_wrapped_by_hand():
    """Without sc.training_model, and without asking for a backend: on an IPU the choice is this one."""

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net(None)

        def forward(self, x, y):
            spikes = self.net(x)
            return spikes, poptorch.identity_loss(sc.losses.ce_count(spikes, y), "none")

    model = Wrapped()
    step = poptorch.trainingModel(model, optimizer=poptorch.optim.Adam(model.parameters(), lr=0.01))
    reference = Net("torch")
    other = trained(reference)
    for _ in range(3):
        close(step(*data())[1], other(*data())[1])
    same_weights(model.net, reference)


class TestDataLoader:
    def test_batches_hold_all_micro_batches(self):
        options = poptorch.Options().deviceIterations(2)
        loader = sc.DataLoader(TensorDataset(*data(12)), batch_size=3, backend="ipu", options=options)
        assert [len(x) for x, _ in loader] == [6, 6]

    def test_says_what_it_leaves_out(self):
        with pytest.warns(UserWarning, match="3 of 13 samples are left out of each pass: a call takes 5"):
            loader = sc.DataLoader(TensorDataset(*data(13)), batch_size=5, backend="ipu")
        assert sum(len(x) for x, _ in loader) == 10

    def test_says_nothing_when_asked_to(self, recwarn):
        sc.DataLoader(TensorDataset(*data(13)), batch_size=5, backend="ipu", drop_last=True)
        assert not recwarn.list


class TestPipeline:
    def test_changes_no_number(self):
        nets = [Net(), Net()]
        assert spikecore_ipu.pipeline(nets[0], {"fc2": 1}) is nets[0]
        options = poptorch.Options()
        options.Training.gradientAccumulation(3)
        losses = [trained(net, options=options)(*data(6))[1] for net in nets]
        close(*losses)

    @pytest.mark.parametrize(
        ("stages", "error", "says"),
        [
            ({"fc3": 1}, ValueError, "stages names 'fc3', which is no submodule; submodules: 'encode', 'fc1'"),
            ({"fc2": -1}, ValueError, "stages puts 'fc2' on IPU -1"),
            ({"fc2": "1"}, TypeError, "stages puts 'fc2' on '1'; give the number of an IPU"),
            ("fc2", TypeError, "stages='fc2' must map names"),
        ],
    )
    def test_refuses(self, stages, error, says):
        with pytest.raises(error, match=says):
            spikecore_ipu.pipeline(Net(), stages)


def test_a_program_that_cannot_be_lowered(monkeypatch):
    """An operation without a handler in PopTorch is named before anything is compiled."""

    class Wave(sc.Neuron):
        states = {"v": 0.0}

        def dynamics(self, x, s, p):
            v = s.v + sc.ops.sin(x)
            return self.spike(v - 1.0), {"v": v}

    monkeypatch.delitem(functions.PLAIN, "sin")
    with pytest.raises(sc.Unsupported, match="backend 'ipu' cannot lower Wave: PopTorch has no handler for .* 'sin'"):
        Wave(backend="ipu")(torch.rand(3, 2))


def test_options_are_handed_on_untouched():
    """The executor's options are a clone of the user's, whose values nobody changed."""
    options = poptorch.Options().deviceIterations(2).randomSeed(3).outputMode(poptorch.OutputMode.Sum)
    step = trained(Net(), options=options)
    assert repr(step.executor.options) == repr(options)


class Membrane(Net):
    """A potential of the user's own, kept on the module."""

    def __init__(self, resets):
        super().__init__()
        self.mem, self.resets = None, resets

    def forward(self, x):
        spikes = super().forward(x)
        if self.mem is None or self.resets:
            self.mem = torch.zeros_like(spikes[0])
        self.mem = 0.9 * self.mem + spikes.mean(0)
        return spikes + self.mem


def test_a_potential_kept_on_the_module():
    """The emulator refuses what would begin each call with a tensor of the compilation; set anew it is fine."""
    trained(Membrane(resets=True))(*data())
    with pytest.raises(
        poptorch.Error, match=r"forward leaves a tensor in net\.mem and begins with it at the next call"
    ):
        trained(Membrane(resets=False))(*data())


class Unbounded(sc.Surrogate):
    """A derivative that is not finite for every finite potential."""

    def derivative(self, u):
        e = sc.ops.exp(u)
        return e / ((1.0 + e) * (1.0 + e))


def test_a_derivative_that_is_not_finite():
    """It spoils no spike."""
    x = torch.tensor([[-200.0, 0.0, 100.0, 200.0]])
    spikes = [sc.IF(surrogate=Unbounded(), backend=name)(x) for name in ("torch", "ipu")]
    assert torch.equal(*spikes)
    assert spikes[1].tolist() == [[0, 0, 1, 1]]
