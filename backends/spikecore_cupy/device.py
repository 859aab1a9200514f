"""Kernels on the GPU: compiled by NVRTC, kept on disk, loaded and launched through CuPy.

Everything that touches CuPy is here. CuPy's own ``RawKernel`` flushes subnormals (it adds ``-ftz=true`` to every
compilation), so its parts are used one by one: NVRTC, modules, launches.
"""

from __future__ import annotations

import ctypes
import pkgutil
import re
import struct
import threading
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from spikecore.backend import BackendError
from spikecore.kernels import KERNELS, Lock, Recent, cache
from spikecore_cupy.text import BLOCK

#: Header that every kernel includes; kernels with feedback include another one, too.
HEADER = "spikecore.cuh"
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"', re.MULTILINE)
OPTIONS = ("--fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true", "-std=c++17", "-default-device")
_POINTER, _SIZE = 1, 2  # CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE
#: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES. Without it a block may have 48 KiB, what its text declares included.
_MOST_SHARED = 8
_FORMATS = {"long long": "q", "int": "i", "float": "f", "double": "d"}
#: Kernels by their text; each has its machine code on every GPU that it was launched on.
loaded_kernels: Recent[Any, Any] = Recent(KERNELS)
_UNSUPPORTED_ARCH = "invalid value for --gpu-architecture"


def headers(text: str) -> Dict[str, str]:
    """The texts that a kernel includes, and those that they include, by their names."""
    texts: Dict[str, str] = {}
    names = _INCLUDE.findall(text)
    while names:
        name = names.pop(0)
        if name not in texts:
            with suppress(OSError):  # the compiler names a file that is not there
                texts[name] = packaged(name)
                names += _INCLUDE.findall(texts[name])
    return texts


def packaged(name: str) -> str:
    """The text of a file of this package, which may be in a zip file."""
    return (pkgutil.get_data("spikecore_cupy", name) or b"").decode("utf-8")


def reason() -> Optional[str]:
    """Reason why there can be no kernels here, in words; None if there can."""
    if torch.version.cuda is None:
        # the hint of the backend, which is put behind this, says how to install CuPy
        return f"torch {torch.__version__} was built without CUDA: install a torch that has CUDA first, then CuPy"
    if not torch.cuda.is_available():
        return "torch sees no NVIDIA GPU: there is none, or its driver does not work (see nvidia-smi)"
    if find_spec("cupy") is None:
        return "CuPy is not installed"
    try:
        from cupy_backends.cuda.api import runtime
        from cupy_backends.cuda.libs import nvrtc

        driver, compiler = runtime.driverGetVersion(), nvrtc.getVersion()
    except Exception as error:  # a wrong wheel, a missing library: whatever it is, the user must read it
        return f"CuPy does not work here: {type(error).__name__}: {error}"
    if compiler[0] > driver // 1000:
        return (
            f"NVRTC of CUDA {compiler[0]}.{compiler[1]} makes kernels that the driver, of CUDA {driver // 1000}."
            f"{driver % 1000 // 10}, cannot load: install the CuPy that fits the driver"
        )
    return None


def compiled(name: str, text: str, arch: int) -> bytes:
    """The kernel's machine code for GPUs of an architecture, such as 90; from disk if it was compiled before."""
    from cupy_backends.cuda.libs import nvrtc

    included, version, meant = headers(text), nvrtc.getVersion(), cache.meaning(text, "//")
    key = f"{cache.key_of(meant, *included.values(), OPTIONS, arch, version)}.cubin"
    code = cache.read("cupy", key)
    if code is None:
        options = (*OPTIONS, f"-arch=sm_{arch}")
        texts, names = [source.encode() for source in included.values()], [source.encode() for source in included]
        program = nvrtc.createProgram(text, f"{name}.cu", texts, names)
        try:
            nvrtc.compileProgram(program, options)
            code = bytes(nvrtc.getCUBIN(program))
        except nvrtc.NVRTCError as error:
            raise BackendError(_explained(name, text, arch, version, nvrtc.getProgramLog(program))) from error
        finally:
            nvrtc.destroyProgram(program)
        cache.write("cupy", key, code)
    return code


def _explained(name: str, text: str, arch: int, version: Tuple[int, int], log: str) -> str:
    if _UNSUPPORTED_ARCH in log:
        return (
            f"NVRTC of CUDA {version[0]}.{version[1]} cannot compile for this GPU (compute capability "
            f"{arch // 10}.{arch % 10}): install a CuPy for another CUDA version, or choose backend='torch'"
        )
    return f"NVRTC refuses kernel {name}; choose backend='torch':\n{log}\nof\n{text}"


def _stream_of(device: int) -> int:
    """The address of torch's current stream of a device."""
    address: int = torch.cuda.current_stream(device).cuda_stream
    return address


def shared(kernel: Callable[..., Any], name: str, text: str, types: Sequence[str], memory: int = 0) -> Any:
    """The kernel of a text: the one that there is of a text that means the same, or one made now."""
    key = (kernel, name, cache.meaning(text, "//"), tuple(types), memory)
    return loaded_kernels.get_or(key, lambda: kernel(name, text, types, memory))


