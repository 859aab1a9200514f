"""Makes the weights of a user's module come from the device whenever they are read, while a wrapper trains them.

The class of the module, of its parameters and of its buffers is replaced in place, as PopTorch does. A deep or pickled
copy is of the original classes again; a shallow copy stays wrapped.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, Optional, Tuple, Type

import torch
from torch import Tensor, nn

from ._errors import py_error

#: Reads the weights from the device if those of the host are stale; says whether it did.
Refresh = Callable[[], bool]


class Wrapped:
    """Marks the classes of wrapped modules."""

    _poptorch_class: Type[nn.Module]
    _poptorch_refresh: Callable[[], Optional[Refresh]]


def is_wrapped(model: nn.Module) -> bool:
    """Whether this module is wrapped for training, by a wrapper that still exists."""
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
