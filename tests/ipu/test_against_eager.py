"""Training through PopTorch is training: its steps are those of the torch backend, whatever the options, and those of
delays; a network in fixed point has its bits.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch
import spikecore as sc

STEPS, MICRO, FEATURES, CLASSES = 4, 3, 12, 5
UPDATES = 20
OPTIMIZERS = {
    "sgd": lambda held: torch.optim.SGD(held, lr=0.05, momentum=0.9),
    "adam": lambda held: torch.optim.Adam(held, lr=0.01),
    "adamw": lambda held: torch.optim.AdamW(held, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda held: torch.optim.RMSprop(held, lr=0.005),
}
MODES = ("Final", "All", "Sum", "EveryN")


def network(backend: str) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        sc.encode.Constant(STEPS),
        nn.Linear(FEATURES, 16),
        sc.PLIF(tau=2.0, threshold=0.3),
        nn.Linear(16, CLASSES),
        sc.ALIF(rho=0.9, threshold=0.1),
    )
    sc.set_backend(net, backend)
    return net


def returned(per_micro, mode, accumulation, replicas, device_iterations, period):
    """The result of an output mode for values in the order [device iterations, accumulation, replicas]."""
    rounds = [per_micro[i : i + replicas] for i in range(0, device_iterations * accumulation * replicas, replicas)]
    if mode == "Sum":
        return [sum(values) for values in zip(*rounds)]
    chosen = {"Final": rounds[-1:], "All": rounds, "EveryN": rounds[period - 1 :: period]}[mode]
    return [value for values in chosen for value in values]


def eager_calls(optimizer, batches, per_update):
    """The torch backend: one step per update, on the samples of all its micro batches."""
    net = network("torch")
    step = sc.training_model(net, sc.losses.ce_count, OPTIMIZERS[optimizer](net.parameters()))
    for inputs, targets in batches:
        outputs, losses = [], []
        for x, y in zip(inputs.split(per_update), targets.split(per_update)):
            spikes, _ = step(x, y)
            for part, label in zip(spikes.split(MICRO, 1), y.split(MICRO)):
                outputs.append(part)
                losses.append(sc.losses.ce_count(part, label))
        yield net, outputs, losses


#: What comes back does not depend on the optimiser: one of them is seen through every output mode.
CASES = [
    case
    for case in itertools.product(OPTIMIZERS, (1, 4), (1, 4), (1, 2), MODES)
    if case[0] == "sgd" or case[-1] == "All"
]


@pytest.mark.filterwarnings("ignore:AdamW decays")
@pytest.mark.matrix(turn=0)
@pytest.mark.parametrize(("optimizer", "iterations", "accumulation", "replicas", "mode"), CASES)
def test_twenty_updates(optimizer, iterations, accumulation, replicas, mode):
    period = min(2, iterations * accumulation)
    options = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    kind = getattr(poptorch.OutputMode, mode)
    options.outputMode(kind, period) if mode == "EveryN" else options.outputMode(kind)

    generator = torch.Generator().manual_seed(1)
    per_update = MICRO * accumulation * replicas
    size = per_update * iterations
    batches = [
        (2 * torch.randn(size, FEATURES, generator=generator), torch.randint(CLASSES, (size,), generator=generator))
        for _ in range(UPDATES // iterations)
    ]
    net = network("ipu")
    step = sc.training_model(net, sc.losses.ce_count, OPTIMIZERS[optimizer](net.parameters()), options=options)
    fired = 0.0
    for (inputs, targets), (reference, spikes, losses) in zip(batches, eager_calls(optimizer, batches, per_update)):
        outputs, loss = step(inputs, targets)
        shape = accumulation, replicas, iterations, period
        wanted = returned(losses, mode, *shape)
        expected = torch.stack(wanted) if len(wanted) > 1 else wanted[0]
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(outputs, torch.cat(returned(spikes, mode, *shape), 1), rtol=0, atol=0)
        for ours, theirs in zip(net.parameters(), reference.parameters()):
            torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=0, atol=1e-6)
        fired += outputs.sum().item()
    assert fired > 10  # a silent network would agree with anything


def trained(backend, per, learn):
    """A step of a network with delays, and the network."""
    torch.manual_seed(0)
    net = nn.Sequential(sc.Delay(nn.Linear(6, 8), 3, per=per, learn=learn), sc.LIF(), nn.Linear(8, 3), sc.LI())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    return sc.training_model(net, sc.losses.ce_max_membrane, optimizer, backend=backend), net


@pytest.mark.parametrize("per", ["connection", "input"])
@pytest.mark.parametrize("learn", [("delay",), ()])
def test_three_steps(per, learn):
    """Outputs, losses, weights and positions; a width that was set is copied as any weight that is written to."""
    x, y = 3 * torch.rand(5, 4, 6, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0])
    there, net = trained("ipu", per, learn)
    here, same = trained("torch", per, learn)
    for width in (1.5, 1.0, 0.5):
        for step, layer in ((there, net[0]), (here, same[0])):
            if learn:
                layer.sigma = width
                if step is there and width < 1.5:
                    step.executor.copyWeightsToDevice()
        torch.testing.assert_close(there(x, y), here(x, y))
    torch.testing.assert_close(net.state_dict(), same.state_dict())


def test_a_compiled_network() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 12), sc.ALIF(threshold=0.2), nn.Linear(12, 4), sc.LI())
    x = torch.rand(10, 3, 6)
    fixed = sc.quant.prepare(net, x).eval()
    sc.set_backend(fixed, "torch")
    expected = fixed(x)
    sc.set_backend(fixed, "ipu")
    options = poptorch.Options()
    found = poptorch.inferenceModel(fixed, options)(x)
    assert torch.equal(found, expected)
