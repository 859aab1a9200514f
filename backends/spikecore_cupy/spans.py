"""How far apart the groups of neurons of a thread are, where it has several."""

from __future__ import annotations

from math import gcd
from typing import Sequence, Tuple

from spikecore_cupy.parts import Form

#: Neurons that are computed side by side where threads add up what several of theirs give: enough for many waves of
#: blocks on any GPU, and so few that their sums are a small part of the memory that a call moves. The same on every
#: GPU, since the order of a sum decides its bits.
SPAN = 2**21

#: In a layer of so few neurons a thread takes up to so many groups, if it then has the whole sum of its channels: that
#: costs less than another launch to add them up.
SMALL, FEW = 4096, 8


def span_of(form: Form, neurons: int, channels: Sequence[Tuple[int, int]], whole: int) -> int:
    """How far apart the groups of a thread are: in the same ``channels`` of all parameters, and about :data:`SPAN`
    neurons, or as many as the form's blocks of ``whole`` neurons have.
    """
    unit = form.width
    for inner, count in channels:
        unit *= inner * count // gcd(unit, inner * count)
    units = -(-neurons // unit)
    if form.grid:
        return min(neurons, _in_waves(units, unit, form.grid * whole) * unit)
    if neurons <= SMALL and units <= FEW and all(found == (1, unit) for found in channels):
        return unit
    rounds = -(-units // max(1, SPAN // unit))
    # all threads get as many groups, but for the last
    return min(neurons, -(-units // rounds) * unit)


def _in_waves(units: int, unit: int, once: int) -> int:
    """How many of the ``units`` are computed side by side, where a GPU holds ``once`` neurons at a time.

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
