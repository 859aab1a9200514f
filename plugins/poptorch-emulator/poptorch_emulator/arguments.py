"""The arguments of a call: matched with the signature of ``forward``, compared with the compilation's, cut and joined.

Rules of this module:

- Arguments and outputs are nested tuples, named tuples, lists and dictionaries. Anything else is a leaf, unless its
  class has a parser. Types and the order of keys are kept.
- From call to call only the values of tensors may change; everything else is part of the compiled program. The order
  of the checks and the texts are PopTorch's, "curent" included.
- The batch of a call is cut along dimension 0. For ``D`` device iterations, ``A`` accumulated micro batches and ``R``
  replicas in groups of ``G`` with one input, a call takes ``D * A * (R / G)`` consecutive slices, in the order
  [device iteration][accumulation][group of replicas]. 0-d outputs are stacked to ``[k]`` if there are k > 1 of them.

| output mode | micro outputs that are returned, for each replica                        | joined: dimension 0 times |
|-------------|--------------------------------------------------------------------------|---------------------------|
| All         | of all iterations                                                        | ``D * A * R``             |
| EveryN      | of iterations N-1, 2N-1, ...                                             | ``D * A * R / N``         |
| Final       | of the last iteration                                                    | ``R``                     |
| Sum         | the sum over all iterations                                              | ``R``                     |
"""

from __future__ import annotations

import abc
import inspect
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Type, TypeVar

import torch
from torch import Tensor

from ._errors import Error, logger, py_error
from .enums import OutputMode
from .options import Options

Leaf = TypeVar("Leaf")


class ICustomArgParser(abc.ABC):
    """``poptorch.ICustomArgParser``: the tensors in an object of a user's class, and another object of others."""

    @abc.abstractmethod
    def yieldTensors(self, struct: Any) -> Iterator[Tensor]:
        """The tensors of an object, always in the same order."""

    @abc.abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Tensor]) -> Any:
        """An object like the original, with tensors from the iterator in the order of :meth:`yieldTensors`."""


_parsers: Dict[type, ICustomArgParser] = {}


def registerCustomArgParser(arg_data_type: type, arg_parser: Optional[ICustomArgParser]) -> None:
    """Have models take and return objects of a class; ``None`` removes its parser."""
    if arg_parser is None:
        _parsers.pop(arg_data_type, None)
        return
    if not isinstance(arg_parser, ICustomArgParser):
        raise py_error("arg_parser must inherit from ICustomArgParser")
    _parsers[arg_data_type] = arg_parser


def _parser(structure: Any) -> Optional[ICustomArgParser]:
    """The parser of an object: of its class, or else of a class that it inherits."""
    own = _parsers.get(type(structure))
    if own is not None:
        return own
    return next((parser for kind, parser in _parsers.items() if isinstance(structure, kind)), None)


def tree_map(function: Callable[[Any], Any], structure: Any) -> Any:
    """The same structure with ``function`` of each leaf in its place."""
    parser = _parser(structure) if _parsers else None
    if parser is not None:
        return parser.reconstruct(structure, iter([function(leaf) for leaf in parser.yieldTensors(structure)]))
    if isinstance(structure, (tuple, list)):
        items = [tree_map(function, item) for item in structure]
        return type(structure)(*items) if hasattr(structure, "_fields") else type(structure)(items)
    if not isinstance(structure, dict):
        return function(structure)
    values = {key: tree_map(function, value) for key, value in structure.items()}
    if type(structure) is dict:
        return values
    copy: Any = structure.copy()  # an OrderedDict for one
    copy.update(values)
    return copy


def ordered(structure: Any, like: Any) -> Any:
    """The same structure with the keys of its dictionaries in the order that they have in ``like``."""
    if _parsers and _parser(structure) is not None:
        return structure
    if isinstance(structure, (tuple, list)):
        return [ordered(item, other) for item, other in zip(structure, like)]
    if isinstance(structure, dict):
        return {key: ordered(structure[key], other) for key, other in like.items()}
    return structure


def leaves(structure: Any, kind: Type[Leaf]) -> List[Leaf]:
    """The leaves of one type, from left to right."""
    found: List[Leaf] = []
    _collect(structure, kind, found)
    return found


