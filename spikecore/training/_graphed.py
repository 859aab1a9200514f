"""Whole steps replayed from CUDA graphs, on every backend that computes on a GPU inside PyTorch.

- The step that is captured is the eager one. The first calls for a kind of batch are eager steps on a copy of the
  caller's data, which lies as the one that a graph reads; the next one is captured and replayed, so that no step is
  lost or made twice.
- A graph has addresses and numbers in it. It holds for one kind of batch (structure, shapes, strides, dtypes, numbers,
  carried states) and for everything else as it was: settings of modules, hyperparameters, where parameters and the
  states of the optimiser lie. All of it is compared at every call, without asking the GPU; what differs is never
  replayed.
- Nothing that a step returns is memory of a graph.
- What cannot be captured raises, and leaves the network and the optimiser as they were before the call; with
  ``fast=True`` a warning says why, and the step goes on eagerly.
- ``torch.cuda`` is met in ``_capture`` alone, where the cache of graphs is.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any, Callable, ClassVar, Dict, Hashable, List, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore.backend import Unsupported
from spikecore.batches import to_device, tree_map
from spikecore.core.checks import is_device
from spikecore.core.dispatch import dispatch_of
from spikecore.core.modules import is_shard
from spikecore.core.observe import check_replay
from spikecore.core.state import CALL_COUNT, keep
from spikecore.functional import stateful_modules, to_rest
from spikecore.training._capture import Capture, GraphCache
from spikecore.training._eager import EagerInference, EagerTraining
from spikecore.training._saving import snapshot_of_tables
from spikecore.training._steps import CudaOptions
from spikecore.words import a_kind, shown

#: So many steps in a row without a graph, beyond the warm-up, are worth a warning.
_PATIENCE = 20


class _Graphed:
    """Base of captured training and inference. Results are copies; gradients and states are those of the step."""

    #: Class of the captured step.
    captures: ClassVar[Any]

    def __init__(self, eager: Any, options: CudaOptions) -> None:
        if not isinstance(eager, self.captures):
            raise TypeError(
                f"options={options!r}: graph=True captures the eager step, and this backend has its own, "
                f"{type(eager).__name__}; use graph=False"
            )
        self.net: nn.Module = eager.net
        self.options = options
        self.loss = getattr(eager, "loss", None)
        self.optimizer = getattr(eager, "optimizer", None)
        self._eager = eager
        self._without = 0
        self._told = False
        #: Reason why steps run eagerly, with fast=True; "" while they are captured.
        self._why = ""
        if options.scaler is not None:
            self._leave_out("the scaler decides on the host whether to update; autocast=torch.bfloat16 needs none")
            return
        try:
            self._cache = GraphCache(gpu_of(self.net))
            self._prepare()
        except (Unsupported, TypeError, ValueError) as error:
            if options.graph:
                raise
            self._leave_out(str(error))

    @property
    def form(self) -> Dict[str, str]:
        """Of the options ``channels_last``, ``compile``, ``pack_spikes`` and ``graph``, what became of each."""
        return {**self._eager.form, "graph": f"left out: {self._why}" if self._why else "used"}

    def _run(self, *batch: Any) -> Any:
        """The step on a batch: from a graph, or eagerly."""
        if not self._why:
            try:
                return self._run_captured(*batch)
            except Unsupported as error:
                if self.options.graph:
                    raise
                self._cache.clear()
                self._leave_out(str(error))
        return self._eager(*batch)

    def _leave_out(self, why: str) -> None:
        self._why = why
        warnings.warn(
            f"fast=True: graph is left out, because {why}; graph=False says so without this warning",
            RuntimeWarning,
            stacklevel=3,
        )

    def _prepare(self) -> None:
        """Start anew with network and optimiser as they are: drop every graph, and what stood in the way of one."""
        device = gpu_of(self.net)
        if self.optimizer is not None:
            make_capturable(self.optimizer, device)
        self._cache.clear()
        if self._device != device:
            self._cache = GraphCache(device)
        named = list(self.net.named_modules())
        if isinstance(self.loss, nn.Module):
            named += [(f"loss.{name}", module) for name, module in self.loss.named_modules()]
        self._modules = [module for _, module in named]
        self._names = [f"module {name!r} ({type(module).__name__})" for name, module in named] + ["the optimiser"]
        self._stateful = stateful_modules(self.net)
        self._refusal = ""
        #: Current circumstances.
        self._seen = self._circumstances()

    def _states(self) -> List[Any]:
        """States that each stateful module begins with. Everything is then as the graphs have it, or there are none."""
        check_replay(self._stateful)
        if self._circumstances() != self._seen:
            self._prepare()
        to_rest(self._stateful)  # as the eager step does; what it begins with is part of the kind of batch
        states = [module.state for module in self._stateful]
        at_rest = not any(module.carrying or module.state is not None for module in self._stateful)
        return [] if at_rest else states

    def _circumstances(self) -> List[List[Any]]:
        """All that a graph takes for granted beside the kind of batch, in the order of ``_names``."""
        of_modules = [of_module(module) for module in self._modules]
        return [*of_modules, [] if self.optimizer is None else of_optimizer(self.optimizer)]

    def _run_captured(self, *batch: Any) -> Any:
        whole = (*batch, self._states())
        kind = kind_of(whole)
        if kind not in self._cache:
            if self._refusal:
                # nothing has changed since: to go on eagerly would hide that there is no graph
                raise Unsupported(self._refusal)
            if len(self._cache) >= self.options.max_graphs:
                return self._run_eagerly(to_device(batch, self._device), kind)
            if self._cache.runs[kind] < self.options.warmup:
                # states, too, lie in warm-up steps as they will in the captured one
                *copies, states = _copied(whole, self._device)
                self._keep(states)
                return self._run_eagerly(copies, kind)
            self._record(kind, whole)
        result, states = self._cache.replay(kind, whole)
        self._keep(states)
        self._without = 0
        return result

    def _run_eagerly(self, batch: Sequence[Any], kind: Hashable) -> Any:
        options, runs = self.options, self._cache.runs[kind]
        # in the last two: one compiles what is compiled in a captured step alone, and the other one is as that will be
        soon = options.warmup - 2 <= runs < options.warmup

        def run() -> Any:
            return self._eager.step(*batch, captured=soon)

        # the last step before the capture: earlier ones make things lazily, which may wait for the GPU
        if runs + 1 == options.warmup:
            result, waits = self._cache.capture.watch(run)
            if waits:
                self._refused(
                    f"it makes the host wait for the GPU at {', '.join(sorted(set(waits)))}, as .item(), .cpu(), a "
                    "boolean mask or a printed value do; take that out of it"
                )
        else:
            result = self._cache.capture.run(run)
        # what the step itself made or changed, such as new states of the optimiser, is no change between steps
        self._seen = self._circumstances()
        self._cache.runs[kind] += 1
        self._without += 1
        if runs >= options.warmup:
            self._tell(
                f"a kind of batch beyond max_graphs={options.max_graphs} runs eagerly; use batches of fewer shapes, "
                "or raise max_graphs, at the price of memory"
            )
        elif self._without >= options.warmup + _PATIENCE:
            self._tell(
                f"{self._without} steps in a row ran eagerly, because shapes, settings of modules or hyperparameters "
                "change between steps. A learning rate may change at each step if it is a tensor, "
                f"lr=torch.tensor(0.001, device={str(self._device)!r}), for SGD with fused=True"
            )
        return result

    def _record(self, kind: Hashable, whole: Tuple[Any, ...]) -> None:
        device = self._device
        elsewhere = [] if self.optimizer is None else on_host(self.optimizer, device)
        if elsewhere:
            raise self._refused(
                f"{type(self.optimizer).__name__} keeps {', '.join(elsewhere)} on the host; use an optimiser that does "
                "not, such as SGD, Adam, AdamW or RMSprop"
            )
        # from now on the graph reads these copies: a replay writes a batch into them
        inputs = _copied(whole, device)

        def work() -> Any:
            self._keep(inputs[-1])
            result = self._eager.step(*inputs[:-1], captured=True)
            # of modules that began at rest none is kept
            return result, [module.state for module in self._stateful] if inputs[-1] else []

        put_back = snapshot(self._modules, self.optimizer)
        generators = [
            value
            for module in self._modules
            for value in vars(module).values()
            if isinstance(value, torch.Generator) and is_device(value.device, device)
        ]
        parameters = [p for module in self._modules for p in module._parameters.values() if p is not None]
        try:
            self._cache.record(kind, inputs, work, generators, parameters)
        except Exception as error:
            # capturing ran the step's Python, which set gradients and states to tensors that were never computed
            put_back()
            raise self._refused(f"{type(error).__name__}: {error}") from error
        changed = [name for name, a, b in zip(self._names, self._seen, self._circumstances()) if a != b]
        if changed:
            put_back()
            self._cache.clear()
            raise self._refused(
                f"it sets attributes or replaces tensors of {', '.join(changed)}, which a replay would not do again; "
                "change tensors in place, and keep state over time in spikecore neurons"
            )

    @property
    def _device(self) -> torch.device:
        return self._cache.capture.device

    def _keep(self, states: List[Any]) -> None:
        for module, state in zip(self._stateful, states):
            keep(module, state)

    def _refused(self, why: str) -> Unsupported:
        self._refusal = f"the step cannot be captured in a CUDA graph: {why}; or use graph=False"
        return Unsupported(self._refusal)

    def _tell(self, text: str) -> None:
        if not self._told:
            self._told = True
            warnings.warn(f"CudaOptions(graph=True): {text}", RuntimeWarning, stacklevel=3)


def _copied(whole: Tuple[Any, ...], device: torch.device) -> Tuple[Any, ...]:
    """Copies of inputs and what goes with them, with the strides and the alignment of the buffers that the graph reads.

    Which kernels a step loads depends on both (vectorised kernels need alignment). The warm-up must load the same
    kernels as the capture, because none can be loaded during a capture.
    """
    copies: Tuple[Any, ...] = tree_map(lambda value: value.detach().to(device, non_blocking=True, copy=True), whole)
    return copies


class GraphedTraining(_Graphed):
    """``step(inputs, targets) -> (outputs, loss)``, from a CUDA graph for each kind of batch."""

    captures = EagerTraining
    _eager: EagerTraining

    def __call__(self, inputs: Any, targets: Any) -> Tuple[Any, Tensor]:
        """Train on one batch; the outputs and the loss, detached, are those from before the update."""
        outputs, loss = self._run(inputs, targets)
        return outputs, loss

    @property
    def skipped(self) -> int:
        """Count of the eager step, replays included."""
        return self._eager.skipped

    def state_dict(self) -> Dict[str, Any]:
        """State of the eager step."""
        return self._eager.state_dict()

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Load the state of the eager step; graphs whose tensors this replaces are captured anew."""
        self._eager.load_state_dict(state)


