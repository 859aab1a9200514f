"""What a kernel takes and gives: names, roles, kinds, and the C types that follow from the dtype of a call."""

from __future__ import annotations

import keyword
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Type, Union

import torch

from spikecore.dtypes import NARROW
from spikecore.lang.render import C_TEMPLATES, C_WORDS
from spikecore_cupy.printer import TYPES

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

#: What a kernel and its values may not be called, since a C text reads them: words of C++, functions of the language in
#: both precisions, and what is around the body. Lines outside have names of their own (``spikecore.lang.render``).
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


def declared(kernel: str, role: str, given: Any) -> List[Declared]:
    """The values of a role, from a mapping of names to kinds, or names alone."""
    default: Kind = float if role == "param" else None
    names = (given,) if isinstance(given, str) else given
    items = names.items() if isinstance(names, Mapping) else [(name, default) for name in names]
    found = []
    for name, kind in items:
        checked_name(f"kernel {kernel}: {role}", name)
        number = role == "param" and (kind is float or kind is int)
        if not number and kind is not None and not (isinstance(kind, torch.dtype) and kind in STORED):
            numbers = "float, int, " if role == "param" else ""
            raise TypeError(
                f"kernel {kernel}: {role} {name!r} has kind {kind!r}; right are {numbers}None (the dtype of the call), "
                f"{', '.join(map(str, STORED))}"
            )
        found.append(Declared(name, "number" if number else role, kind))
    return found


def states(kernel: str, given: Mapping[str, float], final: Sequence[str]) -> List[Declared]:
    """The states, and what is given back of them."""
    found = []
    for name, first in given.items():
        checked_name(f"kernel {kernel}: state", name)
        if isinstance(first, bool) or not isinstance(first, (int, float)):
            raise TypeError(
                f"kernel {kernel}: state {name!r} starts at {first!r}; declare a number, and give tensors in a call"
            )
        found.append(Declared(name, "state", None, float(first)))
    unknown = [name for name in final if name not in given]
    if unknown:
        raise ValueError(
            f"kernel {kernel}: final has {', '.join(map(repr, unknown))}, which is no state; "
            f"its states are: {', '.join(given) or 'none'}"
        )
    return [*found, *(Declared(f"{name}_end", "end") for name in final)]


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
