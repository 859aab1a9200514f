"""Checks of a neuron's declaration, arguments and calls, and their error messages.

Every sentence names the argument, its value, and what would be right.
"""

from __future__ import annotations

import inspect
import keyword
import math
from typing import Any, Callable, Collection, Dict, Iterable, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore._base import misnamed
from spikecore._base.bits import BYTE
from spikecore.backend import BackendError, Capabilities, Feedback, Spec, Tensors, Unsupported
from spikecore.context import is_compiling
from spikecore.dtypes import NAMES, compute_dtype
from spikecore.lang import Expr, Program, Vector
from spikecore.plugins.registry import AUTO_NAME, default_registry
from spikecore.plugins.selection import Resolved
from spikecore.surrogate import Surrogate
from spikecore.words import a_kind, no_tensor, shown

#: Check of an attribute whenever it is set: check(owner, name, value) -> value.
Check = Callable[[str, str, Any], Any]

RESETS = ("hard", "soft", "none")
#: Keywords of every neuron, beside its parameters.
COMMON = ("surrogate", "detach_reset", "gradient", "learn", "channel_dim", "step", "repeat", "backend", "bounds")


#: What a class declares by name, and what stands behind each name; "" where names alone may.
_DECLARED = {"states": "initial value", "params": "default value", "inputs": "", "sizes": "number of values"}


def is_a(value: Any, *kinds: type) -> bool:
    """True if a value is of one of these types, among which a truth value is no number."""
    return isinstance(value, kinds) and not isinstance(value, bool)


def check_network(owner: str, net: Any) -> None:
    """Raise TypeError for what is no network."""
    if not isinstance(net, nn.Module):
        raise TypeError(f"{owner}: net={shown(net)} is {a_kind(net)}; give the network itself (an nn.Module)")


def declaration(cls: Any, base: type) -> None:
    """Check what a neuron class declares: names that can be attributes, and take nothing that is in use."""
    for kind, what in _DECLARED.items():
        declared = getattr(cls, kind)
        if isinstance(declared, str):
            raise TypeError(f"{cls.__name__}.{kind}={declared!r} must hold names; for one name write ({declared!r},)")
        if what and not isinstance(declared, Mapping):
            raise TypeError(f"{cls.__name__}.{kind}={declared!r} must be a dict of name: {what}")
        for name in declared:
            if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
                raise TypeError(f"{cls.__name__}.{kind} has {name!r}, which is no usable name; use a plain identifier")
    for name, value in cls.states.items():
        if not is_a(value, int, float, str, Vector):
            raise TypeError(
                f"{cls.__name__}.states has {name!r} start at {value!r}; give a number or the name of a parameter, or "
                "sc.vector(n) for n values"
            )
    reset = cls.reset_states
    if isinstance(reset, str) or any(name not in cls.states for name in reset or ()):
        raise TypeError(f"{cls.__name__}.reset_states={reset!r} must be a tuple of names of states, or None for all")
    names = (*cls.inputs, *cls.states, *cls.params, *cls.sizes)
    for name in names:
        if names.count(name) > 1:
            raise TypeError(f"{cls.__name__} has {name!r} more than once among inputs, states and params; rename one")
    for name, value in {**cls.params, **cls.sizes}.items():
        if isinstance(value, nn.Parameter):
            raise TypeError(
                f"{cls.__name__}.params has an nn.Parameter as the default of {name!r}, which all neurons of the "
                f"class would share; give a number or a tensor there, and learn=({name!r},) to the neuron"
            )
        attribute = inspect.getattr_static(cls, name, None)
        is_method = callable(attribute) or isinstance(attribute, property)
        if is_method or hasattr(base, name) or name in (*COMMON, *cls.configuration, "training"):
            raise TypeError(f"{cls.__name__}.params has {name!r}, which neurons use already; choose another name")


def definition(cls: Any, base: Any) -> None:
    """Refuse a neuron whose class has a ``forward`` of its own in the place of ``dynamics``."""
    if cls.dynamics is base.dynamics and cls.forward is not base.forward:
        raise TypeError(
            f"{cls.__name__} defines forward, which every neuron has; write one time step as dynamics(self, x, s, p)"
        )