class GraphedInference(_Graphed):
    """``predict(inputs) -> outputs``, from a CUDA graph for each kind of batch."""

    captures = EagerInference

    def __call__(self, inputs: Any) -> Any:
        """Outputs in eval mode, without gradients."""
        return self._run(inputs)


# -- what a graph takes for granted

#: Settings are compared by value. No subclasses: comparing one may run any code, or ask the GPU.
_SETTINGS = frozenset((bool, int, float, str))
#: Types of a module's attributes that are watched; others are its tables, or what only Python sees.
_WATCHED = _SETTINGS | {Tensor, torch.Generator}
_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def kind_of(value: Any) -> Hashable:
    """The part of a batch that is fixed in a graph: shapes, strides, dtypes, and values that are no tensors.

    Raises TypeError for a value that can be neither copied nor compared.
    """
    if isinstance(value, Tensor):
        # the values are no part of it: a replay copies them into the graph's buffers
        return value.shape, value.stride(), value.dtype
    if isinstance(value, dict):
        return (type(value), *((key, kind_of(item)) for key, item in value.items()))
    if isinstance(value, (tuple, list)):
        return (type(value), *map(kind_of, value))
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
        if type(value) in _WATCHED and name != CALL_COUNT
    ]
    dispatch = dispatch_of(module)
    facts += dispatch.numbers.items() if dispatch else ()  # the surrogate's fields
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
    put_tables_back = snapshot_of_tables(modules, [] if optimizer is None else [optimizer])
    parameters = [p for module in modules for p in module._parameters.values() if p is not None]
    tensors = [(parameter, parameter.data, parameter.grad) for parameter in parameters]

    def put_back() -> None:
        put_tables_back()
        for parameter, data, gradient in tensors:
            parameter.data, parameter.grad = data, gradient

    return put_back


