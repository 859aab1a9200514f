"""Recording: ``forward`` runs once, on tensors without values, and every operation of the device becomes a node.

Rules of this module:

- What PopTorch cannot record raises PopTorch's error at once. Operations without a handler are collected, and named in
  one error when ``forward`` is done.
- An operation on tensors of the host alone is computed at once; one that mixes host and device is an error.
- Recording is below autograd. While an operation is recorded nothing else is: shape inference calls operations, too.
- Which arguments an operation changes, and which its results are views of, is read from its schema.
- Torch infers shapes on fake tensors, which took more than half of the time of a recording. So results are kept for the
  next operation with the same layouts and other arguments; an operation in place is inferred each time. The fake of a
  view is a view of the fake of its base, because torch refuses to write where memory overlaps.
"""

from __future__ import annotations

import functools
import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Callable, ContextManager, Dict, Hashable, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from ._compute import base_name, in_float32, widened
from ._errors import cpp_error, not_modelled, py_error
from ._functions import (
    EXPLICIT,
    MIXED,
    NOT_MODELLED,
    RANDOM,
    SHAPED,
    Functions,
    check_arguments,
    check_shape,
    composed,
    no_custom_backward,
    no_shape,
    not_taken,
    of_poptorch,
    on_device_by_default,
    supported,
    unsupported,
)
from ._graph import RECORDED, Graph, Node, Ref, reduced
from ._tensor import (
    DEVICE,
    MOVE,
    READ,
    STALE,
    IpuTensor,
    Layout,
    contiguous,
    host_tensor,
    laid_as,
    layout,
    narrow,
    narrowed,
    on_ipu,
    zero_sized,
)
from ._views import RESHAPES_IN_PLACE, VIEWS, Views, kind_of
from .arguments import leaves, tree_map
from .blocks import check_blocks, current
from .devices import Lock

#: Batch norm changes them in place in training, although its schema does not say so.
_STATISTICS = ("running_mean", "running_var")


#: Arguments by position and name.
_Arguments = Tuple[Tuple[int, str], ...]


@functools.lru_cache(maxsize=None)
def _facts(func: Any) -> Tuple[_Arguments, _Arguments, _Arguments]:
    """The arguments that an operation changes, those that its results are views of, and running statistics."""
    arguments = list(enumerate(func._schema.arguments))
    aliased = [(position, argument) for position, argument in arguments if argument.alias_info is not None]
    views = any(returned.alias_info is not None for returned in func._schema.returns)
    return (
        tuple((position, argument.name) for position, argument in aliased if argument.alias_info.is_write),
        tuple((position, argument.name) for position, argument in aliased if views),
        tuple((position, argument.name) for position, argument in arguments if argument.name in _STATISTICS),
    )


