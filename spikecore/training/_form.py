"""The form in which a step runs: channels-last, compiled, spikes as bits; and why an option is left out.

- An option that is True is done, or an exception says why not. With ``fast``, an option that is None is done where it
  can be; where not, one warning says why. Packing is for memory and takes time, so ``fast`` leaves it alone.
- The loss and the optimiser's update are compiled in a step that is captured, and in the eager steps just before, which
  load the kernels. Elsewhere a compiled function costs the host more than the few operations of a loss do.
- If torch.compile fails for the loss or the update, that part runs eagerly, and one warning says so.
"""

from __future__ import annotations

import inspect
import itertools
import types
import warnings
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple, Type, cast

import torch
from torch import Tensor, nn
from torch.optim import optimizer as _torch_optimizer

from spikecore.backend import Unsupported
from spikecore.batches import flattened, run_network, tree_map
from spikecore.context import COMPILES
from spikecore.core.modules import is_shard
from spikecore.layers._packing import is_packed, pack
from spikecore.parallel import Pipeline
from spikecore.training._steps import TrainingOptions

#: Outcome of an option that was not asked for, and of one that is used.
NOT_ASKED, USED = "not asked for", "used"
_numbers = itertools.count()


class Form:
    """Form in which ``net`` runs, from the options; in training also loss and update."""

    def __init__(self, net: nn.Module, options: TrainingOptions, optimizer: Any = None) -> None:
        self.net, self.options = net, options
        self._trains = optimizer is not None
        self._run: Any = net
        #: True while the running step is captured, or loads what a captured one needs.
        self.is_captured = False
        self._compiled = False
        self._loss: Optional[CompiledPart] = None
        self._update: Optional[CompiledUpdate] = None
        #: Calls that were compiled and ran: flag of capture, and shapes and dtypes of the inputs.
        self._proven: Set[Any] = set()
        #: The dimensions of images that are channels-last, or 0, and the weights that are.
        self._dims, self._weights = 0, cast(List[Tensor], [])
        uses = {
            "pack_spikes": self._use_packing,
            "channels_last": self._use_channels_last,
            "compile": self._use_compiler,
        }
        self._became = {name: self._became_of(name, use) for name, use in uses.items()}
        self.lay_out_states(optimizer)

    @property
    def form(self) -> Dict[str, str]:
        """Of each option, what became of it."""
        parts = [f"{part.what}: {part.why}" for part in (self._loss, self._update) if part is not None and part.why]
        compiled = {"compile": f"{USED}, but for {'; '.join(parts)}"} if parts and self._compiled else {}
        return {**self._became, **compiled}

    @property
    def is_compiled(self) -> bool:
        """True if torch.compile runs the network."""
        return self._compiled

    @contextmanager
    def as_captured(self) -> Iterator[None]:
        """Around a step that is captured, or that loads what a captured one needs."""
        self.is_captured = True
        try:
            yield
        finally:
            self.is_captured = False

    def inputs(self, inputs: Any) -> Any:
        """The inputs as the network wants them to lie."""
        return inputs_channels_last(inputs, self._dims) if self._dims else inputs

    def run(self, inputs: Any) -> Any:
        """The network on one batch."""
        return run_network(self._run, inputs)

    def loss(self, loss: Any, outputs: Any, targets: Any) -> Any:
        """The loss of one batch."""
        if not (self.is_captured and self._compiled):
            return loss(outputs, targets)
        if self._loss is None or self._loss.function is not loss:
            self._loss = CompiledPart(loss, "the loss")
        return self._loss(outputs, targets)

    def update(self, optimizer: Any) -> None:
        """One step of the optimiser."""
        if not (self.is_captured and self._compiled):
            optimizer.step()
            return
        if self._update is None or self._update.function is not optimizer:
            self._update = CompiledUpdate(optimizer)
        self._update()

    def lay_out_states(self, optimizer: Any) -> None:
        """Have the states of an optimiser lie as their weights: fused updates want the same strides."""
        for weight in self._weights:
            states = optimizer.state.get(weight, {}) if optimizer is not None else {}
            for name, value in states.items():
                if isinstance(value, Tensor) and value.shape == weight.shape:
                    states[name] = value.contiguous(memory_format=_FORMATS[self._dims])

    def attempt(self, work: Callable[[], Any], inputs: Any) -> Any:
        """The result of ``work``, which runs the network on ``inputs``, compiled or not.

        Compilation comes when a kind of batch is first met, the backward pass's within ``backward``. If it fails,
        buffers are put back, since the forward pass has moved them, and ``work`` runs without compilation.
        """
        if not self._compiled:
            return work()
        kind = (self.is_captured, *[(tensor.shape, tensor.dtype) for tensor in flattened(inputs)])
        copies = [] if kind in self._proven else [(buffer, buffer.clone()) for buffer in self.net.buffers()]
        try:
            result = work()
        except compiler_errors() as error:
            with torch.no_grad():
                for buffer, value in copies:
                    buffer.copy_(value)
            self._run, self._compiled = self.net, False
            self._became["compile"] = self._left_out("compile", reason(error))
            return work()
        self._proven.add(kind)
        return result

    # -- the options: each returns why it cannot be, or "" once it is done

    def _became_of(self, name: str, use: Callable[[], str]) -> str:
        asked, packs = getattr(self.options, name), name == "pack_spikes"
        if not (asked or (asked is None and self.options.fast and not packs)):
            return NOT_ASKED
        if packs and not self._trains:
            # no exception, unlike other options: one object of options serves training and inference
            return "left out: inference keeps nothing for backward"
        why = use()
        return self._left_out(name, why) if why else USED

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
        dims = dimensions(self.net)
        if not dims:
            return "the network has no convolutions of two dimensions, nor of three alone"
        if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in self.net.modules()):
            return (
                "DistributedDataParallel has laid out its buckets already; convert the network before it is wrapped, "
                "with net.to(memory_format=torch.channels_last)"
            )
        if any(is_shard(parameter) for parameter in self.net.parameters()):
            return "its parameters are shards"
        if self._trains and _pads_averages_on_gpu(self.net):
            return (
                "torch before July 2026 gives the gradient of a padded nn.AvgPool2d that is channels-last to the wrong "
                "pixels (pytorch/pytorch issue 188344)"
            )
        self._dims = dims
        self._weights = weights_channels_last(self.net, dims)
        return ""

    def _use_compiler(self) -> str:
        modules = list(self.net.modules())
        if any(getattr(m, "_compiled_call_impl", None) or type(m).__name__ == "OptimizedModule" for m in modules):
            return "the network is under torch.compile already"
        if any(isinstance(module, (nn.parallel.DistributedDataParallel, Pipeline)) for module in modules):
            return "the network is over several devices or processes; compile its parts, with layer.compile()"
        if not COMPILES:
            return f"torch {torch.__version__} is too old to compile neurons"
        if self._trains and any(map(_clips_averages, modules)):
            return (
                "torch.compile computes a wrong gradient of average pooling with ceil_mode=True and "
                "count_include_pad=True where a window reaches beyond the padded image (pytorch/pytorch issue 198119); "
                "use count_include_pad=False there, or ceil_mode=False"
            )
        # in one graph: a network that breaks into parts is compiled part by part while it runs, and cannot go back then
        self._run = Compiled(self.net, dynamic=False)
        self._compiled = True
        return ""

    def _use_packing(self) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # that there is no such layer is said here
            pack(self.net)
        if is_packed(self.net):
            return ""
        return (
            "no nn.Linear or nn.Conv2d of it stands behind a spiking neuron in an nn.Sequential or in a "
            "forward that torch.fx can trace; elsewhere write sc.layers.PackedLinear or sc.layers.PackedConv2d"
        )


