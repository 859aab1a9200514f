"""From a printed kernel to a function: Numba makes LLVM code of it, LLVM makes machine code, which is kept on disk.

Without fast-math, Numba's default, nothing is reordered or contracted. Two things are our own:

- The machine code is emitted from the LLVM text that Numba shows, with a plain entry point. Code from the disk then
  runs without importing Numba, which takes 0.3 s, and a call passes one pointer instead of twenty arguments.
- Pointers are declared not to overlap. Without that, LLVM does not vectorise a loop that has many of them.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib.metadata
import pkgutil
import re
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, Tuple

import torch
from llvmlite import binding as llvm

from spikecore.backend import BackendError, BackendUnavailable
from spikecore.kernels import KERNELS, Lock, Recent
from spikecore.kernels.cache import key_of, meaning
from spikecore.kernels.writing import STORED, Argument
from spikecore_numba import cache
from spikecore_numba.writer import Source

#: A compiled kernel: its arguments packed, 8 bytes each, in order; real numbers as float64.
Function = Callable[[bytes], None]

#: The group of an argument that points to bytes.
BYTES = "bytes"
#: The group of an argument that points to float64, whatever the arithmetic.
DOUBLES = "doubles"
#: The group of an argument that points to int32.
INTS = "ints"

#: Type of a value in memory: as Numba's name.
_IN_MEMORY = {torch.float16: "uint16", torch.bfloat16: "uint16", torch.float32: "float32", torch.float64: "float64"}
#: Passes of Numba for what no printed kernel has: functions and ``with`` inside of it, literals that choose code, loops
#: over tuples, a name of two types. Numba looks through the whole kernel in each, and in that of names once for every
#: name that two loops have; and it finds anew where every value lives.
_UNUSED = frozenset(
    "DeadBranchPrune FindLiterallyCalls InlineClosureLikes InlineInlinables InlineOverloads LiteralUnroll "
    "LiteralPropagationSubPipelinePass MakeFunctionToJitFunction ReconstructSSA RewriteDynamicRaises "
    "WithLifting".split()
)
_PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_char_p)

_lock = Lock()
#: Each holds the engine that has its machine code, which is freed with it.
_functions: Recent[str, Function] = Recent(KERNELS)


def compiled(source: Source, dtype: torch.dtype, compute: torch.dtype) -> Function:
    """The function of a printed kernel: from memory, from disk, or compiled now."""
    types = (
        *(_head_type(name, compute) for name in source.head),
        *(_type(a, dtype, compute) for a in source.arguments),
    )
    key = kernel_key(source, types)
    with _lock:
        function = _functions.get(key)
        if function is None:
            entry = cache.read(key)
            if entry is None or not all(map(_resolved, entry.symbols)):
                entry = _made(source, types)
                cache.write(key, entry)
            function = _functions.put(key, _load(entry))
    return function


def _head_type(name: str, compute: torch.dtype) -> str:
    return f"*{_IN_MEMORY[compute]}" if name == "scratch" else "int64"


def _type(argument: Argument, dtype: torch.dtype, compute: torch.dtype) -> str:
    if argument.group == BYTES:
        return "*uint8"
    if argument.group == DOUBLES:
        return "*float64"
    if argument.group == INTS:
        return "*int32"
    if argument.kind in ("pointer", "history", "period"):
        return "*" + _IN_MEMORY[dtype if argument.group in STORED else compute]
    return _IN_MEMORY[compute] if argument.kind == "number" else "int64"


def kernel_key(source: Source, types: Tuple[str, ...]) -> str:
    """The name of a kernel's entry in the cache."""
    # comments have the names of a class and of its surrogate, of which the machine code does not depend
    return f"{source.name}-{key_of(meaning(source.text, '#'), types, *environment())}"


@functools.lru_cache(maxsize=None)
def environment() -> Tuple[str, ...]:
    """The facts that the machine code depends on beside the text."""
    # by pkgutil: the package may be in a zip file
    ours = [str(pkgutil.get_data("spikecore_numba", name)) for name in ("compiler.py", "functions.py")]
    versions = [importlib.metadata.version(name) for name in ("numba", "llvmlite")]
    return (
        *ours,
        *versions,
        llvm.get_process_triple(),
        *processor(),
    )


@functools.lru_cache(maxsize=None)
def processor() -> Tuple[str, str]:
    """Its name, and its features."""
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


# -- text to machine code


