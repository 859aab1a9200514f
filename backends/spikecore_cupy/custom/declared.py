"""Declared arguments and results of a kernel: names, roles, kinds, C types, and the checks of what a call gives."""

from __future__ import annotations

import keyword
import re
from numbers import Integral, Real
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, Union

import torch
from torch import Tensor

from spikecore.dtypes import NARROW
from spikecore.kernels import Layout, layout_of
from spikecore.lang.render import C_TEMPLATES, C_WORDS
from spikecore_cupy.text import TYPES

#: A dtype, None for the floating-point dtype of the call, or the type of a number.
Kind = Union[torch.dtype, Type[float], Type[int], None]

#: dtype of a tensor -> the C type of its numbers in memory.
STORED: Dict[torch.dtype, str] = {
    **TYPES,
    torch.bool: "bool",
    torch.uint8: "unsigned char",
    torch.int8: "signed char",
    torch.int16: "short",
    torch.int32: "int",
    torch.int64: "long long",
}

_FUNCTIONS = re.findall(r"\w+(?=(?:{f})?\()", " ".join(template for _, template in C_TEMPLATES.values()))

#: Names that a kernel and its values may not have, since a C text reads them: words of C++, functions of the language
#: in both precisions, and what is around the body. Lines outside have names of their own (``spikecore.lang.render``).
RESERVED = (
    C_WORDS
    | {f"{name}{suffix}" for name in _FUNCTIONS for suffix in ("", "f")}
    | frozenset(
        "V T N i j t core real value rounded load store half Pack float16 bfloat16 blockIdx blockDim threadIdx gridDim "
        "warpSize INFINITY NAN".split()
    )
)

#: Stored with fewer digits than arithmetic has, so converted wherever they are read and written.
_NARROW = frozenset(NARROW.values())


class Declared(NamedTuple):
    """One value of a kernel. Its role:

    - ``"input"`` and ``"output"``: a tensor of all elements;
    - ``"param"``: a tensor of one step, or of one number; ``"number"``: a Python number;
    - ``"state"``: carried from step to step, ``first`` before the first one; ``"end"``: a state after the last step.
    """

    name: str
    role: str
    kind: Kind = None
    first: float = 0.0


def checked_name(what: str, name: Any) -> str:
    """The name, if C and Python can both have it."""
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii() or name.startswith("_"):
        raise ValueError(f"{what} {name!r} is no name: use ASCII letters, digits and _, with a letter first")
    if name in RESERVED or keyword.iskeyword(name):
        raise ValueError(
            f"{what} {name!r} is a word of Python, of CUDA C++ or of the kernel around the body; "
            f"call it something else, such as {name}_"
        )
    return name


def declared(kernel: str, role: str, declarations: Any) -> List[Declared]:
    """The values of a role, from a mapping of names to kinds, or names alone."""
    default: Kind = float if role == "param" else None
    names = (declarations,) if isinstance(declarations, str) else declarations
    items = names.items() if isinstance(names, Mapping) else [(name, default) for name in names]
    values = []
    for name, kind in items:
        checked_name(f"kernel {kernel}: {role}", name)
        number = role == "param" and (kind is float or kind is int)
        if not number and kind is not None and not (isinstance(kind, torch.dtype) and kind in STORED):
            numbers = "float, int, " if role == "param" else ""
            raise TypeError(
                f"kernel {kernel}: {role} {name!r} has kind {kind!r}; right are {numbers}None (the dtype of the call), "
                f"{', '.join(map(str, STORED))}"
            )
        values.append(Declared(name, "number" if number else role, kind))
    return values


def states(kernel: str, start: Mapping[str, float], final: Sequence[str]) -> List[Declared]:
    """The states, and what is given back of them."""
    values = []
    for name, first in start.items():
        checked_name(f"kernel {kernel}: state", name)
        if isinstance(first, bool) or not isinstance(first, (int, float)):
            raise TypeError(
                f"kernel {kernel}: state {name!r} starts at {first!r}; declare a number, and give tensors in a call"
            )
        values.append(Declared(name, "state", None, float(first)))
    unknown = [name for name in final if name not in start]
    if unknown:
        raise ValueError(
            f"kernel {kernel}: final has {', '.join(map(repr, unknown))}, which is no state; "
            f"its states are: {', '.join(start) or 'none'}"
        )
    return [*values, *(Declared(f"{name}_end", "end") for name in final)]


def of_role(values: Sequence[Declared], *roles: str) -> List[str]:
    """The names of the values of these roles, in the order of the roles."""
    return [value.name for role in roles for value in values if value.role == role]