def _clips_averages(module: Any) -> bool:
    """True if a pooling module divides windows that reach beyond the image by less than their size."""
    pools = isinstance(module, (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)) or type(module).__name__.startswith("LPPool")
    whole = getattr(module, "count_include_pad", True) and getattr(module, "divisor_override", None) is None
    return bool(pools and module.ceil_mode and whole)


def _pads_averages_on_gpu(net: nn.Module) -> bool:
    pads = any(isinstance(module, nn.AvgPool2d) and module.padding not in (0, (0, 0)) for module in net.modules())
    return pads and any(parameter.is_cuda for parameter in net.parameters())


# -- channels-last. Shapes and numbers stay what they are. [T, B, C, H, W] has every time step channels-last, as layers
# that fold time into the batch see it.

#: Convolutions by their number of dimensions.
_CONVOLUTIONS: Dict[int, Tuple[type, ...]] = {
    2: (nn.Conv2d, nn.ConvTranspose2d),
    3: (nn.Conv3d, nn.ConvTranspose3d),
}
_FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}


def dimensions(net: nn.Module) -> int:
    """The number of dimensions of the network's convolutions, 2 or 3; 0 without such, or with both."""
    modules = list(net.modules())
    kinds = [dims for dims, kind in _CONVOLUTIONS.items() if any(isinstance(module, kind) for module in modules)]
    return kinds[0] if len(kinds) == 1 else 0


