"""What a graph takes for granted: read, compared, and put back.

A graph has addresses and numbers in it. These functions say which, in values that can be compared without asking the
GPU, and refuse what no graph can follow.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any, Callable, Dict, Hashable, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore._base.errors import a_kind
from spikecore._shell.binding import numbers_of
from spikecore._shell.checks import shown
from spikecore._shell.processes import is_shard
from spikecore._shell.state import CALLS
from spikecore.backend import Unsupported

#: Settings are compared by value. No subclasses: comparing one may run any code, or ask the GPU.
_SETTINGS = frozenset((bool, int, float, str))
#: What is read of the attributes of a module; others are its tables, or what only Python sees.
_WATCHED = _SETTINGS | {Tensor, torch.Generator}
_values = operator.methodcaller("values")
_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def kind(value: Any) -> Hashable:
    """The part of a batch that is fixed in a graph: shapes, strides, dtypes, and values that are no tensors.

    Raises TypeError for a value that can be neither copied nor compared.
    """
    if isinstance(value, Tensor):
        # the values are no part of it: a replay copies them into the graph's buffers
        return value.shape, value.stride(), value.dtype
    if isinstance(value, dict):
        return (type(value), *((key, kind(item)) for key, item in value.items()))
    if isinstance(value, (tuple, list)):
        return (type(value), *map(kind, value))
    if value is None or type(value) in _SETTINGS:
        # a number is written into the launches that were captured; with its type, because 1 == True == 1.0
        return type(value), value
    raise TypeError(
        f"the batch holds {shown(value)}, {a_kind(value)}; with graph=True it is made of tensors, numbers, "
        "strings and None in tuples, lists and dicts"
    )


def of_module(module: nn.Module) -> List[Any]:
    """Settings of one module, its children, and where its tensors lie."""
    facts = [
        value if type(value) in _SETTINGS else _place(value)
        for name, value in module.__dict__.items()
        if type(value) in _WATCHED and name != CALLS
    ]
    facts += numbers_of(module).items()  # of a neuron: the surrogate's fields
    # requires_grad: backward was captured for the gradients that were wanted then
    for tensors in (module._parameters, module._buffers):
        facts += [None if tensor is None else (tensor.data_ptr(), tensor.requires_grad) for tensor in tensors.values()]
    if module._modules:
        # a child in the place of another one is seen here alone: the list of modules is read when graphs are dropped
        facts += map(id, module._modules.values())
    return facts


def of_optimizer(optimizer: torch.optim.Optimizer) -> List[Any]:
    """Hyperparameters, and where parameters and states lie. A tensor's value is free to change, its place is not."""
    facts: List[Any] = []
    for group in optimizer.param_groups:
        facts += [_place(value) for value in group.values()]
        facts += [parameter.data_ptr() for parameter in group["params"]]
    # numbers among the states are left out: a step count changes at every step, and on_host() refuses it
    for state in optimizer.state.values():
        facts += [value.data_ptr() for value in state.values() if isinstance(value, Tensor)]
    return facts


class Held:
    """What modules and an optimiser hold now, for a quick look whether all of it is still the same objects.

    :meth:`unchanged` may be False where :func:`of_module` and :func:`of_optimizer` find nothing else, as after a number
    was replaced by an equal one. It takes less than half of their time, which was 25 us for 784-1000-10, of whose step
    a GPU needs 100 us. (A neuron whose surrogate has other numbers holds another cache.)
    """

    def __init__(self, modules: Sequence[nn.Module], optimizer: Optional[torch.optim.Optimizer]) -> None:
        own = [vars(module) for module in modules]
        tables: List[Dict[Any, Any]] = []
        tables += [table for module in modules for table in (module._parameters, module._buffers, module._modules)]
        lists: List[List[Any]] = []
        self._optimizer: Tuple[Any, ...] = ()
        if optimizer is not None:
            self._optimizer = optimizer, optimizer.state, optimizer.param_groups
            tables += [optimizer.state, *optimizer.state.values(), *optimizer.param_groups]
            lists = [optimizer.param_groups, *(group["params"] for group in optimizer.param_groups)]
        self._modules, self._own, self._lists = modules, own, lists
        self._dicts: List[Dict[Any, Any]] = [*own, *tables]
        self._sizes = self._lengths()
        self._values = [*self._objects()]
        found = [value for held in own for value in held.values() if type(value) is Tensor]
        for held in (*map(_values, tables), *lists):
            found += [value for value in held if isinstance(value, Tensor)]
        # a parameter is met in a module and in a group
        self._tensors = [*{id(value): value for value in found}.values()]
        self._places = [(value.data_ptr(), value.requires_grad) for value in self._tensors]

    def unchanged(self) -> bool:
        """Whether each is the same object as before, and tensors have their memory where it was."""
        if self._optimizer:
            optimizer, state, groups = self._optimizer
            if optimizer.state is not state or optimizer.param_groups is not groups:
                return False
        return (
            all(map(operator.is_, map(vars, self._modules), self._own))
            and self._lengths() == self._sizes
            and all(map(operator.is_, self._objects(), self._values))
            and [(value.data_ptr(), value.requires_grad) for value in self._tensors] == self._places
        )

    def _lengths(self) -> List[int]:
        return [*map(len, self._dicts), *map(len, self._lists)]

    def _objects(self) -> Iterator[Any]:
        return itertools.chain.from_iterable([*map(_values, self._dicts), *self._lists])


