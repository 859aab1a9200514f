"""The form of a plan's kernel: how wide its accesses are, how many blocks a multiprocessor should hold, and how far
apart the groups of neurons of a thread are.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import gcd
from typing import Callable, NamedTuple, Optional, Sequence, Tuple

import torch

from spikecore.backend import Spec
from spikecore.kernels import BackwardPlan, ForwardPlan, every_gradient, smallest_cut
from spikecore.lang import Program, topological
from spikecore_cupy.derivative import Plan, derivative, inputs_in_halves, normalises
from spikecore_cupy.text import BLOCK, Form

#: Neurons that are computed side by side where threads add up what several of theirs give: enough for many waves of
#: blocks on any GPU, and so few that their sums are a small part of the memory that a call moves. The same on every
#: GPU, since the order of a sum decides its bits.
SPAN = 2**21

#: In a layer of so few neurons a thread takes up to so many groups, if it then has the whole sum of its channels: that
#: costs less than another launch to add them up.
SMALL, FEW = 4096, 8


def span_of(form: Form, neurons: int, channels: Sequence[Tuple[int, int]], whole: int) -> int:
    """Distance of the groups of a thread: in the same ``channels`` of all parameters, and about :data:`SPAN` neurons,
    or as many as the form's blocks of ``whole`` neurons have.
    """
    unit = form.width
    for inner, count in channels:
        unit *= inner * count // gcd(unit, inner * count)
    units = -(-neurons // unit)
    if form.grid:
        return min(neurons, _in_waves(units, unit, form.grid * whole) * unit)
    if neurons <= SMALL and units <= FEW and all(arrangement == (1, unit) for arrangement in channels):
        return unit
    rounds = -(-units // max(1, SPAN // unit))
    # all threads get as many groups, but for the last
    return min(neurons, -(-units // rounds) * unit)


def _in_waves(units: int, unit: int, once: int) -> int:
    """Number of ``units`` that are computed side by side, if a GPU holds ``once`` neurons at a time.

    If a unit, all channels of an image, is a large part of what a GPU holds, blocks for as many whole units as it holds
    leave multiprocessors idle, and blocks for more units run in waves, the last of which may be short. The count is
    taken for which the slowest multiprocessor has the fewest groups to compute, and of equal counts the smallest, since
    each block reads parameters and leaves sums.
    """
    first = max(1, once // unit)
    most = min(4 * first + 3, max(units, first))
    waves = range(-(-first * unit // once), -(-most * unit // once) + 1)
    # of counts with as many waves the largest has the fewest groups for each thread, and of these the smallest is taken
    counts = [min(most, max(first, wave * once // unit)) for wave in waves]
    counts = [max(first, -(-units // -(-units // count))) for count in counts]
    return min(counts, key=lambda count: (-(-count * unit // once) * -(-units // count), count))


#: Registers of a thread for values of all steps of a chunk, so that enough threads fit on a multiprocessor.
REGISTERS = 64
#: The same where there are several chunks, and the compiler is told how many blocks should fit.
CHUNK_REGISTERS = 100
#: Of the 96 registers of a thread where five blocks fit, those for what 10 steps keep of learnt parameters of each
#: channel in float32, and a few more; 12 steps keep 72.
KEPT_OF_FIVE = 62
#: Registers of a thread of a program that normalises at most, before it has fewer neurons.
MOST = 168
#: Bytes of shared memory of a block that needs no leave for more.
SHARED = 48 * 1024
#: Twice the neurons of a layer whose kernels fetch chunks ahead, at least: with fewer a thread has one number.
FEWEST = 2**16
#: Of an H100 and an H200. The blocks of programs that normalise are counted by it on every GPU, for the same reason.
MULTIPROCESSORS = 132
#: Threads of a block that fetches ahead: places in shared memory are then small enough for four neurons of a thread.
FETCHING = 64
#: Steps of a chunk at most, and at least where there is a choice.
LONGEST, SHORTEST = 16, 12
#: Bytes of shared memory of each of five or four blocks of a multiprocessor, which with a KiB more for each take at
#: most 196 KiB: blocks that take more were slower in backward.
PARTS = 39040, 47104


@lru_cache(maxsize=256)
def longest(program: Program, spec: Spec) -> int:
    """Steps of a chunk at most, where there are several: the same for forward and backward, which share checkpoints.

    A checkpoint is memory to write and to read: with 16 bits of memory one of two states costs 16 bytes beside the 10
    of each step, written and read. What backward keeps of every step of a chunk takes registers, or shared memory.
    """
    if spec.compute == torch.float64 or program.normalised or program.seeds:
        return SHORTEST
    channels = any(kind == "channel" for name, kind in zip(program.params, spec.params) if name in spec.learn)
    if spec.dtype == spec.compute and channels:
        return SHORTEST
    if spec.steps or channels or spec.dtype == spec.compute:
        return LONGEST
    every = replace(every_gradient(program, spec, False), trace=(), final=False)
    form = Form(4, ahead=1, aside=True, threads=FETCHING)
    sizes = {n: _places(every, form._replace(length=n)) * 4 * FETCHING for n in range(LONGEST, SHORTEST - 1, -1)}
    lengths = [n for part in PARTS for n, size in sizes.items() if size <= part]
    return lengths[0] if lengths else LONGEST


class Size(NamedTuple):
    """Choices of :func:`size_of`, which a form has, too."""

    #: Chunks that the kernel fetches before it computes them.
    ahead: int = 0
    #: True if divisions of all of a thread's neurons are verified together.
    at_once: bool = False
    #: True if what backward keeps lies in shared memory.
    aside: bool = False
    #: Threads of a block at most.
    threads: int = BLOCK


class Beside(NamedTuple):
    """Result of :func:`beside_of`."""

    form: Form
    unit: int


def widest(plan: Plan) -> int:
    """Neighbouring neurons of a thread, where memory allows: 8 bytes of inputs, and fewer for a backward kernel that
    would need more than :data:`REGISTERS` for what it keeps of every step, but two at least.
    """
    bits = torch.finfo(plan.dtype).bits
    width = max(1, 64 // bits)
    if isinstance(plan, BackwardPlan):
        most = REGISTERS if plan.spec.steps else CHUNK_REGISTERS
        while width > 2 and width * _registers_of_chunk(plan) > most:
            width //= 2
    return width


def form_of(plan: Plan) -> Form:
    """The form of a plan's kernel where the number of steps, sizes and layouts of tensors allow any."""
    if normalises(plan):
        return _normalising(plan)
    width, blocks = widest(plan), 0
    if isinstance(plan, BackwardPlan) and not plan.spec.steps and not plan.learn and plan.dtype == torch.float32:
        # what is kept, and what a step needs beside it; with five blocks two states in float32 spilled registers, and
        # with six two states in bfloat16
        blocks = min(6, int(65536 // (BLOCK * (24 + width * _registers_of_chunk(plan)))))
    form = Form(width, longest(plan.program, plan.spec), blocks if blocks == 6 else 0)
    return form._replace(width=4) if _keeps_aside(plan, form) else form


def in_chunks(plan: Plan, form: Form, length: int) -> Form:
    """The form for chunks of this length. Where nothing is fetched ahead, learnt parameters of each channel want five
    blocks on a multiprocessor if what is kept leaves enough of their 96 registers: tau and threshold in float32, 25
    steps, 0.83 of a copy's speed, 0.78 as the compiler chose; where more is kept, with 12 steps, 0.77 and 0.81.

    Forward the compiler takes as few as 32 registers unless it is told that it may take more, and few loads are under
    way. Two states, 100 steps in bfloat16 on an H100: of 262,144 neurons 56 us, and 39 with four blocks; of a million
    149 and 155. LIF whose division remains, tau = 3, is the same to 2 % with and without; in float32 all are.
    """
    form = form._replace(length=length)
    if form.ahead and _fits_ahead(plan, form):
        return form._replace(blocks=4 if isinstance(plan, ForwardPlan) else 0)
    form = form._replace(ahead=0, aside=False)
    if plan.compute != torch.float32 or normalises(plan):
        return form
    if isinstance(plan, ForwardPlan):
        loaded = len(plan.program.inputs) * length * torch.finfo(plan.dtype).bits / 32
        fits = form.width * (loaded + 3 * len(plan.program.states)) <= REGISTERS
        return form._replace(blocks=4) if fits and not form.staged else form
    channels = any(plan.kinds[name] == "channel" for name in plan.learn)
    return (
        form._replace(blocks=5) if channels and form.width * _registers_of_chunk(plan, length) <= KEPT_OF_FIVE else form
    )


def size_of(plan: Plan, neurons: int) -> Size:
    """Choices of the kernel for so many neurons, if its form allows."""
    return sizes_of(plan, form_of(plan))(neurons, False)


def sizes_of(plan: Plan, form: Form) -> Callable[..., Size]:
    """A function ``size(neurons, registers=False)``: choices of a plan's kernel, if its form allows. ``registers``:
    True if what backward keeps is to stay there: where steps divide by numbers that are no powers of two, and in short
    chunks.
    """
    none, halves = Size(threads=form.threads), plan.dtype != plan.compute
    apart = form.staged or form.together or "step" in plan.broadcast
    if plan.compute != torch.float32 or plan.spec.steps or normalises(plan) or apart:
        return lambda neurons, registers=False: none
    aside, threads, single, fewest = _keeps_aside(plan, form), FETCHING, False, FEWEST // 2
    # few threads have little under way: forward they fetch two chunks of an input
    one = isinstance(plan, ForwardPlan) and len(plan.program.inputs) == 1
    if isinstance(plan, BackwardPlan):
        single = len(plan.program.states) == 1 and not plan.learn
        if any(plan.kinds[name] == "channel" for name in plan.learn):
            if not halves:
                return lambda neurons, registers=False: none
            threads = BLOCK
        # what a block adds up is arranged over more of them
        threads, fewest = BLOCK if plan.summed else threads, 0 if halves else fewest

    def size(neurons: int, registers: bool = False) -> Size:
        # threads of many neurons that keep one number of a step hide each other's waiting; in float32 those of so many
        # that a second wave of blocks is short do not
        many = FEWEST if not halves else 8 * FEWEST if registers else 20 * FEWEST
        short = not halves and 2 * FEWEST <= neurons < 4 * FEWEST
        if neurons < fewest or (single and neurons >= many and not short) or (neurons % 2 and not halves):
            return none
        few = halves and FEWEST <= neurons < 2 * FEWEST
        twice = one and neurons < (FEWEST if halves else 2 * FEWEST)
        return Size(1 + twice, few, aside and not registers and neurons > 2 * FEWEST, threads)

    return size


def _keeps_aside(plan: Plan, form: Form) -> bool:
    """True if shared memory has a place for what four neurons of a thread keep of a chunk, in 16 bits."""
    if plan.spec.steps or not isinstance(plan, BackwardPlan) or plan.dtype == plan.compute or plan.summed:
        return False
    if any(plan.kinds[name] == "channel" for name in plan.learn):
        return False
    return _fits_ahead(plan, form._replace(width=4, ahead=1, aside=True, threads=FETCHING))


def _fits_ahead(plan: Plan, form: Form) -> bool:
    """True if a thread copies 4 bytes at least, and a block needs no leave for its places in shared memory."""
    if form.staged or form.together:
        return False
    stored = torch.finfo(plan.dtype).bits // 8
    return form.width * stored >= 4 and _places(plan, form) * form.width * form.threads <= SHARED


def _places(plan: Plan, form: Form) -> int:
    """Bytes of shared memory for a neuron."""
    stored, real = torch.finfo(plan.dtype).bits // 8, torch.finfo(plan.compute).bits // 8
    size = form.ahead * len(plan.program.inputs) * form.length * stored
    if isinstance(plan, BackwardPlan):
        arriving = sum(plan.outputs) * stored + len(plan.trace) * real
        size += form.ahead * (form.length * arriving + len(plan.recomputed_states) * real)
        size += form.length * _kept_bytes(plan) if form.aside else 0
        size += real if plan.learn else 0  # parts of sums
        size += form.length * real if plan.summed else 0
    return size


def _kept_bytes(plan: BackwardPlan) -> int:
    """Bytes of what the adjoint of a step takes of that step's recomputation, and of inputs that both read."""
    roots = derivative(plan).roots
    cut = smallest_cut(roots)
    inputs = [node for node in topological(roots, known=cut) if node.op == "input"]
    return (len(cut) * torch.finfo(plan.compute).bits + len(inputs) * torch.finfo(plan.dtype).bits) // 8


def beside_of(plan: Plan) -> Optional[Beside]:
    """The form of a plan's kernel for steps that begin beside a sector of memory, and of how many numbers steps are a
    multiple where they take :func:`form_of`; None for plans that always take that.

    Forward, steps go through shared memory. Backward that would hold as much of it again, and of the registers that
    its few threads have: numbers are read one by one, by blocks so large that few sectors are written by two. Over
    many steps warps drift apart, and what is left of a sector is written long after the rest: where memory is the
    limit, they wait for one another. Inputs that broadcast are read by neighbouring neurons alone.
    """
    size = torch.finfo(plan.dtype).bits // 8
    if size == 8 or normalises(plan) or plan.broadcast:
        return None
    form = form_of(plan)
    if isinstance(plan, BackwardPlan):
        if plan.trace or plan.learn:
            return None
        together = size == 4 and not plan.spec.steps
        # of blocks of 512 threads, each with the values of two states, a multiprocessor would hold one
        large = together and _registers_of_chunk(plan) <= REGISTERS // 2
        return Beside(form._replace(width=1, blocks=0, threads=512 if large else 256, together=together), 2)
    # a thread's staged neurons are no neighbours, which values of a channel are read for
    if plan.record or "channel" in plan.kinds.values():
        return None
    form = form._replace(width=8 // size, staged=True)
    buffers = max(len(plan.program.inputs), len(plan.program.outputs))
    for threads in (256, 128):
        if buffers * (plan.spec.steps or form.length) * (form.width * threads * size + 32) <= SHARED:
            return Beside(form._replace(threads=threads), 8 if size == 4 else 4)
    return None


def _normalising(plan: Plan) -> Form:
    """The form of a kernel of a program that normalises: as many blocks as a GPU holds at once, with many groups of
    neurons for each thread. With a few blocks more the last ones run alone: the first pass backwards of 64 x 32 x 32
    in bfloat16 took 42 us with 132 * 6 of them, and 54 with 132 * 8.
    """
    width = max(1, 64 // torch.finfo(plan.dtype).bits)
    if isinstance(plan, ForwardPlan):
        # The second pass backwards begins where the first one ended: that is in the cache. Where it finds the gradient
        # of the input from that of a shortcut, it is a forward kernel without states.
        return Form(width, grid=12 * MULTIPROCESSORS, down=bool(plan.program.states))
    each, least = _registers_of_chunk(plan), _fewest_registers(plan)
    while width > 2 and _needed(plan, width, least) > MOST:
        width //= 2
    blocks = max([1, *(count for count in range(2, 7) if _needed(plan, width, least) <= _registers(count))])
    # what the registers have no place for is computed again: the compiler would keep it in memory
    again = _needed(plan, width, each) > _registers(blocks)
    return Form(width, blocks=blocks, grid=blocks * MULTIPROCESSORS, down=not plan.inputs[0], again=again)


def _registers(blocks: int) -> int:
    """Registers that a thread may have where a multiprocessor holds so many blocks."""
    return min(255, 65536 // (BLOCK * blocks) // 8 * 8)


def _needed(plan: BackwardPlan, width: int, each: float) -> float:
    """Registers of a thread of a backward kernel that normalises, as compiled, with ``each`` for every neuron.

    A second normalised input has sums and parameters of its own: behind two, LIF in bfloat16 spilled 300 bytes of a
    thread with six blocks on a multiprocessor, 200 with five and none with four. Of another input the numbers of all
    steps are loaded first: with 4 steps and a shortcut LIF spilled 176 bytes where these were not counted.
    """
    bits, word = torch.finfo(plan.dtype).bits, torch.finfo(plan.compute).bits
    normalised = max(len(plan.program.normalised), len(plan.program.seeds), 1)
    loaded = (len(plan.program.inputs) - normalised) * _steps(plan) * bits / word
    return (20 if plan.spec.steps else 40) + width * (4.5 + 8 * (normalised - 1) + loaded + each) * word / 32


def _fewest_registers(plan: BackwardPlan) -> float:
    """The same as :func:`_registers_of_chunk` where the adjoint computes again what it can."""
    inputs, bits, word = inputs_in_halves(plan), torch.finfo(plan.dtype).bits, torch.finfo(plan.compute).bits
    cut = smallest_cut(derivative(plan).roots, inputs)
    loaded = sum(node in inputs for node in cut)
    return _steps(plan) * (len(cut) - loaded + (loaded + sum(plan.outputs)) * bits / word)


def _registers_of_chunk(plan: BackwardPlan, length: int = 0) -> float:
    """Registers for what a backward kernel keeps of every step of a chunk, of one neuron; of chunks of this ``length``,
    by default of the longest.
    """
    bits, word = torch.finfo(plan.dtype).bits, torch.finfo(plan.compute).bits
    # 16-bit cotangents lie two to a register
    return (length or _steps(plan)) * (len(plan.cut) + sum(plan.outputs) * bits / word)


def _steps(plan: BackwardPlan) -> int:
    """Steps of a chunk at most."""
    return plan.spec.steps or longest(plan.program, plan.spec)
