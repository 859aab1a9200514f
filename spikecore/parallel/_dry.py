"""A run of the stages on tensors without data, which tells shapes and whether each stage fits the next.

Copies of the stages on the ``meta`` device are run, whose parameters take no memory: hooks, compiled graphs, random
numbers and states of the stages themselves are not touched. What a ``meta`` tensor cannot do (its value is read, an
operation has no rule of shapes, a module cannot be copied) ends the run without a verdict; the reason is returned.
"""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore._base.batches import flattened, tree_map
from spikecore._plugins.selection import capture
from spikecore._shell.binding import ask
from spikecore._shell.state import Stateful, keep
from spikecore.backend import BackendError
from spikecore.encode import Encoder
from spikecore.interpreter import is_autocast
from spikecore.layers import SequenceDropout
from spikecore.parallel._placement import Stages

#: What an error says that comes from the absence of data.
_ABSENT = re.compile(r"\b[Mm]eta\b")
#: What an error says that autocast, which meta tensors do not have, may prevent.
_DTYPE = re.compile(r"dtype|scalar type|should be the same")
#: Errors by which a layer says that it does not take an input.
_REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)


class Inputs(NamedTuple):
    """Several arguments of a pipeline, which stage 0 gets as they were given."""

    args: Tuple[Any, ...]
    named: Dict[str, Any]


def called(stage: nn.Module, value: Any) -> Any:
    """A stage on what the one before gave, or on the arguments of the pipeline."""
    return stage(*value.args, **value.named) if isinstance(value, Inputs) else stage(value)


class Outcome(NamedTuple):
    """What each of several inputs becomes, as tensors without data; or why that is not known."""

    outputs: List[Any]
    unknown: str
    #: How often single-step neurons were called, for each of the inputs.
    calls: List[int]


def rehearse(stages: Stages, inputs: Sequence[Any], what: str) -> Outcome:
    """Run the stages on each of the inputs, of which shapes and dtypes count.

    Raises ValueError where a stage does not take what the one before gives; ``what`` describes the input of stage 0.
    """
    values, calls = [tree_map(_hollow, value) for value in inputs], [0] * len(inputs)
    numbers = sorted({device.index for _, device in stages if device.type == "cuda"})
    # a stage may draw random numbers, and warn; both are for the real run to do
    with torch.no_grad(), torch.random.fork_rng(numbers), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for position, (stage, device) in enumerate(stages):
            try:
                twin = _twin(stage)
            except Exception as error:  # a module that cannot be copied, for whatever reason
                return Outcome([], f"stage {position} cannot be copied ({_first_line(error)})", [])
            for k, value in enumerate(values):
                try:
                    values[k], count = _called(twin, value)
                    calls[k] += count
                except Exception as error:
                    if _says_nothing(error, device):
                        return Outcome([], f"stage {position} does not run without data ({_first_line(error)})", [])
                    raise ValueError(_misfit(stages, position, value, what, twin, error)) from error
    return Outcome(values, "", calls)


def _called(twin: nn.Module, value: Any) -> Tuple[Any, int]:
    """What a stage gives, and how often its single-step neurons were called."""
    calls: List[nn.Module] = []
    hooks = []
    for module in twin.modules():
        if isinstance(module, Stateful):
            keep(module, None)
            if module.step == "single":
                hooks.append(module.register_forward_pre_hook(lambda neuron, _: calls.append(neuron)))
    try:
        return called(twin, value), len(calls)
    finally:
        for hook in hooks:
            hook.remove()


def _hollow(tensor: Tensor) -> Tensor:
    """A tensor without data of the same shape, dtype and strides."""
    made = torch.empty_like(tensor.detach(), device="meta")
    return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