def _place(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.data_ptr()
    # a list, such as a group's parameters, by its identity: to compare tensors in it would ask the GPU
    return id(value) if isinstance(value, (list, torch.Generator)) else value


def on_host(optimizer: torch.optim.Optimizer, device: torch.device) -> List[str]:
    """Names of the states that ``optimizer`` keeps elsewhere than on ``device``; a replay would not move them on."""
    return sorted(
        {
            name
            for state in optimizer.state.values()
            for name, value in state.items()
            if isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.device != device)
        }
    )


def snapshot(modules: Sequence[nn.Module], optimizer: Any) -> Callable[[], None]:
    """A function that puts back which tensors and settings are held; their values are not touched."""
    live = [held for module in modules for held in (vars(module), module._parameters, module._buffers)]
    if optimizer is not None:
        live += [optimizer.state, *optimizer.state.values(), *optimizer.param_groups]
    kept = [(held, dict(held)) for held in live]
    parameters = [p for module in modules for p in module._parameters.values() if p is not None]
    tensors = [(parameter, parameter.data, parameter.grad) for parameter in parameters]

    def put_back() -> None:
        # in place, since modules and the optimiser hold these dicts themselves
        for held, copy in kept:
            held.clear()
            held.update(copy)
        for parameter, data, gradient in tensors:
            parameter.data, parameter.grad = data, gradient

    return put_back


def gpu_of(net: nn.Module) -> torch.device:
    """The one GPU that holds ``net``. Raises ValueError if there is none, Unsupported for a network that is spread."""
    wrapped = next((module for module in net.modules() if isinstance(module, _PARALLEL)), None)
    if wrapped is not None:
        raise Unsupported(f"{a_kind(wrapped)} cannot be captured in a CUDA graph here; train with graph=False")
    if any(is_shard(parameter) for parameter in net.parameters()):
        raise Unsupported("a network under fully_shard cannot be captured in a CUDA graph here; train with graph=False")
    device = None
    for name, tensor in itertools.chain(net.named_parameters(), net.named_buffers()):
        device = tensor.device if device is None else device
        if tensor.device.type != "cuda":
            raise ValueError(
                f"graph=True needs the network on a GPU, and {name} is on {tensor.device}; move it with "
                "net.to('cuda') before the optimiser is made, or use graph=False"
            )
        if tensor.device != device:
            raise ValueError(
                f"graph=True needs the network on one GPU, and {name} is on {tensor.device}, others on {device}; "
                "move it with net.to(...), or use graph=False"
            )
    if device is None:
        raise ValueError("graph=True takes the GPU from the network's parameters, and it has none; use graph=False")
    return device


def make_capturable(optimizer: Any, device: torch.device) -> None:
    """Have ``optimizer`` keep its step counts on ``device``: ``capturable=True`` where torch has that.

    Raises TypeError for LBFGS, ValueError for a hyperparameter that is a tensor elsewhere.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("optimizer=LBFGS runs the network several times in a step, no CUDA graph can; use graph=False")
    for group in optimizer.param_groups:
        for name, value in group.items():
            if isinstance(value, Tensor) and value.device != device:
                raise ValueError(
                    f"{name}={value.tolist()} of the optimiser is a tensor on {value.device}, which a CUDA graph would "
                    f"not read again; make it a tensor on {device} or a number"
                )
        if "capturable" in group:
            group["capturable"] = True
            # torch makes step counts on the host unless the group is capturable when the first step is made
            for state in [optimizer.state[parameter] for parameter in group["params"] if parameter in optimizer.state]:
                counts = {name: value for name, value in state.items() if isinstance(value, Tensor) and value.ndim == 0}
                state.update({name: value.to(device) for name, value in counts.items()})
    # torch warns of capturable=True in a step that runs eagerly, as those before the capture do
    optimizer._warned_capturable_if_run_uncaptured = True
