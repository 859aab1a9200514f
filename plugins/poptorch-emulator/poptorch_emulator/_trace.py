"""Recording: ``forward`` runs once, on tensors without values, and every operation of the device becomes a node.

Rules of this module:

- What PopTorch cannot record raises PopTorch's error at once. Operations without a handler are collected, and named in
  one error when ``forward`` is done.
- An operation on tensors of the host alone is computed at once; one that mixes host and device is an error.
- Recording is below autograd. While an operation is recorded nothing else is: shape inference calls operations, too.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ._aliasing import changed, viewed
from ._errors import cpp_error, py_error
from ._factories import on_device_by_default
from ._functions import Functions, no_custom_backward
from ._graph import Graph, Node, Ref
from ._inference import Inference, Inferred
from ._lock import Lock
from ._losses import RECORDED, reduced
from ._replay import base_name, in_float32
from ._stages import check_blocks, current
from ._structure import leaves, tree_map
from ._support import (
    EXPLICIT,
    MIXED,
    RANDOM,
    SHAPED,
    check_arguments,
    check_shape,
    composed,
    not_taken,
    of_poptorch,
    supported,
    unsupported,
)
from ._tensor import (
    DEVICE,
    MOVE,
    STALE,
    IpuTensor,
    Layout,
    contiguous,
    host_tensor,
    laid_as,
    narrow,
    narrowed,
    on_ipu,
    zero_sized,
)
from ._views import RESHAPES_IN_PLACE, VIEWS, Views, kind_of

_thread = threading.local()
#: Held while a model is recorded: functions of the module ``torch`` are replaced then.
_turn = Lock()


def running() -> Optional[Trace]:
    """The trace that records in this thread at this moment."""
    trace: Optional[Trace] = getattr(_thread, "trace", None)
    return trace


class Trace(TorchDispatchMode):
    """``with trace.recording():`` records into ``trace.graph``."""

    def __init__(self, training: bool = False) -> None:
        super().__init__()
        self.training = training
        self.graph = Graph()
        self._views = Views()
        self._aside = False
        #: Inside of a function that PopTorch handles as one operation, and torch decomposes.
        self._whole = False
        self._inference = Inference(self.aside)
        self._unsupported: Dict[str, None] = {}
        #: The function of torch that the model calls at this moment, and the same if it is under ``torch.no_grad()``.
        self.function = self._no_grad = ""
        #: The number of nodes before the ``poptorch.MultiConv`` that has begun.
        self.multi_conv: Optional[int] = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what runs inside; raises poptorch.Error at the end for what has no handler."""
        if running() is not None:
            raise py_error("a model is compiled inside of the forward of another")
        with ExitStack() as stack:
            stack.enter_context(_turn)
            # what stands around the call says nothing of what forward does
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(on_device_by_default(self))
            stack.enter_context(Functions(self))
            if self.training:
                stack.enter_context(no_custom_backward(self))
            stack.enter_context(self)
            _thread.trace = self
            try:
                yield
            finally:
                _thread.trace = None
        if self._unsupported:
            raise unsupported(list(self._unsupported))

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Record nothing inside."""
        before, self._aside = self._aside, True
        try:
            yield
        finally:
            self._aside = before

    @contextmanager
    def whole(self, whole: bool) -> Iterator[None]:
        """Accept every operation inside if ``whole``: torch decomposes into them a function that PopTorch takes."""
        before, self._whole = self._whole, self._whole or whole
        try:
            yield
        finally:
            self._whole = before

    @contextmanager
    def calling(self, function: str) -> Iterator[None]:
        """The model calls this function of torch inside. torch itself has ``no_grad`` in some."""
        before = self.function, self._no_grad
        if not self.function:
            self.function, self._no_grad = function, "" if torch.is_grad_enabled() else function
        try:
            yield
        finally:
            self.function, self._no_grad = before

    @property
    def listens(self) -> bool:
        """Whether this trace records the current thread, and is not inferring a shape at the moment."""
        return running() is self and not self._aside

    def input(self, tensor: Tensor) -> IpuTensor:
        """A new input of the graph, of the shape of ``tensor``."""
        value = self._new(tensor)
        self.graph.inputs.append(value.number)
        self._views.create(value.number, value.laid, outer=True)
        return value

    def weight(self, name: str, tensor: Tensor) -> IpuTensor:
        """A parameter or buffer of the model."""
        if 0 in tensor.shape:
            raise zero_sized(tensor.shape, f" It is {name} of the model.")
        value = self._new(tensor)
        self.graph.weights[name] = value.number
        self._views.create(value.number, value.laid, outer=True)
        return value

    def constant(self, tensor: Tensor) -> IpuTensor:
        """The present values of ``tensor``, compiled into the graph."""
        with self.aside():
            values = narrow(tensor.detach()).clone(memory_format=torch.contiguous_format)
        value = self._new(values)
        self.graph.constants[value.number] = values
        self._views.create(value.number, value.laid, constant=True)
        return value

    def refuse(self, name: str) -> None:
        """Note an operation that has no handler."""
        self._unsupported[name] = None

    def finish(self, returned: Any) -> Graph:
        """The graph of all that ``returned`` depends on, and no more."""
        for tensor in leaves(returned, IpuTensor):
            self._check(tensor)
            self._views.check(tensor.number, "the value that forward returns")
        self._views.check_outer()
        self.graph.returned = tree_map(lambda leaf: leaf, returned)  # forward may change its lists later
        self.graph.prune()
        returned = self.graph.outputs
        if any(node.name == "set_overlap_for_output" and node.writes[0] not in returned for node in self.graph.nodes):
            raise cpp_error(
                "poptorch.set_overlap_for_output applied on a node which is not a tensor output to the model."
            )
        check_blocks([node.name for node in self.graph.nodes if not node.placed])
        return self.graph

    def _new(self, like: Tensor) -> IpuTensor:
        if 0 in like.shape:
            raise zero_sized(like.shape)
        return self._wrap(contiguous(like.shape, narrowed(like.dtype)))

    def _wrap(self, laid: Layout, fake: Optional[Tensor] = None, base: Optional[IpuTensor] = None) -> IpuTensor:
        if laid.dtype != narrowed(laid.dtype):
            laid, fake, base = laid_as(laid, narrowed(laid.dtype)), None, None
        return IpuTensor(self, self.graph.value(laid), laid, fake, base)

    def __torch_dispatch__(self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        of_device = any(True for _ in leaves((args, kwargs), IpuTensor))
        if not self.listens or not (of_device or on_ipu(kwargs.get("device"))):
            return func(*args, **kwargs)
        if composed(func):  # torch decomposes them before this point, except in inference_mode
            with self:
                return func.decompose(*args, **kwargs)
        name = base_name(func)
        if name in EXPLICIT:
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
        if name in RESHAPES_IN_PLACE:
            return self._reshaped(func, name, args)
        moves_to = kwargs.get("device") if name == "_to_copy" else None
        if (name == "copy_" and not isinstance(args[0], IpuTensor)) or not on_ipu(moves_to or DEVICE):
            raise cpp_error(MOVE)
        if name == "_to_copy" and not of_device:
            return self.constant(args[0].to(kwargs.get("dtype") or args[0].dtype))
        return self._operation(func, name, self._with_constants(name, args), kwargs)

    def _reshaped(self, func: Any, name: str, args: Tuple[Any, ...]) -> IpuTensor:
        """A tensor whose shape is changed in place: it becomes the view that has this shape."""
        tensor: IpuTensor = args[0]
        with self:
            view = getattr(torch.ops.aten, name.rstrip("_"))(*args)
        with torch._C._DisableTorchDispatch():  # the shape that torch sees
            func(*args)
        tensor.number, tensor.laid, tensor.fake, tensor.base = view.number, view.laid, view.fake, view.base
        return tensor

    def _with_constants(self, name: str, args: Tuple[Any, ...]) -> Tuple[Any, ...]:
        """The arguments with tensors of the host compiled in where PopTorch does."""
        if name == "copy_" and not isinstance(args[1], IpuTensor):
            return (args[0], self.constant(args[1]), *args[2:])
        if name.endswith("_like") and not isinstance(args[0], IpuTensor):
            return (self.constant(args[0]), *args[1:])
        return args

    def _operation(self, func: Any, name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        tensors: List[IpuTensor] = []
        for tensor in leaves((args, kwargs), Tensor):
            self._check(tensor)
            tensors.append(tensor)  # type: ignore[arg-type]  # checked
        if kwargs.get("generator") is not None:
            raise py_error(f"aten::{name}: the device draws its own random numbers, and takes no torch.Generator")
        kwargs = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory")}
        if not self._constant(name, tensors):  # what is constant is evaluated on the host
            check_arguments(func, args, kwargs)
            if not supported(func) and not self._whole:
                if not of_poptorch(name, self.function):
                    raise not_taken(name, self.function)
                self.refuse(name)
        check_shape(name)
        if name in MIXED and len({tensor.dtype for tensor in tensors}) > 1:
            dtype = args[MIXED[name]].dtype
            return self.record(name, partial(in_float32, func, dtype), args, kwargs, tensors=tensors)
        results = self.record(name, func, args, kwargs, tensors=tensors)
        if name not in RECORDED:
            return results
        return (self.record("identity_loss", reduced, (results[0], "none"), {}, loss=RECORDED[name]), *results[1:])

    def _check(self, tensor: Tensor) -> None:
        if not isinstance(tensor, IpuTensor):
            raise host_tensor(tensor)
        if tensor.recorder is not self:
            raise cpp_error(STALE)

    def record(
        self,
        name: str,
        target: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
        loss: str = "",
        tensors: Optional[Sequence[IpuTensor]] = None,
    ) -> Any:
        """Add a node; its results, as tensors of the device. ``tensors`` are those among the arguments, if known."""
        if tensors is None:
            tensors = list(leaves((args, kwargs), IpuTensor))
        bases = viewed(target, args, kwargs)
        base = next((tensor for tensor in tensors if bases and tensor.number == bases[0]), None)

        def of_device(leaf: Any) -> Any:
            return self._wrap(leaf.laid, leaf.fake, base) if isinstance(leaf, Inferred) else leaf

        read = [tensor.number for tensor in _read(name, args, tensors)]
        for number in read:
            self._views.check(number, f"aten::{name}")
        results = tree_map(of_device, self._inference.results(name, target, args, kwargs, tensors))
        placement = current()
        placed = placement is None or placement.active
        changes = changed(target, args, kwargs)
        node = Node(name, target, _refs(args), _refs(kwargs), _refs(results), changes, loss, placed, self._no_grad)
        for owner in bases:
            for view in node.writes:
                self.graph.share(view, owner)
        constant = self._constant(name, tensors)
        for result in leaves(results, IpuTensor):
            if result.number in read or result.number in changes:
                continue
            if bases:
                self._views.derive(result.number, result.laid, bases[0], kind_of(name, args))
            else:
                self._views.create(result.number, result.laid, constant)
        for number in changes:
            self._views.write(number, name in _COPIES, constant)
        self.graph.nodes.append(node)
        return results

    def _constant(self, name: str, tensors: Sequence[IpuTensor]) -> bool:
        """Whether PopTorch knows the results when it compiles, and has the host evaluate them."""
        if name in SHAPED:
            return True
        if name.rstrip("_") in RANDOM:
            return False
        return all(self._views.constant(tensor.number) for tensor in tensors)


#: In-place operations that in PopTorch also change the tensor that their argument is a view of.
_COPIES = frozenset(("copy_", "normal_", "uniform_", "random_", "exponential_"))
#: They overwrite their first argument, and do not read it.
_FILLS = _COPIES | {"zero_", "fill_", "bernoulli_"}


def _read(name: str, args: Tuple[Any, ...], tensors: Sequence[IpuTensor]) -> Sequence[IpuTensor]:
    """The tensors whose values an operation reads; a view reads none."""
    if kind_of(name, args) in ("slice", "slice by steps", "reshape") or name in VIEWS:
        return ()
    # the first argument is the first of the tensors
    return tensors[1:] if name in _FILLS and isinstance(args[0], IpuTensor) else tensors


def _refs(part: Any) -> Any:
    """References in the place of tensors of the device."""
    return tree_map(lambda leaf: Ref(leaf.number) if isinstance(leaf, IpuTensor) else leaf, part)


def traced(function: Callable[..., Any], *tensors: Tensor) -> Graph:
    """The graph of a function of tensors, recorded for the shapes and dtypes of these.

    Call it with tensors to compute what the function returns, with PopTorch's gradients in all of them. PopTorch
    has no such function: it is for tests of what a function becomes on the device. Raises as compilation does.
    """
    trace = Trace()
    inputs = [trace.input(tensor) for tensor in tensors]
    with trace.recording():
        returned = function(*inputs)
    return trace.finish(returned)