def known_keywords(cls: Any, keywords: Mapping[str, Any]) -> None:
    """Refuse a keyword that is no parameter of this neuron class."""
    unknown = [name for name in keywords if name not in (*cls.params, *cls.sizes)]
    if not unknown:
        return
    for base in cls.__mro__[1:]:
        lost = [name for name in unknown if name in vars(base).get("params", {})]
        if lost:
            raise TypeError(
                f"{cls.__name__}.params takes the place of that of {base.__name__}, and has no "
                f"{', '.join(map(repr, lost))}; write params = {{**{base.__name__}.params, ...}}"
            )
    parameters = [
        name
        for name, argument in inspect.signature(cls).parameters.items()
        if name not in COMMON and argument.kind not in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL)
    ]
    hints = [misnamed.hint(name, [*parameters, *COMMON]) for name in unknown]
    hint = "; ".join([text.rstrip(". ") for text in hints if text])
    if hint:
        hint += " " if hint.endswith("?") else ". "
    raise TypeError(
        f"{cls.__name__} has no parameter {', '.join(map(repr, unknown))}; {hint}Parameters: "
        f"{', '.join(parameters) or 'none'}; every neuron takes: {', '.join(COMMON)}"
    )


def surrogate(owner: str, name: str, value: Any) -> Surrogate:
    """The surrogate, which must be an object, not a class, a name or a function."""
    if isinstance(value, type) and issubclass(value, Surrogate):
        raise TypeError(f"{owner}: surrogate={value.__name__} is the class; give an object, {value.__name__}()")
    if not isinstance(value, Surrogate):
        raise TypeError(
            f"{owner}: surrogate={value!r} must be a spikecore.Surrogate, such as ATan(alpha=2.0); "
            f"for one of your own subclass Surrogate and write derivative(self, u){misnamed.hint_of_surrogate(value)}"
        )
    for field, number in vars(value).items():
        if isinstance(number, (Expr, Tensor)):
            raise TypeError(
                f"{owner}: surrogate={value!r}: {field} must be a number; for one that is learnt or a tensor "
                "declare a parameter, and write self.spike(u, surrogate=...) with an expression of it in dynamics"
            )
    return value


def flag(owner: str, name: str, value: Any) -> bool:
    """A truth value."""
    if not isinstance(value, bool):
        raise TypeError(f"{owner}: {name}={value!r} must be True or False")
    return value


def whole(owner: str, name: str, value: Any) -> int:
    """A whole number."""
    if not is_a(value, int):
        raise TypeError(f"{owner}: {name}={value!r} must be a whole number")
    return int(value)


def levels(owner: str, name: str, value: Any) -> int:
    """The largest number of spikes in a step."""
    if not 1 <= whole(owner, name, value) <= BYTE:
        raise ValueError(f"{owner}: {name}={value} must be from 1 to {BYTE}, the largest number of spikes in a step")
    return int(value)


def _number(owner: str, name: str, value: Any) -> float:
    if not is_a(value, int, float):
        raise TypeError(f"{owner}: {name}={shown(value)} must be a number, or None")
    if not math.isfinite(value):
        raise ValueError(f"{owner}: {name}={value} must be finite, or None")
    return float(value)


def _steps(owner: str, name: str, value: Any) -> int:
    what = "or None for inputs that have time"
    if not is_a(value, int):
        raise TypeError(f"{owner}: {name}={shown(value)} must be a number of time steps, {what}")
    if value < 1:
        raise ValueError(f"{owner}: {name}={value} must be 1 or more time steps, {what}")
    return int(value)


def _or_none(check: Check) -> Check:
    return lambda owner, name, value: None if value is None else check(owner, name, value)


def _one_of(choices: Sequence[str], words: str) -> Check:
    def check(owner: str, name: str, value: Any) -> str:
        if value not in choices:
            raise ValueError(f"{owner}: {name}={value!r} must be {words}{misnamed.hint_of_value(name, value)}")
        return str(value)

    return check


