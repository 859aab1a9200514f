"""The order in which stages work on items: parts of a batch, or time steps.

At one tick stage i works on item k while stage i - 1 works on item k + 1::

    tick 0   stage 0: item 0
    tick 1   stage 0: item 1   stage 1: item 0
    tick 2   stage 0: item 2   stage 1: item 1   stage 2: item 0
    tick 3                     stage 1: item 2   stage 2: item 1
    tick 4                                       stage 2: item 2

One Python thread launches all of it; kernels on different GPUs run at the same time, since launches return at once.

The order within a tick decides whether they do. A copy between two GPUs waits for what was launched before on both, and
what is launched after it on either one waits for the copy. So a tick launches the work of every stage first and all
copies last: no stage waits for another one's work of the same tick. The backward pass of autograd, which goes through
each device's work from the last launch to the first, gets the same order reversed.

Streams: work and copies are on the current stream of each device, where torch orders copies by events and frees memory
in the order of its use. A stream of its own for copies would save the wait at the end of a tick, and would need events
in the backward pass as well, which runs a copy's backward on the stream of its forward pass.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Dict, Iterator, Sequence

import torch

from spikecore._base.batches import to_device


def ticks(
    devices: Sequence[torch.device],
    items: int,
    source: Callable[[int], Any],
    work: Callable[[int, int, Any], Any],
) -> Iterator[Any]:
    """The result of the last stage for each item, in order.

    ``source(item)`` is what enters stage 0; ``work(stage, item, x)`` is what a stage makes of it.
    """
    depth = len(devices)
    waiting: Dict[int, Any] = {}
    for tick in range(items + depth - 1):
        if tick < items:
            waiting[0] = to_device(source(tick), devices[0])
        # the last stage first: what it frees is there for those before it on the same device
        active = range(min(depth - 1, tick), max(0, tick - items + 1) - 1, -1)
        made: Dict[int, Any] = {}
        for stage in active:
            with on(devices[stage]):
                made[stage] = work(stage, tick - stage, waiting.pop(stage))
        for stage in active:
            if stage < depth - 1:
                waiting[stage + 1] = to_device(made.pop(stage), devices[stage + 1])
        if depth - 1 in made:
            yield made[depth - 1]


def on(device: torch.device) -> ContextManager[Any]:
    """The block in which ``device`` is the current one of its kind, as kernels of plugins expect it."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