def single(arguments: Sequence[Any]) -> List[Any]:
    """Numbers beyond the largest float32 as arithmetic has them: infinite. :mod:`struct` refuses them."""
    return [ctypes.c_float(value).value if isinstance(value, float) else value for value in arguments]


class Kernel:
    """A kernel of one text, on every GPU that it is asked for.

    ``types`` are the C types of its arguments, ``memory`` the bytes of shared memory of a block that a launch gives it.
    """

    #: Threads of a block.
    block = BLOCK

    def __init__(self, name: str, text: str, types: Sequence[str], memory: int = 0) -> None:
        from cupy_backends.cuda.api import driver

        self.name, self.text, self.memory = name, text, memory
        layout = layout_of(types)
        self._pack_into = struct.Struct(layout).pack_into
        self._size = struct.calcsize(layout)
        self._launch: Callable[..., None] = driver.launchKernel
        # private functions of torch: the public ones ask at every launch first whether CUDA is initialised
        self._current: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
        self._stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _stream_of)
        self._lock = Lock()
        # CuPy's modules unload themselves, so they are kept beside the functions
        self._functions: Dict[int, Tuple[int, Any]] = {}
        self._local = threading.local()

    def __call__(self, blocks: int, device: int, arguments: Sequence[Any], threads: int = BLOCK) -> None:
        """Launch on torch's current stream of a device, which becomes the current one for the time of the launch."""
        if self._current() != device:
            with torch.cuda.device(device):
                self(blocks, device, arguments, threads)
            return
        try:
            buffer, extra, _, _ = self._local.buffers[device]
        except (AttributeError, KeyError):
            buffer, extra = self._buffer(device)
        try:
            self._pack_into(buffer, 0, *arguments)
        except OverflowError:
            self._pack_into(buffer, 0, *single(arguments))
        function = self._functions.get(device) or self._load(device)
        self._launch(function[0], blocks, 1, 1, threads, 1, 1, self.memory, self._stream(device), 0, extra)

    @staticmethod
    @lru_cache(maxsize=None)
    def multiprocessors(device: int) -> int:
        """Number of blocks that run at once if each fills a multiprocessor."""
        return int(torch.cuda.get_device_properties(device).multi_processor_count)

    @classmethod
    @lru_cache(maxsize=1)
    def fewest(cls) -> int:
        """The multiprocessors of the GPU that has fewest."""
        return min(map(cls.multiprocessors, range(torch.cuda.device_count())))

    @staticmethod
    @lru_cache(maxsize=1)
    def multiplies() -> bool:
        """True if every GPU has what kernels with feedback need: clusters, and 227 KiB of shared memory for a block,
        which those of compute capability 11 and 12 have not.
        """
        capabilities = [torch.cuda.get_device_capability(k) for k in range(torch.cuda.device_count())]
        return all((9, 0) <= capability < (11, 0) for capability in capabilities)

    def _buffer(self, device: int) -> Tuple[Any, int]:
        """Memory of this thread for arguments, and the address of what says where it is."""
        # one for each thread: the driver copies the arguments at launch, after another thread may have packed its own
        buffers: Optional[Dict[int, Tuple[Any, int, Any, Any]]] = getattr(self._local, "buffers", None)
        if buffers is None:
            buffers = self._local.buffers = {}
        if device not in buffers:
            from cupy_backends.cuda.api import runtime

            runtime.setDevice(device)  # torch leaves a new thread without a context until it must have one
            buffer = ctypes.create_string_buffer(self._size)
            size = ctypes.c_size_t(self._size)
            words = (ctypes.c_void_p * 5)(_POINTER, ctypes.addressof(buffer), _SIZE, ctypes.addressof(size), 0)
            buffers[device] = (buffer, ctypes.addressof(words), words, size)
        return buffers[device][:2]

    def _load(self, device: int) -> Tuple[int, Any]:
        from cupy.cuda.function import Module
        from cupy_backends.cuda.api import driver

        # two threads that launch at once would compile twice
        with self._lock:
            if device not in self._functions:
                major, minor = torch.cuda.get_device_capability(device)
                code, module = compiled(self.name, self.text, 10 * major + minor), Module()
                try:
                    module.load(code)
                    function = module.get_function(self.name)
                    if self.memory:
                        driver.funcSetAttribute(function.ptr, _MOST_SHARED, self.memory)
                except Exception as error:  # the driver's, for one that is too old
                    raise BackendError(
                        f"the driver cannot load kernel {self.name}: {type(error).__name__}: {error}; "
                        "choose backend='torch' for this neuron"
                    ) from error
                self._functions[device] = (function.ptr, function)
            return self._functions[device]


def layout_of(types: Sequence[str]) -> str:
    """Format of :mod:`struct` for values of these C types."""
    # without a prefix struct aligns as C does, which is how the driver reads arguments
    return "".join("P" if "*" in kind else _FORMATS[kind] for kind in types)
