"""On a GPU, a step in its fastest form: network, loss and update compiled and captured, with the weights of the plain
step to rounding.
"""

from __future__ import annotations

import copy
import functools
import warnings

import pytest
import torch
from torch import nn

import spikecore as sc

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True"),
    pytest.mark.filterwarnings("ignore:fast=True. channels_last is left out"),
    # the compiler's advice, once in a process
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
    pytest.mark.filterwarnings(r"ignore:\s*Online softmax is disabled"),
]
OPTIMIZERS = {
    "SGD": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "Adam": functools.partial(torch.optim.Adam, lr=0.01),
    "AdamW": functools.partial(torch.optim.AdamW, lr=0.01, amsgrad=True),
    "Adam fused": functools.partial(torch.optim.Adam, lr=0.01, fused=True),
}


def _net():
    torch.manual_seed(0)
    layers = nn.Linear(12, 64), sc.LIF(backend="cupy"), nn.Linear(64, 3)
    return nn.Sequential(sc.encode.Constant(8), *layers).to("cuda")


def _batch(i):
    generator = torch.Generator().manual_seed(i)
    return 4 * torch.rand(16, 12, generator=generator), torch.randint(3, (16,), generator=generator)


def _trained(net, optimizer, options, loss=sc.losses.ce_rate, steps=10, schedule=None):
    torch._dynamo.reset()
    step = sc.training_model(net, loss, optimizer, options=options)
    rates = schedule(optimizer) if schedule else None
    losses = []
    for i in range(steps):
        losses.append(step(*_batch(i))[1])
        if rates is not None:
            rates.step()
    return step, torch.stack(losses)


def _near(net, plain):
    # Adam divides by the size of a gradient, rounding of a small one included; a wrong update is off by its rate, 0.01
    for one, other in zip(net.parameters(), plain.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_weights_are_those_of_the_plain_step(optimizer):
    """And the losses of every step."""
    net, plain = _net(), _net()
    step, losses = _trained(net, OPTIMIZERS[optimizer](net.parameters()), sc.CudaOptions(fast=True))
    _, expected = _trained(plain, OPTIMIZERS[optimizer](plain.parameters()), None)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-6)
    _near(net, plain)
    assert step.form["compile"] == step.form["graph"] == "used"


@pytest.mark.parametrize("tensor", [True, False], ids=["tensor", "number"])
def test_a_schedule(tensor):
    """A learning rate that is a tensor changes within the graph; a number has the update run as it is."""
    lr = torch.tensor(0.01, device="cuda") if tensor else 0.01
    schedule = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=5, gamma=0.5)
    net, plain = _net(), _net()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made = torch.optim.Adam(net.parameters(), lr=copy.deepcopy(lr))
        step, _ = _trained(net, made, sc.CudaOptions(fast=True), steps=13, schedule=schedule)
    its = torch.optim.Adam(plain.parameters(), lr=copy.deepcopy(lr), capturable=True)
    _trained(plain, its, None, steps=13, schedule=schedule)
    _near(net, plain)
    assert not [one for one in told if "runs as it is" in str(one.message)]
    assert step.form["compile"] == "used" if tensor else "the update: lr changed" in step.form["compile"]
    assert step.form["graph"] == "used"