def _made(source: Source, types: Tuple[str, ...]) -> cache.Entry:
    """The compiled kernel. What Numba or LLVM cannot compile is a :class:`BackendError`."""
    try:
        with _no_collection():
            return compile_source(source, types)
    except (BackendError, MemoryError):
        raise
    except Exception as error:
        said = str(error).strip().splitlines() or ["no text"]
        raise BackendError(
            f"backend 'numba' cannot compile kernel {source.name}: {type(error).__name__}: {said[0]}; "
            "choose backend='torch' for this neuron"
        ) from error


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's garbage collector does not run meanwhile, if it is on. Numba makes so many objects for a kernel that it
    would look at all objects of the process, torch's among them, which took a tenth of the time.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def compile_source(source: Source, types: Tuple[str, ...]) -> cache.Entry:
    """The machine code of a kernel."""
    try:
        import numba
        from numba.core.codegen import JITCodeLibrary
        from numba.core.compiler import Compiler
    except Exception as error:  # it refuses a NumPy that is too new, for one
        raise BackendUnavailable(
            f"backend 'numba' cannot compile here: importing Numba raised {type(error).__name__}: {error}; "
            "choose backend='torch'"
        ) from error

    class Text(JITCodeLibrary):  # type: ignore[misc]  # Numba has no types
        """A module that LLVM optimised. Numba would make machine code of it, which nothing here calls."""

        def _finalize_final_module(self) -> None:
            self._finalized = True

    class Lean(Compiler):  # type: ignore[misc]  # the same
        """Numba's pipeline, with pointers that do not overlap, less what printed kernels have no use for."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.state.typingctx = _Typing(self.state.typingctx)
            self.state.library = Text(self.state.targetctx.codegen(), source.name)
            flags = self.state.flags
            flags.noalias = True
            flags.no_rewrites = True
            # the function that C would call: ours is another, see _with_entry
            flags.no_cfunc_wrapper = True

        def define_pipelines(self) -> Any:
            pipelines = super().define_pipelines()
            for pipeline in pipelines:
                pipeline.passes = [made for made in pipeline.passes if made[0].__name__ not in _UNUSED]
                pipeline.finalize()
            return pipelines

    names: Dict[str, Any] = {}
    exec(compile(source.text, f"<{source.name}>", "exec"), names)
    signature = numba.types.void(*map(_numba_type, types))
    made = numba.cfunc(signature, error_model="numpy", pipeline_class=Lean)(names[source.name])
    text = _with_entry(made.inspect_llvm(), made.native_name, types)
    module = llvm.parse_assembly(text)
    symbols = sorted(
        set(re.findall(r"\bcall [^@\n]*@(\w+)\(", text)) - {f.name for f in module.functions if not f.is_declaration}
    )
    return cache.Entry(symbols, _machine().emit_object(module))


class _Typing:
    """Numba's rules of types, each asked once for one operation on values of these types."""

    def __init__(self, rules: Any) -> None:
        self._rules = rules
        self._known: Dict[Any, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rules, name)

    def resolve_function_type(self, function: Any, args: Any, keywords: Any) -> Any:
        """The types of arguments and result that a function has for arguments of these types."""
        key = (function, args, tuple(keywords.items()))
        if key not in self._known:
            self._known[key] = self._rules.resolve_function_type(function, args, keywords)
        return self._known[key]


def _numba_type(text: str) -> Any:
    from numba import types

    return types.CPointer(getattr(types, text[1:])) if text.startswith("*") else getattr(types, text)


def _with_entry(text: str, callback: str, types: Tuple[str, ...]) -> str:
    """LLVM text with the function ``entry``, which unpacks arguments, in place of the callback that Numba names.

    Numba's functions take where to put a result and an exception, of which a kernel has none, and then their arguments.
    """
    inner = callback.partition(".")[2]
    lines, passed = [], ["ptr %result", "ptr %error"]
    for k, kind in enumerate(types):
        llvm_type = "ptr" if kind.startswith("*") else {"int64": "i64"}.get(kind, "double")
        lines += [f"%at{k} = getelementptr i64, ptr %arguments, i64 {k}", f"%a{k} = load {llvm_type}, ptr %at{k}"]
        if kind == "float32":
            lines.append(f"%f{k} = fptrunc double %a{k} to float")
        passed.append(f"float %f{k}" if kind == "float32" else f"{llvm_type} %a{k}")
    return "\n".join(
        [
            text,
            "define void @entry(ptr %arguments) {",
            "%result = alloca ptr",
            "%error = alloca ptr",
            *lines,
            f"call i32 @{inner}({', '.join(passed)})",
            "ret void",
            "}",
        ]
    )


# -- machine code to function


@functools.lru_cache(maxsize=None)
def _target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(llvm.get_process_triple())


def _machine() -> Any:
    """A new one each time: an engine owns the machine that it gets, and ends it."""
    name, features = processor()
    return _target().create_target_machine(name, features, opt=3, reloc="default", codemodel="jitdefault")


def _resolved(symbol: str) -> bool:
    return symbol.startswith("llvm.") or bool(llvm.address_of_symbol(symbol))


def _load(entry: cache.Entry) -> Function:
    missing = [symbol for symbol in entry.symbols if not _resolved(symbol)]
    if missing:  # LLVM would end the process
        raise RuntimeError(f"a compiled kernel needs {', '.join(missing)}, which is not in this process")
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(entry.code))
    engine.finalize_object()
    function = _PROTOTYPE(engine.get_function_address("entry"))
    function.engine = engine  # type: ignore[attr-defined]  # it takes attributes
    return function
