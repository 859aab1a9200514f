"""One network set up to be trained in one form: its neuron checked, its step made, its memory measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, Callable, Optional, Tuple

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore_bench.cases import Bench, checked
from spikecore_bench.check import REFERENCE, observe
from spikecore_bench.forms import Form
from spikecore_bench.implementations import Implementation, NotTimed, status_of
from spikecore_bench.network import Network
from spikecore_bench.timing import Call, precision

#: Neurons of the check, an odd number in two dimensions.
CHECKED = (3, 333)
#: Steps before anything is measured; a graph is captured in the last of them, or in the one after.
WARM_UP = 4


class Rectifier(nn.ReLU):
    """``nn.ReLU`` in the place of a neuron, at every step.

    The input is the same at every step and the first layer is computed once, for ReLU and for neurons alike. Plain ReLU
    would be computed once, too, and so the whole network: T times less work.
    """


@dataclass(frozen=True)
class Training:
    """A network under way: one training step, and the bytes it takes at its peak with everything it owns."""

    #: None: must not be timed, for the reason in ``detail``.
    call: Optional[Call]
    memory: Optional[int]
    #: The bytes of these that are not parameters, buffers or what the optimiser keeps.
    activations: Optional[int]
    status: str = "ok"
    detail: str = ""


def attempt(enter: Callable[[], Training], bench: Bench) -> Training:
    """Set-up training, or a failure with its reason and without a call."""
    try:
        return enter()
    except Exception as error:
        bench.clock.forget()
        return Training(None, None, None, *status_of(error))


def enter(implementation: Implementation, network: Network, batch: int, bench: Bench, form: Form) -> Training:
    """An implementation that trains a network, once its neuron was checked. Raises NotTimed for a wrong one."""
    neuron = _neuron(implementation, network)
    if neuron is None:
        raise NotTimed("has no such neuron")
    status, detail = "differs", implementation.unlike
    if not detail:
        generator = torch.Generator(bench.device).manual_seed(0)
        shape, dtype = (network.steps, *CHECKED), network.autocast or torch.float32
        x, cotangent = (torch.randn(shape, device=bench.device, dtype=dtype, generator=generator) for _ in range(2))
        x.add_(0.5).requires_grad_()
        reference = sc.LIF(2.0, backend=REFERENCE) if network.neuron is None else network.neuron(REFERENCE)
        expected = observe(reference.to(bench.device), x, cotangent)
        verdict = checked(implementation, neuron, x, cotangent, expected, bench.clock)
        status, detail = verdict.status, verdict.detail
    trained = train(network, batch, bench, neuron, implementation.backend or REFERENCE, form)
    return replace(trained, status=status, detail=detail)


def _neuron(implementation: Implementation, network: Network) -> Optional[Callable[[], nn.Module]]:
    """Maker of the neuron of a network; another library has none where it is not LIF."""
    if network.neuron is None or implementation.backend is None:
        return implementation.in_network if network.neuron is None else None
    return partial(network.neuron, implementation.backend)


def train(
    network: Network, batch: int, bench: Bench, neuron: Callable[[], nn.Module], backend: str, form: Form
) -> Training:
    """Set a network up, and measure the memory of a step once a few have been made."""
    clock, device = bench.clock, bench.device
    before = clock.allocated()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = form.network(network.make(network.steps, neuron).to(device))
    images, labels = _batch(network, batch, device, form)
    optimizer = form.optimizer(net.parameters(), device)
    step = sc.training_model(net, form.loss(), optimizer, backend=backend, options=form.options(network))

    def call(i: int) -> Any:
        with precision("high" if network.tf32 else "highest"):
            return step(images, labels)

    # a graph that is replayed allocates nothing, so what it takes is seen in the last step before its capture
    for i in range(WARM_UP - 2):
        call(i)
    peak, held = clock.peak(lambda: call(0)), clock.allocated()
    for i in range(2):
        call(i)
    if not torch.isfinite(call(0)[1]):
        raise NotTimed("the loss is not finite after a few steps", "failed")
    if peak is None or before is None or held is None:
        return Training(call, None, None)
    owned = held - before + peak
    return Training(call, owned, owned - _kept(net, optimizer))


def _batch(network: Network, batch: int, device: torch.device, form: Form) -> Tuple[Tensor, Tensor]:
    """Images and labels."""
    generator = torch.Generator(device).manual_seed(0)
    shape = (network.steps, batch) if network.in_time else (batch,)
    images = form.images(torch.rand(*shape, *network.image, device=device, generator=generator))
    return images, torch.randint(network.classes, (batch,), device=device, generator=generator)


def train_by_jelly(network: Network, batch: int, bench: Bench, form: Form) -> Training:
    """SpikingJelly's network under its own CUDA graph, as its trainers have it with ``execution_mode="cuda_graph"``.

    Forward, loss and backward are replayed; the optimiser's step, what clears gradients and the reset of the states are
    outside.
    """
    device, inside = bench.device, import_module("spikingjelly.activation_based._cuda_graph")
    reset = import_module("spikingjelly.activation_based.functional").reset_net
    if network.of_spikingjelly is None:
        raise NotTimed("is not ready there")
    torch.manual_seed(0)
    ready: Any = network.of_spikingjelly(network.steps)
    net = form.network(ready.net.to(device))
    inside.validate_cuda_graph_model(net)
    images, labels = _batch(network, batch, device, form)
    optimizer, loss_of = form.optimizer(net.parameters(), device), form.loss()

    def step(images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(device.type, network.autocast, enabled=network.autocast is not None):
            scores = net(images)
        loss: Tensor = loss_of(scores, labels)
        loss.backward()
        return loss

    replayed = inside.StaticCudaGraph(step, WARM_UP)

    def call(i: int) -> Any:
        optimizer.zero_grad(set_to_none=False)
        loss = replayed(images, labels)
        optimizer.step()
        reset(net)
        return loss

    for i in range(WARM_UP + 2):
        call(i)
    if not torch.isfinite(call(0)):
        raise NotTimed("the loss is not finite after a few steps", "failed")
    return Training(call, None, None)


def _kept(net: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of parameters, buffers and of what the optimiser keeps."""
    kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return sum(value.element_size() * value.numel() for value in (*net.parameters(), *net.buffers(), *kept))