def weights_channels_last(net: nn.Module, dims: int) -> List[Tensor]:
    """Lay the weights of convolutions out channels-last, in place; gives these weights."""
    # there is none where a parametrization computes it
    tensors = [m._parameters.get("weight") for m in net.modules() if isinstance(m, _CONVOLUTIONS[dims])]
    weights: List[Tensor] = [weight for weight in tensors if weight is not None]
    for weight in weights:
        weight.data = weight.data.contiguous(memory_format=_FORMATS[dims])
    return weights


def inputs_channels_last(inputs: Any, dims: int) -> Any:
    """The tensors of a batch that are images, with or without time, laid out channels-last."""

    def laid_out(x: Tensor) -> Tensor:
        if x.layout == torch.strided and x.ndim == dims + 2:
            return x.contiguous(memory_format=_FORMATS[dims])
        if x.layout == torch.strided and x.ndim == dims + 3:
            return x.movedim(2, -1).contiguous().movedim(-1, 2)
        return x

    return tree_map(laid_out, inputs)


# -- torch.compile

#: Optimisers whose updates are compiled. Of others, and of classes derived from these, it is not known that a compiled
#: update is theirs.
_KNOWN = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


def with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a Python function with code that no other function has.

    torch.compile keeps what it made with the code that it was given, up to 8 results, and looks through all of them at
    each call. Functions that one line of Python defines share their code, and so do networks of one class.
    """
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    copy = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


class Compiled:
    """``function`` by torch.compile, in one graph, when it is first called. A copy compiles its own function."""

    def __init__(self, function: Any, **options: Any) -> None:
        self.function, self._options = function, options
        self._run: Any = None

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Result of the function. Raises torch.compile's errors."""
        if self._run is None:
            self._run = torch.compile(self._with_own_code(), fullgraph=True, **self._options)
        return self._run(*arguments, **keywords)

    def _with_own_code(self) -> Callable[..., Any]:
        function = self.function

        def run(*arguments: Any, **keywords: Any) -> Any:
            return function(*arguments, **keywords)

        return with_own_code(run)

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_run": None}


class CompiledPart(Compiled):
    """The loss of a captured step by torch.compile, and as it is once the compiler cannot take it."""

    def __init__(self, function: Any, what: str) -> None:
        super().__init__(function)
        #: Description in a warning.
        self.what = what
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
                return super().__call__(*arguments)
        except compiler_errors() as error:
            self.why = reason(error)
        # before the function runs: where the warning is an error, the weights are as they were
        warnings.warn(f"compile: {self.what} runs as it is, because {self.why}", RuntimeWarning, stacklevel=2)
        return self.plain(*arguments)

    def plain(self, *arguments: Any) -> Any:
        """Result of the function, without the compiler."""
        return self.function(*arguments)


class CompiledUpdate(CompiledPart):
    """``optimizer.step()``, compiled while the optimiser is as :func:`is_usual` says and its numbers stay."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer, "the update")
        self._settings: Dict[Tuple[int, str], Any] = {}

    def __call__(self) -> None:
        """One update."""
        if not is_usual(self.function):
            self.plain()
            return
        settings = {
            (place, name): value
            for place, group in enumerate(self.function.param_groups)
            for name, value in group.items()
            if name != "params" and not isinstance(value, Tensor)
        }
        changed = sorted({key[1] for key, value in settings.items() if self._settings.get(key, value) != value})
        self._settings = settings
        if changed and not self.why:
            # a schedule would compile it anew at every value
            self.why = f"{' and '.join(changed)} changed"
            if "lr" in changed:
                self.why += "; a learning rate that is to change is a tensor, lr=torch.tensor(0.001, device='cuda')"
        self.function._opt_called = True  # what a scheduler's wrapper of the step notes
        with torch.no_grad():
            super().__call__()

    def plain(self) -> None:
        """The optimiser's step, which may have been replaced."""
        self.function.step()

    def _with_own_code(self) -> Callable[..., Any]:
        # within the wrappers that run hooks, note the time and turn gradients off; the last would break the graph
        step, optimizer = with_own_code(inspect.unwrap(type(self.function).step)), self.function

        def run() -> None:
            step(optimizer)

        return with_own_code(run)


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

    limit = getattr(exc, "FailOnRecompileLimitHit", None)  # too many results for one function
    return (exc.TorchDynamoException,) if limit is None else (exc.TorchDynamoException, limit)