def gpu_of(net: nn.Module) -> torch.device:
    """The one GPU that holds ``net``. Raises ValueError if there is none, Unsupported for a network that is spread."""
    wrapped = next((module for module in net.modules() if isinstance(module, _PARALLEL)), None)
    if wrapped is not None or any(is_shard(parameter) for parameter in net.parameters()):
        what = "a network under fully_shard" if wrapped is None else a_kind(wrapped)
        raise Unsupported(f"{what} cannot be captured in a CUDA graph here; train with graph=False")
    device = None
    for name, tensor in itertools.chain(net.named_parameters(), net.named_buffers()):
        device = tensor.device if device is None else device
        if tensor.device.type != Capture.device_type or tensor.device != device:
            others = "" if tensor.device == device else f", others on {device}"
            raise ValueError(
                f"graph=True needs the network on one GPU, and {name} is on {tensor.device}{others}; move it with "
                "net.to('cuda') before the optimiser is made, or use graph=False"
            )
    if device is None:
        raise ValueError("graph=True takes the GPU from the network's parameters, and it has none; use graph=False")
    return device


def make_capturable(optimizer: Any, device: torch.device) -> None:
    """Have ``optimizer`` keep its step counts on ``device``: ``capturable=True`` where torch has that.

    Raises ValueError for a hyperparameter that is a tensor elsewhere.
    """
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