#: A truth value, or None for as it can be.
flag_or_none = _or_none(flag)
#: A finite number, or None.
number_or_none = _or_none(_number)
#: A number of time steps, or None.
steps_or_none = _or_none(_steps)
#: The rounding of a number of spikes.
rounding = _one_of(("nearest", "down"), "'nearest' (ties to even) or 'down'")
#: The effect of a spike on the membrane potential.
reset = _one_of(RESETS, f"one of {', '.join(map(repr, RESETS))}")
#: The derivative of a spike.
gradient = _one_of(
    ("surrogate", "spike_time"), "'surrogate', or 'spike_time' for the exact derivative of the times of spikes"
)
#: The step mode.
step = _one_of(("multi", "single"), "'multi' (input [T, *N]) or 'single' (input [*N])")


def recorded(owner: str, record: Any, neuron: Any) -> Tuple[str, ...]:
    """The ``record`` argument as a tuple of names of states and of named values."""
    if isinstance(record, str):
        raise TypeError(f"{owner}: record={record!r} must be a tuple of state names; write record=({record!r},)")
    if not isinstance(record, Iterable):
        raise TypeError(f"{owner}: record={record!r} must be a tuple of state names, () for none")
    names = tuple(dict.fromkeys(record))
    for name in names:
        if name not in neuron.states and name not in neuron.recordable:
            named = ", ".join(neuron.program.named)
            raise ValueError(
                f"{owner}: record names {name!r}, which is no state; states: {', '.join(neuron.states) or 'none'}"
                f"{f'; named values: {named}' if named else ''}{misnamed.hint_of_state([name])}"
            )
    return names


def tensor(owner: str, name: str, value: Any) -> None:
    """Refuse an input that is no dense tensor of floating-point numbers."""
    if not isinstance(value, Tensor):
        if type(value).__module__.startswith("torch.fx"):
            raise TypeError(
                f"{owner}: torch.fx.symbolic_trace cannot look through a neuron, which checks its input; keep "
                "neurons whole with a torch.fx.Tracer whose is_leaf_module returns True for spikecore.Neuron, or "
                "use torch.compile or torch.export"
            )
        raise TypeError(f"{owner}: {no_tensor(name, value)}")
    if value.dtype not in NAMES:
        raise TypeError(f"{owner}: {name} has dtype {value.dtype}; give floating-point input, e.g. {name}.float()")
    if value.is_nested:
        raise TypeError(
            f"{owner}: {name} is a nested tensor; give a dense tensor, e.g. torch.nested.to_padded_tensor({name}, 0.0)"
        )
    if value.layout is not torch.strided:
        raise TypeError(f"{owner}: {name} has layout {value.layout}; give a dense tensor, e.g. {name}.to_dense()")


def inputs(owner: str, names: Sequence[str], values: Sequence[Any], setting: str = "") -> Tensors:
    """The inputs of a call as tensors of one shape, device and floating dtype; those that broadcast are expanded."""
    return expanded(*broadcasting(owner, names, values, setting))


def broadcasting(
    owner: str, names: Sequence[str], values: Sequence[Any], setting: str = ""
) -> Tuple[Tensors, Sequence[int]]:
    """The inputs of a call as tensors of one device, floating dtype and number of dimensions, and the shape ``[T, *N]``
    that they broadcast to. ``setting``: why T is not the caller's, such as ``"repeat=4"``.
    """
    if len(values) != len(names):
        raise TypeError(
            f"{owner} takes {len(names)} input{'s' * (len(names) != 1)} ({', '.join(names)}), got {len(values)}; "
            "a call gives the output alone, and out, state = run(x) the state, too; a state is given as "
            "run(x, state=state) for x [T, ...], of one time step run(x[t : t + 1], state=state)"
        )
    for name, value in zip(names, values):
        tensor(owner, name, value)
        if value.ndim == 0:
            raise ValueError(f"{owner}: {name} has no dimensions; a multi-step call takes [T, *N], T time steps first")
    first = values[0]
    if len(values) == 1:
        return (first,), first.shape
    dtype = first.dtype
    for name, value in zip(names[1:], values[1:]):
        if value.device != first.device:
            raise ValueError(
                f"{owner}: {name} is on {value.device} and {names[0]} is on {first.device}; move one of them"
            )
        dtype = torch.promote_types(dtype, value.dtype)
    shape: Sequence[int] = first.shape
    if any(value.shape != shape for value in values):
        shape = _common_shape(owner, names, values, setting)
        # one dimension is that of time
        values = [x if x.ndim == len(shape) else x.view(-1, *[1] * (len(shape) - 1)) for x in values]
    return tuple(value.to(dtype) for value in values), shape


