"""Steps that run eagerly at first, and from CUDA graphs after that."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Callable, Dict, Hashable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore._base.batches import flattened, to_device, tree_map
from spikecore._shell.checks import is_device
from spikecore._shell.observe import check_replay
from spikecore._shell.state import keep
from spikecore.backend import Unsupported
from spikecore.functional import stateful_modules, to_rest
from spikecore.training._cuda_graph import facts
from spikecore.training._cuda_graph.capture import Capture
from spikecore.training._cuda_graph.options import CudaOptions
from spikecore.training._eager import EagerInference, EagerTraining

#: So many steps in a row without a graph, beyond the warm-up, are worth a warning.
_PATIENCE = 20
#: So many kinds of batches are counted before the counting starts anew.
_MOST_KINDS = 1000
#: So many times in a row the quick comparison with what modules held before may fail; then it is no longer made.
_MISSES = 8


@dataclass
class _Graph:
    """One captured step: the buffers that its inputs are copied into, the function that replays it, and the gradients
    that a replay computes.
    """

    inputs: List[Tensor]
    replay: Callable[[], Any]
    gradients: List[Tuple[nn.Parameter, Tensor]]


class _Graphed:
    """What training and inference share. A result is a copy, and gradients and carried states are those of the step."""

    def __init__(self, eager: Any, options: CudaOptions) -> None:
        self.net: nn.Module = eager.net
        self.options = options
        self.loss = getattr(eager, "loss", None)
        self.optimizer = getattr(eager, "optimizer", None)
        self._eager = eager
        self._capture = Capture(facts.gpu_of(self.net))
        self._graphs: Dict[Hashable, _Graph] = {}
        self._runs: Dict[Hashable, int] = {}
        self._without = 0
        self._told = False
        self._prepare()

    @property
    def form(self) -> Dict[str, str]:
        """Of the options ``channels_last``, ``compile``, ``pack_spikes`` and ``graph``, what became of each."""
        return {**self._eager.form, "graph": "used"}

    def _prepare(self) -> None:
        """Start anew with network and optimiser as they are: drop every graph, and what stood in the way of one."""
        device = facts.gpu_of(self.net)
        if self.optimizer is not None:
            facts.make_capturable(self.optimizer, device)
        if self._graphs:
            # waits for the GPU: the last replay may still run, in memory that goes with its graph
            self._capture.forget()
            self._graphs.clear()
        if self._capture.device != device:
            self._capture = Capture(device)
        named = list(self.net.named_modules())
        if isinstance(self.loss, nn.Module):
            named += [(f"loss.{name}", module) for name, module in self.loss.named_modules()]
        self._modules = [module for _, module in named]
        self._names = [f"module {name!r} ({type(module).__name__})" for name, module in named] + ["the optimiser"]
        self._stateful = stateful_modules(self.net)
        self._runs.clear()
        self._refusal = ""
        self._see()

    def _see(self) -> None:
        """Note how everything is now."""
        self._seen = self._circumstances()
        #: What the modules held when all were at rest, and how many comparisons with that have failed in a row.
        self._held: Optional[facts.Held] = None
        self._misses = 0

    def _states(self) -> List[Any]:
        """What each stateful module begins with. Everything is then as the graphs have it, or there are none."""
        check_replay(self._stateful)
        if self._held is not None and self._held.unchanged():
            self._misses = 0
            return []
        if self._circumstances() != self._seen:
            self._prepare()
        to_rest(self._stateful)  # as the eager step does; what it begins with is part of the kind of batch
        states = [module.state for module in self._stateful]
        if not any(module.carrying or module.state is not None for module in self._stateful):
            self._misses += 1
            self._held = facts.Held(self._modules, self.optimizer) if self._misses < _MISSES else None
            return []
        self._held = None
        return states

    def _circumstances(self) -> List[List[Any]]:
        """All that a graph takes for granted beside the kind of batch, in the order of ``_names``."""
        found = [facts.of_module(module) for module in self._modules]
        found.append([] if self.optimizer is None else facts.of_optimizer(self.optimizer))
        return found

    def _run(self, *batch: Any) -> Any:
        whole = (*batch, self._states())
        kind = facts.kind(whole)
        graph = self._graphs.get(kind)
        if graph is None:
            if self._refusal:
                # nothing has changed since: to go on eagerly would hide that there is no graph
                raise Unsupported(self._refusal)
            runs = self._runs.get(kind, 0)
            if len(self._graphs) >= self.options.max_graphs:
                return self._run_eagerly(to_device(batch, self._capture.device), kind, runs)
            if runs < self.options.warmup:
                # states, too, lie in warm-up steps as they will in the captured one
                *copies, states = _copied(whole, self._capture.device)
                self._keep(states)
                return self._run_eagerly(copies, kind, runs)
            graph = self._graphs[kind] = self._record(whole)
        return self._replay(graph, whole)

    def _run_eagerly(self, batch: Sequence[Any], kind: Hashable, runs: int) -> Any:
        options = self.options
        # in the last two: one compiles what is compiled in a captured step alone, and the other one is as that will be
        soon = options.warmup - 2 <= runs < options.warmup

        def run() -> Any:
            with self._eager.as_captured() if soon else nullcontext():
                return self._eager(*batch)

        # the last step before the capture: earlier ones make things lazily, which may wait for the GPU
        if runs + 1 == options.warmup:
            result, waits = self._capture.watch(run)
            if waits:
                self._refused(
                    f"it makes the host wait for the GPU at {', '.join(sorted(set(waits)))}, as .item(), .cpu(), a "
                    "boolean mask or a printed value do; take that out of it"
                )
        else:
            result = self._capture.run(run)
        # what the step itself made or changed, such as new states of the optimiser, is no change between steps
        self._see()
        if len(self._runs) >= _MOST_KINDS:
            self._runs.clear()
        self._runs[kind] = runs + 1
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
                f"lr=torch.tensor(0.001, device={str(self._capture.device)!r}), for SGD with fused=True"
            )
        return result

    def _record(self, whole: Tuple[Any, ...]) -> _Graph:
        device = self._capture.device
        elsewhere = [] if self.optimizer is None else facts.on_host(self.optimizer, device)
        if elsewhere:
            raise self._refused(
                f"{type(self.optimizer).__name__} keeps {', '.join(elsewhere)} on the host; use an optimiser that does "
                "not, such as SGD, Adam, AdamW or RMSprop"
            )
        # from now on the graph reads these copies: a replay writes a batch into them
        inputs = _copied(whole, device)

        def work() -> Any:
            self._keep(inputs[-1])
            with self._eager.as_captured():
                result = self._eager(*inputs[:-1])
            # of modules that began at rest none is kept
            return result, [module.state for module in self._stateful] if inputs[-1] else []

        put_back = facts.snapshot(self._modules, self.optimizer)
        held = [value for module in self._modules for value in vars(module).values()]
        generators = [value for value in held if isinstance(value, torch.Generator) and is_device(value.device, device)]
        try:
            replay = self._capture.record(work, generators)
        except Exception as error:
            # capturing ran the step's Python, which set gradients and states to tensors that were never computed
            put_back()
            raise self._refused(f"{type(error).__name__}: {error}") from error
        changed = [name for name, a, b in zip(self._names, self._seen, self._circumstances()) if a != b]
        if changed:
            put_back()
            raise self._refused(
                f"it sets attributes or replaces tensors of {', '.join(changed)}, which a replay would not do again; "
                "change tensors in place, and keep state over time in spikecore neurons"
            )
        parameters = [p for module in self._modules for p in module._parameters.values() if p is not None]
        gradients = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
        return _Graph(flattened(inputs), replay, gradients)

    def _replay(self, graph: _Graph, whole: Tuple[Any, ...]) -> Any:
        for buffer, given in zip(graph.inputs, flattened(whole)):
            buffer.copy_(given.detach() if given.requires_grad else given, non_blocking=True)
        # clones: the next replay writes into the same tensors
        result, states = tree_map(Tensor.clone, graph.replay())
        self._keep(states)
        # another graph, an eager step or zero_grad() came between
        for parameter, gradient in graph.gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient
        self._without = 0
        return result

    def _keep(self, states: List[Any]) -> None:
        for module, state in zip(self._stateful, states):
            keep(module, state)

    def _refused(self, why: str) -> Unsupported:
        self._refusal = f"the step cannot be captured in a CUDA graph: {why}; or use graph=False"
        return Unsupported(self._refusal)

    def _tell(self, text: str) -> None:
        if not self._told:
            self._told = True
            warnings.warn(f"CudaOptions(graph=True): {text}", RuntimeWarning, stacklevel=5)


def _copied(whole: Tuple[Any, ...], device: torch.device) -> Tuple[Any, ...]:
    """Copies of inputs and what goes with them, with the strides and the alignment of the buffers that the graph reads.

    Which kernels a step loads depends on both (vectorised kernels need alignment). The warm-up must load the same
    kernels as the capture, because none can be loaded during a capture.
    """
    copies: Tuple[Any, ...] = tree_map(lambda given: given.detach().to(device, non_blocking=True, copy=True), whole)
    return copies


class GraphedTraining(_Graphed):
    """``step(inputs, targets) -> (outputs, loss)``, from a CUDA graph for each kind of batch."""

    def __init__(self, eager: Any, options: CudaOptions) -> None:
        if not isinstance(eager, EagerTraining):
            raise TypeError(
                f"options={options!r}: graph=True captures the eager step, and this backend trains with its own, "
                f"{type(eager).__name__}; use graph=False"
            )
        super().__init__(eager, options)

    def __call__(self, inputs: Any, targets: Any) -> Tuple[Any, Tensor]:
        """Train on one batch; the outputs and the loss, detached, are those from before the update."""
        outputs, loss = self._run(inputs, targets)
        return outputs, loss

    @property
    def skipped(self) -> int:
        """As that of the eager step: replays count."""
        return int(self._eager.skipped)

    def state_dict(self) -> Dict[str, Any]:
        """As that of the eager step."""
        state: Dict[str, Any] = self._eager.state_dict()
        return state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """As that of the eager step; graphs whose tensors this replaces are captured anew."""
        self._eager.load_state_dict(state)


class GraphedInference(_Graphed):
    """``predict(inputs) -> outputs``, from a CUDA graph for each kind of batch."""

    def __init__(self, eager: Any, options: CudaOptions) -> None:
        if not isinstance(eager, EagerInference):
            raise TypeError(
                f"options={options!r}: graph=True captures the eager call, and this backend has its own, "
                f"{type(eager).__name__}; use graph=False"
            )
        super().__init__(eager, options)

    def __call__(self, inputs: Any) -> Any:
        """Outputs in eval mode, without gradients."""
        return self._run(inputs)
