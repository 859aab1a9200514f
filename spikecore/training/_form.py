"""The form in which a step runs: channels-last, compiled, spikes as bits; and why a part of it is left out.

Rules of this module:

- An option that is True is done, or an exception says why not. With ``fast``, an option that is None is done where it
  can be, and where not, a warning says why, once. Packing is for memory and takes time, so ``fast`` leaves it alone.
- ``form`` says of each option what became of it.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Set

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spikecore._base.batches import flattened, run_network
from spikecore._shell.norms import is_average
from spikecore._shell.processes import is_shard
from spikecore._shell.prologued import prologue_of
from spikecore.backend import Unsupported
from spikecore.layers._packed import is_packed, pack
from spikecore.parallel import Pipeline
from spikecore.training import _averages as averages
from spikecore.training import _graph_passes
from spikecore.training import _layout as layout
from spikecore.training._compiling import Compiled, OwnCode, Update, compiler_errors, reason
from spikecore.training._options import TrainingOptions

#: What became of an option that was not asked for, and of one that was done.
NOT_ASKED, USED = "not asked for", "used"


class Left(Exception):
    """Why an option is left out."""


class Form:
    """How ``net`` is run, from the options; in training, loss and update, too."""

    def __init__(self, net: nn.Module, options: TrainingOptions, optimizer: Any = None) -> None:
        self.net, self.options = net, options
        self._became: Dict[str, str] = {}
        self._run: Any = net
        #: Whether the step that runs is captured, or is to load what a captured one needs.
        self._beside = False
        self._loss: Optional[Compiled] = None
        self._update: Optional[Update] = None
        #: Whether a step has come as far as the loss.
        self._reached = False
        self._dims = 0
        self._weights: List[Tensor] = []
        self._compiled = False
        #: What was compiled and ran: whether the step is captured, and shapes and dtypes of its inputs.
        self._proven: Set[Any] = set()
        self._trains = optimizer is not None
        for name, use in (
            ("pack_spikes", self._use_packing),
            ("channels_last", self._use_channels_last),
            ("compile", self._use_compiler),
        ):
            self.use(name, use)
        self.lay_out_states(optimizer)

    @property
    def form(self) -> Dict[str, str]:
        """Of each option, what became of it."""
        beside = self._as_they_are()
        compiled = f"{USED}, but for {'; '.join(f'{what}: {why}' for what, why in beside.items())}" if beside else USED
        return {**self._became, **({"compile": compiled} if self._compiled else {})}

    def use(self, name: str, use: Callable[[], None]) -> None:
        """Do what an option asks for; ``use`` raises :class:`Left` where that cannot be."""
        asked = getattr(self.options, name)
        packs = name == "pack_spikes"
        wanted = asked or (asked is None and self.options.fast and not packs)
        if not wanted:
            self._became[name] = NOT_ASKED
            return
        if packs and not self._trains:
            # no exception, unlike other options: one object of options serves training and inference
            self._became[name] = "left out: inference keeps nothing for backward"
            return
        try:
            use()
            self._became[name] = USED
        except Left as left:
            self.leave_out(name, str(left))

    def leave_out(self, name: str, why: str) -> None:
        """Note that an option is left out. Raises Unsupported where it was asked for by name."""
        if getattr(self.options, name):
            raise Unsupported(f"{name}=True cannot be: {why}; use {name}=False")
        self._became[name] = f"left out: {why}"
        warnings.warn(
            f"fast=True: {name} is left out, because {why}; {name}=False says so without this warning",
            RuntimeWarning,
            stacklevel=2,
        )

    @property
    def is_captured(self) -> bool:
        """Whether the step that runs now is captured, or is to load what a captured one needs."""
        return self._beside

    def lay_out_states(self, optimizer: Any) -> None:
        """Have the states of an optimiser lie as their weights, when it is given and after it was loaded."""
        if optimizer is not None and self._weights:
            layout.states_channels_last(optimizer, self._weights, self._dims)

    def inputs(self, inputs: Any) -> Any:
        """The inputs as the network wants them to lie."""
        return layout.inputs_channels_last(inputs, self._dims) if self._dims else inputs

    def run(self, inputs: Any) -> Any:
        """The network on one batch."""
        return run_network(self._run, inputs)

    @contextmanager
    def as_captured(self) -> Iterator[None]:
        """Around a step that is captured, or that is to load what a captured one needs."""
        self._beside = True
        try:
            yield
        finally:
            self._beside = False

    def loss(self, loss: Any, outputs: Any, targets: Any) -> Any:
        """The loss of one batch."""
        self._reached = True
        if not (self._beside and self._compiled):
            return loss(outputs, targets)
        if self._loss is None or self._loss.function is not loss:
            self._loss = Compiled(loss, options=_graph_passes.compiling_options)
        return self._loss(outputs, targets)

    def update(self, optimizer: Any) -> None:
        """One step of the optimiser."""
        if not (self._beside and self._compiled):
            optimizer.step()
            return
        if self._update is None or self._update.optimizer is not optimizer:
            self._update = Update(optimizer)
        self._update()

    def attempt(self, work: Callable[[], Any], inputs: Any, *others: nn.Module) -> Any:
        """The result of ``work``, which runs the network on ``inputs``, and ``others``; where these cannot be compiled,
        without compilation.

        Compilation comes when a kind of batch is first met, the backward pass's within ``backward``. Buffers are put
        back then, since the forward pass has moved them.
        """
        if not self._compiled:
            return work()
        self._reached = False
        held = itertools.chain.from_iterable(module.buffers() for module in (self.net, *others))
        kind = (self._beside, *[(one.shape, one.dtype) for one in flattened(inputs)])
        kept = [] if kind in self._proven else [(buffer, buffer.clone()) for buffer in held]

        def put_back() -> None:
            with torch.no_grad():
                for buffer, value in kept:
                    buffer.copy_(value)

        try:
            result = work()
        except RuntimeWarning:  # an error, where the user wants it so: that the loss cannot be compiled
            put_back()
            raise
        except compiler_errors() as error:
            put_back()
            if self._beside and self._reached and self._loss is not None and not self._loss.why:
                # the loss's part of the backward pass may be what failed
                self._loss.leave(reason(error))
                return self.attempt(work, inputs, *others)
            self._run, self._compiled = self.net, False
            self.leave_out("compile", self._why_not_compiled(error))
            return work()
        self._proven.add(kind)
        return result

    # -- the options

    def _use_channels_last(self) -> None:
        dims = layout.dimensions(self.net)
        if not dims:
            raise Left("the network has no convolutions of two dimensions, nor of three alone")
        if any(isinstance(one, nn.parallel.DistributedDataParallel) for one in self.net.modules()):
            raise Left(
                "DistributedDataParallel has laid out its buckets already; convert the network before it is wrapped, "
                "with net.to(memory_format=torch.channels_last)"
            )
        if any(is_shard(parameter) for parameter in self.net.parameters()):
            raise Left("its parameters are shards")
        if self._trains and dims == 2 and averages.misplaced_channels_last(self.net):
            raise Left(
                "this torch gives the gradient of a padded nn.AvgPool2d that is channels-last to the wrong pixels "
                "(pytorch/pytorch issue 188344)"
            )
        self._dims = dims
        self._weights = layout.weights_channels_last(self.net, dims)

    def _use_compiler(self) -> None:
        if is_compiled(self.net):
            raise Left("the network is under torch.compile already")
        if any(isinstance(one, (nn.parallel.DistributedDataParallel, Pipeline)) for one in self.net.modules()):
            raise Left("the network is over several devices or processes; compile its parts, with layer.compile()")
        if not hasattr(getattr(torch, "compiler", None), "is_compiling"):
            raise Left(f"torch {torch.__version__} is too old to compile neurons")
        options = functools.partial(_graph_passes.compiling_options, self.net if self._trains else None)
        try:
            options()
        except Unsupported as error:
            raise Left(str(error)) from error
        # fullgraph: a network that breaks into parts is compiled part by part while it runs, and cannot go back then
        self._run = OwnCode(self.net, options, dynamic=False)
        self._compiled = True

    def _use_packing(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # that there is no such layer is said here
            pack(self.net)
        if not is_packed(self.net):
            raise Left(
                "no nn.Linear or nn.Conv2d of it stands behind a spiking neuron in an nn.Sequential or a block of "
                "spikecore; write sc.layers.PackedLinear or sc.layers.PackedConv2d in a forward of your own"
            )

    def _why_not_compiled(self, error: BaseException) -> str:
        """What the compiler raised in one line, and what of the network is known to be a cause."""
        # how the compiler, and before torch 2.5 dynamo, says that a number was read from memory
        reads_number = any(word in str(error) for word in ("data-dependent", "data dependent", ".item("))
        by_neurons = {prologue.norm for one in self.net.modules() for prologue in [prologue_of(one)] if prologue}
        for name, module in self.net.named_modules():
            counts = isinstance(module, _BatchNorm) and is_average(module)
            if reads_number and counts and module not in by_neurons:
                return (
                    f"{reason(error)}. {name or 'the network'} is a {type(module).__name__} with momentum=None, which "
                    "divides by its number of calls, and torch.compile cannot follow that; give it a number, such as "
                    "momentum=0.1, or let the neuron behind it normalise, with sc.fuse(net)"
                )
        return reason(error)

    # -- what runs as it is

    def _as_they_are(self) -> Dict[str, str]:
        """Of loss and update, why they are not compiled with the network."""
        found = {"the loss": self._loss, "the update": self._update}
        return {what: one.why for what, one in found.items() if one is not None and one.why}


def is_compiled(net: nn.Module) -> bool:
    """Whether a network or a part of it is under torch.compile, by a wrapper or by ``net.compile()``."""
    return any(
        getattr(one, "_compiled_call_impl", None) is not None or type(one).__name__ == "OptimizedModule"
        for one in net.modules()
    )
