"""Spikes as bits within a compiled network: what its graph saves, and the numbers it gives."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from kernel_loop import Loop, bound
from spikecore.bench import models
from spikecore.kernels import _registered
from spikecore.training._packed import compiled

pytestmark = pytest.mark.skipif(
    not (_registered.SUPPORTED and hasattr(getattr(torch, "compiler", None), "is_compiling")),
    reason="torch.compile through kernels needs torch 2.4",
)


def neuron() -> sc.Neuron:
    """A neuron with kernels that are a loop of torch."""
    return bound(sc.LIF(), Loop())


class Block(nn.Module):
    """Convolution and neuron, with something between the spikes and the next convolution."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.between = between
        self.first, self.second = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 2)
        self.neuron = neuron()

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x.flatten(0, 1))
        z = self.neuron(y.view(*x.shape[:2], *y.shape[1:]))
        return self.second(self.between(z.flatten(0, 1)))


def traced(
    make: Callable[[], nn.Module], x: Tensor, packs: bool
) -> Tuple[List[Tensor], Dict[Tuple[Any, ...], int], int]:
    """One step of a network that AOTAutograd takes apart, with our pass or without."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    made: List[int] = [0]

    def partition(joint: Any, inputs: Any, **kwargs: Any) -> Any:
        if packs:
            made[0] = compiled.pack(joint.graph)
            joint.recompile()
        return min_cut_rematerialization_partition(joint, inputs, **kwargs)

    torch._dynamo.reset()
    torch.manual_seed(0)
    net = make()
    run = torch.compile(
        net,
        backend=aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph.forward), partition_fn=partition),
        fullgraph=True,
    )
    saved: Dict[Tuple[Any, ...], int] = {}

    def keep(tensor: Tensor) -> Tensor:
        key = tensor.dtype, tuple(tensor.shape)
        saved[key] = saved.get(key, 0) + 1
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = run(x)
    out.square().mean().backward()
    return [out, *[p.grad for p in net.parameters() if p.grad is not None]], saved, made[0]


#: What stands between spikes [6, 8, 8, 8] and a convolution: name -> (function, shape, bits of a number; 0: whole).
BETWEEN: Dict[str, Tuple[Callable[[Tensor], Tensor], Tuple[int, ...], int]] = {
    "nothing": (lambda z: z, (6, 8, 8, 8), 1),
    "a copy": (lambda z: z.clone(memory_format=torch.channels_last), (6, 8, 8, 8), 1),
    "max": (nn.MaxPool2d(2), (6, 8, 4, 4), 1),
    "average": (nn.AvgPool2d(2), (6, 8, 4, 4), 4),
    "average of 9": (nn.AvgPool2d(3), (6, 8, 2, 2), 0),
    "sum": (lambda z: z + z.flip(0), (6, 8, 8, 8), 2),
    "product": (lambda z: z * z.flip(0), (6, 8, 8, 8), 1),
    "difference": (lambda z: z - z.flip(0), (6, 8, 8, 8), 0),
    "written": (lambda z: z.clone().mul_(0.5), (6, 8, 8, 8), 0),
    "sum, weighted": (lambda z: torch.add(z, z.flip(0), alpha=4), (6, 8, 8, 8), 0),
    "dropout": (nn.Dropout(0.5), (6, 8, 8, 8), 0),
}


@pytest.mark.parametrize(
    ("name", "last"), [*[(name, True) for name in BETWEEN], ("nothing", False), ("average", False), ("sum", False)]
)
def test_what_the_graph_saves(name: str, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits in place of spikes, and of what is made of them; whole what is not known. The numbers are the same."""
    monkeypatch.setattr(compiled, "LEAST", 64)
    between, shape, bits = BETWEEN[name]
    x = torch.rand(3, 2, 4, 8, 8, generator=torch.Generator().manual_seed(1)) * 4
    if last:
        x = x.movedim(2, -1).contiguous().movedim(-1, 2)

    def make() -> nn.Module:
        return Block(between).to(memory_format=torch.channels_last if last else torch.contiguous_format)

    results = [traced(make, x, packs) for packs in (False, True)]
    (plain, _, _), (ours, saved, made) = results
    for one, other in zip(ours, plain):
        assert torch.equal(one, other)
    count = torch.Size(shape).numel()
    if bits:
        assert (torch.uint8, (count * bits // 8,)) in saved
        assert (torch.float32, shape) not in saved
        assert made >= 1
    elif name not in ("dropout", "product"):  # backward of others reads no spikes but through what is whole
        assert (torch.float32, shape) in saved


@pytest.mark.parametrize("fused", [False, True])
def test_residual_blocks(fused: bool) -> None:
    """SEW's sums take two bits, neurons' outputs one; every gradient is that of the unpacked graph. The sums of a fused
    network are made by the kernels of neurons.
    """

    def make() -> nn.Module:
        blocks = [models.SEWBlock(16, 16, neuron) for _ in range(2)]
        first, last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 4, 3)
        net = nn.Sequential(sc.layers.TimeBatched(first), neuron(), *blocks, sc.layers.TimeBatched(last))
        return sc.fuse(net) if fused else net

    x = torch.rand(2, 2, 3, 8, 8, generator=torch.Generator().manual_seed(1)) * 4
    (plain, whole, _), (ours, saved, _) = traced(make, x, False), traced(make, x, True)
    for one, other in zip(ours, plain):
        assert torch.equal(one, other)
    size = (4, 16, 8, 8)
    count = torch.Size(size).numel()
    # the input of the first block and both inner ones are spikes, those of the second block and the last layer sums
    assert saved[torch.uint8, (count // 8,)] == 3
    assert saved[torch.uint8, (count // 4,)] == 2
    spikes = [key for key in whole if key not in saved]
    assert (torch.float32, size) in whole
    assert all(key[0] is torch.float32 for key in spikes)


def test_an_odd_number_of_spikes_stays_whole() -> None:
    """In the graph the last byte is full."""

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 347), neuron(), nn.Linear(347, 3))

    x = torch.rand(1, 3, 5, generator=torch.Generator().manual_seed(1)) * 9
    results = [traced(make, x, packs) for packs in (False, True)]
    assert results[1][2] == 0
    for one, other in zip(results[0][0], results[1][0]):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["chunks", "learnt"])
def test_every_op_of_a_neuron(kind: str) -> None:
    """Whichever registered op a call takes: with checkpoints, or with a learnt parameter."""

    def make() -> nn.Module:
        lif = sc.LIF(learn=("tau",) if kind == "learnt" else ())
        return nn.Sequential(nn.Linear(5, 256), bound(lif, Loop(4 if kind == "chunks" else 0)), nn.Linear(256, 3))

    x = torch.rand(9, 2, 5, generator=torch.Generator().manual_seed(1)) * 9
    (plain, whole, _), (ours, saved, made) = (traced(make, x, packs) for packs in (False, True))
    for one, other in zip(ours, plain):
        assert torch.equal(one, other)
    assert made == 1
    assert (torch.uint8, (9 * 2 * 256 // 8,)) in saved
    assert (torch.uint8, (9 * 2 * 256 // 8,)) not in whole


def test_bits_are_made_by_vectors_on_a_cpu() -> None:
    """No loop over the numbers of one byte: neighbours go to different bytes, which takes a third of the time."""
    pytest.importorskip("torch._inductor.custom_graph_pass", reason="packing in the graph needs torch 2.6")
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    options = {**compiled.compiling_options(), "fx_graph_cache": False}
    run = torch.compile(Block(lambda z: z), fullgraph=True, options=options)

    def step() -> None:
        run(torch.rand(3, 2, 4, 8, 8)).sum().backward()

    _, code = run_and_get_code(step)
    text = "\n".join(code)
    assert "uint8_t*" in text
    assert "vec_reduce_all<uint8_t" not in text
    assert compiled._dim_of_places(torch.device("cuda")) == 1
