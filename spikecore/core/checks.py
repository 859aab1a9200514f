"""Checks of a neuron's declaration, arguments and calls, and their error messages.

Every sentence names the argument, its value, and what would be right.
"""

from __future__ import annotations

import inspect
import keyword
from typing import Any, Callable, Collection, Dict, Iterable, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore._base import misnamed
from spikecore._plugins.registry import AUTO_NAME, default_registry
from spikecore._plugins.selection import Resolved
from spikecore.backend import BackendError, Capabilities, Feedback, Spec, Tensors, Unsupported
from spikecore.context import is_compiling
from spikecore.dtypes import NAMES, compute_dtype
from spikecore.lang import Program
from spikecore.surrogate import Surrogate
from spikecore.surrogate._base import is_given
from spikecore.words import a_kind, no_tensor, shown

RESETS = ("hard", "soft", "none")
#: Keywords of every neuron, beside its parameters.
COMMON = ("surrogate", "detach_reset", "gradient", "learn", "channel_dim", "step", "repeat", "backend", "bounds")


def check_network(owner: str, net: Any) -> None:
    """Raise TypeError for what is no network."""
    if not isinstance(net, nn.Module):
        raise TypeError(f"{owner}: net={shown(net)} is {a_kind(net)}; give the network itself (an nn.Module)")


def declaration(cls: Any, base: type) -> None:
    """Check what a neuron class declares: names that can be attributes, and take nothing that is in use."""
    for kind in ("states", "params", "inputs"):
        declared = getattr(cls, kind)
        if isinstance(declared, str):
            raise TypeError(f"{cls.__name__}.{kind}={declared!r} must hold names; for one name write ({declared!r},)")
        if kind != "inputs" and not isinstance(declared, Mapping):
            what = "initial value" if kind == "states" else "default value"
            raise TypeError(f"{cls.__name__}.{kind}={declared!r} must be a dict of name: {what}")
        for name in declared:
            if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
                raise TypeError(f"{cls.__name__}.{kind} has {name!r}, which is no usable name; use a plain identifier")
    for name, value in cls.states.items():
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise TypeError(
                f"{cls.__name__}.states has {name!r} start at {value!r}; give a number or the name of a parameter"
            )
    if "dynamics" in vars(cls):
        try:
            inspect.signature(cls.dynamics).bind(None, None, None, None)
        except TypeError as error:
            raise TypeError(
                f"{cls.__name__}.dynamics must take self, x, s, p: the input, the states and the parameters ({error})"
            ) from error
    reset = cls.reset_states
    if isinstance(reset, str) or any(name not in cls.states for name in reset or ()):
        raise TypeError(f"{cls.__name__}.reset_states={reset!r} must be a tuple of names of states, or None for all")
    names = (*cls.inputs, *cls.states, *cls.params)
    for name in names:
        if names.count(name) > 1:
            raise TypeError(f"{cls.__name__} has {name!r} more than once among inputs, states and params; rename one")
    for name, value in cls.params.items():
        if isinstance(value, nn.Parameter):
            raise TypeError(
                f"{cls.__name__}.params has an nn.Parameter as the default of {name!r}, which all neurons of the "
                f"class would share; give a number or a tensor there, and learn=({name!r},) to the neuron"
            )
        if hasattr(base, name) or name in (*COMMON, "training"):
            raise TypeError(f"{cls.__name__}.params has {name!r}, which every neuron uses already; choose another name")
        attribute = inspect.getattr_static(cls, name, None)
        if callable(attribute) or isinstance(attribute, property) or name in cls.configuration:
            raise TypeError(
                f"{cls.__name__}.params has {name!r}, which the class has as a method or a setting; rename one"
            )


def definition(cls: Any, base: Any) -> None:
    """Refuse a neuron whose class has a ``forward`` of its own in the place of ``dynamics``."""
    if cls.dynamics is base.dynamics and cls.forward is not base.forward:
        raise TypeError(
            f"{cls.__name__} defines forward, which every neuron has; write one time step as dynamics(self, x, s, p)"
        )


