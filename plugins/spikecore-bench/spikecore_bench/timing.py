"""Time of a call: clocks for the host and for a GPU, and repetitions that are fair.

Rules of this module:

- What differs between devices is in the clocks, and nowhere else.
- Implementations take turns, again and again, so that all meet the same machine; a figure is the median over the turns.
- A turn is as many calls as fill ``at_least`` seconds. Compilation is over before the first of them.
- What an implementation raises becomes a :class:`Failure`: words, so that no traceback keeps tensors alive.
"""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Union

import torch

#: ``call(i)`` makes the i-th call, on the i-th of the input sets that take turns.
Call = Callable[[int], Any]
#: ``turn(call, begin, calls)``: seconds of the calls ``begin`` to ``begin + calls``, of whatever stands for a call.
Turn = Callable[[Any, int, int], float]


@dataclass(frozen=True)
class Plan:
    """Plan of repetitions: ``repetitions`` turns of ``at_least`` seconds; fewer where they would take over
    ``patience``.
    """

    repetitions: int = 9
    at_least: float = 0.02
    patience: float = 1.0
    #: Calls of a turn where they need no search: a profile counts kernels, and no time of the host.
    fixed: int = 0

    def calls(self, seconds: float) -> int:
        """Calls in one turn, for a call that takes so long."""
        return max(1, min(10_000, math.ceil(self.at_least / max(seconds, 1e-7))))

    def turns(self, seconds: float) -> int:
        """Turns, for a turn that takes so long: never fewer than three, or than asked for."""
        return max(min(3, self.repetitions), min(self.repetitions, int(self.patience / max(seconds, 1e-7))))


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median over the turns, the fastest and the slowest; how many turns, of how many calls."""

    seconds: float
    low: float
    high: float
    turns: int
    calls: int


@dataclass(frozen=True)
class Failure:
    """Failure of a measurement, with its reason."""

    reason: str


def failure(error: BaseException) -> Failure:
    """An exception in one line of words."""
    lines = str(error).strip().splitlines()
    kind = type(error).__name__
    return Failure(f"{kind}: {lines[0]}" if lines else kind)


class HostClock:
    """The wall clock of the host, for a device that computes while the call runs."""

    #: Name of the clock that ``on_device`` reads.
    name = "host clock"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def synchronize(self) -> None:
        """Wait until the device has nothing left to do."""

    def batch(self, call: Call, begin: int, calls: int) -> float:
        """Seconds on the host for some calls with one synchronisation, at the end."""
        self.synchronize()
        start = time.perf_counter()
        for i in range(begin, begin + calls):
            call(i)
        self.synchronize()
        return time.perf_counter() - start

    def each(self, call: Call, begin: int, calls: int) -> float:
        """Seconds on the host for some calls with a synchronisation after each."""

        def waited(i: int) -> None:
            call(i)
            self.synchronize()

        return self.batch(waited, begin, calls)

    #: Seconds that the device takes, and those without what lies between its kernels; here both are the host's.
    on_device = batch
    kernels = batch

    def peak(self, call: Callable[[], Any]) -> Optional[int]:
        """Bytes that a call allocates beyond what is there before it, at its peak; None where nobody counts."""
        return None

    def allocated(self) -> Optional[int]:
        """Bytes that tensors hold now; None where nobody counts."""
        return None

    def cache_bytes(self) -> int:
        """Size of the last cache before the memory, or something larger."""
        return 64 << 20

    def free_bytes(self) -> int:
        """Memory that may be used."""
        return 8 << 30

    def forget(self) -> None:
        """Give back what is cached, after a failure or between cases."""
        gc.collect()


class CudaClock(HostClock):
    """Events in the stream of a GPU, and torch's account of its memory."""

    name = "CUDA events"

    def synchronize(self) -> None:
        """Wait for every stream of the device."""
        torch.cuda.synchronize(self.device)

    def on_device(self, call: Call, begin: int, calls: int) -> float:
        """Seconds between two events around the calls, in the current stream."""
        self.synchronize()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for i in range(begin, begin + calls):
            call(i)
        end.record()
        self.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def kernels(self, call: Call, begin: int, calls: int) -> float:
        """The sum over kernels and copies, as torch's profiler has it."""
        self.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
            for i in range(begin, begin + calls):
                call(i)
            self.synchronize()
        # it was called self_cuda_time_total before torch 2.4
        event = torch.autograd.profiler_util.FunctionEvent
        called = f"self_{'device' if hasattr(event, 'self_device_time_total') else 'cuda'}_time_total"
        return sum(float(getattr(one, called)) for one in profiled.events() or ()) / 1e6

    def peak(self, call: Callable[[], Any]) -> Optional[int]:
        """Bytes, as torch's allocator counts them."""
        self.synchronize()
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        call()
        self.synchronize()
        return int(torch.cuda.max_memory_allocated(self.device) - before)

    def allocated(self) -> Optional[int]:
        """Bytes, as torch's allocator counts them."""
        return int(torch.cuda.memory_allocated(self.device))

    def cache_bytes(self) -> int:
        """The L2 cache."""
        return int(getattr(torch.cuda.get_device_properties(self.device), "L2_cache_size", 0)) or 64 << 20

    def free_bytes(self) -> int:
        """Free bytes of the driver, and those that torch holds unused."""
        free, _ = torch.cuda.mem_get_info(self.device)
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(free + unused)

    def forget(self) -> None:
        """Collect garbage and give cached memory back to the driver."""
        gc.collect()
        torch.cuda.empty_cache()


