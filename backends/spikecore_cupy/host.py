"""Kernels on the CPU: the text of a CUDA kernel, built by g++ and run block after block.

For tests of the text where there is no GPU, and for stepping through a kernel with a debugger; not made for speed.
"""

from __future__ import annotations

import _ctypes
import ctypes
import shutil
import struct
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import Any, Optional, Sequence

from spikecore.backend import BackendError, Spec
from spikecore.kernels import cache
from spikecore.lang import Program
from spikecore_cupy.backend import CupyBackend
from spikecore_cupy.custom import ElementwiseKernel, ScanKernel
from spikecore_cupy.device import HEADER, headers, layout_of, packaged, single
from spikecore_cupy.text import BLOCK

_KIND = "cupy-host"
#: Nothing that reorders or contracts arithmetic. The headers are those of C alone: NVRTC has no others either, and
#: C++'s math.h is 20000 lines, which take two thirds of the time of a build.
OPTIONS = ("-std=c++17", "-nostdinc++", "-O0", "-ffp-contract=off", "-fPIC", "-shared", "-w", "-pthread")
#: After the text: the C library is linked and C++'s is not, of which no kernel has need. It took an eighth of the time.
LIBRARIES = ("-nodefaultlibs", "-lm", "-lpthread", "-lc", "-lgcc")


def reason() -> Optional[str]:
    """Reason why there can be no kernels here, in words; None if there can."""
    return None if shutil.which("g++") else "kernels on the CPU need g++, which is not on the PATH"


class HostKernel:
    """A kernel of one text. ``types`` are the C types of its arguments."""

    #: Threads of a block at most. With one, a sum over a block needs no other thread.
    block = 1

    def __init__(self, name: str, text: str, types: Sequence[str], memory: int = 0) -> None:
        self._pack, self.memory = struct.Struct(layout_of(types)).pack, memory
        library = load_library(name, self._whole(name, text, types))
        # ctypes never unloads a library: a session of tests would keep every kernel that it built
        weakref.finalize(self, _ctypes.dlclose, library._handle)
        self._launch = library.launch
        self._launch.argtypes, self._launch.restype = (ctypes.c_uint, ctypes.c_char_p, ctypes.c_uint), None

    def _whole(self, name: str, text: str, types: Sequence[str]) -> str:
        """The text of the library."""
        threads = "#define HOST_THREADS\n" if self.block > 1 else ""
        return f'{threads}#include "host.h"\n{text}{_entry(name, types, self.block > 1)}'

    def __call__(self, blocks: int, device: int, arguments: Sequence[Any], threads: int = 0) -> None:
        """Run all blocks."""
        try:
            packed = self._pack(*arguments)
        except OverflowError:
            packed = self._pack(*single(arguments))
        self._launch(blocks, packed, threads or self.block)


class HostBlocks(HostKernel):
    """The same with as many threads for each block as on a GPU: for sums over the threads of a block."""

    block = BLOCK


class HostClusters(HostKernel):
    """Kernels with feedback, with all threads of a cluster of blocks: very slow."""

    #: Number of blocks that a GPU would hold at once.
    blocks = 132

    def _whole(self, name: str, text: str, types: Sequence[str]) -> str:
        before = '#define HOST_THREADS\n#include "host.h"\n#include "host_cluster.h"\n'
        return f"{before}{text}{_cluster_entry(name, types, self.memory)}"

    @classmethod
    def multiprocessors(cls, device: int) -> int:
        """Number of :attr:`blocks`."""
        return cls.blocks

    @classmethod
    def fewest(cls) -> int:
        """Number of :attr:`blocks`."""
        return cls.blocks

    @staticmethod
    def multiplies() -> bool:
        """True, as on the newest GPUs."""
        return True


class HostBackend(CupyBackend):
    """The cupy backend with its kernels on the CPU. Not in the list of backends: tests ask for it by its class."""

    name = "cupy_host"
    kernel = HostKernel

    def feeds_back(self, program: Program, spec: Spec, width: int) -> bool:
        """Not at all: a step took a second."""
        return False


class HostClustersBackend(HostBackend):
    """The same, which feeds back within its kernels."""

    name = "cupy_host_clusters"
    feedback_kernel = HostClusters

    def feeds_back(self, program: Program, spec: Spec, width: int) -> bool:
        return CupyBackend.feeds_back(self, program, spec, width)


class HostElementwiseKernel(ElementwiseKernel):
    """An :class:`ElementwiseKernel` of tensors on the CPU."""

    kernel = HostKernel


class HostScanKernel(ScanKernel):
    """A :class:`ScanKernel` of tensors on the CPU."""

    kernel = HostKernel


class HostBlocksBackend(HostBackend):
    """The same, with all threads of a block: slow."""

    name = "cupy_host_blocks"
    kernel = HostBlocks