def known_keywords(cls: Any, keywords: Mapping[str, Any]) -> None:
    """Refuse a keyword that is no parameter of this neuron class."""
    unknown = [name for name in keywords if name not in cls.params]
    if not unknown:
        return
    parameters = [
        name
        for name, argument in inspect.signature(cls).parameters.items()
        if name not in COMMON and argument.kind not in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL)
    ]
    hints = [misnamed.hint(name, [*parameters, *COMMON]) for name in unknown]
    hint = "; ".join(text.rstrip(". ") for text in hints if text)
    hint += "" if not hint else " " if hint.endswith("?") else ". "
    raise TypeError(
        f"{cls.__name__} has no parameter {', '.join(map(repr, unknown))}; {hint}Parameters: "
        f"{', '.join(parameters) or 'none'}; every neuron takes: {', '.join(COMMON)}"
    )


#: Check of an attribute whenever it is set: check(owner, name, value) -> value.
Check = Callable[[str, str, Any], Any]


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
        if is_given(number):
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


def flag_or_none(owner: str, name: str, value: Any) -> Optional[bool]:
    """A truth value, or None for as it can be."""
    return None if value is None else flag(owner, name, value)


def whole(owner: str, name: str, value: Any) -> int:
    """A whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{owner}: {name}={value!r} must be a whole number")
    return value


def steps_or_none(owner: str, name: str, value: Any) -> Optional[int]:
    """A number of time steps, or None."""
    if value is None:
        return None
    what = "or None for inputs that have time"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{owner}: {name}={shown(value)} must be a number of time steps, {what}")
    if value < 1:
        raise ValueError(f"{owner}: {name}={value} must be 1 or more time steps, {what}")
    return value


def reset(owner: str, name: str, value: Any) -> str:
    """Check of ``reset``: the effect of a spike on the membrane potential."""
    return _choice(owner, name, value, RESETS, f"one of {', '.join(map(repr, RESETS))}")


def gradient(owner: str, name: str, value: Any) -> str:
    """Check of ``gradient``: the derivative of a spike."""
    words = "'surrogate', or 'spike_time' for the exact derivative of the times of spikes"
    return _choice(owner, name, value, ("surrogate", "spike_time"), words)


def step(owner: str, name: str, value: Any) -> str:
    """The step mode."""
    return _choice(owner, name, value, ("multi", "single"), "'multi' (input [T, *N]) or 'single' (input [*N])")


def _choice(owner: str, name: str, value: Any, choices: Sequence[str], words: str) -> str:
    if value not in choices:
        raise ValueError(f"{owner}: {name}={value!r} must be {words}{misnamed.hint_of_value(name, value)}")
    return str(value)


def recorded(owner: str, record: Any, states: Collection[str]) -> Tuple[str, ...]:
    """The ``record`` argument as a tuple of state names."""
    if isinstance(record, str):
        raise TypeError(f"{owner}: record={record!r} must be a tuple of state names; write record=({record!r},)")
    if not isinstance(record, Iterable):
        raise TypeError(f"{owner}: record={record!r} must be a tuple of state names, () for none")
    names = tuple(dict.fromkeys(record))
    for name in names:
        if name not in states:
            raise ValueError(
                f"{owner}: record names {name!r}, which is no state; states: {', '.join(states) or 'none'}"
                f"{misnamed.hint_of_state([name])}"
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


def inputs(owner: str, names: Sequence[str], values: Sequence[Any]) -> Tensors:
    """The inputs of a call as tensors of one shape, device and floating dtype."""
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
        return (first,)
    dtype = first.dtype
    for name, value in zip(names[1:], values[1:]):
        if value.shape != first.shape:
            raise ValueError(
                f"{owner}: {name} has shape {list(value.shape)} and {names[0]} has {list(first.shape)}; "
                "all inputs have one shape"
            )
        if value.device != first.device:
            raise ValueError(
                f"{owner}: {name} is on {value.device} and {names[0]} is on {first.device}; move one of them"
            )
        dtype = torch.promote_types(dtype, value.dtype)
    return tuple(value.to(dtype) for value in values)


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
    what, way_out = (
        ("the state carried from the last call", "call sc.reset(net) between sequences of different batches")
        if carried
        else ("state", "give it that shape and the input's device")
    )
    for name in names:
        value = start[name]
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise TypeError(f"{owner}: {what} has {name}={shown(value)}; give a floating-point tensor")
        if value.is_nested or value.layout is not torch.strided:
            raise TypeError(f"{owner}: {what} has {name} of layout {value.layout}; give a dense tensor")
        shape = shapes.get(name, step_shape) if shapes else step_shape
        if value.shape != shape:
            expected = "one time step of the input has" if shape is step_shape else "wanted is"
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
        ("feedback_options", spec.feedback is not None and spec.feedback != Feedback(spec.feedback.bias)),
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
