"""The form in which a step runs: channels-last, compiled, spikes as bits, computed again; why an option is left out.

- An option that is True is done, or an exception says why not. With ``fast``, an option that is None is done where it
  can be; where not, one warning says why. Packing is for memory and takes time, so ``fast`` leaves it alone.
- ``memory="low"`` runs the network as :class:`spikecore.parallel.Grouped`; its groups are compiled each by itself.
- The loss and the optimiser's update are compiled in a step that is captured, and in the eager steps just before, which
  load the kernels. Elsewhere a compiled function costs the host more than the few operations of a loss do.
- If torch.compile fails for the loss or the update, that part runs eagerly, and one warning says so.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Type, cast

import torch
from torch import Tensor, nn
from torch.optim import optimizer as _torch_optimizer

from spikecore.backend import Unsupported
from spikecore.batches import channels_last, flattened, run_network
from spikecore.context import COMPILES
from spikecore.core.modules import is_compiled, is_shard
from spikecore.layers import channels_last as lay_channels_last
from spikecore.layers import is_packed, pack
from spikecore.parallel import Checkpointed, Pipeline, checkpoint
from spikecore.training._steps import CudaOptions, TrainingOptions

#: Outcome of an option that was not asked for, and of one that is used.
NOT_ASKED, USED = "not asked for", "used"
#: Convolutions by their number of dimensions.
_CONVOLUTIONS = {1: (nn.Conv1d,), 2: (nn.Conv2d, nn.ConvTranspose2d), 3: (nn.Conv3d, nn.ConvTranspose3d)}
#: Optimisers whose updates are compiled. Of others, and of classes derived from these, it is not known that a compiled
#: update is theirs.
_KNOWN = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
#: torch.compile keeps up to 8 results for a line of code (``torch._dynamo.config.recompile_limit``), which networks of
#: one class share unless it is told to keep those of each call apart; older versions cannot.
_ISOLATED: Any = (
    {"isolate_recompiles": True} if "isolate_recompiles" in inspect.signature(torch.compile).parameters else {}
)

#: Of a network with convolutions of one dimension: Inductor's layout optimisation would lay out whatever has four
#: dimensions and stands before or behind a convolution as an image, ``[T, B, C, L]`` with the batch innermost.
_OF_TOKENS: Any = {"layout_optimization": False}


class Form:
    """Form in which ``net`` runs, from the options; in training also loss and update."""

    def __init__(self, net: nn.Module, options: TrainingOptions, optimizer: Any = None) -> None:
        self.net, self.options = net, options
        self._optimizer, self._run = optimizer, cast(Any, net)
        #: The network as it runs without the compiler.
        self._plain: Any = net
        #: Its groups that are computed again, which are compiled each by itself.
        self._groups: List[Checkpointed] = []
        self._of_groups: Dict[str, Any] = {}
        #: True if torch.compile runs the network.
        self.is_compiled = False
        self._loss: Optional[CompiledPart] = None
        self._update: Optional[CompiledPart] = None
        self._numbers: Dict[Tuple[int, str], Any] = {}
        #: Calls that were compiled and ran: flag of capture, and shapes and dtypes of the inputs.
        self._proven: Set[Any] = set()
        #: Those beyond the number that torch.compile takes, which run eagerly.
        self._beyond: Set[Any] = set()
        #: The dimensions of images that are channels-last, or 0.
        self._dims = 0
        self._became = dict.fromkeys(("pack_spikes", "channels_last", "compile"), NOT_ASKED)
        uses = (self._use_packing, self._use_channels_last, self._use_compiler)
        for name, use in zip(self._became, uses):
            asked, packs = getattr(options, name), name == "pack_spikes"
            if asked and packs and optimizer is None:
                # no exception, unlike other options: one object of options serves training and inference
                self._became[name] = "left out: inference keeps nothing for backward"
            elif asked or (asked is None and options.fast and not packs):
                why = use()
                self._became[name] = self._left_out(name, why) if why else USED
            if packs and options.memory is not None:
                self._use_groups()

    @property
    def form(self) -> Dict[str, str]:
        """Of each option, what became of it."""
        parts = [f"{part.what}: {part.why}" for part in (self._loss, self._update) if part is not None and part.why]
        compiled = {"compile": f"{USED}, but for {'; '.join(parts)}"} if parts and self.is_compiled else {}
        cast = {"autocast": USED} if self.options.autocast is not None else {}
        groups = {"memory": "left out: inference keeps nothing for backward" if self._optimizer is None else USED}
        return {**self._became, **compiled, **cast, **({} if self.options.memory is None else groups)}

    def inputs(self, inputs: Any) -> Any:
        """The inputs as the network wants them to lie."""
        return channels_last(inputs, self._dims) if self._dims else inputs

    def run(self, inputs: Any) -> Any:
        """The network on one batch."""
        return run_network(self._run, inputs)

    def loss(self, loss: Any, outputs: Any, targets: Any, captured: bool) -> Any:
        """The loss of one batch. captured: in a step that is captured, or that loads what a captured one needs."""
        if not (captured and self.is_compiled):
            return loss(outputs, targets)
        if self._loss is None or self._loss.plain is not loss:

            def run(outputs: Any, targets: Any) -> Any:
                return loss(outputs, targets)

            self._loss = CompiledPart("the loss", loss, run)
        return self._loss(outputs, targets)

    def update(self, optimizer: Any, captured: bool) -> None:
        """One step of the optimiser, compiled while it is as :func:`is_usual` says and its numbers stay."""
        if not (captured and self.is_compiled and is_usual(optimizer)):
            optimizer.step()
            return
        if self._update is None:
            # within the wrappers that run hooks, note the time and turn gradients off; the last would break the graph
            step = inspect.unwrap(type(optimizer).step)

            def run() -> None:
                step(optimizer)

            self._update = CompiledPart("the update", optimizer.step, run)
        self._update.plain = optimizer.step  # a scheduler may have replaced it
        numbers = {
            (place, name): value
            for place, group in enumerate(optimizer.param_groups)
            for name, value in group.items()
            if name != "params" and not isinstance(value, Tensor)
        }
        changed = sorted({key[1] for key, value in numbers.items() if self._numbers.get(key, value) != value})
        self._numbers = numbers
        if changed and not self._update.why:
            # a schedule would compile it anew at every value
            self._update.why = f"{' and '.join(changed)} changed"
            if "lr" in changed:
                self._update.why += (
                    "; a learning rate that is to change is a tensor, lr=torch.tensor(0.001, device='cuda')"
                )
        optimizer._opt_called = True  # what a scheduler's wrapper of the step notes
        with torch.no_grad():
            self._update()

    def lay_out_states(self) -> None:
        """Have the states of the optimiser lie as their weights: fused updates want the same strides."""
        for group in self._optimizer.param_groups if self._optimizer is not None and self._dims else ():
            for weight in [weight for weight in group["params"] if weight.ndim > 2]:
                states = self._optimizer.state.get(weight, {})
                for name, value in states.items():
                    if isinstance(value, Tensor) and value.shape == weight.shape and value.stride() != weight.stride():
                        states[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)

    def attempt(self, work: Callable[[], Any], inputs: Any, captured: bool) -> Any:
        """The result of ``work``, which runs the network on ``inputs``, compiled or not.

        Compilation comes when a kind of batch is first met, the backward pass's within ``backward``. If it fails,
        buffers are put back, since the forward pass has moved them, and ``work`` runs without compilation: for good, or
        where torch.compile takes no further shapes, for those of these inputs, with one warning.
        """
        if not self.is_compiled:
            return work()
        kind = (captured, *[(tensor.shape, tensor.dtype) for tensor in flattened(inputs)])
        if kind in self._beyond:
            return self._eagerly(work)
        copies = [] if kind in self._proven else [(buffer, buffer.clone()) for buffer in self.net.buffers()]
        try:
            result = work()
        except compiler_errors() as error:
            with torch.no_grad():
                for buffer, value in copies:
                    buffer.copy_(value)
            if self._proven and isinstance(error, too_many_shapes()):
                self._warn_of_shapes(inputs)
                self._beyond.add(kind)
                return self._eagerly(work)
            self._run, self.is_compiled = self._plain, False
            self._compile_groups(False)
            self._became["compile"] = self._left_out("compile", reason(error))
            return work()
        self._proven.add(kind)
        return result

    def _eagerly(self, work: Callable[[], Any]) -> Any:
        """The result of ``work`` with the network as it is."""
        compiled, self._run = self._run, self._plain
        self._compile_groups(False)
        try:
            return work()
        finally:
            self._run = compiled
            self._compile_groups(True)

    def _warn_of_shapes(self, inputs: Any) -> None:
        """Say once that further shapes run eagerly."""
        if self._beyond:
            return
        shape = [*flattened(inputs)[0].shape]
        warnings.warn(
            f"compile: inputs {shape} and further new shapes run eagerly, because torch.compile keeps "
            f"{len(self._proven)} of them (torch._dynamo.config.recompile_limit). Pad sequences to a few lengths "
            "(sc.functional.mask_of), or raise that limit",
            RuntimeWarning,
            stacklevel=2,
        )

    # -- the options: each returns why it cannot be, or "" once it is done

    def _left_out(self, name: str, why: str) -> str:
        if getattr(self.options, name):
            raise Unsupported(f"{name}=True cannot be: {why}; use {name}=False")
        warnings.warn(
            f"fast=True: {name} is left out, because {why}; {name}=False says so without this warning",
            RuntimeWarning,
            stacklevel=2,
        )
        return f"left out: {why}"

    def _use_channels_last(self) -> str:
        modules = list(self.net.modules())
        kinds = [dims for dims, kind in _CONVOLUTIONS.items() if any(isinstance(module, kind) for module in modules)]
        if not kinds:
            return "the network has no convolutions"
        if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in modules):
            return (
                "DistributedDataParallel has laid out its buckets already; convert the network before it is wrapped, "
                "with net.to(memory_format=torch.channels_last)"
            )
        if any(is_shard(parameter) for parameter in self.net.parameters()):
            return "its parameters are shards"
        padded = any(isinstance(module, nn.AvgPool2d) and module.padding not in (0, (0, 0)) for module in modules)
        if self._optimizer is not None and padded and any(parameter.is_cuda for parameter in self.net.parameters()):
            return (
                "torch before July 2026 gives the gradient of a padded nn.AvgPool2d that is channels-last to the wrong "
                "pixels (pytorch/pytorch issue 188344)"
            )
        self._dims = kinds[-1]
        lay_channels_last(self.net)
        self.lay_out_states()
        return ""

    def _use_compiler(self) -> str:
        modules = list(self.net.modules())
        if is_compiled(self.net):
            return "the network is under torch.compile already"
        if any(isinstance(module, (nn.parallel.DistributedDataParallel, Pipeline)) for module in modules):
            return "the network is over several devices or processes; compile its parts, with layer.compile()"
        if not COMPILES:
            return f"torch {torch.__version__} is too old to compile neurons"
        if self._optimizer is not None and any(map(_clips_averages, modules)):
            return (
                "torch.compile computes a wrong gradient of average pooling with ceil_mode=True and "
                "count_include_pad=True where a window reaches beyond the padded image (pytorch/pytorch issue 198119); "
                "use count_include_pad=False there, or ceil_mode=False"
            )
        self._groups = [module for module in self._plain.modules() if isinstance(module, Checkpointed)]
        options = _OF_TOKENS if any(isinstance(module, nn.Conv1d) for module in modules) else None
        if self._groups:
            self._of_groups = {"fullgraph": True, "dynamic": False, "options": options, **_ISOLATED}
            self._compile_groups(True)
            self.is_compiled = True
            return ""
        # in one graph: a network that breaks into parts is compiled part by part while it runs, and cannot go back then
        self._run = torch.compile(self.net, fullgraph=True, dynamic=False, options=options, **_ISOLATED)
        self.is_compiled = True
        return ""

    def _use_groups(self) -> None:
        """Have the network computed again in backward. Raises Unsupported where it has no groups between spikes."""
        if self._optimizer is None:
            return
        options: Any = self.options
        is_captured = isinstance(options, CudaOptions) and (options.graph or (options.fast and options.graph is None))
        try:
            made = checkpoint(self.net, "spikes", preserve_rng_state=not is_captured)
        except (TypeError, ValueError) as error:
            raise Unsupported(f'memory="low" cannot be: {error}; or use memory=None') from error
        self._run = self._plain = made

    def _compile_groups(self, compiled: bool) -> None:
        for group in self._groups:
            group.compiled = self._of_groups if compiled else None

    def _use_packing(self) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # that there is no such layer is said here
            pack(self.net)
        if is_packed(self.net):
            return ""
        return (
            "no linear layer or convolution of it stands behind a spiking neuron in an nn.Sequential or in a "
            "forward that torch.fx can trace; elsewhere write sc.layers.PackedLinear or sc.layers.PackedConv2d"
        )


def _clips_averages(module: Any) -> bool:
    """True if a pooling module divides windows that reach beyond the image by less than their size."""
    pools = isinstance(module, (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)) or type(module).__name__.startswith("LPPool")
    whole = getattr(module, "count_include_pad", True) and getattr(module, "divisor_override", None) is None
    return bool(pools and module.ceil_mode and whole)


class CompiledPart:
    """The loss or the update of a captured step: ``run`` by torch.compile, and ``plain`` once the compiler cannot take
    it.
    """

    def __init__(self, what: str, plain: Callable[..., Any], run: Callable[..., Any]) -> None:
        #: Description in a warning.
        self.what = what
        self.plain = plain
        self._run = torch.compile(run, fullgraph=True, **_ISOLATED)
        #: Reason why it runs without the compiler; "" while it is compiled.
        self.why = ""

    def __call__(self, *arguments: Any) -> Any:
        """Result of the function."""
        if self.why:
            return self.plain(*arguments)
        try:
            with warnings.catch_warnings():
                # where warnings are errors, those of the compiler itself would end the compilation: that it splits a
                # reduction, or that a tensor that it asked for its gradient has none, as outputs of a network
                warnings.filterwarnings("ignore", "", UserWarning, r"torch\._(inductor|dynamo|functorch)")
                warnings.filterwarnings("ignore", "The .grad attribute of a Tensor", UserWarning)
                return self._run(*arguments)
        except compiler_errors() as error:
            self.why = reason(error)
        # before the function runs: where the warning is an error, the weights are as they were
        warnings.warn(f"compile: {self.what} runs as it is, because {self.why}", RuntimeWarning, stacklevel=2)
        return self.plain(*arguments)


def is_usual(optimizer: Any) -> bool:
    """True if an optimiser does what its class does, and leaves the implementation to torch: one of a known class,
    without hooks, a ``step`` of its own (but for that of a scheduler, which notes that it was called), ``fused`` or
    ``foreach``.
    """
    step = vars(optimizer).get("step")
    hooks = [getattr(optimizer, f"_optimizer_step_{when}_hooks", None) for when in ("pre", "post")]
    hooks += [getattr(_torch_optimizer, f"_global_optimizer_{when}_hooks", None) for when in ("pre", "post")]
    return (
        type(optimizer) in _KNOWN
        and (step is None or hasattr(step, "_wrapped_by_lr_sched"))
        and not any(hooks)
        and not any(group.get("differentiable") for group in optimizer.param_groups)
        and all(group.get(name) is None for group in optimizer.param_groups for name in ("fused", "foreach"))
    )


def reason(error: BaseException) -> str:
    """An error of the compiler in one line; of an error of ours that it wrapped, the text."""
    inner = getattr(error, "inner_exception", None) or error
    if isinstance(inner, Unsupported):
        return str(inner)
    line = next((line for line in str(inner).splitlines() if line.strip()), "")
    return f"torch.compile raised {type(inner).__name__}: {line}"


def compiler_errors() -> Tuple[Type[Exception], ...]:
    """Errors of torch.compile; those of Inductor are of the first kind."""
    from torch._dynamo import exc

    return (exc.TorchDynamoException, *too_many_shapes())


def too_many_shapes() -> Tuple[Type[Exception], ...]:
    """Errors of torch.compile about too many results for one function."""
    from torch._dynamo import exc

    limit = getattr(exc, "FailOnRecompileLimitHit", None)
    return () if limit is None else (limit,)
