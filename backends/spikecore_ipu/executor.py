"""Base of training and inference on an IPU: the wrapped step, its call, and the checks that its program still fits.

Programs take turns on the device, since a machine may have just one: before a program is compiled or attached, the
others are detached, which reads their weights back. ``options.useIpuId`` on both gives each a device of its own.
:mod:`~spikecore_ipu.sdk` says why, and has calls of several threads wait for each other.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any, Iterator, List, Optional, Tuple

import torch
from torch import Tensor, nn

from spikecore.backend import Unsupported
from spikecore.functional import at_rest, stateful_modules
from spikecore.training import device_of, flattened, tree_map
from spikecore_ipu.sdk import exclusive, poptorch
from spikecore_ipu.step import Step, Traced


def checked_options(options: Any) -> Any:
    """The ``poptorch.Options``; new ones if None."""
    library = poptorch()
    if options is None:
        return library.Options()
    if not isinstance(options, library.Options):
        raise TypeError(
            f"options={options!r} must be a poptorch.Options on backend 'ipu', or None; spikecore_ipu.poptorch() is "
            "the module poptorch that is in use"
        )
    return options


def checked_net(net: nn.Module) -> nn.Module:
    """The network, which must be on the CPU: PopTorch takes it from there."""
    device = device_of(net)
    if device is not None and device.type != "cpu":
        raise ValueError(f"net is on {device}; backend 'ipu' takes a network on the CPU, net.cpu()")
    return net


class Compiled:
    """A step and its ``poptorch.PoplarExecutor``."""

    def __init__(self, net: nn.Module, step: Step, options: Any) -> None:
        self.net = net
        self._step = step
        self._options = options
        self._stateful = stateful_modules(net)
        self._parameters = list(net.parameters())
        self._modes: Optional[List[bool]] = None
        self._frozen: Optional[List[bool]] = None
        self._executor: Any = None
        _programs.add(self)

    @property
    def executor(self) -> Any:
        """The ``poptorch.PoplarExecutor``, for what is PopTorch's alone: devices, executables, profiles."""
        if self._executor is None:
            with exclusive():
                if self._executor is None:  # another thread may have made it meanwhile
                    self._executor = self._wrapped()
        return self._executor

    @property
    def wrapped(self) -> bool:
        """True if there is an executor, compiled or not."""
        return self._executor is not None

    @property
    def compiled(self) -> bool:
        """True if there is a program, which may hold weights that the network has not."""
        return self.wrapped and bool(self.executor.isCompiled())

    def _wrapped(self) -> Any:
        """A new executor of the step."""
        raise NotImplementedError

    def _check_layout(self) -> None:
        """Make weights contiguous, as PopTorch copies them; raises if one became non-contiguous after compilation."""
        if not self.compiled:
            lay_out(self.net)
            return
        moved = scattered(self.net)
        if moved:
            raise Unsupported(
                f"net.{', net.'.join(moved)} became non-contiguous after this network was compiled, as by "
                ".to(memory_format=torch.channels_last), and PopTorch copies memory as if it were contiguous; make "
                "it contiguous again, .to(memory_format=torch.contiguous_format)"
            )

    def _take_device(self) -> None:
        """Unless this program has a device, detach the others, except those with a device of their own."""
        if self.compiled and self.executor.isAttachedToDevice():
            return
        ours = getattr(self._options, "ipu_id", None)
        for other in list(_programs):
            theirs = getattr(other._options, "ipu_id", None)
            elsewhere = ours is not None and theirs is not None and ours != theirs
            if other is not self and not elsewhere and other.compiled and other.executor.isAttachedToDevice():
                other.executor.detachFromDevice()

    def _run(self, *batch: Any) -> Any:
        """Compile at the first call, and run."""
        for module in self._stateful:
            if module.carrying:
                raise Unsupported(
                    f"a {type(module).__name__} is to carry its state from call to call, and an IPU keeps none; call "
                    "the network outside sc.carry_state, or run it on another backend"
                )
        modes = [module.training for module in self.net.modules()]
        frozen = _frozen(self._parameters)
        for what, current, then in (
            ("train() or eval()", modes, self._modes),
            ("requires_grad_()", frozen, self._frozen),
        ):
            if then is not None and current != then:
                raise Unsupported(
                    f"{what} was called on a part of this network after it was compiled, and an IPU program never "
                    "changes; put it back, or call destroy() first, which compiles anew"
                )
        self._step.traced.batch_sizes = tuple(t.shape[0] if t.ndim else 1 for t in flattened(batch))
        # PopTorch moves the whole module to the device to compile it, and brings back parameters and buffers only
        with at_rest(self._stateful):
            result = self.executor(*batch)
        self._modes, self._frozen = modes, frozen
        return result

    def destroy(self) -> None:
        """Give the device back, after reading weights and the optimiser's state; the next call compiles anew."""
        with exclusive():
            if self.compiled:
                self.executor.destroy()
            self._executor = self._modes = self._frozen = None


#: All programs of this process that are in use, for training and inference.
_programs: weakref.WeakSet[Compiled] = weakref.WeakSet()

