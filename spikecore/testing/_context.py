"""Context of a case: the backend, and neurons on it beside their oracles.

A neuron is made for the backend by name, as a user makes it. While a case runs, a :class:`Witness` counts calls of the
backend's own runners, and of the reference's, which must not compute in its place.
"""

from __future__ import annotations

import platform
import time
from functools import lru_cache
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type

import numpy as np
import torch
from torch import Tensor

import spikecore as sc
from spikecore._base.running import in_graph
from spikecore.backend import Backend, BackendInfo, Runner, Spec
from spikecore.dtypes import has_float64
from spikecore.lang import Program
from spikecore.plugins.registry import default_registry
from spikecore.plugins.selection import REFERENCE
from spikecore.testing._case import Undeclared
from spikecore.testing.compare import Mismatch

#: Seconds in which what a runtime still holds must be free.
SETTLED = 1.0


class Witness:
    """Sees which backend computes: counts calls of its runners, and of the reference's where that is another one."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.reference = default_registry().get(REFERENCE, "the conformance suite")
        self.calls: List[str] = []
        self.of_reference: List[str] = []
        #: While true, neurons get the runner itself, for what a counter in between would disturb.
        self.aside = False
        self._undo: List[Tuple[Any, str, Any]] = []

    def __enter__(self) -> Witness:
        original = self.backend.runner

        def runner(program: Program, spec: Spec) -> Runner:
            made = original(program, spec)
            return made if self.aside else _Counted(made, program.name, self.calls)

        self._replace(self.backend, "runner", runner)
        if self.backend is not self.reference:
            program = sc.IF(backend=REFERENCE).program
            made = self.reference.runner(program, Spec(torch.float32, 1, ("number",) * len(program.params)))
            self._watch(type(self.reference), "compile")
            for name in ("__call__", "one_step"):
                if name in vars(type(made)):  # an object, not a function: its class can be watched
                    self._watch(type(made), name)
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        for owner, name, value in reversed(self._undo):
            if value is None:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._undo.clear()

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._undo.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, value)

    def _watch(self, owner: Any, name: str) -> None:
        original, seen = getattr(owner, name), self.of_reference

        def watched(this: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            return original(this, *args, **kwargs)

        self._replace(owner, name, watched)

    def elsewhere(self) -> str:
        """Message for results that the reference computed."""
        return (
            f"backend {self.backend.name!r} let the reference backend {REFERENCE!r} compute in its place "
            f"({len(self.of_reference)} calls): its results prove nothing. Where it cannot do something it must "
            "raise Unsupported, never fall back"
        )

    def verdict(self) -> None:
        """Raise :class:`Mismatch` unless this backend, and not the reference, has computed."""
        if self.of_reference:
            raise Mismatch(self.elsewhere())
        if not self.calls:
            raise Mismatch(
                f"no runner of backend {self.backend.name!r} was called, although its neurons computed: something else "
                "answers for it"
            )


#: What a runner may have beside its call.
_QUICK = ("moments", "input_statistics", "one_step", "bind", "broadcasts")


class _Counted:
    """A runner that leaves a mark each time it is called."""

    def __init__(self, runner: Runner, name: str, calls: List[str]) -> None:
        self.runner, self.name, self.calls = runner, name, calls

    def __call__(self, *args: Any) -> Any:
        self.calls.append(self.name)
        return self.runner(*args)

    def in_graph(self, x: Tensor, numbers: Sequence[float]) -> Optional[Tensor]:
        """Implementation of :func:`spikecore._base.running.in_graph`."""
        found = in_graph(self.runner, x, numbers)
        if found is not None:
            self.calls.append(self.name)
        return found

    def __getattr__(self, name: str) -> Any:
        """The runner's quick ways and its statistics, if it has them, so that cases run what users run."""
        if name not in _QUICK:
            raise AttributeError(name)
        found = getattr(self.runner, name)
        if name == "bind":
            return lambda *given: self._counting(found(*given))
        return self._counting(found) if name == "one_step" else found

    def _counting(self, call: Any) -> Any:
        def counting(*args: Any) -> Any:
            self.calls.append(self.name)
            return call(*args)

        return counting if call is not None else None


