"""Ten steps of training with each engine of torch for several processes, compared with those of one process.

Each function runs in all processes and gives the largest difference of the weights, relative to the largest weight of
their tensor.
"""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, Iterator, Tuple

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import several
import spikecore as sc

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
T, B, N = 5, 8, 12
NARROW = (1.99, 2.01)


def network(backend: str, step: str = "multi", encoder: bool = True, narrow: bool = False) -> nn.Sequential:
    """Four layers with learnt time constants: for each neuron, and one for all. ``narrow``: in a range that ten steps
    leave.
    """
    torch.manual_seed(0)
    taus, bounds = (torch.full((N,), 2.0), torch.tensor([2.0])), {"tau": NARROW if narrow else (1, None)}
    return nn.Sequential(
        sc.encode.Constant(T) if encoder else nn.Identity(),
        nn.Linear(8, N),
        sc.LIF(taus[0], threshold=0.5, learn=("tau",), bounds=bounds, step=step, backend=backend),
        nn.Linear(N, 4),
        sc.LI(taus[1], learn=("tau",), step=step, backend=backend),
    )


def batches(count: int = 10, seed: int = 0) -> Iterator[Tuple[Tensor, Tensor]]:
    """Images and labels."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield torch.rand(B, 8, generator=generator) * 2, torch.randint(0, 4, (B,), generator=generator)


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of the mean potential, a mean over the batch."""
    return nn.functional.cross_entropy(outputs.mean(0), labels)


def over_time(net: nn.Module) -> Callable[[Tensor], Tensor]:
    """A single-step network over all steps of a constant input, from rest."""

    def run(x: Tensor) -> Tensor:
        sc.reset(net)
        return torch.stack([net(x) for _ in range(T)])

    return run


def train(net: nn.Module, call: Callable[[Tensor], Tensor], part: slice, pieces: int = 1) -> None:
    """Ten steps on a part of each batch; with ``pieces``, gradients are accumulated over pieces of the part."""
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for x, y in batches():
        optimizer.zero_grad()
        mine = [*zip(x[part].chunk(pieces), y[part].chunk(pieces))]
        for number, (some, labels) in enumerate(mine):
            sync = number == len(mine) - 1 or not isinstance(net, DistributedDataParallel)
            with torch.enable_grad() if sync else net.no_sync():
                (loss(call(some), labels) / pieces).backward()
        optimizer.step()


def alone(backend: str, step: str = "multi", narrow: bool = False) -> Dict[str, Tensor]:
    """The weights of one process."""
    net = network(backend, step, encoder=step == "multi", narrow=narrow)
    train(net, net if step == "multi" else over_time(net), slice(None))
    weights = net.state_dict()
    assert not narrow or set(NARROW) & {round(value, 6) for value in weights["2.tau"].tolist()}, "all stayed inside"
    return weights


def difference(found: Dict[str, Tensor], expected: Dict[str, Tensor]) -> float:
    """The largest one of all weights."""
    assert list(found) == list(expected)
    return max(((found[name] - value).abs().max() / value.abs().max()).item() for name, value in expected.items())


