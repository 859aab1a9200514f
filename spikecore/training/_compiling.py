"""What is compiled beside the network in a step that is captured: the loss, and the optimiser's update.

Rules of this module:

- Only a step that is captured has them compiled, and the eager steps just before the capture, which compile and load
  the kernels. A compiled function costs the host more than the few operations of a loss do, and a replay costs nothing.
- Each step compiles its own loss and update, a copy of a step too. If the user replaces the loss or the optimiser of a
  step, the new one is compiled.
- If torch.compile fails for the loss or the update, that part runs eagerly, one warning says so, and ``why`` has the
  reason. The user may have turned warnings into errors, so the warning comes before the update: a step that raises has
  not changed the weights.
"""

from __future__ import annotations

import inspect
import itertools
import types
import warnings
from typing import Any, Callable, Dict, List, Optional, Tuple, Type

import torch
from torch import Tensor
from torch.optim import optimizer as _torch_optimizer

from spikecore.backend import Unsupported

#: Optimisers whose updates are compiled. Of others, and of classes derived from these, it is not known that a compiled
#: update is theirs.
_KNOWN = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
_GLOBAL_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
_numbers = itertools.count()


def with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a Python function with code that no other function has.

    torch.compile keeps what it made with the code that it was given, up to 8 results, and looks through all of them at
    each call. Functions that one line of Python defines share their code.
    """
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    made = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


class OwnCode:
    """``function`` by torch.compile, with code of its own, when it is first called. A copy compiles its own function.

    Networks of one class, too, share their code: one that met eight kinds of batches would leave nothing for the next.
    """

    def __init__(
        self, function: Callable[..., Any], options: Optional[Callable[[], Dict[str, Any]]] = None, **keywords: Any
    ) -> None:
        self.function, self._keywords = function, keywords
        #: Makes ``options`` of torch.compile, which hold functions that cannot be pickled.
        self._options = options
        self._run: Any = None

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """What the function gives. Raises what torch.compile raises."""
        if self._run is None:
            options: Dict[str, Any] = {} if self._options is None else {"options": self._options()}
            self._run = torch.compile(self._compilable(), fullgraph=True, **self._keywords, **options)
        return self._run(*arguments, **keywords)

    def __getstate__(self) -> Dict[str, Any]:
        """For copies: what is compiled belongs to one function."""
        return {**self.__dict__, "_run": None}

    def _compilable(self) -> Callable[..., Any]:
        function = self.function

        def run(*arguments: Any, **keywords: Any) -> Any:
            return function(*arguments, **keywords)

        return with_own_code(run)


class Compiled(OwnCode):
    """``function`` by torch.compile, and ``function`` itself once the compiler cannot take it."""

    def __init__(
        self,
        function: Callable[..., Any],
        what: str = "the loss",
        options: Optional[Callable[[], Dict[str, Any]]] = None,
    ) -> None:
        super().__init__(function, options)
        #: What it is, in a warning.
        self.what = what
        #: Why it runs as it is; empty while it is compiled.
        self.why = ""

    def __call__(self, *arguments: Any) -> Any:
        """What the function gives."""
        if self.why:
            return self.function(*arguments)
        try:
            with warnings.catch_warnings():
                # where warnings are errors, those of the compiler itself would end the compilation: that it splits a
                # reduction, or that a tensor that it asked for its gradient has none, as outputs of a network
                for of, text in ((r"torch\._(inductor|dynamo|functorch)", ""), ("", "The .grad attribute of a Tensor")):
                    warnings.filterwarnings("ignore", text, UserWarning, of)
                return super().__call__(*arguments)
        except compiler_errors() as error:
            why = reason(error)
        return self._instead(why, *arguments)

    def leave(self, why: str) -> None:
        """From now on ``function`` runs as it is, because the compiler raised ``why``; a warning says so."""
        self.why = why
        warnings.warn(f"compile: {self.what} runs as it is, because {why}", RuntimeWarning, stacklevel=2)

    def _instead(self, why: str, *arguments: Any) -> Any:
        # first: what the function itself raises is not the compiler's
        found = self.function(*arguments)
        self.leave(why)
        return found


class Update(Compiled):
    """``optimizer.step()``, compiled while the optimiser is as :func:`is_usual` says and its numbers stay."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer.step, "the update")
        self.optimizer = optimizer
        self._settings: List[Dict[str, Any]] = []

    def __call__(self) -> None:
        """One update."""
        # looked up now: it may have been replaced since
        self.function = self.optimizer.step
        if not is_usual(self.optimizer):
            self.function()
            return
        found = [
            {name: value for name, value in group.items() if name != "params" and not isinstance(value, Tensor)}
            for group in self.optimizer.param_groups
        ]
        changed = {
            name
            for group, before in zip(found, self._settings)
            for name in group.keys() & before.keys()
            if group[name] != before[name]
        }
        self._settings = found
        if changed and not self.why:
            # a schedule would compile it anew at every value
            self.why = f"{' and '.join(sorted(changed))} changed"
            if "lr" in changed:
                self.why += "; a learning rate that is to change is a tensor, lr=torch.tensor(0.001, device='cuda')"
        # what a scheduler's wrapper of the step notes
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        with torch.no_grad():
            super().__call__()

    def _instead(self, why: str, *arguments: Any) -> Any:
        # the warning first: where it is an error, the weights are as they were
        self.leave(why)
        return self.function(*arguments)

    def __getstate__(self) -> Dict[str, Any]:
        """For copies: without the optimiser's bound method, which is looked up at every call."""
        return {**super().__getstate__(), "function": None}

    def _compilable(self) -> Callable[..., Any]:
        # within the wrappers that run hooks, note the time and turn gradients off; the last would break the graph
        step, optimizer = with_own_code(inspect.unwrap(type(self.optimizer).step)), self.optimizer

        def run() -> None:
            step(optimizer)

        return with_own_code(run)


def is_usual(optimizer: Any) -> bool:
    """Whether an optimiser does what its class does, and left to torch how: one of a known class, without hooks, a
    ``step`` of its own (but for that of a scheduler, which notes that it was called), ``fused`` or ``foreach``.
    """
    own = vars(optimizer).get("step")
    if type(optimizer) not in _KNOWN or not (own is None or hasattr(own, "_wrapped_by_lr_sched")):
        return False
    for group in optimizer.param_groups:
        if group.get("differentiable") or any(group.get(name) is not None for name in ("fused", "foreach")):
            return False
    hooks = [getattr(optimizer, name, None) for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")]
    return not any([*hooks, *(getattr(_torch_optimizer, name, None) for name in _GLOBAL_HOOKS)])


def reason(error: BaseException) -> str:
    """An error of the compiler in one line; of an error of ours that it wrapped, the text."""
    inner = getattr(error, "inner_exception", None) or error
    if isinstance(inner, Unsupported):
        return str(inner)
    first = next((line for line in str(inner).splitlines() if line.strip()), "")
    return f"torch.compile raised {type(inner).__name__}: {first}"


def compiler_errors() -> Tuple[Type[Exception], ...]:
    """What torch.compile raises."""
    from torch._dynamo import exc

    # the last one, of too many results for one function, is not of the first kind
    found: List[Any] = [exc.TorchDynamoException, getattr(exc, "FailOnRecompileLimitHit", None)]
    try:
        from torch._inductor.exc import InductorError

        found.append(InductorError)
    except ImportError:  # before torch 2.7 these are BackendCompilerFailed, of the first kind
        pass
    return tuple(kind for kind in found if kind is not None)
