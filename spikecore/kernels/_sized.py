"""Kernels that are compiled for sizes: a bounded number of them for each plan, and one for all other sizes."""

from __future__ import annotations

from typing import Any, Callable, Dict, Generic, Optional, TypeVar

from spikecore._base.caches import Lock
from spikecore.kernels._geometry import Geometry
from spikecore.kernels._launches import Launch
from spikecore.kernels._plan import BackwardPlan, ForwardPlan

Plan = TypeVar("Plan", ForwardPlan, BackwardPlan)


def launch_of(make: Callable[[Plan], Launch], plan: Plan, sizes: int) -> Launch:
    """The launch for a plan: made now, or for a backend that wants sizes, with the first calls of each size."""
    return Sized(make, plan, sizes) if sizes else make(plan)


class Sized(Generic[Plan]):
    """A launch that hands each call to the kernel of its sizes.

    The first ``sizes`` different ones get kernels of their own. None is dropped for another: sizes that change with
    every batch would compile forever.
    """

    def __init__(self, make: Callable[[Plan], Launch], plan: Plan, sizes: int) -> None:
        self._make: Callable[[Plan], Launch] = make
        self._plan: Plan = plan
        self._sizes = sizes
        self._made: Dict[Optional[Geometry], Launch] = {}
        self._lock = Lock()

    def __call__(self, geometry: Geometry, *tensors: Any) -> Any:
        """Launch the kernel of these sizes, compiled when they are first met."""
        return self._launch(geometry)(geometry, *tensors)

    def _launch(self, geometry: Geometry) -> Launch:
        # every call comes here, so one that finds its kernel takes no lock
        launch = self._made.get(geometry)
        if launch is not None:
            return launch
        with self._lock:
            own = sum(key is not None for key in self._made) < self._sizes
            key = geometry if own or geometry in self._made else None
            if key not in self._made:
                self._made[key] = self._make(self._plan._replace(geometry=key))
            return self._made[key]
