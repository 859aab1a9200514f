"""The device that computes: which one it is, its compiler, and how it reads and fills tensors of the host."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import warnings
from pathlib import Path
from typing import Any, List, Optional

import numpy
import pyopencl as cl
from torch import Tensor

from spikecore.backend import BackendError
from spikecore.kernels import KERNELS, Lock, Recent, cache

#: Environment variable with a part of the title of the device to take, such as ``intel``.
CHOICE = "SPIKECORE_OPENCL_DEVICE"
_KIND = "opencl"


class Device:
    """A device, with what is made for it once."""

    def __init__(self, handle: Any) -> None:
        self.handle, self.title = handle, title(handle)
        #: True if it computes in the memory of the host.
        self.shares_memory = bool(handle.host_unified_memory)
        self.has_float64 = bool(handle.double_fp_config)
        self.lock = Lock()
        self._context = cl.Context([handle])
        self.queue = cl.CommandQueue(self._context)
        # buffers of the device are kept for later calls
        self._pool = cl.tools.MemoryPool(cl.tools.ImmediateAllocator(self.queue))
        self._process = os.getpid()
        self._programs: Recent[str, Any] = Recent(KERNELS)
        # without it a device may divide floats with an error of 2.5 units in the last place
        rounds = handle.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        self._options = ["-cl-std=CL1.2", "-w", *(["-cl-fp32-correctly-rounded-divide-sqrt"] if rounds else [])]

    def check(self) -> None:
        """Raise ``BackendError`` in a process that a fork made: no driver of OpenCL works there."""
        if os.getpid() != self._process:
            raise BackendError(
                f"backend 'opencl' has computed on {self.title} before this process was forked, and its driver does "
                "not work in both; begin processes with multiprocessing's 'spawn', or choose backend='torch' here"
            )

    def kernel(self, name: str, text: str) -> Any:
        """A kernel of a text: from memory, from disk, or compiled now. An object of its own, with its own arguments."""
        self.check()
        version = (self.title, self.handle.version, self.handle.driver_version, _processor())
        key = f"{name}-{cache.key_of(cache.meaning(text, '//'), version, self._options)}.bin"
        with self.lock:
            return cl.Kernel(self._programs.get(key) or self._programs.put(key, self._built(key, name, text)), name)

    def _built(self, key: str, name: str, text: str) -> Any:
        binary = cache.read(_KIND, key)
        if binary is not None:
            with contextlib.suppress(cl.Error):  # another driver of the same name and version wrote it
                return self._finished(cl.Program(self._context, [self.handle], [binary]))
        program = self.compiled(name, text)
        cache.write(_KIND, key, program.get_info(cl.program_info.BINARIES)[0])
        return program

    def compiled(self, name: str, text: str) -> Any:
        """The program of a text. Raises ``BackendError`` with what the compiler says."""
        try:
            return self._finished(cl.Program(self._context, text))
        except cl.Error as error:
            raise BackendError(
                f"backend 'opencl' cannot compile kernel {name} for {self.title}, so choose backend='torch'; its "
                f"compiler says:\n{error}"
            ) from error

    def _finished(self, program: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of compilers that say that all is well
            return program.build(self._options, cache_dir=False)

    def scratch(self, size: int) -> Any:
        """Memory of the device for so many bytes."""
        return self._pool.allocate(size)

    def argument(self, tensor: Tensor, fills: bool) -> Any:
        """A tensor as an argument of a kernel, which ``fills`` it or reads it."""
        memory = _memory(tensor)
        if self.shares_memory:
            return cl.Buffer(self._context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=memory)
        buffer = self._pool.allocate(len(memory))
        if not fills:
            cl.enqueue_copy(self.queue, buffer, memory, is_blocking=False)
        return buffer

    def read_back(self, buffer: Any, tensor: Tensor) -> None:
        """Give a tensor the numbers that a kernel filled it with, once all before are computed."""
        memory = _memory(tensor)
        if self.shares_memory:  # a driver may have computed elsewhere, and copies where a buffer is mapped
            mapped, _ = cl.enqueue_map_buffer(
                self.queue, buffer, cl.map_flags.READ, 0, (len(memory),), numpy.uint8, is_blocking=False
            )
            mapped.base.release(self.queue)
        else:
            cl.enqueue_copy(self.queue, memory, buffer, is_blocking=False)


def _memory(tensor: Tensor) -> Any:
    """The bytes from the first number of a tensor to its last one, which need not be neighbours."""
    count = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (ctypes.c_char * (count * tensor.element_size())).from_address(tensor.data_ptr())


@functools.lru_cache(maxsize=None)
def _processor() -> str:
    """The processor with its sets of instructions, which a driver of a CPU compiles for; it names neither."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        facts = ("model name", "flags", "CPU part", "Features")
        return "\n".join(sorted({line for line in lines if line.startswith(facts)}))
    return platform.processor()


def title(handle: Any) -> str:
    """The platform and the name of a device."""
    return f"{handle.platform.name.strip()}: {handle.name.strip()}"


def _found() -> List[Any]:
    """The devices here that the environment allows, those that are no CPU first."""
    wanted = os.environ.get(CHOICE, "").lower()
    found = [handle for platform in cl.get_platforms() for handle in platform.get_devices()]
    found = [handle for handle in found if wanted in title(handle).lower()]
    return sorted(found, key=lambda handle: bool(handle.type & cl.device_type.CPU))


@functools.lru_cache(maxsize=None)
def chosen() -> Device:
    """The device that computes. Raises ``pyopencl.Error`` or ``IndexError`` where there is none."""
    return Device(_found()[0])


def reason() -> Optional[str]:
    """Reason why no device computes here; None if one does. It compiles an empty kernel."""
    try:
        if not _found():
            wanted = os.environ.get(CHOICE)
            return f"no OpenCL device has {wanted!r} in its name, as {CHOICE} asks" if wanted else "no OpenCL device"
        chosen().compiled("nothing", "__kernel void nothing(const int n) {}\n")
    except (cl.Error, BackendError) as error:
        return str(error)
    return None