class Context:
    """One case's surroundings.

    A case that draws its inputs from a seed says so, and every report names the seed::

        def drawn(context: Context) -> None:
            rng = np.random.default_rng(context.seed("generated", 41))
    """

    def __init__(
        self, backend: Backend, device: str, witness: Optional[Witness] = None, seeds: Optional[Dict[str, int]] = None
    ) -> None:
        self.backend = backend
        #: Seeds that the case drew its inputs from, by name.
        self.seeds: Dict[str, int] = {} if seeds is None else seeds
        self.name = backend.name
        self.device = torch.device(device)
        self.witness = Witness(backend) if witness is None else witness

    def seed(self, name: str, value: int) -> int:
        """Note a seed under a name, for the report (``seeds`` of a :class:`~spikecore.testing.Result` and of the
        JSON); gives it back. Cases that share a seed share its name.
        """
        self.seeds[name] = int(value)
        return value

    def declares(self, *capabilities: str) -> bool:
        """True if the backend declares all of these."""
        can = self.backend.capabilities_on(self.device.type)
        return all(getattr(can, name) for name in capabilities)

    def synchronize(self) -> None:
        """Wait until the device under test has computed what it was given, where torch has a way to."""
        wait = getattr(getattr(torch, self.device.type, None), "synchronize", None)
        if wait is not None:
            wait()

    def settles(self, holds: Callable[[], bool]) -> bool:
        """True if something holds, at once or within about a second after the device has computed: a runtime that
        computes in the background may hold arguments until then.
        """
        if holds():
            return True
        self.synchronize()
        end = time.monotonic() + SETTLED
        while not holds() and time.monotonic() < end:
            time.sleep(0.01)
        return holds()

    def tensor(self, values: Any, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
        """Values on the device under test."""
        return self._placed(torch.tensor(np.array(values, float, order="C")).to(dtype)).requires_grad_(grad)

    def place(self, module: Any) -> Any:
        """A module moved to the device under test."""
        return module._apply(self._placed)

    def check_exists(self, dtype: torch.dtype) -> None:
        """Raise :class:`Undeclared` if torch has no tensors of this dtype on the device under test."""
        if dtype == torch.float64 and not has_float64(self.device.type):
            raise Undeclared(
                ("float64",), f"torch has no float64 on device '{self.device}', so there is no such tensor"
            )

    def _placed(self, tensor: Tensor) -> Tensor:
        self.check_exists(tensor.dtype)
        placed = self.backend.place(tensor, self.device).detach()
        if placed.shape != tensor.shape or placed.dtype != tensor.dtype or placed.device.type != self.device.type:
            raise Mismatch(
                f"place() of backend {self.name!r} made a {placed.dtype} tensor {list(placed.shape)} on "
                f"{placed.device} of a {tensor.dtype} tensor {list(tensor.shape)}; it must keep "
                f"shape and dtype, on {self.device}"
            )
        return placed


def choose_device(devices: Sequence[str]) -> str:
    """The CPU if the backend takes it, else the first device type that this machine has."""
    if "*" in devices or "cpu" in devices:
        return "cpu"
    return next((device for device in devices if device_fault(device) is None), devices[0])


def check_device(info: BackendInfo, device: str) -> None:
    """Raise ``ValueError`` unless there is this device here, and the backend computes on it."""
    fault = device_fault(device)
    if fault is not None:
        # torch's first sentence: others list every device that it has
        said = str(fault).splitlines()[0].split(". ")[0].rstrip(".")
        raise ValueError(f"device {device!r} cannot be used here: {said}") from fault
    if not info.takes(torch.device(device).type):
        raise ValueError(f"backend {info.name!r} computes on {', '.join(info.devices)}, not on device {device!r}")


def device_fault(device: str) -> Optional[Exception]:
    """Error that torch raises for a device that is missing; None if it is there."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:  # hpu: torch has no module of it
        return error
    return None


def device_name(device: str) -> str:
    """Name of a device: the model of the GPU, or of the processor; "" for no device."""
    if not device:
        return ""
    if device.startswith("cuda") and torch.cuda.is_available():
        return str(torch.cuda.get_device_name(device))
    return _processor() if device == "cpu" else device


@lru_cache(maxsize=None)
def _processor() -> str:
    """Linux names the model in a file; what Python says elsewhere may be no more than the instruction set."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        named = []
    return next(iter(named), "") or platform.processor() or platform.machine()
