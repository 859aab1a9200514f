"""The parameters and buffers of a model: on the host, in the graph, and in the memory of the emulated device.

Rules of this module:

- Floating-point parameters and buffers are variables of the device. Those of integers and booleans are compiled in.
- They must be contiguous: PopTorch copies memory from the first number on, whatever the strides are.
- While ``forward`` is recorded the modules hold tensors of the trace. What they held before is put back in any case.
- A buffer or a parameter is changed in place or not at all: one that ``forward`` replaces is an error.
- While a wrapper trains a module, reading a weight copies it from the device first. For that the classes of the module,
  of its parameters and of its buffers are replaced in place, as PopTorch does. A deep or pickled copy is of the
  original classes again; a shallow copy stays wrapped.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor, nn

from ._errors import cpp_error, py_error
from ._graph import Graph
from ._tensor import IpuTensor, narrow
from ._trace import Trace

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def host_weights(model: nn.Module) -> Dict[str, Tensor]:
    """Parameters and buffers by name, each once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def check_layout(host: Dict[str, Tensor]) -> None:
    """Raise poptorch.Error for what is not contiguous: PopTorch would compute with other numbers, without a word."""
    with untouched():
        for name, tensor in host.items():
            if not tensor.is_contiguous():
                raise py_error(
                    f"{name} of shape {list(tensor.shape)} has strides {list(tensor.stride())}. PopTorch copies memory "
                    "as if it were contiguous, and would compute with permuted numbers, or with memory that is not "
                    f"the tensor's. Make it contiguous: {name}.data = {name}.data.contiguous()"
                )


def check_sharing(host: Dict[str, Tensor], trained: Sequence[str]) -> None:
    """Raise poptorch.Error for a trained parameter in the memory of another: PopTorch would train them apart.

    Each has memory of its own on the device, and both are copied back to the same place.
    """
    spans = [
        (tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size(), name)
        for name, tensor in host.items()
        if tensor.numel()
    ]
    last_end, last = 0, ""  # of the tensor that ends last, of those that begin before
    for begin, end, name in sorted(spans):
        if begin < last_end and (last in trained or name in trained):
            raise py_error(
                f"{last} and {name} are two tensors in the same memory. PopTorch would train them apart, "
                "without a word. Share the parameter itself, or clone() one"
            )
        if end > last_end:
            last_end, last = end, name


@contextmanager
def untouched() -> Iterator[None]:
    """Inside, reading a weight of a wrapped model does not copy it from the device first."""
    with torch._C.DisableTorchFunctionSubclass():
        yield


class DeviceWeights:
    """The variables of one executable; ``variables`` are replica 0's, and ``others`` the other replicas'.

    Replicas share parameters, which an update changes for all; buffers are each replica's own.
    """

    def __init__(self, host: Dict[str, Tensor], replicas: int) -> None:
        self.host = {name: tensor for name, tensor in host.items() if tensor.is_floating_point()}
        self.parameters = [name for name, tensor in self.host.items() if isinstance(tensor, nn.Parameter)]
        with untouched():
            #: The parameters that are trained: what `requires_grad` said at compilation.
            self.trained = [name for name in self.parameters if self.host[name].requires_grad]
            check_sharing(self.host, self.trained)
            self.variables = {
                name: narrow(tensor.detach()).clone(memory_format=torch.contiguous_format)
                for name, tensor in self.host.items()
            }
        self.others = [
            {name: value if name in self.parameters else value.clone() for name, value in self.variables.items()}
            for _ in range(replicas - 1)
        ]

    def of_replica(self, replica: int) -> Dict[str, Tensor]:
        """The memory of one replica; detached, so that what is computed with it leaves no history there."""
        variables = self.variables if replica == 0 else self.others[replica - 1]
        trained = set(self.trained)
        return {name: value.detach().requires_grad_(name in trained) for name, value in variables.items()}

    def to_host(self) -> None:
        """Copy the variables of replica 0 to the model."""
        with untouched(), torch.no_grad():
            check_layout(self.host)
            for name, tensor in self.host.items():
                # .data: PopTorch writes to memory, so the version counter of the tensor does not change
                tensor.data.copy_(self.variables[name])

    def to_device(self, names: Optional[Sequence[str]] = None) -> None:
        """Copy the model's parameters and buffers, or those of these names, to every replica."""
        chosen = self.host if names is None else {name: self.host[name] for name in names}
        with untouched(), torch.no_grad():
            check_layout(chosen)
            for name, tensor in chosen.items():
                for variables in (self.variables, *self.others):
                    variables[name].copy_(tensor)


