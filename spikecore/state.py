"""State between calls.

Rules of this module:

- State is a plain attribute: never a buffer (DistributedDataParallel would overwrite it), never in ``state_dict``.
- A multi-step call starts at rest and leaves nothing behind, unless :func:`spikecore.carry_state` is active. A
  single-step call continues from the last one until :func:`spikecore.reset`.
- Copies (``deepcopy``, ``pickle``) keep the values of a single-step state and drop its graph; ``.to()`` moves the state
  along.
"""

from __future__ import annotations

from typing import Any, Callable, ClassVar, Dict, Mapping, Optional

from torch import Tensor, nn

from spikecore import checks

State = Dict[str, Tensor]


class Stateful(nn.Module):
    """A module with state over time. ``step`` is ``"multi"`` (input ``[T, *N]``) or ``"single"`` (input ``[*N]``)."""

    step: str
    #: Attributes of configuration -> how their values are checked, in the constructor and whenever they are set.
    configuration: ClassVar[Mapping[str, checks.Check]] = {"step": checks.step}

    def __init__(self, step: str = "multi") -> None:
        super().__init__()
        self.step = step
        self._state: Optional[State] = None
        self._carrying = 0

    @property
    def state(self) -> Optional[State]:
        """The state that the next call continues from, by name; None at rest."""
        return self._state

    @property
    def continues(self) -> bool:
        """Whether a call continues from the last one."""
        return self.step == "single" or self._carrying > 0

    def __setattr__(self, name: str, value: Any) -> None:
        check = self.configuration.get(name)
        super().__setattr__(name, value if check is None else check(type(self).__name__, name, value))

    def _keep(self, state: Optional[State]) -> None:
        # past nn.Module.__setattr__, which would look for parameters and modules on every step
        self.__dict__["_state"] = state

    def _detach(self) -> None:
        if self._state is not None:
            self._keep({name: value.detach() for name, value in self._state.items()})

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
        if self._state is not None:
            # dtypes stay, and so does every bit: state is float32 or float64 whatever the parameters are turned into
            self._keep({name: _moved(fn(value), value) for name, value in self._state.items()})
        return super()._apply(fn, *args, **kwargs)

    def __getstate__(self) -> Dict[str, Any]:
        content = {**self.__dict__, "_carrying": 0}
        if self.step == "multi":
            content["_state"] = None  # a copy made inside carry_state is not in its block, which could never end for it
        elif self._state is not None:
            content["_state"] = {name: value.detach() for name, value in self._state.items()}
        return content


def _moved(converted: Tensor, value: Tensor) -> Tensor:
    return converted if converted.dtype == value.dtype else value.to(converted.device)
