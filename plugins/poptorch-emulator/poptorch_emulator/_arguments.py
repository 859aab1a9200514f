"""Matches the arguments of a call with the signature of ``forward``, and compares them with those of the compilation.

From call to call only the values of tensors may change; everything else is part of the compiled program.

The order of the checks and the texts are PopTorch's, "curent" included.
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Tuple

from torch import Tensor

from ._errors import Error, py_error
from ._structure import leaves, ordered, tree_map

_log = logging.getLogger("poptorch")

_END = (
    "\nThis error occurred because the inputs passed at runtime don't match the inputs used to compile the model.\nTo "
    "recompile the model for the new inputs create a new inferenceModel / trainingModel wrapper or call destroy() on "
    "the curent one and try again."
)


@dataclass
class Arguments:
    """The arguments of one call, with defaults filled in."""

    names: List[str] = field(default_factory=list)
    args: List[Any] = field(default_factory=list)
    kwargs: Dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, value: Any) -> None:
        """One more positional argument."""
        self.names.append(name)
        self.args.append(value)

    def tensors(self) -> List[Tensor]:
        """All tensors, from left to right."""
        return list(leaves([self.args, self.kwargs], Tensor))

    def tensors_of(self, call: Arguments) -> List[Tensor]:
        """The tensors of a call that passed :meth:`check`, in the order of :meth:`tensors`: a later call may have the
        keys of a dictionary in another order.
        """
        return list(leaves(ordered([call.args, call.kwargs], [self.args, self.kwargs]), Tensor))

    def map_tensors(self, function: Callable[[Tensor], Any]) -> Arguments:
        """The same arguments with ``function`` of each tensor in its place."""

        def of_tensor(leaf: Any) -> Any:
            return function(leaf) if isinstance(leaf, Tensor) else leaf

        return Arguments(self.names, tree_map(of_tensor, self.args), tree_map(of_tensor, self.kwargs))

    def check(self, given: Arguments) -> None:
        """Raise poptorch.Error if a call with ``given`` is not one that these arguments were compiled for."""
        if len(given.args) != len(self.args):
            raise _error(
                f"Number of positional arguments mismatch: expected {len(self.args)} arguments but got "
                f"{len(given.args)}."
            )
        for name, compiled, value in zip(self.names, self.args, given.args):
            _compare(name, compiled, value)
        _compare("named arguments", self.kwargs, given.kwargs, named=True)


class Parser:
    """Matches arguments with the signature of ``forward``."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.parameters = list(inspect.signature(forward).parameters.values())
        self._warned = False

    def __call__(self, args: Tuple[Any, ...], kwargs: Dict[str, Any], compiling: bool) -> Arguments:
        """The arguments as ``forward`` takes them, contiguous.

        Raises ``AssertionError`` for what ``forward`` does not take, and poptorch.Error for what is missing.
        """
        self._check(args, kwargs)
        parsed = Arguments()
        by_name = False
        for position, parameter in enumerate(self.parameters):
            name = parameter.name
            if parameter.kind is parameter.VAR_KEYWORD:
                taken = {other.name for other in self.parameters[:position]}
                parsed.kwargs.update((key, value) for key, value in kwargs.items() if key not in taken)
            elif parameter.kind is parameter.VAR_POSITIONAL:
                by_name = True
                for number, value in enumerate(args[position:]):
                    parsed.add(f"*{name}[{number}]", value)
            elif not by_name and position < len(args):
                if name in kwargs:
                    raise AssertionError(f"Parameter {name} was passed more than once")
                parsed.add(name, args[position])
            else:
                value = kwargs.get(name, parameter.default)
                if value is parameter.empty:
                    raise py_error(f"Mandatory parameter {name} missing")
                by_name = by_name or parameter.kind is parameter.KEYWORD_ONLY
                if by_name:
                    parsed.kwargs[name] = value
                else:
                    parsed.add(name, value)
        if compiling:
            _warn_of_dictionaries(parsed)
        return parsed.map_tensors(self._contiguous)

    def _check(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in self.parameters):
            return
        names = [parameter.name for parameter in self.parameters]
        if len(args) + len(kwargs) > len(names):
            raise AssertionError(
                f"Too many arguments provided: expected {names} ({len(names)}) but got {len(args) + len(kwargs)}"
            )
        for name in kwargs:
            if name not in names:
                raise AssertionError(f"{name} is not a valid parameter.Allowed values are {names}")

    def _contiguous(self, tensor: Tensor) -> Tensor:
        if tensor.is_contiguous():
            return tensor
        if not self._warned:
            self._warned = True
            _log.warning("At least one input tensor is not contiguous: non-contiguous tensors will be converted.")
        return tensor.contiguous()


def _warn_of_dictionaries(parsed: Arguments) -> None:
    if any(isinstance(value, dict) for value in (*parsed.args, *parsed.kwargs.values())):
        _log.warning(
            "Dicts as inputs only have partial support, they can be accessed using literal keys, but full Python "
            "functionality is not enabled. Consider changing dict inputs to tuple."
        )


def _compare(name: str, compiled: Any, given: Any, named: bool = False) -> None:
    """Raise poptorch.Error if ``given`` cannot stand where ``compiled`` stood."""
    if type(compiled) is not type(given):
        raise _error(f"Type mismatch for {name}: expected {type(compiled)} but got {type(given)}.")
    if isinstance(compiled, tuple) or (isinstance(compiled, list) and any(True for _ in leaves(compiled, Tensor))):
        if len(compiled) != len(given):
            raise _error(f"Length mismatch for {name}: expected {len(compiled)} elements but got {len(given)}.")
        for position, (one, other) in enumerate(zip(compiled, given)):
            _compare(f"{name}[{position}]", one, other)
    elif isinstance(compiled, dict):
        if compiled.keys() != given.keys():
            raise _error(f"Keys mismatch for {name}: {'. '.join(_keys(compiled, given))}.")
        for key, value in compiled.items():
            _compare(str(key) if named else f"{name}[{key}]", value, given[key])
    elif isinstance(compiled, Tensor):
        if compiled.dtype != given.dtype:
            raise _error(f"Data type mismatch for {name}: expected {compiled.dtype} but got {given.dtype}.")
        if compiled.shape != given.shape:
            raise _error(f"Shape mismatch for {name}: expected {compiled.shape} but got {given.shape}.")
    elif any(True for _ in leaves(compiled, Tensor)):  # of a class that has a parser
        _compare(name, tuple(leaves(compiled, Tensor)), tuple(leaves(given, Tensor)))
    elif compiled != given:
        raise _error(f"Value mismatch for {name}: expected {compiled} but got {given}.")


def _keys(compiled: Dict[Any, Any], given: Dict[Any, Any]) -> Iterator[str]:
    extra, missing = given.keys() - compiled.keys(), compiled.keys() - given.keys()
    if extra:
        yield f"Unexpected arguments: {', '.join(sorted(extra))}"
    if missing:
        yield f"Missing arguments: {', '.join(sorted(missing))}"


def _error(message: str) -> Error:
    return py_error(message + _END)