#: Has ``requires_grad`` as torch defines it. PopTorch's class of parameters would copy the weights to the host first.
_Base: Any = getattr(torch._C, "TensorBase", None) or torch._C._TensorBase  # the latter before torch 2.1


def _frozen(parameters: List[nn.Parameter]) -> List[bool]:
    """Flags of frozen parameters, without reading them back from the device."""
    with torch._C.DisableTorchFunctionSubclass():
        return [not _Base.requires_grad.__get__(parameter) for parameter in parameters]


def joined(outputs: Any, traced: Traced) -> Any:
    """``outputs`` with the micro batches in each tensor side by side along its batch dimension.

    The batch dimension is the first (``[B, ...]``) or the second (``[T, B, ...]``), whichever has the size of the micro
    batch. A tensor without one is left as PopTorch joined it.
    """
    shapes: Iterator[Tuple[int, ...]] = iter(traced.shapes)
    return tree_map(lambda value: _joined(value, next(shapes), traced), outputs)


def _joined(value: Tensor, shape: Tuple[int, ...], traced: Traced) -> Tensor:
    dim = traced.batch_dimension(shape)
    if not dim or tuple(value.shape) == shape:
        return value
    return torch.cat(value.split(shape[0]), dim=dim)


def data_loader(dataset: Any, options: Any, **kwargs: Any) -> Any:
    """A ``poptorch.DataLoader``; warns of samples that each pass leaves out, since all batches are of one size.

    Raises ValueError for ``time_first``: PopTorch cuts dimension 0 of what goes in, which must be the batch.
    """
    if kwargs.pop("time_first", False):
        raise ValueError(
            "time_first=True puts time first, and PopTorch cuts dimension 0 of every tensor, which must be the batch; "
            "leave it out, and turn the inputs in the network: x.transpose(0, 1)"
        )
    loader = poptorch().DataLoader(checked_options(options), dataset, **kwargs)
    if "drop_last" not in kwargs and hasattr(dataset, "__len__") and kwargs.get("batch_sampler") is None:
        batch = loader.combinedBatchSize
        left_out = 0 if batch is None else len(dataset) % batch
        if left_out:
            warnings.warn(
                f"{left_out} of {len(dataset)} samples are left out of each pass: a call takes {batch}, and an IPU "
                "program has one batch size; drop_last=True says that this is meant",
                UserWarning,
                stacklevel=4,
            )
    return loader


# weights are made contiguous, because PopTorch ignores strides: it copies memory from the first number on


def lay_out(net: nn.Module) -> None:
    """Make every parameter and buffer contiguous, in place: the same object and values, in memory of its own.

    Warns of those that were not. Raises ValueError for one that shares its memory with another of the network: laid out
    anew it would follow the other no more.
    """
    names = scattered(net)
    if not names:
        return
    with torch._C.DisableTorchFunctionSubclass():
        tensors = dict(_named(net))
        memory = {name: tensor.untyped_storage().data_ptr() for name, tensor in tensors.items()}
        for name in names:
            others = [other for other in tensors if other != name and memory[other] == memory[name]]
            if others:
                raise ValueError(
                    f"net.{name} is a view of the memory of net.{', net.'.join(others)}, with strides "
                    f"{tuple(tensors[name].stride())}, and PopTorch copies memory as if it were contiguous; share the "
                    "nn.Parameter itself and turn it in forward, or give each its own with .contiguous()"
                )
        for name in names:
            tensors[name].data = tensors[name].data.contiguous()
    warnings.warn(
        f"net.{', net.'.join(names)} did not lie contiguously (channels-last, transposed or "
        "expanded), and PopTorch copies memory as if it did: laid out anew, with the same values",
        UserWarning,
        stacklevel=5,
    )


def check_sharing(net: nn.Module) -> None:
    """Raise ValueError for a trained parameter whose memory is that of another parameter or buffer, too.

    PopTorch gives each its own memory on the device, trains them apart, and copies both back to the same place.
    """
    with torch._C.DisableTorchFunctionSubclass():
        tensors = {name: tensor for name, tensor in _named(net) if tensor.numel()}
        spans = [(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size(), name) for name, t in tensors.items()]
        end, last = 0, ""  # of the tensor that ends last, of those that begin before
        for begin, stop, name in sorted(spans):
            if begin < end and (tensors[last].requires_grad or tensors[name].requires_grad):
                raise ValueError(
                    f"net.{last} and net.{name} are two tensors in the same memory; PopTorch would train them apart "
                    "without a word; share the nn.Parameter itself, b.weight = a.weight, or clone() one"
                )
            if stop > end:
                end, last = stop, name


def scattered(net: nn.Module) -> List[str]:
    """The names of the parameters and buffers that are not contiguous."""
    with torch._C.DisableTorchFunctionSubclass():
        return [name for name, tensor in _named(net) if not tensor.is_contiguous()]


def _named(net: nn.Module) -> Iterator[Tuple[str, Tensor]]:
    yield from net.named_parameters()
    yield from net.named_buffers()
