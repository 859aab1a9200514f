"""Layers of leaky neurons with exponential currents, from event to event: exact spike times and their derivatives.

Between events ``tau_s I' = -I`` and ``tau_m V' = I - V``; an input spike adds its weight to ``I``; at ``V = 1`` a
neuron fires and ``V`` becomes 0. The time of a crossing is found by bisection, its derivative by the implicit function
theorem.
Nothing here has a time step, and nothing is of spikecore.
"""

from __future__ import annotations

from typing import List, NamedTuple, Tuple

import numpy as np

THRESHOLD = 1.0


class Cell(NamedTuple):
    """Time constants of current and potential, in units of time."""

    tau_s: float
    tau_m: float


class Event(NamedTuple):
    """A spike: its time, which neuron fired, and the derivative of the time by all weights."""

    time: float
    source: int
    gradient: np.ndarray


class _State(NamedTuple):
    """Current and potential, and their total derivatives at a time that may itself move."""

    i: float
    v: float
    di: np.ndarray
    dv: np.ndarray


def _flow(cell: Cell, i: float, v: float, duration):
    decay, leak = np.exp(-duration / cell.tau_s), np.exp(-duration / cell.tau_m)
    share = cell.tau_s / (cell.tau_s - cell.tau_m)
    return i * decay, v * leak + i * share * (decay - leak)


def _crossing(cell: Cell, state: _State, duration: float):
    """Time until the potential is at the threshold, None if it stays below for ``duration``."""
    grid = np.linspace(0.0, duration, 201)
    above = np.nonzero(_flow(cell, state.i, state.v, grid)[1] >= THRESHOLD)[0]
    if not len(above):
        return None
    low, high = grid[max(above[0] - 1, 0)], grid[above[0]]
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if _flow(cell, state.i, state.v, middle)[1] >= THRESHOLD else (middle, high)
    return high


def _advance(cell: Cell, state: _State, duration: float, moved) -> Tuple[_State, np.ndarray]:
    """The state after ``duration``, whose end moves by ``moved``, None for a crossing; and by how much it moves."""
    decay, leak = np.exp(-duration / cell.tau_s), np.exp(-duration / cell.tau_m)
    share = cell.tau_s / (cell.tau_s - cell.tau_m)
    i, v = _flow(cell, state.i, state.v, duration)
    di, dv = state.di * decay, state.dv * leak + state.di * share * (decay - leak)
    slope_i, slope_v = -i / cell.tau_s, (i - v) / cell.tau_m
    moved = -dv / slope_v if moved is None else moved
    return _State(i, v, di + slope_i * moved, dv + slope_v * moved), moved


def _neuron(cell: Cell, events: List[Event], weights, gradients, end: float, number: int) -> List[Event]:
    """The spikes of one neuron. ``weights [I]``, ``gradients [I, P]``: their derivatives by all weights."""
    nothing = np.zeros(gradients.shape[-1])
    state, now, moved, fired = _State(0.0, 0.0, nothing, nothing), 0.0, nothing, []
    for event in [*sorted(events, key=lambda each: each.time), Event(end, -1, nothing)]:
        while True:
            duration = _crossing(cell, state, event.time - now)
            if duration is None:
                break
            state, by = _advance(cell, state, duration, None)
            state, now, moved = state._replace(v=0.0, dv=nothing), now + duration, moved + by
            fired.append(Event(now, number, moved))
        state, _ = _advance(cell, state, event.time - now, event.gradient - moved)
        now, moved = event.time, event.gradient
        if event.source >= 0:
            i = state.i + weights[event.source]
            state = state._replace(i=i, di=state.di + gradients[event.source])
    return fired


def network(cell: Cell, spikes: List[Tuple[float, int]], layers: List[np.ndarray], end: float) -> List[List[Event]]:
    """The spikes of every layer, given ``(time, source)`` of those of the input, and weights ``[J, I]``."""
    sizes = [weights.size for weights in layers]
    count = sum(sizes)
    events = [Event(time, source, np.zeros(count)) for time, source in spikes]
    result = []
    for k, weights in enumerate(layers):
        gradients = np.zeros((weights.size, count))
        gradients[:, sum(sizes[:k]) : sum(sizes[: k + 1])] = np.eye(weights.size)
        gradients = gradients.reshape(*weights.shape, count)
        neurons = [_neuron(cell, events, weights[j], gradients[j], end, j) for j in range(len(weights))]
        events = [event for fired in neurons for event in fired]
        result.append(events)
    return result


def first_spikes(events: List[Event], neurons: int) -> List[Event]:
    """The first spike of each neuron, of those that have one."""
    by_time = sorted(events, key=lambda each: each.time, reverse=True)
    first = {event.source: event for event in by_time}
    return [first[j] for j in range(neurons) if j in first]
