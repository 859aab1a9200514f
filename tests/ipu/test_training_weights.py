"""Weights and optimizer states between host and device: in training, in inference, after loading."""

from __future__ import annotations

import copy
import gc
import io

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch
import spikecore as sc
from ipu_nets import Net, adam, close, data, same_weights, trained


class TestWeights:
    def test_a_step_that_is_dropped_leaves_the_network_as_it_was(self):
        """The cell of a notebook may run again."""
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

    def test_outlive_the_step(self):
        net, reference = Net(), Net("torch")
        for one in (net, reference):
            step = trained(one)
            step(*data())
            step(*data())
        del step
        gc.collect()
        same_weights(net, reference)

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
        foreign = "it has 'ipu_param', 'ipu_state', which this optimiser has not; for an optimiser that a backend ran"
        with pytest.raises(ValueError, match=foreign):
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

    def test_weights_written_on_the_host(self):
        net = Net()
        predict = sc.inference_model(net)
        assert predict(data()[0]).sum() > 0
        with torch.no_grad():
            net.fc2.weight.zero_()
            net.fc2.bias.zero_()
        assert predict(data()[0]).sum() == 0

    def test_several_micro_batches(self):
        inputs = data(12)[0]
        predict = sc.inference_model(Net(), options=poptorch.Options().deviceIterations(4))
        assert torch.equal(predict(inputs), sc.inference_model(Net("torch"))(inputs))
