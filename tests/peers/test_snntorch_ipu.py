"""The tutorial of snntorch-ipu, line by line from its imports on, with snnTorch 1.0 on the emulator.

Three things differ: one line more, ``sc.convert(net)``, which takes the place of the package snntorch-ipu; the images,
which are random here; and smaller numbers.
"""

# ruff: noqa: I001, B007  the tutorial's own lines, in their order

from __future__ import annotations

import sys

import pytest

pytestmark = pytest.mark.peers


@pytest.fixture
def installed(monkeypatch):
    """``import poptorch`` and ``import popart`` give the emulator, in this test only."""
    import poptorch_emulator

    monkeypatch.setenv("SPIKECORE_IPU_EMULATOR", "1")
    before = set(sys.modules)
    poptorch_emulator.install()
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("popart", "poptorch"):
            del sys.modules[name]
    import snntorch

    # snnTorch resets every neuron that it ever made; those of this test have states on an IPU
    snntorch.SpikingNeuron.instances.clear()


@pytest.mark.usefixtures("installed")
def test_the_tutorial():
    """It runs, trains, and gives what the same network gives on the host."""
    import torch, torch.nn as nn  # noqa: E401
    import popart, poptorch  # noqa: E401, F401
    import snntorch as snn
    import snntorch.functional as SF

    import spikecore as sc

    batch_size = 8
    torch.manual_seed(0)
    mnist_train = torch.utils.data.TensorDataset(torch.rand(32, 1, 28, 28), torch.randint(10, (32,)))

    opts = poptorch.Options()
    opts.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)

    train_loader = poptorch.DataLoader(
        options=opts, dataset=mnist_train, batch_size=batch_size, shuffle=True, num_workers=0
    )

    num_steps = 5
    beta = 0.9

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()

            num_inputs = 784
            num_hidden = 20
            num_outputs = 10

            self.fc1 = nn.Linear(num_inputs, num_hidden)
            self.lif1 = snn.Leaky(beta=beta)
            self.fc2 = nn.Linear(num_hidden, num_outputs)
            self.lif2 = snn.Leaky(beta=beta)

            self.loss_fn = SF.ce_count_loss()

        def forward(self, x, labels=None):
            mem1 = self.lif1.init_leaky()
            mem2 = self.lif2.init_leaky()

            spk2_rec = []
            mem2_rec = []

            for step in range(num_steps):
                cur1 = self.fc1(x.view(batch_size, -1))
                spk1, mem1 = self.lif1(cur1, mem1)
                cur2 = self.fc2(spk1)
                spk2, mem2 = self.lif2(cur2, mem2)

                spk2_rec.append(spk2)
                mem2_rec.append(mem2)

            spk2_rec = torch.stack(spk2_rec)
            mem2_rec = torch.stack(mem2_rec)

            if self.training:
                return spk2_rec, poptorch.identity_loss(self.loss_fn(mem2_rec, labels), "none")
            return spk2_rec

    net = Model()
    sc.convert(net)
    optimizer = poptorch.optim.Adam(net.parameters(), lr=0.001, betas=(0.9, 0.999))

    poptorch_model = poptorch.trainingModel(net, options=opts, optimizer=optimizer)

    epochs = 2
    before = net.fc1.weight.detach().clone()
    for epoch in range(epochs):
        correct = 0.0

        for i, (data, labels) in enumerate(train_loader):
            if epoch == i == 0:
                torch.manual_seed(0)
                on_the_host = Model()
                on_the_host.load_state_dict(net.state_dict())
                expected = on_the_host(data, labels)
            output, loss = poptorch_model(data, labels)
            if epoch == i == 0:
                torch.testing.assert_close((output, loss), (expected[0].detach(), expected[1].detach()))

            if i % 250 == 0:
                _, pred = output.sum(dim=0).max(1)
                correct = (labels == pred).sum().item() / len(labels)
        assert 0 <= correct <= 1
    assert not torch.equal(net.fc1.weight.detach(), before)


@pytest.mark.usefixtures("installed")
def test_a_network_that_is_not_converted():
    """The buffer without elements in which snnTorch keeps a potential is named."""
    import poptorch
    import snntorch as snn
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(4, 3), snn.Leaky(beta=0.9, init_hidden=True))
    with pytest.raises(poptorch.Error, match=r"Zero-sized tensors are unsupported \(Got shape \[0\]\)\. It is 1\.mem"):
        poptorch.inferenceModel(net)(torch.rand(2, 4))


@pytest.mark.parametrize("make", ["Leaky", "RLeaky", "Synaptic", "RSynaptic", "Alpha", "Lapicque"])
def test_converted_networks(make, monkeypatch):
    """Every neuron that ``sc.convert`` replaces runs on an IPU, call after call from rest."""
    import snntorch as snn
    import torch

    import spikecore as sc

    monkeypatch.setenv("SPIKECORE_IPU_EMULATOR", "1")
    numbers = {
        "Leaky": {"beta": 0.9},
        "RLeaky": {"beta": 0.9, "linear_features": 3},
        "Synaptic": {"alpha": 0.8, "beta": 0.9},
        "RSynaptic": {"alpha": 0.8, "beta": 0.9, "linear_features": 3},
        "Alpha": {"alpha": 0.8, "beta": 0.7},
        "Lapicque": {"beta": 0.9},
    }[make]

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(4, 3)
            self.lif = getattr(snn, make)(init_hidden=True, **numbers)

        def forward(self, x):
            self.lif.reset_mem()
            return torch.stack([self.lif(self.fc(x)) for _ in range(4)])

    torch.manual_seed(0)
    net, x = Net(), 400 * torch.rand(2, 4)
    with torch.no_grad():
        net.fc.weight.abs_()
    expected = net(x)
    sc.convert(net)
    predict = sc.inference_model(net, backend="ipu")
    for _ in range(2):
        torch.testing.assert_close(predict(x), expected.detach())
    assert expected.sum() > 0