# a list that is filled, because recursive generators took a sixteenth of the time of a recording
def _collect(structure: Any, kind: Type[Leaf], found: List[Leaf]) -> None:
    parser = _parser(structure) if _parsers else None
    if parser is not None:
        found.extend(leaf for leaf in parser.yieldTensors(structure) if isinstance(leaf, kind))
    elif isinstance(structure, (tuple, list)):
        for item in structure:
            _collect(item, kind, found)
    elif isinstance(structure, dict):
        for item in structure.values():
            _collect(item, kind, found)
    elif isinstance(structure, kind):
        found.append(structure)


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
        self.names.append(name)
        self.args.append(value)

    def tensors(self) -> List[Tensor]:
        return leaves([self.args, self.kwargs], Tensor)

    def tensors_of(self, call: Arguments) -> List[Tensor]:
        """The tensors of a call that passed :meth:`check`, in the order of :meth:`tensors`: a later call may have the
        keys of a dictionary in another order.
        """
        return leaves(ordered([call.args, call.kwargs], [self.args, self.kwargs]), Tensor)

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
        if compiling and any(isinstance(value, dict) for value in (*parsed.args, *parsed.kwargs.values())):
            logger.warning(
                "Dicts as inputs only have partial support, they can be accessed using literal keys, but full Python "
                "functionality is not enabled. Consider changing dict inputs to tuple."
            )
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
            logger.warning("At least one input tensor is not contiguous: non-contiguous tensors will be converted.")
        return tensor.contiguous()


def _compare(name: str, compiled: Any, given: Any, named: bool = False) -> None:
    """Raise poptorch.Error if ``given`` cannot stand where ``compiled`` stood."""
    if type(compiled) is not type(given):
        raise _error(f"Type mismatch for {name}: expected {type(compiled)} but got {type(given)}.")
    if isinstance(compiled, tuple) or (isinstance(compiled, list) and leaves(compiled, Tensor)):
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
    elif leaves(compiled, Tensor):  # of a class that has a parser
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


class Batching:
    """The sizes that the options give."""

    def __init__(self, options: Options) -> None:
        self.iterations: int = options.device_iterations
        self.accumulation: int = options.Training.gradient_accumulation
        self.replicas: int = options.replication_factor
        self.group: int = options.input_group_size
        self.mode: OutputMode = options.output_mode
        self.period: int = options.output_return_period

    @property
    def slices(self) -> int:
        """Number of parts that the batch of one call is cut into."""
        return self.iterations * self.accumulation * (self.replicas // self.group)

    def check(self, shape: torch.Size) -> None:
        """Raise AssertionError if an input of this shape cannot be cut into the micro batches of a call."""
        size = shape[0] if shape else 1
        if size % self.slices:
            raise AssertionError(
                f"Invalid batch dimension: In the input {shape}, the batch dimension ({size}) must be a multiple of "
                f"Options.deviceIterations({self.iterations}) * (Options.replicationFactor({self.replicas}) / "
                f"Options.inputReplicaGrouping.input_group_size({self.group})) * "
                f"Options.Training.gradientAccumulation({self.accumulation}) = {self.slices} because it is used to "
                "calculate the batch size which will be executed on the device in any given iteration. For a full "
                "explanation see the batching semantics page of the documentation."
            )

    def slice(self, tensor: Tensor, iteration: int, step: int, replica: int) -> Tensor:
        """The micro batch, a view, of one accumulation step of one device iteration."""
        if not tensor.dim():
            return tensor
        size = tensor.shape[0] // self.slices
        groups = self.replicas // self.group
        return tensor.narrow(0, ((iteration * self.accumulation + step) * groups + replica // self.group) * size, size)

    def joined(self, outputs: List[Tensor]) -> Tensor:
        """Result of a call from its micro batches' outputs, given in the order of computation, replicas innermost."""
        steps = [outputs[start : start + self.replicas] for start in range(0, len(outputs), self.replicas)]
        if self.mode == OutputMode.Final:
            steps = steps[-1:]
        elif self.mode == OutputMode.EveryN:
            steps = steps[self.period - 1 :: self.period]
        elif self.mode == OutputMode.Sum:
            steps = [[torch.stack(replica).sum(0).to(replica[0].dtype) for replica in zip(*steps)]]
        chosen = [output for step in steps for output in step]
        if len(chosen) == 1:
            return chosen[0].clone()
        return torch.cat(chosen) if chosen[0].dim() else torch.stack(chosen)
