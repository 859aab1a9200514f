"""Use of ``torch.cuda`` by a captured step: a side stream, a check for synchronisation, capture, and recovery.

Rules of this module:

- Nothing here depends on networks or optimisers: work is a function without arguments.
- Work runs on one side stream, after what the caller's stream holds, and the caller's stream waits for it.
- After a capture that failed the process goes on: stream, allocator and random generators are put back.
"""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from contextlib import suppress
from typing import Any, Callable, ClassVar, Dict, Hashable, Iterable, List, NamedTuple, Sequence, Tuple
from typing import Counter as Counts

import torch
from torch import Tensor, nn

from spikecore.batches import flattened, tree_map

Work = Callable[[], Any]

#: Texts of torch's warnings in its debug mode: the host waited; and that the mode is a prototype, which is no news to
#: a user who did not ask for it.
_SYNCHRONISES = "called a synchronizing CUDA operation"
_PROTOTYPE = "Synchronization debug mode is a prototype"


class Capture:
    """Runs and captures work on one GPU."""

    #: The type of device whose work is captured.
    device_type: ClassVar[str] = "cuda"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # a capture is refused on the default stream
        self._stream = torch.cuda.Stream(device)
        # one pool for all graphs of a step: they run one after the other, so that they can share memory
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, work: Work) -> Any:
        """The result of ``work``, run now on the side stream.

        Its memory is used again by later work only, which waits for what the caller's stream does with it.
        """
        current = torch.cuda.current_stream(self.device)
        # the caller may have just put the batch onto its stream
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                return work()
        finally:
            # after an error, too: the side stream may still write memory that the caller uses again
            current.wait_stream(self._stream)

    def watch(self, work: Work) -> Tuple[Any, List[str]]:
        """Result of :meth:`run`, and the places (``file:line``) where ``work`` made the host wait for the GPU."""
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as seen:
            # whatever filters the user has set: one that ignores or raises would hide a place
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                result = self.run(work)
            finally:
                torch.cuda.set_sync_debug_mode(before)
        places = []
        for warning in seen:
            if _SYNCHRONISES in str(warning.message):
                places.append(f"{warning.filename}:{warning.lineno}")
            elif _PROTOTYPE not in str(warning.message):
                # the network's own warnings were caught with those of the debug mode
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        return result, places

    def record(self, work: Work, generators: Sequence[torch.Generator]) -> Work:
        """Capture ``work`` without running it; the function returned replays it on the caller's stream.

        What that returns is the same tensors at every call, filled anew. ``generators`` are those that ``work`` draws
        from, beside torch's default generator, which torch registers with every graph.
        """
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        # Python runs work once, during capture; a replay fills the memory of these results
        results: List[Any] = []
        try:
            self._within(graph, lambda: results.append(work()))
        except Exception:
            self._mend(generators)
            raise

        def replay() -> Any:
            graph.replay()
            return results[0]

        return replay

    def forget(self) -> None:
        """Wait for the GPU, so that graphs can be dropped; graphs to come get memory of their own."""
        torch.cuda.synchronize(self.device)
        # a pool whose graphs are gone cannot be captured into again
        self._pool = torch.cuda.graph_pool_handle()

    def _within(self, graph: torch.cuda.CUDAGraph, work: Work) -> None:
        first: List[Exception] = []
        current = torch.cuda.current_stream(self.device)
        # an old graph that the garbage collector finds meanwhile is destroyed, which would spoil the capture
        gc.collect()
        collecting = gc.isenabled()
        gc.disable()
        try:
            # torch.cuda.graph does not go back to the caller's stream when its own exit fails; the outer context does.
            # thread_local: loader threads that pin memory meanwhile neither fail nor spoil the capture.
            with torch.cuda.stream(current), torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                try:
                    work()
                except Exception as error:
                    first.append(error)
                    raise
        except Exception as error:
            if first and error is not first[0]:
                raise first[0] from error  # the reason, rather than that the capture could not be ended
            raise
        finally:
            if collecting:
                gc.enable()
        current.wait_stream(self._stream)

    def _mend(self, generators: Sequence[torch.Generator]) -> None:
        """End a failed capture, for its generators, too; torch before 2.12 mostly does not do that."""
        # torch has no public functions for this: its own context manager leaves the allocator in capture after an error
        index = self.device.index
        with suppress(RuntimeError):  # it raises where torch has ended this already
            torch._C._cuda_endAllocateToPool(index, self._pool)
            torch._C._cuda_releasePool(index, self._pool)
        self.forget()
        # the generators count themselves in capture until one ends well
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        with suppress(RuntimeError):
            self._within(graph, lambda: torch.zeros(1, device=self.device))
        self.forget()


class _Graph(NamedTuple):
    """Captured work: the tensors that its inputs are copied into, the function that replays it, and the gradients that
    a replay computes.
    """

    inputs: List[Tensor]
    replay: Callable[[], Any]
    gradients: List[Tuple[nn.Parameter, Tensor]]


class GraphCache:
    """CUDA graphs on one GPU, by the kind of what they were captured for, and how often each kind ran without one."""

    def __init__(self, device: torch.device) -> None:
        self.capture = Capture(device)
        self.runs: Counts[Hashable] = Counter()
        self._graphs: Dict[Hashable, _Graph] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def __contains__(self, kind: Hashable) -> bool:
        return kind in self._graphs

    def record(
        self,
        kind: Hashable,
        inputs: Any,
        work: Work,
        generators: Sequence[torch.Generator] = (),
        parameters: Iterable[nn.Parameter] = (),
    ) -> None:
        """Capture ``work``, which reads ``inputs``; ``parameters`` are those whose gradients it computes."""
        replay = self.capture.record(work, generators)
        gradients = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
        self._graphs[kind] = _Graph(flattened(inputs), replay, gradients)

    def replay(self, kind: Hashable, inputs: Any) -> Any:
        """Result of the graph of a kind for other ``inputs``, in new tensors; the gradients are the graph's."""
        graph = self._graphs[kind]
        for buffer, value in zip(graph.inputs, flattened(inputs)):
            buffer.copy_(value.detach() if value.requires_grad else value, non_blocking=True)
        # clones: the next replay writes into the same tensors
        result = tree_map(Tensor.clone, graph.replay())
        # another graph, an eager step or zero_grad() came between
        for parameter, gradient in graph.gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient
        return result

    def clear(self) -> None:
        """Drop the graphs, and count anew."""
        if self._graphs:
            # waits for the GPU: the last replay may still run, in memory that goes with its graph
            self.capture.forget()
            self._graphs.clear()
        self.runs.clear()