def _common_shape(owner: str, names: Sequence[str], values: Sequence[Tensor], setting: str) -> Sequence[int]:
    """The shape ``[T, *N]`` that inputs of different shapes broadcast to: one dimension alone is that of time."""
    dims = max(value.ndim for value in values)
    sizes = [(*value.shape, *[1] * (dims - 1)) if value.ndim == 1 else value.shape for value in values]
    try:
        if all(len(size) == dims for size in sizes):
            shape: Sequence[int] = torch.broadcast_shapes(*sizes)
            return shape
    except RuntimeError:
        pass
    seen = [list(value.shape[1:] if setting else value.shape) for value in values]
    shapes = " and ".join(f"{name} has shape {shape}" for name, shape in zip(names, seen))
    ways = "such as [T, 1, C], or one dimension alone, [T], for one value a step"
    if setting:
        ways = f"such as [1, C]; with {setting} each is one time step [*N], without T"
    raise ValueError(f"{owner}: {shapes}; inputs have one shape, or sizes of 1 in as many dimensions, {ways}")


def expanded(inputs: Tensors, shape: Sequence[int]) -> Tensors:
    """The inputs of a call, all of this shape."""
    # torch.jit.trace warns of comparisons: one input is whole
    return inputs if len(inputs) == 1 else tuple([x if x.shape == shape else x.expand(shape) for x in inputs])


def is_device(a: torch.device, b: torch.device) -> bool:
    """True if both name one device; ``cuda`` without a number is the current one."""
    number = torch.cuda.current_device() if a.type == b.type == "cuda" else 0
    return a.type == b.type and (number if a.index is None else a.index) == (number if b.index is None else b.index)


def same_device(owner: str, device: torch.device, named: Sequence[Tuple[str, Any]]) -> None:
    """Refuse a parameter that is on another device than the input."""
    for name, value in named:
        if isinstance(value, Tensor) and value.device != device:
            raise ValueError(
                f"{owner}: {name} is on {value.device} and the input is on {device}; "
                f"move the neuron with .to({str(device)!r})"
            )


#: A state in errors, and the way out: one that was given, and one that is carried.
_GIVEN_STATE = "state", "give it that shape and the input's device"
_CARRIED_STATE = "the state carried from the last call", "call sc.reset(net) between sequences of different batches"


def state(
    owner: str,
    names: Collection[str],
    start: Optional[Mapping[str, Any]],
    x: Tensor,
    carried: bool,
    shapes: Optional[Mapping[str, Sequence[int]]] = None,
) -> Optional[Tensors]:
    """A state as tensors in the order of ``names``, in the dtype of arithmetic; None at rest.

    ``shapes``: of states that have another shape than one time step.
    """
    if start is None:
        return None
    if not isinstance(start, Mapping):
        raise TypeError(f"{owner}: state is {a_kind(start)}; give a dict with {', '.join(names)}, or None for rest")
    if set(start) != set(names):
        raise ValueError(
            f"{owner}: state has {sorted(start)}; give a value for each of {', '.join(names)} and no other"
            f"{misnamed.hint_of_state(start)}"
        )
    step_shape, dtype = x.shape[1:], compute_dtype(x.dtype)
    what, way_out = _CARRIED_STATE if carried else _GIVEN_STATE
    for name in names:
        value, shape = start[name], (shapes or {}).get(name, step_shape)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise TypeError(f"{owner}: {what} has {name}={shown(value)}; give a floating-point tensor")
        if value.is_nested or value.layout is not torch.strided:
            raise TypeError(f"{owner}: {what} has {name} of layout {value.layout}; give a dense tensor")
        if value.shape != shape:
            expected = "one time step of the input has" if shape is step_shape else "wanted is"
            if shape is not step_shape and value.shape[:-1] == tuple(shape[:-1]):
                sizes = f"{value.shape[-1]}, and not {shape[-1]}"
                way_out = f"it is of a layer with max_delay, or n of a vector, of {sizes}: give the state of this one"
            raise ValueError(
                f"{owner}: {what} has {name} of shape {list(value.shape)}, {expected} {list(shape)}; {way_out}"
            )
        if value.device != x.device:
            raise ValueError(f"{owner}: {what} has {name} on {value.device}, the input is on {x.device}; {way_out}")
    return tuple(start[name].to(dtype) for name in names)