def _twin(stage: nn.Module) -> nn.Module:
    """A copy of a stage that has no data, no hooks and no compiled form, and whose neurons compute by the reference."""
    memo: Dict[int, Any] = {}
    kept: List[Tensor] = []
    for module in stage.modules():
        plain = [value for value in vars(module).values() if isinstance(value, Tensor)]
        states = [*(vars(module).get("_state") or {}).values()] if isinstance(module, Stateful) else []
        for tensor in (*module._parameters.values(), *module._buffers.values(), *plain, *states):
            if tensor is not None and id(tensor) not in memo:
                memo[id(tensor)] = _hollow(tensor)
                kept.append(tensor)
    twin: nn.Module = copy.deepcopy(_uncompiled(stage), memo)
    for module in twin.modules():
        for name, child in module._modules.items():
            module._modules[name] = None if child is None else _uncompiled(child)
    for module in twin.modules():
        for name, value in vars(module).items():
            if name.endswith(("_hooks", "_hooks_with_kwargs")) and isinstance(value, dict):
                value.clear()
        if "_compiled_call_impl" in vars(module):
            module._compiled_call_impl = None
        if isinstance(module, (Encoder, SequenceDropout)):
            module.generator = None
    ask([module for module in twin.modules() if isinstance(module, Stateful)], capture("torch", "the dry run"))
    return twin


def _uncompiled(module: nn.Module) -> nn.Module:
    """The module within what ``torch.compile`` returned."""
    inner = module._modules.get("_orig_mod")
    return module if inner is None else inner


def _says_nothing(error: Exception, device: torch.device) -> bool:
    """Whether an error may come from the missing data rather than from the shapes."""
    if isinstance(error, (NotImplementedError, BackendError)) or not isinstance(error, _REFUSALS):
        return True
    text = str(error)
    return bool(_ABSENT.search(text)) or (is_autocast(device.type) and bool(_DTYPE.search(text)))


def _misfit(stages: Stages, position: int, value: Any, what: str, twin: nn.Module, error: Exception) -> str:
    layer = _layer(twin, error)
    cause = f"{type(error).__name__}: {error}" + (f" (in its layer {layer})" if layer else "")
    if isinstance(error, TypeError) and not layer:
        cause += _handed(position, value)
    if position == 0:
        return f"Pipeline: {_named(stages, 0)} does not take {what}: {cause}"
    return (
        f"Pipeline: {_named(stages, position)} does not take what {_named(stages, position - 1)} gives, "
        f"{shapes(value)}, for {what}: {cause}"
    )


def _handed(position: int, value: Any) -> str:
    """In what form a stage got its input, where there is another one."""
    if isinstance(value, Inputs):
        return "; as one tuple it gets them from pipeline((a, b)), and from a training step's batch ((a, b),)"
    if position == 0 and isinstance(value, (tuple, list, dict)):
        return "; one by one it gets them from pipeline(*inputs) or pipeline(**inputs)"
    taken = position > 0 and isinstance(value, (tuple, list, dict))
    return "; a stage gets what the one before returns as one argument" if taken else ""


def _named(stages: Stages, position: int) -> str:
    stage, device = stages[position]
    return f"stage {position} ({type(stage).__name__} on {device})"


def _layer(twin: nn.Module, error: BaseException) -> str:
    """The innermost module of the stage that the error passed, by its name."""
    names = {module: name for name, module in twin.named_modules()}
    found: Optional[nn.Module] = None
    cause: Optional[BaseException] = error
    while cause is not None:  # what a layer made of another one's error
        trace = cause.__traceback__
        while trace is not None:
            owner = trace.tb_frame.f_locals.get("self")
            found = owner if isinstance(owner, nn.Module) and owner in names else found
            trace = trace.tb_next
        cause = cause.__cause__
    return "" if found is None or found is twin else f"{names[found]!r}, {type(found).__name__}"


def shapes(value: Any) -> str:
    """Shapes of a tensor or of several, in words."""
    found: List[Tuple[int, ...]] = [tuple(x.shape) for x in flattened(value)]
    return f"shape {found[0]}" if len(found) == 1 else f"tensors of shapes {', '.join(map(str, found)) or 'none'}"


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