def own(rank: int, world: int) -> slice:
    """This process's part of a batch."""
    return slice(rank * B // world, (rank + 1) * B // world)


def ddp(rank: int, world: int, store: str, backend: str, how: str, **options: Any) -> float:
    """``DistributedDataParallel``."""
    with several.group(rank, world, store):
        step, narrow = ("single" if how == "single" else "multi"), how == "ranges"
        net = network(backend, step, encoder=step == "multi", narrow=narrow)
        wrapped = DistributedDataParallel(net, **options)
        if how == "training_model":
            trained = sc.training_model(wrapped, loss, torch.optim.Adam(net.parameters(), 1e-2))
            for x, y in batches():
                trained(x[own(rank, world)], y[own(rank, world)])
        else:
            call = over_time(wrapped) if step == "single" else wrapped
            train(wrapped, call, own(rank, world), pieces=2 if how == "accumulated" else 1)
        return difference(net.state_dict(), alone(backend, step, narrow))


def ddp_carried(rank: int, world: int, store: str, backend: str, static_graph: bool) -> float:
    """Gradients through two calls of ``DistributedDataParallel`` that go on from each other, with tau a buffer."""
    with several.group(rank, world, store):
        net = network(backend, encoder=False)
        net[2] = sc.LIF(torch.full((N,), 2.0), threshold=0.5, backend=backend)
        whole = copy.deepcopy(net)
        # older torch writes to buffers at each call, which a call before may have saved for backward
        older = {} if TORCH >= (2, 13) else {"broadcast_buffers": False}
        wrapped = DistributedDataParallel(net, static_graph=static_graph, **older)
        x = torch.rand(6, B, 8, generator=torch.Generator().manual_seed(1)) * 2
        for one, given in ((wrapped, x[:, own(rank, world)]), (whole, x)):
            with sc.carry_state(one):
                torch.cat([one(chunk) for chunk in given.split(3)]).square().mean().backward()
        pairs = zip(net.parameters(), whole.parameters())
        return max(((a.grad - b.grad).abs().max() / b.grad.abs().max()).item() for a, b in pairs)


def sharded(net: nn.Module, how: str, reshard: bool = True) -> nn.Module:
    """``net`` after ``fully_shard`` of the whole, or of each layer as well."""
    from torch.distributed.fsdp import fully_shard

    for part in net if how == "each" else ():
        if any(True for _ in part.parameters()):
            fully_shard(part, reshard_after_forward=reshard)
    return fully_shard(net)


def gathered(net: nn.Module) -> Dict[str, Tensor]:
    """The whole weights, in process 0; all others get none."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(net, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def fsdp(rank: int, world: int, store: str, backend: str, how: str, step: str, reshard: bool) -> float:
    """FSDP2."""
    with several.group(rank, world, store):
        net = sharded(network(backend, step, encoder=step == "multi"), how, reshard)
        if step == "single":
            train(net, over_time(net), own(rank, world))
        else:  # with clipping, whose norm is of all shards
            options = sc.TrainingOptions(clip_norm=100.0)
            trained = sc.training_model(net, loss, torch.optim.Adam(net.parameters(), 1e-2), options=options)
            for x, y in batches():
                trained(x[own(rank, world)], y[own(rank, world)])
        found = gathered(net)
        return difference(found, alone(backend, step)) if rank == 0 else 0.0


def fsdp_ranges(rank: int, world: int, store: str, backend: str) -> float:
    """A time constant that the optimiser puts outside its range, in shards."""
    with several.group(rank, world, store):
        net = sharded(network(backend, narrow=True), "each")
        train(net, net, own(rank, world))
        sc.functional.project(net)
        found = gathered(net)
        return difference(found, alone(backend, narrow=True)) if rank == 0 else 0.0


def pipeline(rank: int, world: int, store: str, backend: str, schedule: str, encoder: bool) -> float:
    """``torch.distributed.pipelining``: micro-batches of two samples, with time first or from an encoder."""
    from torch.distributed import pipelining
    from torch.distributed.pipelining.microbatch import TensorChunkSpec

    with several.group(rank, world, store):
        net = network(backend, encoder=encoder)
        whole = copy.deepcopy(net)
        places = {2: (0, 3, 5), 4: (0, 2, 3, 4, 5)}[world]
        part = net[places[rank] : places[rank + 1]]
        stage = pipelining.PipelineStage(part, rank, world, torch.device("cpu"))
        spec = {} if encoder else {"args_chunk_spec": (TensorChunkSpec(1),)}
        options = {"loss_fn": loss, "output_merge_spec": TensorChunkSpec(1), **spec}
        kind = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}[schedule]
        run = kind(stage, B // 2, **options)
        parameters = [*part.parameters()]
        optimizers = [torch.optim.Adam(some, 1e-2) for some in (parameters, [*whole.parameters()])]
        alike = 0.0
        for x, y in batches():
            x = x if encoder else x.expand(T, *x.shape)
            for one in optimizers:
                one.zero_grad()
            outputs = run.step(*([x] if rank == 0 else []), **({"target": y} if rank == world - 1 else {}))
            expected = whole(x)
            loss(expected, y).backward()
            if rank == world - 1:
                alike = max(alike, (outputs - expected).abs().max().item())
            for one in optimizers:
                one.step()
        parts: Any = [None] * world
        distributed.all_gather_object(parts, (part.state_dict(), alike))
        found = {name: value for state, _ in parts for name, value in state.items()}
        return max(difference(found, whole.state_dict()), *[value for _, value in parts])