def lacking(
    capabilities: Capabilities,
    program: Program,
    spec: Spec,
    *,
    gradients: bool = False,
    state_gradients: bool = False,
    record: bool = False,
) -> Tuple[str, ...]:
    """Names of the capabilities that running ``program`` under ``spec`` takes and these do not have."""
    needs: Sequence[Tuple[str, bool]] = (
        (NAMES[spec.dtype], True),
        ("gradients", gradients),
        ("parameter_gradients", bool(spec.learn)),
        ("state_gradients", state_gradients),
        ("channel_parameters", "channel" in spec.params),
        ("full_parameters", "full" in spec.params),
        ("record", record),
        ("normalisation", bool(program.normalised)),
        ("normalised_shortcut", any(row.input != program.inputs[0] for row in program.normalised)),
        ("recurrent", spec.feedback is not None),
        ("feedback_options", any(row != Feedback(row.bias, further=row.further) for row in spec.feedbacks)),
        ("feedback_gates", bool(spec.further) or any(row.further for row in spec.feedbacks)),
        ("several_inputs", len(program.inputs) > 1),
        ("several_outputs", len(program.outputs) > 1),
    )
    return tuple(name for name, wants in needs if wants and not getattr(capabilities, name))


def unsupported(resolved: Resolved, owner: str, lacks: Sequence[str], device_type: str = "") -> str:
    """The sentence of an ``Unsupported``: what is missing, on which device if others have it, and who could do it."""
    registry = default_registry()
    # status() without probing: an error message must not import plugins that were not asked for
    known = {*registry.builtins, *(row.name for row in registry.status() if row.capabilities)}
    able = [name for name in registry.names() if name in known and _offers(name, lacks, device_type)]
    others = f"of those loaded, {', '.join(able)} could" if able else "no other one loaded does"
    elsewhere = all(getattr(resolved.backend.capabilities, name) for name in lacks)
    where = f" on {device_type}" if elsewhere else ""
    return (
        f"backend {resolved.backend.name!r} (from {resolved.source}) does not support {', '.join(lacks)}{where}, "
        f"which this call of {owner} needs; {others}"
    )


def _offers(name: str, capabilities: Sequence[str], device_type: str) -> bool:
    try:
        backend = default_registry().get(name, AUTO_NAME)  # raises if it is not usable here
    except BackendError:
        return False
    able = backend.capabilities_on(device_type) if device_type else backend.capabilities
    return all(getattr(able, capability) for capability in capabilities)


# -- generators of random numbers


def generator(owner: str, value: Any) -> Optional[torch.Generator]:
    """A generator or None; raises TypeError for anything else."""
    if value is not None and not isinstance(value, torch.Generator):
        raise TypeError(f"{owner}: generator must be a torch.Generator or None, got {shown(value)}")
    return value


def refuse_compiled_draw(owner: str) -> None:
    """Raise :class:`Unsupported` where torch.compile or torch.export traces a draw."""
    if is_compiling():
        raise Unsupported(
            f"{owner}: a compiled or exported graph cannot draw from a torch.Generator: leave generator= out and seed "
            "torch.manual_seed, or draw in front of it"
        )


def draw_options(owner: str, generator: Optional[torch.Generator], device: torch.device) -> Dict[str, Any]:
    """The keyword ``generator`` of a draw of torch on ``device``; none without a generator.

    ONNX has no operator for a draw with this keyword, and with it torch.compile keeps no size open, not even for None.
    """
    if generator is None:
        return {}
    refuse_compiled_draw(owner)
    if not is_device(generator.device, device):
        way_out = f"make it with torch.Generator(device={str(device)!r})"
        if device.type == "ipu":
            way_out = "an IPU has none: leave it out, and set options.randomSeed(seed)"
        raise ValueError(f"{owner}: generator is on {generator.device} but x is on {device}; {way_out}")
    return {"generator": generator}
