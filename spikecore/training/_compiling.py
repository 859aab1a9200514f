"""What is compiled beside the network in a step that is captured: the loss, and the optimiser's update.

Rules of this module:

- Only a step that is captured has them compiled. A compiled function costs the host more than the few operations of a
  loss do, and a replay costs it nothing.
- Where torch.compile cannot take one of them, it runs as it is, and ``why`` has the reason.
- An update is compiled for the numbers in it. Once a hyperparameter that is no tensor has another value, the update
  runs as it is: a schedule would compile it anew at every value.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any, Callable, List, Optional, Tuple, Type

import torch
from torch import Tensor

#: Optimisers whose updates are compiled. Of others, and of classes derived from these, it is not known that a compiled
#: update is theirs.
_KNOWN = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
_numbers = itertools.count()


def with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with code that no other function has.

    torch.compile keeps what it made with the code that it was given, up to 8 results, and looks through all of them at
    each call. Functions that one line of Python defines share their code.
    """
    function.__code__ = function.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    return function


class Compiled:
    """``function`` by torch.compile, and ``function`` itself once that raises."""

    def __init__(self, function: Callable[..., Any], whole: bool = True) -> None:
        def run(*arguments: Any) -> Any:
            return function(*arguments)

        self._plain = function
        self._run: Callable[..., Any] = torch.compile(with_own_code(run), fullgraph=whole, dynamic=False)
        #: Why it runs as it is; empty while it is compiled.
        self.why = ""

    def __call__(self, *arguments: Any) -> Any:
        """What the function gives."""
        if self.why:
            return self._plain(*arguments)
        try:
            with warnings.catch_warnings():
                # the compiler asks every tensor for its gradient, outputs of a network too, and fails where the warning
                # that these have none is an error
                warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)
                return self._run(*arguments)
        except compiler_errors() as error:
            self.why = reason(error)
            return self._plain(*arguments)


class Update:
    """``optimizer.step()`` by torch.compile, while the hyperparameters that are no tensors stay as they are."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        # parts: torch breaks the graph where it turns gradients off
        self._run = Compiled(lambda: type(optimizer).step(optimizer), whole=False)
        self._settings: Optional[List[Any]] = None

    @property
    def why(self) -> str:
        """Why it runs as it is; empty while it is compiled."""
        return self._run.why

    def __call__(self) -> None:
        """One update."""
        found = [
            (name, value)
            for group in self._optimizer.param_groups
            for name, value in group.items()
            if name != "params" and not isinstance(value, Tensor)
        ]
        if self._settings is None:
            self._settings = found
        elif found != self._settings and not self.why:
            changed = sorted({one[0] for one, other in zip(found, self._settings) if one != other})
            self._run.why = (
                f"{' and '.join(changed) or 'the number of groups'} changed; a learning rate that is to change is a "
                "tensor, lr=torch.tensor(0.001, device='cuda')"
            )
        # as the step that a scheduler puts in the place of the optimiser's
        self._optimizer._opt_called = True  # type: ignore[attr-defined]
        self._run()


def update_of(optimizer: Any) -> Optional[Update]:
    """The compiled update of an optimiser; None for one that is to run as its user has set it up.

    That is one with ``fused`` or ``foreach`` given, with hooks, a ``step`` of its own, or of a class not known here. A
    scheduler's ``step`` notes that it was called, and no more.
    """
    own = vars(optimizer).get("step")
    if type(optimizer) not in _KNOWN or not (own is None or hasattr(own, "_wrapped_by_lr_sched")):
        return None
    if any(group.get(name) is not None for group in optimizer.param_groups for name in ("fused", "foreach")):
        return None
    hooks = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    return None if any(getattr(optimizer, name, None) for name in hooks) else Update(optimizer)


def reason(error: BaseException) -> str:
    """An error of the compiler in one line."""
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"torch.compile raised {type(error).__name__}: {first}"


def compiler_errors() -> Tuple[Type[Exception], ...]:
    """What torch.compile raises."""
    from torch._dynamo.exc import TorchDynamoException

    found: List[Any] = [TorchDynamoException]
    try:
        from torch._inductor.exc import InductorError

        found.append(InductorError)
    except ImportError:  # before torch 2.7 these are BackendCompilerFailed, of the first kind
        pass
    return tuple(found)
