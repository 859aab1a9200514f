"""A network over several devices of one process, in stages."""

from __future__ import annotations

import warnings
from contextlib import contextmanager, nullcontext
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spikecore.batches import flattened, to_device, tree_map
from spikecore.context import compile_time, is_compiling
from spikecore.core.modules import makes_time, outside
from spikecore.core.state import Stateful, carry, carry_no_more
from spikecore.functional import check_places, stateful_modules, to_rest
from spikecore.parallel import _parts as parts


class _Inputs(NamedTuple):
    """The arguments of a call, which stage 0 gets as they were given."""

    args: Tuple[Any, ...]
    named: Dict[str, Any]


def refuse_compiler(text: str) -> None:
    """Raise RuntimeError where torch.compile traces."""
    if is_compiling():
        _raise(text)


@compile_time  # traced, it would be an error of torch's
def _raise(text: str) -> None:
    raise RuntimeError(text)


_COMPILED = (
    "torch.compile cannot follow a Pipeline, whose stages run in an order of their own; compile the stages: "
    "pipeline.compile(), or pipeline[0].compile()"
)


class Pipeline(nn.Module):
    """A network over several devices of one process: ``stages`` run one after the other, each on its own device.

    ::

        net = sc.parallel.Pipeline([(front, "cuda:0"), (middle, "cuda:1"), (back, "cuda:0")], chunks=4)
        out = net(x)  # what nn.Sequential(front, middle, back) computes; on the device of the last stage

    A call splits the batch of ``x`` into parts, and stage i works on part k while stage i - 1 works on part k + 1. The
    stages are moved to their devices in place; a device may occur several times.

    stages: pairs ``(module, device)``. A stage takes what the one before returns, as one argument: a tensor, or tensors
        in tuples, lists and dicts. The first one takes the inputs of the call, ``net(a, b)`` or ``net(a, gate=b)``; so
        a training step takes batches ``(a, b)`` and ``{"a": a, "gate": b}``, as of any network.
    chunks: the number of equal parts.
    split_sizes: the size of a part, or the sizes of all parts in a list. Without it and ``chunks`` the batch is one
        part: the devices share the memory and take turns.
    batch_dim: the dimension of the input and of the output that is the batch: 1 for ``[T, B, ...]``, 0 for ``[B, ...]``
        with single-step neurons. A pair says them apart: ``(0, 1)`` for an encoder that makes time of ``[B, ...]``,
        ``(1, 0)`` for a last stage that sums over time. It counts only where a batch has several parts.

    Every tensor of the input is split along ``batch_dim``, and all have one batch; each part gets all of what has no
    batch: tensors without dimensions, and what is no tensor. Outputs are tensors, or tuples, lists and dicts of them,
    and are put together along ``batch_dim``; an output without the batch there raises ValueError.

    What holds:

    - Outputs are those of the plain network, bit for bit where its layers compute each sample alone and alike for any
      batch. Gradients of parameters are sums over parts: equal to rounding, and exactly equal for one part.
    - State: each part has its own. Between calls the state of neurons that continue (``step="single"``,
      ``sc.carry_state``) is that of the whole batch, so the split may change, and ``sc.reset`` and ``sc.detach`` work.
    - Batch normalisation in training sees one part: its statistics are those of the part, and the running ones move
      once per part. A warning says so once. Dropout and encoders draw part by part, so a seed gives other numbers than
      on one device, and others for another split.
    - Keys of ``state_dict`` are those of ``nn.Sequential`` of the stages. ``.to(dtype)`` works; ``.to(device)`` raises.
    - ``pipeline.compile()`` compiles each stage by itself; ``torch.compile(pipeline)`` raises.

    Raises TypeError or ValueError, before anything is moved, for no stages, a stage that is no module, a device that is
    not there, a module in two stages, a tensor on two devices, ``chunks`` with ``split_sizes``; and, before anything
    runs, for a split that does not divide the batch. An error of a layer has a note with the stage (Python 3.11).
    """

    def __init__(
        self,
        stages: Iterable[Tuple[nn.Module, Union[str, torch.device]]],
        chunks: Optional[int] = None,
        split_sizes: Union[int, Sequence[int], None] = None,
        *,
        batch_dim: Union[int, Tuple[int, int]] = 1,
    ) -> None:
        super().__init__()
        placed = parts.checked_stages(stages)
        self._split = parts.checked_split(chunks, split_sizes)
        self._dims = parts.checked_dims(batch_dim)
        #: The device of each stage.
        self.devices: Tuple[torch.device, ...] = tuple(device for _, device in placed)
        self._warned = False
        for position, (stage, device) in enumerate(placed):
            self.add_module(str(position), stage.to(device))

    # -- calls

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Outputs of the last stage for the whole batch, on its device. The inputs, which the first stage gets as they
        are given, may be on any device.
        """
        refuse_compiler(_COMPILED)
        if not inputs and not named:
            raise TypeError("Pipeline: a call without an input; give what the first stage takes, pipeline(x)")
        x = _Inputs(inputs, named)
        parts.check_input([*inputs, *named.values()])
        split = self._split != parts.Split()
        sizes = self._sizes(x) if split else (1,)
        inputs_of = parts.cut(x, self._dims[0], sizes) if len(sizes) > 1 else [x]
        states = parts.PartStates(list(self), sizes)

        def work(stage: int, part: int, value: Any) -> Any:
            with states.of(stage, part):
                return self._call(stage, value)

        with states.restored():
            outputs = list(ticks(self.devices, len(sizes), inputs_of.__getitem__, work))
            output = parts.joined(outputs, self._dims[1], sizes) if len(sizes) > 1 else outputs[0]
            states.join()
        return output

    def constant_forward(self, x: Any, T: int, reduce: bool = True) -> Any:
        """The input ``x [B, ...]`` at each of ``T`` time steps: outputs ``[B, ...]`` summed, or ``[T, B, ...]``.

        Stage i works on step t while stage i - 1 works on step t + 1, with the whole batch. The stages take one step
        at a time: with ``step="single"`` neurons they get ``[B, ...]``; with multi-step neurons they get
        ``[1, B, ...]`` and their neurons go on from step to step. ``reduce`` sums over time, which keeps no output of a
        step; otherwise outputs are stacked.

        Like a training step, it begins at rest and leaves no state behind, unless ``sc.carry_state`` is active around
        it: then it goes on from the call before. Gradients are those of the loop over T steps on one device.

        Normalisation in training sees one step of the batch at a time, as in that loop; a multi-step network on one
        device sees all steps at once. So does a layer that reads several steps (a mean over time, a convolution along
        it): one that loses the dimension of time is refused, others cannot be told and would be wrong. One thread at a
        time calls it, since the neurons hold their state between steps.

        Raises TypeError or ValueError for ``T`` not a positive whole number, neurons of both kinds, and an encoder
        among the stages (the input is repeated here, leave it out).
        """
        refuse_compiler(_COMPILED)
        several = _check_steps(self, x, T)
        with parts.PartStates(list(self), (1,)).restored(), _from_rest(self, several):
            entering = to_device(tree_map(lambda value: value.unsqueeze(0), x) if several else x, self.devices[0])
            source = _Inputs((entering,), {})
            steps = ticks(self.devices, T, lambda _: source, lambda stage, _, value: self._call(stage, value))
            if several:
                steps = map(_one_step, steps)
            return _summed(steps) if reduce else _stacked(steps)

    def _sizes(self, x: Any) -> Tuple[int, ...]:
        dim = self._dims[0]
        if dim and makes_time(self):
            raise ValueError(
                f"Pipeline: the stages make time of an input [B, ...], and batch_dim={dim} is another dimension; give "
                "batch_dim=(0, 1): of the input and of the output, [T, B, ...]"
            )
        sizes = parts.sizes_of(self._split, x, dim)
        if len(sizes) > 1 and self.training and not self._warned:
            self._warned = _warned_of_statistics(self, sizes)
        return sizes

    def _call(self, position: int, value: Any) -> Any:
        """A stage on what the one before gave, or on the arguments of the pipeline."""
        stage = self[position]
        try:
            return stage(*value.args, **value.named) if isinstance(value, _Inputs) else stage(value)
        except Exception as error:
            if hasattr(error, "add_note"):
                shapes = ", ".join(str(tuple(tensor.shape)) for tensor in flattened(value))
                kind, device = type(stage).__name__, self.devices[position]
                error.add_note(f"Pipeline: in stage {position} ({kind} on {device}), whose input has shape {shapes}")
            raise

    # -- settings

    @property
    def placed(self) -> List[Tuple[nn.Module, torch.device]]:
        """The stages with their devices."""
        return [*zip(self, self.devices)]

    @property
    def chunks(self) -> Optional[int]:
        """The number of equal parts of a batch; None if ``split_sizes`` says how it is split, or nothing does."""
        return self._split.chunks

    @property
    def split_sizes(self) -> Union[int, Tuple[int, ...], None]:
        """The size of a part or of each; None if ``chunks`` says how a batch is split, or nothing does."""
        return self._split.split_sizes

    @property
    def batch_dim(self) -> Union[int, Tuple[int, int]]:
        """The dimension that is the batch, or those of input and output where they differ."""
        return self._dims[0] if self._dims[0] == self._dims[1] else self._dims

    def set_split(self, chunks: Optional[int] = None, split_sizes: Union[int, Sequence[int], None] = None) -> None:
        """Split batches in another way from now on; arguments as of the class."""
        self._split = parts.checked_split(chunks, split_sizes)

    # -- module

    def __len__(self) -> int:
        return len(self.devices)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter([self[position] for position in range(len(self))])

    def __getitem__(self, position: int) -> nn.Module:
        return self.get_submodule(str(range(len(self))[position]))

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile each stage by itself, in place; arguments as of ``torch.compile``."""
        for stage in self:
            stage.compile(*args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
        for position, device in enumerate(self.devices):
            after = fn(torch.empty(0, device=device)).device
            if after != device:
                raise RuntimeError(
                    f"this would move stage {position} of a Pipeline from {device} to {after}; its stages are on "
                    f"{', '.join(map(str, self.devices))}. Leave out .to(device), .cuda() and the like; for other "
                    "devices make another Pipeline of the stages, for one device "
                    "nn.Sequential(*pipeline).to(device). .to(dtype) works"
                )
        return super()._apply(fn, *args, **kwargs)

    def extra_repr(self) -> str:
        """The devices of the stages in order, the split and the batch dimension."""
        return f"devices=[{', '.join(map(str, self.devices))}], {self._split.words()}, batch_dim={self.batch_dim}"


def _warned_of_statistics(net: nn.Module, sizes: Sequence[int]) -> bool:
    """Warn if a layer normalises with statistics of a part; whether there is one."""
    for name, module in net.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            warnings.warn(
                f"Pipeline: {name!r} ({type(module).__name__}) in training normalises each of {len(sizes)} parts by "
                f"the statistics of that part ({sizes[0]} of {sum(sizes)} samples), and moves its running ones "
                f"{len(sizes)} times a call: other numbers than on one device. Larger parts come closer; nn.GroupNorm "
                "has no such statistics",
                UserWarning,
                stacklevel=6,
            )
            return True
    return False


# -- one input at every time step


def _check_steps(net: nn.Module, x: Any, T: Any) -> bool:
    """True if the neurons take several steps. Raises TypeError or ValueError for what cannot be repeated."""
    if isinstance(T, bool) or not isinstance(T, int) or T < 1:
        raise ValueError(f"constant_forward: T={T!r} must be a number of time steps, 1 or more")
    parts.check_input(x)
    for name, module in net.named_modules():
        if getattr(module, "makes_time", False):
            raise ValueError(
                f"constant_forward gives x at every step, and {name!r}, {type(module).__name__}, makes time itself; "
                "leave an encoder out, set repeat=None of a neuron, or call the pipeline itself"
            )
    check_places(net, carries=True)
    modes = {module.step: module for _, module in outside(net, Stateful) if isinstance(module, Stateful)}
    if len(modes) > 1:
        raise ValueError(
            f"constant_forward: {type(modes['single']).__name__} has step='single' and "
            f"{type(modes['multi']).__name__} has step='multi'; give all neurons of the stages one mode"
        )
    return "multi" in modes


@contextmanager
def _from_rest(net: nn.Module, several: bool) -> Iterator[None]:
    """Begin at rest and leave no state behind, unless ``carry_state`` is active; multi-step neurons go on within."""
    modules = stateful_modules(net)
    carried: List[Stateful] = modules if several else []
    to_rest(modules)
    for module in carried:
        carry(module)
    try:
        yield
    finally:
        for module in carried:
            carry_no_more(module)
        to_rest(modules)


def _one_step(output: Any) -> Any:
    """The output of multi-step stages for one step, without the dimension of time."""

    def squeezed(value: Tensor) -> Tensor:
        if value.ndim == 0 or value.shape[0] != 1:
            raise ValueError(
                f"constant_forward takes the steps one by one, and for one step the stages give shape "
                f"{tuple(value.shape)}, without a dimension of time: a layer reads several steps, as a mean over time "
                "does. Leave that layer out; constant_forward sums over time (reduce=True) or gives [T, B, ...] "
                "(reduce=False)"
            )
        return value.squeeze(0)

    return tree_map(squeezed, output)


def _summed(outputs: Iterable[Any]) -> Any:
    """The sum of the outputs of all steps, from the first to the last; of whole numbers in 64 bits, as torch.sum."""
    total: List[Tensor] = []
    for output in outputs:
        values = [v if v.is_floating_point() or v.is_complex() else v.long() for v in flattened(output)]
        total = [so_far + value for so_far, value in zip(total, values)] if total else values
    return parts.filled(output, total)


def _stacked(outputs: Iterable[Any]) -> Any:
    """The outputs of all steps, with time first."""
    steps = list(outputs)
    return parts.filled(steps[0], [torch.stack(list(column)) for column in zip(*map(flattened, steps))])


# -- the order in which stages work


def ticks(
    devices: Sequence[torch.device],
    items: int,
    source: Callable[[int], Any],
    work: Callable[[int, int, Any], Any],
) -> Iterator[Any]:
    """The result of the last stage for each item, a part of a batch or a time step, in order.

    ``source(item)`` is what enters stage 0; ``work(stage, item, x)`` is what a stage makes of it. At one tick stage i
    works on item k while stage i - 1 works on item k + 1. One thread launches all of it on the current stream of each
    device; kernels on different GPUs run at the same time, since launches return at once.

    A copy between two GPUs waits for what was launched before on both, and what is launched after it on either one
    waits for the copy. So a tick launches the work of every stage first and all copies last: no stage waits for another
    one's work of the same tick. Autograd goes through each device's work from the last launch to the first, so backward
    gets the same order reversed.
    """
    depth = len(devices)
    waiting: Dict[int, Any] = {}
    for tick in range(items + depth - 1):
        if tick < items:
            waiting[0] = to_device(source(tick), devices[0])
        # the last stage first: what it frees is there for those before it on the same device
        active = range(min(depth - 1, tick), max(0, tick - items + 1) - 1, -1)
        made: Dict[int, Any] = {}
        for stage in active:
            with on(devices[stage]):
                made[stage] = work(stage, tick - stage, waiting.pop(stage))
        for stage in active:
            if stage < depth - 1:
                waiting[stage + 1] = to_device(made.pop(stage), devices[stage + 1])
        if depth - 1 in made:
            yield made[depth - 1]


def on(device: torch.device) -> ContextManager[Any]:
    """The block in which ``device`` is the current one of its kind, as kernels of plugins expect it."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