def _tensors(which: Sequence[Tuple[int, str]], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[int, ...]:
    if not which:
        return ()
    given = [args[position] if position < len(args) else kwargs.get(name) for position, name in which]
    return tuple([tensor.number for tensor in leaves(given, IpuTensor)])


def writes(target: Any) -> bool:
    """True if an operation changes an argument in place."""
    return bool(_facts(target)[0]) or base_name(target) == "native_batch_norm"


def changed(target: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[int, ...]:
    """The values that one call changes in place."""
    if not isinstance(target, torch._ops.OpOverload):
        return ()
    which, _, statistics = _facts(target)
    if base_name(target) == "native_batch_norm" and bool(args[5]):
        which = tuple(sorted({*which, *statistics}))
    return _tensors(which, args, kwargs)


def viewed(target: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[int, ...]:
    """The values that the results of one call are views of."""
    return _tensors(_facts(target)[1], args, kwargs) if isinstance(target, torch._ops.OpOverload) else ()


#: Arguments that are compared by their values. Floats are compared as text, because NaN is not equal to itself.
_PLAIN = frozenset((bool, int, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format))
#: More than so many results are not kept.
_MOST = 20_000
#: By operation and arguments: the results, with layouts in the place of tensors.
_known: Dict[Hashable, Any] = {}


class _Unknown(Exception):
    """An argument that cannot be compared."""


class Inferred:
    """A result: its layout, and its fake tensor if torch made one."""

    def __init__(self, laid: Layout, fake: Optional[Tensor] = None) -> None:
        self.laid, self.fake = laid, fake


class Inference:
    """The inference of one trace. ``aside`` is a context in which nothing is recorded."""

    def __init__(self, aside: Callable[[], ContextManager[None]]) -> None:
        self._aside = aside
        self._mode: Optional[FakeTensorMode] = None

    def results(
        self,
        name: str,
        target: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
        tensors: Sequence[IpuTensor],
    ) -> Any:
        """The result of an operation, with :class:`Inferred` in the place of new tensors. An operation in place returns
        its argument. Raises poptorch.Error where PopTorch cannot infer a shape.

        tensors: all of the device among the arguments.
        """
        key: Optional[Hashable] = None
        if isinstance(target, torch._ops.OpOverload) and not writes(target):
            try:
                key = (target, torch.get_default_dtype(), _key(args), _key(kwargs))
            except _Unknown:
                key = None
        if key is not None and key in _known:
            return tree_map(lambda leaf: Inferred(leaf) if isinstance(leaf, Layout) else leaf, _known[key])
        with self._aside(), self._fakes():
            results = self._on_fakes(name, target, args, kwargs)
        if any(tensor.fake is not None and tensor.shape != tensor.fake.shape for tensor in tensors):
            raise py_error(f"aten::{name} changes the shape of a tensor in place, which the emulator does not model")
        for result in leaves(results[:1] if isinstance(results, tuple) else results, Tensor):
            # batch_norm, a composition, makes an empty tensor of bytes that is for cuDNN only
            if 0 in result.shape and not (name == "empty" and result.dtype == torch.uint8):
                raise zero_sized(result.shape)
        given = {id(tensor.fake): tensor for tensor in tensors}

        def of_device(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return given[id(leaf)] if id(leaf) in given else Inferred(layout(leaf), leaf)

        inferred = tree_map(of_device, results)
        if key is not None and not leaves(inferred, IpuTensor):
            if len(_known) >= _MOST:
                _known.clear()
            _known[key] = tree_map(lambda leaf: leaf.laid if isinstance(leaf, Inferred) else leaf, inferred)
        return inferred

    def _on_fakes(self, name: str, target: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """The results on fake tensors: shapes and dtypes as torch infers them, from which PopTorch has them, too."""
        fakes = [
            tree_map(lambda leaf: self._fake(leaf) if isinstance(leaf, IpuTensor) else leaf, part)
            for part in (args, kwargs)
        ]
        if isinstance(target, torch._ops.OpOverload):
            fakes = list(widened(target, *fakes))
        try:
            return target(*fakes[0], **fakes[1])
        except DataDependentOutputException as error:
            raise cpp_error(READ) from error
        except DynamicOutputShapeException as error:
            if name in NOT_MODELLED:
                raise not_modelled(f"aten::{name}", "torch infers no shape without values") from error
            raise
        except NotImplementedError as error:
            raise no_shape(name) from error

    def _fakes(self) -> FakeTensorMode:
        if self._mode is None:
            self._mode = FakeTensorMode()
        return self._mode

    def _fake(self, tensor: IpuTensor) -> Tensor:
        """The fake tensor of a tensor of the device, in the context of fake tensors."""
        if tensor.fake is None:
            laid = tensor.laid
            if tensor.base is not None and tensor.base.laid.dtype == laid.dtype:
                tensor.fake = self._fake(tensor.base).as_strided(laid.shape, laid.strides, laid.offset)
            else:
                last = laid.offset + sum((size - 1) * stride for size, stride in zip(laid.shape, laid.strides))
                memory = torch.empty(last + 1, dtype=laid.dtype)
                tensor.fake = memory.as_strided(laid.shape, laid.strides, laid.offset)
        return tensor.fake


def _key(part: Any) -> Hashable:
    """The value that stands for an argument in a comparison. Raises :class:`_Unknown` if nothing does."""
    kind = type(part)
    if kind is IpuTensor:
        return part.laid  # type: ignore[no-any-return]  # as the class says
    if kind in _PLAIN:
        return kind, part
    if kind is float:
        return kind, repr(part)
    if kind in (tuple, list, torch.Size):
        return (kind, *map(_key, part))
    if kind is dict:
        return tuple([(name, _key(part[name])) for name in sorted(part)])
    raise _Unknown


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
    def _with(self, **attributes: Any) -> Iterator[None]:
        """Have these attributes inside."""
        before = {name: getattr(self, name) for name in attributes}
        self.__dict__.update(attributes)
        try:
            yield
        finally:
            self.__dict__.update(before)

    def aside(self) -> ContextManager[None]:
        """Record nothing inside."""
        return self._with(_aside=True)

    def calling(self, function: str, whole: bool) -> ContextManager[None]:
        """The model calls this function of torch inside, or torch itself does. If ``whole``, accept every operation:
        torch decomposes into them a function that PopTorch takes.
        """
        whole = whole or self._whole
        if self.function:
            return self._with(_whole=whole)
        # torch itself has no_grad in some functions
        return self._with(_whole=whole, function=function, _no_grad="" if torch.is_grad_enabled() else function)

    @property
    def listens(self) -> bool:
        """True if this trace records the current thread, and is not inferring a shape at the moment."""
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
        of_device = leaves((args, kwargs), IpuTensor)
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
        with no_dispatch():  # the shape that torch sees
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
            tensors = leaves((args, kwargs), IpuTensor)
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
        """True if PopTorch knows the results when it compiles, and has the host evaluate them."""
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