class Typed:
    """The types of a kernel's values, for calls of one dtype, where a thread reads ``access`` bytes at once.

    Attributes
    ----------
    dtypes: of every tensor, by its name.
    compute: of arithmetic and of states: float64 if a tensor is, else float32.
    real: its C type.
    width: neighbouring elements of a thread, where memory allows: ``access`` bytes of the narrowest tensor that is
        read or written as a whole, and at most 16 of the widest.
    """

    def __init__(self, values: Sequence[Declared], dtype: torch.dtype, access: int) -> None:
        self.dtypes: Dict[str, torch.dtype] = {}
        for value in values:
            kind = dtype if value.kind is None else value.kind
            if value.role in ("input", "param", "output") and isinstance(kind, torch.dtype):
                self.dtypes[value.name] = kind
        # one type of arithmetic for a whole kernel, so that a body need not convert
        self.compute = torch.float64 if torch.float64 in self.dtypes.values() else torch.float32
        self.dtypes.update((name, self.compute) for name in of_role(values, "state", "end"))
        self.real = TYPES[self.compute]
        sizes = [_bytes(self.dtypes[name]) for name in of_role(values, "input", "output", "end")]
        self.width = max(1, min(access // min(sizes), 16 // max(sizes)))
        self._numbers = {v.name: "long long" if v.kind is int else self.real for v in values if v.role == "number"}

    def stored(self, name: str) -> str:
        """The C type of a tensor's numbers in memory."""
        return STORED[self.dtypes[name]]

    def local(self, name: str) -> str:
        """The C type of a value in a C text."""
        if name in self._numbers:
            return self._numbers[name]
        return self.real if self.dtypes[name].is_floating_point else self.stored(name)

    def read(self, name: str, text: str) -> str:
        """A number from memory as arithmetic has it."""
        return f"value({text})" if self.dtypes[name] in _NARROW else text

    def written(self, name: str, text: str) -> str:
        """A number of arithmetic as memory has it. One of float64 is rounded to float32 on its way to 16 bits."""
        if self.dtypes[name] not in _NARROW:
            return text
        return f"rounded<{self.stored(name)}>({text if self.compute is torch.float32 else f'(float){text}'})"


def _bytes(dtype: torch.dtype) -> int:
    return torch.empty((), dtype=dtype).element_size()


_GRADIENT = (
    "a kernel has no gradient, and here autograd is recording: call it in a torch.autograd.Function, "
    "under torch.no_grad(), or with tensor.detach()"
)


class Sizes(NamedTuple):
    """Sizes that the tensors of a call share: ``like`` is the first of all elements, called ``name``."""

    name: str
    like: Tensor
    layout: Layout
    #: None where the kernel has no time.
    steps: Optional[int]

    @property
    def neurons(self) -> int:
        """Number of elements of one step."""
        count = 1
        for size in self.layout.shape:
            count *= size
        return count

    def empty(self, dtype: torch.dtype, one_step: bool) -> Tensor:
        """A new tensor in the layout of the call."""
        lead = () if one_step or self.steps is None else (self.steps,)
        return self.layout.empty(lead, self.like, dtype)


def check_names(kernel: str, values: Sequence[Declared], arguments: Mapping[str, Any]) -> None:
    """Every value that is given is declared, and every one that must be given is."""
    unknown = [name for name in arguments if not any(value.name == name for value in values)]
    if unknown:
        raise TypeError(f"kernel {kernel} has no {', '.join(map(repr, unknown))}; {_known(values)}")
    needed = [v.name for v in values if v.role in ("input", "param", "number") and v.name not in arguments]
    if needed:
        raise TypeError(f"kernel {kernel} misses {', '.join(map(repr, needed))}; {_known(values)}")
    for value in values:
        if value.name in arguments:
            _check_type(kernel, value, arguments[value.name])


def _known(values: Sequence[Declared]) -> str:
    takes = of_role(values, "input", "param", "number")
    may = of_role(values, "state", "output", "end")
    return f"it takes {', '.join(takes) or 'nothing'}, and may be given {', '.join(may)}"


def _check_type(kernel: str, value: Declared, argument: Any) -> None:
    number = isinstance(argument, Real) and not isinstance(argument, bool)
    if value.role == "number":
        if not number or (value.kind is int and not isinstance(argument, Integral)):
            right = "a whole number" if value.kind is int else "a number (declare a dtype for a tensor)"
            raise TypeError(f"kernel {kernel}: {value.name} must be {right}, not {_described(argument)}")
        if value.kind is int and not -(2**63) <= argument < 2**63:
            raise ValueError(f"kernel {kernel}: {value.name}={argument} does not fit 64 bits")
    elif not isinstance(argument, Tensor) and not (number and value.role == "state"):
        right = "a number or a tensor" if value.role == "state" else "a tensor"
        raise TypeError(f"kernel {kernel}: {value.name} must be {right}, not {_described(argument)}")
    if isinstance(argument, Tensor) and argument.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(f"kernel {kernel}: {value.name} requires grad: {_GRADIENT}")


def _described(argument: Any) -> str:
    if isinstance(argument, Tensor):
        return f"a {argument.dtype} tensor {list(argument.shape)}"
    return f"{argument!r} ({type(argument).__name__})"


def dtype_of(kernel: str, values: Sequence[Declared], arguments: Mapping[str, Any]) -> torch.dtype:
    """The dtype of a call: that of the tensors declared without one, else the first of ``TYPES`` that is declared."""
    roles = ("input", "param", "output")
    free = [v.name for v in values if v.role in roles and v.kind is None and v.name in arguments]
    for name in free:
        if arguments[name].dtype not in TYPES:
            raise TypeError(
                f"kernel {kernel}: {name} is {arguments[name].dtype}; right are {', '.join(map(str, TYPES))}"
            )
        if arguments[name].dtype != arguments[free[0]].dtype:
            raise TypeError(
                f"kernel {kernel}: {name} is {arguments[name].dtype} and {free[0]} is {arguments[free[0]].dtype}; "
                "tensors declared without a dtype must have the same one"
            )
    floating = [kind for kind in TYPES if any(v.role in roles and v.kind is kind for v in values)]
    first: torch.dtype = arguments[free[0]].dtype if free else floating[0] if floating else torch.float32
    return first


def sizes_of(kernel: str, values: Sequence[Declared], arguments: Mapping[str, Any], timed: bool, device: str) -> Sizes:
    """The sizes and the layout of a call, from its first tensor of all elements."""
    full = [v.name for role in ("input", "output") for v in values if v.role == role and v.name in arguments]
    if not full:
        raise TypeError(f"kernel {kernel}: no input and no output is given, and nothing else says the sizes")
    name, like = full[0], arguments[full[0]]
    if like.device.type != device:
        where = "an NVIDIA GPU" if device == "cuda" else device
        raise ValueError(f"kernel {kernel}: {name} is on {like.device}; kernels run on {where}: .to({device!r})")
    if timed and not like.dim():
        raise ValueError(f"kernel {kernel}: {name} has no dimension; right is [T, *N], time first")
    steps = like if timed else like[None]
    return Sizes(name, like, layout_of(steps), steps.shape[0] if timed else None)


def check_tensors(
    kernel: str, values: Sequence[Declared], arguments: Mapping[str, Any], typed: Typed, of: Sizes
) -> None:
    """Every tensor has its dtype, the device, its shape, and lies as the first one does."""
    for value in values:
        tensor = arguments.get(value.name)
        if isinstance(tensor, Tensor):
            what = f"kernel {kernel}: {value.name}"
            if tensor.dtype != typed.dtypes[value.name]:
                raise TypeError(f"{what} is {tensor.dtype}; right is {typed.dtypes[value.name]}")
            if tensor.device != of.like.device:
                raise ValueError(f"{what} is on {tensor.device} and {of.name} is on {of.like.device}")
            _check_place(what, value.role, tensor, of)


def _check_place(what: str, role: str, tensor: Tensor, of: Sizes) -> None:
    full = role in ("input", "output")
    shape = tuple(of.like.shape) if full else of.layout.shape
    single = role == "param" and tensor.numel() == 1
    if tensor.shape != shape and not single:
        either = " or one number" if role == "param" else ""
        raise ValueError(f"{what} has shape {list(tensor.shape)}; right is {list(shape)}{either}, as {of.name} says")
    timed = full and of.steps is not None
    # a copy is made only where this raises
    dense = single or (of.layout.fit_steps if timed else of.layout.fit)(tensor) is tensor
    if dense and timed and role == "output" and tensor.shape[0] > 1:
        dense = tensor.stride(0) == of.neurons
    if not dense:
        each = "each step " if timed and role == "input" else ""
        like = "" if tensor is of.like else f", in the order that {of.name} has with strides {of.like.stride()}"
        raise ValueError(
            f"{what} has strides {tensor.stride()}; {each}must lie in memory without gaps{like}: "
            "a contiguous copy does, .contiguous()"
        )


def check_apart(kernel: str, tensors: Mapping[str, Tensor], fills: Sequence[str], in_place: bool) -> None:
    """No tensor that is filled shares memory with another; with ``in_place``, it may be an input itself."""
    spans = {name: _span(tensor) for name, tensor in tensors.items()}
    for filled in fills:
        for name, span in spans.items():
            here = spans[filled]
            same = in_place and span == here and name not in fills
            if name != filled and span[0] < here[1] and here[0] < span[1] and not same:
                rule = "may be an input itself, or share no memory with it" if in_place else "must share no memory"
                raise ValueError(f"kernel {kernel}: {filled} shares memory with {name}; what a kernel fills {rule}")


def _span(tensor: Tensor) -> Tuple[int, int]:
    """The first byte of a tensor, and the first behind it."""
    if not tensor.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def split(arguments: Mapping[str, Any]) -> Tuple[Dict[str, Tensor], Dict[str, Any]]:
    """The tensors of a call, and its numbers."""
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in arguments.items() if name not in tensors}
