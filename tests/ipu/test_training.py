"""``sc.training_model``, ``sc.inference_model`` and ``sc.DataLoader`` on backend ``ipu``: what a script may expect."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import poptorch_emulator as poptorch
import refusals
import spikecore as sc
import spikecore_ipu
from ipu_nets import Net, Stepwise, close, count_and_spikes, data, same_weights, trained
from spikecore_ipu.backend import PLAIN


class TestTheSameScript:
    """A script sees the same as on other backends."""

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

    def test_inputs_by_name_in_any_order(self):
        """A dictionary is read by its keys, also where a later call has them in another order."""

        class Ratio(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(()))

            def forward(self, a, b):
                return self.weight * a / b

        a, b, targets = torch.tensor([6.0, 8.0]), torch.tensor([2.0, 4.0]), torch.zeros(2)
        net = Ratio()
        optimizer = torch.optim.SGD(net.parameters(), 0.0)
        step = trained(net, optimizer, loss=lambda out, y: (out - y).mean(), backend="ipu")
        losses = [step(named, targets)[1].item() for named in ({"a": a, "b": b}, {"b": b, "a": a})]
        assert losses == [2.5, 2.5]
        step.destroy()
        predict = sc.inference_model(net, backend="ipu")
        for named in ({"b": b, "a": a}, {"a": a, "b": b}):
            assert predict(named).tolist() == [3.0, 2.0]

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

    @pytest.mark.parametrize(
        "loss",
        [
            sc.losses.ce_count,
            sc.losses.ce_max_membrane,
            functools.partial(sc.losses.mse_temporal, on_target=(0, 2), off_target=(5, -1), tolerance=1),
            functools.partial(sc.losses.ce_rate, ignore_index=0, label_smoothing=0.1),
            functools.partial(sc.losses.mse_count, ignore_index=2, weight=torch.tensor([0.5, 2.0, 1.0])),
            lambda out, y, mask: sc.losses.rate_sparsity(out, strength=0.1, mask=mask),
            lambda out, y, mask: sc.losses.rate_regularizer(out, target=0.6, per="sample", mask=mask),
        ],
    )
    def test_masks_of_padded_sequences(self, loss):
        """The mask comes with the targets, batch first, so that several micro batches can be cut from it."""
        inputs, labels = data(12)
        lengths = torch.randint(1, 7, (12,), generator=torch.Generator().manual_seed(4))
        targets = labels, sc.functional.mask_of(lengths, 6).T.contiguous()
        nets = []
        for backend in ("torch", "ipu"):
            net = Net(backend)
            options = poptorch.Options().deviceIterations(3) if backend == "ipu" else None
            step = trained(net, loss=lambda out, y: loss(out, y[0], mask=y[1].T), options=options)
            parts = [slice(0, 12)] if backend == "ipu" else [slice(start, start + 4) for start in (0, 4, 8)]
            for part in parts:
                step(inputs[part], tuple(value[part] for value in targets))
            nets.append(net)
        same_weights(*nets)
        assert not torch.equal(nets[0].fc2.weight, Net().fc2.weight)

    def test_a_loss_of_several_numbers(self):
        with pytest.raises(ValueError, match=r"loss must give a tensor with one number, got shape \[5\]; reduce it"):
            trained(Net(), loss=lambda out, y: out.sum((0, 2)))(*data())


class TestRefusals:
    def test_options_of_another_kind(self):
        with pytest.raises(TypeError, match=r"must be a poptorch\.Options on backend 'ipu', or None"):
            trained(Net(), options=sc.TrainingOptions())

    def test_a_carried_state(self):
        net = Net()
        step = trained(net)
        with sc.carry_state(net), pytest.raises(sc.backend.Unsupported, match="an IPU keeps none"):
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
        with pytest.raises(sc.backend.Unsupported, match=r"train\(\) or eval\(\) was called on a part of this network"):
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

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    def test_dtypes_poptorch_narrows(self, dtype):
        with pytest.raises(sc.backend.Unsupported, match="does not support"):
            sc.LIF(backend="ipu")(torch.rand(3, 2, dtype=dtype))

    def test_the_torch_backend_on_an_ipu(self):
        """Its spike is an autograd.Function, whose backward PopTorch drops."""

        class Wrapped(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = Net("torch")

            def forward(self, x, y):
                return poptorch.identity_loss(sc.losses.ce_count(self.net(x), y), "none")

        with pytest.raises(sc.backend.BackendUnavailable, match="backend 'torch' .* does not compute on ipu"):
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

    def test_time_first_is_refused(self):
        with pytest.raises(ValueError, match=r"PopTorch cuts dimension 0 .*, and turn the inputs in the network"):
            sc.DataLoader(TensorDataset(*data(12)), batch_size=3, backend="ipu", time_first=True)


class TestPipeline:
    def test_changes_no_number(self):
        nets = [Net(), Net()]
        assert spikecore_ipu.pipeline(nets[0], {"fc2": 1}) is nets[0]
        options = poptorch.Options()
        options.Training.gradientAccumulation(3)
        losses = [trained(net, options=options)(*data(6))[1] for net in nets]
        close(*losses)


def test_a_program_that_cannot_be_lowered(monkeypatch):
    """An operation without a handler in PopTorch is named before anything is compiled."""

    class Wave(sc.Neuron):
        states = {"v": 0.0}

        def dynamics(self, x, s, p):
            v = s.v + sc.ops.sin(x)
            return self.spike(v - 1.0), {"v": v}

    monkeypatch.delitem(PLAIN, "sin")
    with pytest.raises(
        sc.backend.Unsupported, match="backend 'ipu' cannot lower Wave: PopTorch has no handler for .* 'sin'"
    ):
        Wave(backend="ipu")(torch.rand(3, 2))


def test_options_are_handed_on_untouched():
    """The executor's options are a clone of the user's, whose values nobody changed."""
    options = poptorch.Options().deviceIterations(2).randomSeed(3).outputMode(poptorch.OutputMode.Sum)
    step = trained(Net(), options=options)
    assert repr(step.executor.options) == repr(options)


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


test_refused = refusals.table(__file__, globals())


def test_a_call_that_poptorch_compiles_is_refused():
    """A call on the host is seen; a step of the device, whose tensors hold no values when it is compiled, is not."""
    net = Net()
    x = 4 * torch.rand(3, 4, generator=torch.Generator().manual_seed(1))
    with sc.monitor(net, record=("v",)) as seen:
        net(x)
    assert list(seen) == ["lif1", "lif2"]
    assert seen["lif1"].v.shape == (6, 3, 8)
    step = sc.training_model(net, sc.losses.ce_count, torch.optim.SGD(net.parameters(), 0.1), backend="ipu")
    text = "LIF is watched by sc.monitor, and PopTorch compiles the call for an IPU"
    with sc.monitor(net), pytest.raises(RuntimeError, match=text):
        step(x, torch.tensor([0, 1, 2]))