def clock_for(device: torch.device) -> HostClock:
    """The clock of a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock(device)


@contextlib.contextmanager
def precision(name: str) -> Iterator[None]:
    """Products of float32 matrices: ``highest``, or ``high`` for TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _Runner:
    """One implementation under way: its calls so far and the turns it has had."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.made = 0
        self.calls = self.turns = 1
        self.seconds: List[float] = []

    def measure(self, turn: Turn, calls: int) -> float:
        begin, self.made = self.made, self.made + calls
        return turn(self.call, begin, calls) / calls

    def warm_up(self, turn: Turn, plan: Plan) -> None:
        if plan.fixed:
            self.measure(turn, 1)
            self.calls, self.turns = plan.fixed, plan.repetitions
            return
        self.measure(turn, 1)  # compiles, tunes, allocates
        once = self.measure(turn, 1)
        if once >= plan.patience:  # a turn is one call, whatever more is known of it
            self.turns = plan.turns(once)
            return
        once = min(once, self.measure(turn, 1))
        # a quarter of a turn says how long a call takes once everything is warm
        warm = self.measure(turn, max(1, plan.calls(once) // 4))
        self.calls = plan.calls(warm)
        self.turns = plan.turns(warm * self.calls)

    def timing(self) -> Timing:
        seconds = self.seconds
        return Timing(statistics.median(seconds), min(seconds), max(seconds), len(seconds), self.calls)


def interleave(
    calls: Mapping[str, Any], turn: Turn, plan: Plan, paired: bool = False
) -> Dict[str, Union[Timing, Failure]]:
    """Time every call, in turns. A call that raises is out of the race, and its failure is its result.

    ``paired``: all have as many turns as the slowest, so that medians are of the same time.
    """
    found: Dict[str, Union[Timing, Failure]] = {}
    racing: Dict[str, _Runner] = {}
    for name, call in calls.items():
        runner = _Runner(call)
        try:
            runner.warm_up(turn, plan)
        except Exception as error:
            found[name] = failure(error)
        else:
            racing[name] = runner
    rounds = min((runner.turns for runner in racing.values()), default=0) if paired else plan.repetitions
    for round_ in range(rounds):
        for name, runner in list(racing.items()):
            if round_ < runner.turns:
                try:
                    runner.seconds.append(runner.measure(turn, runner.calls))
                except Exception as error:
                    found[name] = failure(error)
                    del racing[name]
    found.update({name: runner.timing() for name, runner in racing.items()})
    return {name: found[name] for name in calls}