@dataclass
class _Place:
    """Where a module holds a parameter or a buffer."""

    module: nn.Module
    kind: str
    held: Dict[str, Any]
    name: str
    original: Tensor

    def check(self, placed: Tensor) -> None:
        """Raise poptorch.Error if ``forward`` left something else there."""
        if isinstance(self.module, _NORMS) and self.name == "num_batches_tracked":
            return
        if self.name not in self.held:
            raise py_error(f"{self.kind} {self.name} is removed from the model when calling the forward method.")
        if self.held[self.name] is not placed:
            raise py_error(
                f"{self.kind} {self.name} is reassigned within the model when calling the forward method. This is not "
                f"supported. Consider using self.{self.name}.copy_(src) to copy data from a source tensor, where src "
                "is the name of the source tensor."
            )


@contextmanager
def on_device(model: nn.Module, trace: Trace) -> Iterator[None]:
    """The modules hold tensors of the trace inside; raises poptorch.Error if one was replaced or removed."""
    named = {id(tensor): name for name, tensor in host_weights(model).items()}
    places = list(_places(model))
    placed: Dict[int, IpuTensor] = {}
    for place in places:
        if id(place.original) not in placed:
            name, tensor = named[id(place.original)], place.original
            with untouched():
                value = trace.weight(name, tensor) if tensor.is_floating_point() else trace.constant(tensor)
            value._is_param = isinstance(tensor, nn.Parameter)  # what isinstance(value, nn.Parameter) asks for
            placed[id(tensor)] = value
    try:
        for place in places:
            place.held[place.name] = placed[id(place.original)]
        with _recurrent(model):
            yield
        for place in places:
            place.check(placed[id(place.original)])
    finally:
        for place in places:
            place.held[place.name] = place.original


@contextmanager
def _recurrent(model: nn.Module) -> Iterator[None]:
    """Inside, each nn.LSTM, nn.GRU and nn.RNN lists the tensors that it holds now.

    These layers hold their weights in a list too. They make a new list if a weight was replaced. Torch 2.0 reads
    ``.data`` for that, and the new list would keep tensors of the trace.
    """
    layers: List[Any] = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    layers = [layer for layer in layers if layer._parameters.keys() >= set(layer._flat_weights_names)]
    before = [(layer._flat_weights, layer._flat_weight_refs) for layer in layers]
    for layer in layers:
        layer._flat_weights = [layer._parameters[name] for name in layer._flat_weights_names]
        layer._flat_weight_refs = [weakref.ref(weight) for weight in layer._flat_weights]
    try:
        yield
    finally:
        for layer, (weights, references) in zip(layers, before):
            layer._flat_weights, layer._flat_weight_refs = weights, references


def _places(model: nn.Module) -> Iterator[_Place]:
    for module in model.modules():
        for kind, held in (("Parameter", module._parameters), ("Buffer", module._buffers)):
            for name, tensor in held.items():
                if tensor is not None:
                    yield _Place(module, kind, held, name, tensor)


def check_updatable(weights: DeviceWeights, names: Sequence[str]) -> None:
    """Raise poptorch.Error for a name of ``options.updatableNamedBuffers`` that is no variable of the device."""
    for name in names:
        if name not in weights.host or name in weights.parameters:
            raise cpp_error(f"Invalid updatable buffer {name}")


def check_changes(graph: Graph, weights: DeviceWeights, broadcast: bool) -> None:
    """Raise poptorch.Error for a parameter or buffer that the graph changes in place and may not."""
    changed = graph.changed(list(graph.weights.values()))
    names = [name for name, index in graph.weights.items() if index in changed]
    if names and broadcast and weights.others:
        raise cpp_error(
            "PopTorch does not support broadcasting buffers. If your model is able to tolerate buffers becoming out of "
            "sync between replicas, you can disable buffer broadcasting using "
            "poptorch.Options.broadcastBuffers(False)."
        )
    for name in names:
        if name in weights.trained:
            raise py_error(
                f"Parameter {name} is changed in place in forward and trained by the optimiser, which the emulator "
                "does not model. Make it a buffer, or requires_grad_(False)."
            )


#: Reads the weights from the device if those of the host are stale; says whether it did.
Refresh = Callable[[], bool]


class Wrapped:
    """Marks the classes of wrapped modules."""

    _poptorch_class: Type[nn.Module]
    _poptorch_refresh: Callable[[], Optional[Refresh]]


def is_wrapped(model: nn.Module) -> bool:
    """True if this module is wrapped for training, by a wrapper that still exists."""
    return isinstance(model, Wrapped) and type(model)._poptorch_refresh() is not None