def _entry(name: str, types: Sequence[str], threaded: bool) -> str:
    """A function that runs a kernel for every block, one after the other."""
    fields = " ".join(f"{kind} a{k};" for k, kind in enumerate(types))
    values = ", ".join(f"a->a{k}" for k in range(len(types)))
    if not threaded:
        return f"""
struct Arguments {{ {fields} }};
extern "C" void launch(const unsigned blocks, const Arguments* a, unsigned) {{
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {name}({values});
}}
"""
    # every thread runs all blocks, and waits for the others at the end of each
    return f"""
struct Arguments {{ {fields} }};
static const Arguments* a;
static unsigned blocks;
static void* all_blocks(void* which) {{
    threadIdx.x = (unsigned)(size_t)which;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {{ {name}({values}); BLOCK_WAIT(); }}
    return 0;
}}
extern "C" void launch(const unsigned count, const Arguments* arguments, const unsigned threads) {{
    pthread_t started[1024];
    a = arguments, blocks = count, blockDim.x = threads;
    pthread_barrier_init(&barrier, 0, threads);
    for (unsigned k = 0; k < threads; ++k) pthread_create(started + k, 0, all_blocks, (void*)(size_t)k);
    for (unsigned k = 0; k < threads; ++k) pthread_join(started[k], 0);
    pthread_barrier_destroy(&barrier);
}}
"""


def _cluster_entry(name: str, types: Sequence[str], memory: int) -> str:
    """A function that runs a kernel for every cluster, one after the other."""
    fields = " ".join(f"{kind} a{k};" for k, kind in enumerate(types))
    values = ", ".join(f"a->a{k}" for k in range(len(types)))
    return f"""
#include <stdlib.h>
struct Arguments {{ {fields} }};
static const Arguments* a;
static unsigned blocks;
static void* all_clusters(void* which) {{
    const unsigned number = (unsigned)(size_t)which;
    threadIdx.x = number % Neurons::BLOCK_THREADS, rank_of_block = number / Neurons::BLOCK_THREADS;
    for (unsigned first = 0; first < blocks; first += Neurons::C) {{
        blockIdx.x = first + rank_of_block;
        {name}({values});
        cluster_wait();
    }}
    return 0;
}}
extern "C" void launch(const unsigned count, const Arguments* arguments, const unsigned threads) {{
    static_assert(Neurons::MEMORY == {memory}, "");
    const unsigned all = Neurons::C * Neurons::BLOCK_THREADS;
    pthread_t* started = (pthread_t*)malloc(all * sizeof(pthread_t));
    a = arguments, blocks = count, blockDim.x = threads;
    pthread_barrier_init(&whole_cluster, 0, all);
    for (int block = 0; block < Neurons::C; ++block) {{
        memories[block] = (unsigned char*)aligned_alloc(16, (Neurons::MEMORY + 15) / 16 * 16);
        memset(memories[block], 0xff, Neurons::MEMORY);
        pthread_barrier_init(&whole_block[block], 0, Neurons::BLOCK_THREADS);
        for (int k = 0; k < Neurons::BLOCK_THREADS / 32; ++k) pthread_barrier_init(&warps[block][k].all, 0, 32);
        for (int k = 0; k < Neurons::MT; ++k) pthread_barrier_init(&warps[block][k].some, 0, 32 * Neurons::KG);
    }}
    for (unsigned k = 0; k < all; ++k) pthread_create(started + k, 0, all_clusters, (void*)(size_t)k);
    for (unsigned k = 0; k < all; ++k) pthread_join(started[k], 0);
    for (int block = 0; block < Neurons::C; ++block) free(memories[block]);
    free(started);
}}
"""


def load_library(name: str, text: str) -> ctypes.CDLL:
    """The library of a text, from disk or built now."""
    names = ["host.h", *(["host_cluster.h"] if "host_cluster.h" in text else [])]
    included = {**{name: packaged(name) for name in names}, **headers(text)}
    key = f"{cache.key_of(cache.meaning(text, '//'), *included.values(), OPTIONS, LIBRARIES)}.so"
    code = cache.read(_KIND, key)
    # in a folder of this process, where nobody else can exchange what was verified or built
    with tempfile.TemporaryDirectory() as scratch:
        source, built = Path(scratch) / f"{name}.cpp", Path(scratch) / key
        if code is not None:
            built.write_bytes(code)
            return ctypes.CDLL(str(built))
        for file, content in {**included, source.name: text}.items():
            (Path(scratch) / file).write_text(content, encoding="utf-8")
        run = subprocess.run(
            ["g++", *OPTIONS, str(source), "-o", str(built), *LIBRARIES], capture_output=True, text=True, check=False
        )
        if run.returncode:
            raise BackendError(f"g++ refuses kernel {name} (with {HEADER}):\n{run.stderr}\nof\n{text}")
        cache.write(_KIND, key, built.read_bytes())
        return ctypes.CDLL(str(built))  # in memory it stays when the file goes
