"""A network over several devices of one process, in stages."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from spikecore._base.batches import to_device
from spikecore.lang._plain import is_compiling
from spikecore.parallel import _dims as dims
from spikecore.parallel import _kinds as kinds
from spikecore.parallel import _placement as placement
from spikecore.parallel import _split as split
from spikecore.parallel import _steps as steps
from spikecore.parallel._dry import Inputs, called
from spikecore.parallel._schedule import ticks
from spikecore.parallel._states import PartStates


def _refuse_compiler() -> None:
    raise RuntimeError(
        "torch.compile cannot follow a Pipeline, whose stages run in an order of their own; compile the stages: "
        "pipeline.compile(), or pipeline[0].compile()"
    )


# torch.compile calls it when it traces, rather than tracing it, so that the error is this one
_refuse_compiler._dynamo_marked_constant = True  # type: ignore[attr-defined]  # functions take attributes


class Pipeline(nn.Module):
    """A network over several devices of one process: ``stages`` run one after the other, each on its own device.

    ::

        net = sc.Pipeline([(front, "cuda:0"), (middle, "cuda:1"), (back, "cuda:0")], chunks=4)
        out = net(x)  # what nn.Sequential(front, middle, back) computes; on the device of the last stage

    A call splits the batch of ``x`` into parts, and stage i works on part k while stage i - 1 works on part k + 1. The
    stages are moved to their devices in place; a device may occur several times.

    stages: pairs ``(module, device)``. A stage takes what the one before returns, as one argument: a tensor, or tensors
        in tuples, lists and dicts. The first one takes the inputs of the call, ``net(a, b)`` or ``net(a, gate=b)``; so
        a training step takes batches ``(a, b)`` and ``{"a": a, "gate": b}``, as of any network.
    chunks: the number of equal parts. split_sizes: the size of a part, or the sizes of all parts in a list. With
        neither, the batch is one part: the devices share the memory and take turns.
    batch_dim: the dimension of the input that is the batch, or a pair: that of the input and that of the output. None:
        of the input 1, ``[T, B, ...]``, if the stages have multi-step neurons and no encoder that makes time
        (``Constant``, ``Poisson``, ``Latency``), else 0; of the output the one that follows the size of the batch in a
        dry run; where there is none, that of the input, and 1 behind an encoder. Stages that loop over time
        themselves, with single-step neurons, need ``batch_dim=1``: without it they raise when a batch is split.

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

    Before the first call for each shape the stages run on tensors without data (copies of them, on ``meta``). Where
    that cannot be done, because a stage reads values or cannot be copied, :attr:`unchecked` and the debug log say why.

    Raises TypeError or ValueError, before anything is moved, for no stages, a stage that is no module, a device that is
    not there, a module in two stages, a tensor on two devices, ``chunks`` with ``split_sizes``; and, before anything
    runs, for a split that does not divide the batch, for a stage that does not take what the one before gives, and for
    a batch dimension that was not given and cannot be told.
    """

    def __init__(
        self,
        stages: Iterable[Tuple[nn.Module, Union[str, torch.device]]],
        chunks: Optional[int] = None,
        split_sizes: Union[int, Sequence[int], None] = None,
        *,
        batch_dim: Union[int, Tuple[Optional[int], Optional[int]], None] = None,
    ) -> None:
        super().__init__()
        placed = placement.checked(stages)
        self._split = split.checked(chunks, split_sizes)
        self._dims = dims.checked(batch_dim)
        #: The device of each stage.
        self.devices: Tuple[torch.device, ...] = tuple(device for _, device in placed)
        self._kinds = kinds.Kinds()
        for position, (stage, device) in enumerate(placed):
            self.add_module(str(position), stage.to(device))

    # -- calls

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Outputs of the last stage for the whole batch, on its device. The inputs, which the first stage gets as they
        are given, may be on any device.
        """
        if is_compiling():
            _refuse_compiler()
        if not inputs and not named:
            raise TypeError("Pipeline: a call without an input; give what the first stage takes, pipeline(x)")
        x = inputs[0] if len(inputs) == 1 and not named else Inputs(inputs, named)
        dim = self.batch_dim
        sizes = self._split.sizes(dims.batch(x, dim), dims.where(x, dim))
        of_output = self._kinds.check_parts(self, x, dim, sizes, self._dims[1])
        parts, stages = dims.cut(x, dim, sizes), list(self)
        states = PartStates(stages, sizes)

        def work(stage: int, part: int, value: Any) -> Any:
            states.enter(stage, part)
            made = called(stages[stage], value)
            states.leave(stage, part)
            return made

        with states.kept():
            made = list(ticks(self.devices, len(sizes), parts.__getitem__, work))
            if not dims.fits(made, sizes, of_output):  # the stages changed since the dry run
                self._kinds.forget()
                of_output = self._kinds.check_parts(self, x, dim, sizes, self._dims[1])
            out = dims.joined(made, sizes, of_output)
            states.join()
        return out

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
        it): one that loses the dimension of time is refused, others cannot be told and would be wrong.

        Raises TypeError or ValueError for ``T`` not a positive whole number, neurons of both kinds, an encoder among
        the stages (the input is repeated here, leave it out), and a stage that does not take what the one before gives;
        RuntimeError for a call while another thread is in one, since neurons hold their state between steps.
        """
        if is_compiling():
            _refuse_compiler()
        several = steps.check(self, x, T, reduce)
        self._kinds.check_steps(self, x, several)
        stages = list(self)
        with steps.alone(self), PartStates(stages, (1,)).kept(), steps.from_rest(self, several):
            entering = to_device(steps.with_time(x) if several else x, self.devices[0])
            made = ticks(self.devices, T, lambda _: entering, lambda stage, _, value: stages[stage](value))
            return steps.summed(made, several) if reduce else steps.stacked(made, several)

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
    def batch_dim(self) -> int:
        """The dimension of the input that is the batch."""
        return dims.of_input(self) if self._dims[0] is None else self._dims[0]

    @property
    def guesses(self) -> bool:
        """Whether nobody said which dimension of the input is the batch."""
        return self._dims[0] is None

    @property
    def unchecked(self) -> str:
        """Why the last new kind of input could not be checked before it ran; "" if it was."""
        return self._kinds.unknown

    def set_split(self, chunks: Optional[int] = None, split_sizes: Union[int, Sequence[int], None] = None) -> None:
        """Split batches in another way from now on; arguments as of the class."""
        self._split = split.checked(chunks, split_sizes)

    # -- module

    def __len__(self) -> int:
        return len(self.devices)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter([self[position] for position in range(len(self))])

    def __getitem__(self, position: int) -> nn.Module:
        if isinstance(position, bool) or not isinstance(position, int):
            raise TypeError(f"pipeline[{position!r}]: a stage has a number, 0 to {len(self) - 1}")
        if not -len(self) <= position < len(self):
            raise IndexError(f"pipeline[{position}]: there are {len(self)} stages, 0 to {len(self) - 1}")
        return self.get_submodule(str(position % len(self)))

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile each stage by itself, in place; arguments as of ``torch.compile``."""
        for stage in self:
            stage.compile(*args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
        for position, device in enumerate(self.devices):
            after = fn(torch.empty(0, device=device)).device
            if after != device:
                places: List[str] = [str(one) for one in self.devices]
                raise RuntimeError(
                    f"this would move stage {position} of a Pipeline from {device} to {after}; its stages are on "
                    f"{', '.join(places)}. Leave out .to(device), .cuda() and the like; for other devices make another "
                    "Pipeline of the stages, for one device nn.Sequential(*pipeline).to(device). .to(dtype) works"
                )
        return super()._apply(fn, *args, **kwargs)

    def extra_repr(self) -> str:
        """The devices of the stages in order, the split and the batch dimension."""
        dim = self._dims[0] if self._dims[1] is None else self._dims
        told = "" if dim is None else f", batch_dim={dim}"
        return f"devices=[{', '.join(map(str, self.devices))}], {self._split.words()}{told}"