def wrap(model: nn.Module, refresh: Refresh) -> None:
    """Wrap a module; ``refresh``, a bound method, is held weakly.

    Raises poptorch.Error for parameters and buffers of subclasses.
    """
    unwrap(model)  # an earlier wrapper may have been dropped without destroy()
    alive = weakref.WeakMethod(refresh)
    for buffer in model.buffers():
        if type(buffer) is not Tensor:
            raise py_error(f"All buffers must be an instance of torch.Tensor (Got {type(buffer)})")
    for parameter in model.parameters():
        if type(parameter) is not nn.Parameter:
            raise py_error(f"the emulator does not model parameters of a class of their own, {type(parameter)}")
    parameter_class, buffer_class = _tensor_classes(alive)
    for parameter in model.parameters():
        parameter.__class__ = parameter_class
    for buffer in model.buffers():
        buffer.__class__ = buffer_class
    model.__class__ = _module_class(type(model), alive)


def unwrap(model: nn.Module) -> None:
    """Give a wrapped module its classes back."""
    if not isinstance(model, Wrapped):
        return
    model.__class__ = type(model)._poptorch_class  # type: ignore[assignment]  # the class it was made from
    with torch._C.DisableTorchFunctionSubclass():
        for parameter in model.parameters():
            parameter.__class__ = nn.Parameter
        for buffer in model.buffers():
            buffer.__class__ = Tensor


def _refresh(alive: Optional[Callable[[], Optional[Refresh]]]) -> bool:
    refresh = None if alive is None else alive()
    return refresh is not None and refresh()


def _module_class(base: Type[nn.Module], alive: Callable[[], Optional[Refresh]]) -> Type[nn.Module]:
    class PoptorchModel(base, Wrapped):  # type: ignore[misc, valid-type]  # a class made at run time
        _poptorch_class = base
        _poptorch_refresh = alive

        def copyWeightsToHostIfNeeded(self) -> bool:
            """Read the weights from the device if those of the host are stale; whether they were."""
            return _refresh(alive)

        def destroy(self) -> None:
            """Destroy the wrapper that trains this module."""
            refresh = alive()
            if refresh is not None:
                refresh.__self__.destroy()  # type: ignore[attr-defined]  # a bound method

        def __getattribute__(self, name: str) -> Any:
            if name in ("_parameters", "_buffers", "forward"):
                _refresh(alive)
            return object.__getattribute__(self, name)

        def state_dict(self, *args: Any, **kwargs: Any) -> Dict[str, Any]:
            """That of the module, of ordinary tensors."""
            state: Dict[str, Any] = super().state_dict(*args, **kwargs)
            for name, value in state.items():
                if isinstance(value, Tensor) and type(value) not in (Tensor, nn.Parameter):
                    state[name] = _plain(value)
            return state

        def __copy__(self) -> nn.Module:
            copy: nn.Module = base.__new__(type(self))
            copy.__dict__.update(self.__dict__)
            return copy

        def __reduce_ex__(self, protocol: Any) -> Any:
            _, _, *state = super().__reduce_ex__(protocol)
            return (_made, (base,), *state)

    PoptorchModel.__name__ = PoptorchModel.__qualname__ = f"Poptorch{base.__name__}"
    return PoptorchModel


def _tensor_classes(alive: Callable[[], Optional[Refresh]]) -> Tuple[Type[nn.Parameter], Type[Tensor]]:
    class Read:
        poptorch_refresh = alive

        @classmethod
        def __torch_function__(
            cls, func: Callable[..., Any], types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            for kind in types:  # one operation may have weights of several wrappers
                _refresh(getattr(kind, "poptorch_refresh", None))
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))

        def __deepcopy__(self, memo: Dict[int, Any]) -> Any:
            _refresh(alive)
            copy = _plain(self, clone=True)
            memo[id(self)] = copy
            return copy

        def __reduce_ex__(self, protocol: Any) -> Any:
            _refresh(alive)
            return _plain(self).__reduce_ex__(protocol)

    class PoptorchParameter(Read, nn.Parameter):
        pass

    class PoptorchBuffer(Read, Tensor):
        pass

    return PoptorchParameter, PoptorchBuffer


def _made(base: Type[nn.Module]) -> nn.Module:
    """A module without its state, which copying and unpickling give it."""
    return base.__new__(base)


def _plain(tensor: Any, clone: bool = False) -> Tensor:
    """The same values, in the same memory unless cloned, as a tensor of the class it was before it was wrapped."""
    with torch._C.DisableTorchFunctionSubclass():
        values: Tensor = tensor.detach().clone() if clone else tensor.detach()
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(values, requires_grad=tensor.requires_grad)
        return values
