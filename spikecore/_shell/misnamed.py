"""Names that a neuron does not have: which one is meant.

A misspelt attribute, or one of another library, would be kept by Python and change nothing. Rules for a new attribute:

- A name that begins with an underscore is free, and so is one that the class declares, by a value or an annotation.
- Methods of the neuron itself, its constructor among them, and torch set what they like.
- The name of a state, or a name that another library has for one of ours, raises AttributeError, whatever the value.
- Anybody may add tensors, parameters and modules, and the names that frameworks use (:data:`FRAMEWORKS`). An installed
  library may add other names, unless they are close to one of the neuron's own.
- Any other value under a new name raises AttributeError.
"""

from __future__ import annotations

import difflib
import inspect
import sys
from types import CodeType, FrameType, FunctionType
from typing import Any, Collection, Dict, Iterable, List, Optional, Set, Type

from torch import Tensor, nn

_STATE = "a state: see neuron.state, or out, state = neuron.run(x, state=state)"
_FEEDBACK = "sc.Recurrent(neuron, linear)"
_SURROGATE = "surrogate, such as sc.surrogate.FastSigmoid(slope=25.0)"
#: Names of snnTorch and SpikingJelly -> what they are here.
PEERS: Dict[str, str] = {
    "spike_grad": _SURROGATE,
    "surrogate_function": _SURROGATE,
    "surrogate_disable": _SURROGATE,
    "reset_mechanism": "reset, 'soft' (by subtraction), 'hard' or 'none'",
    "graded_spikes_factor": "a product: factor * neuron(x)",
    "init_hidden": "step='single', which carries state until sc.reset(net)",
    "learn_alpha": "learn=('alpha',)",
    "learn_beta": "learn=('beta',)",
    "learn_threshold": "learn=('threshold',)",
    "mem": _STATE,
    "syn": _STATE,
    "output": "what out, state = neuron.run(x) returns",
    "all_to_all": _FEEDBACK,
    "linear_features": _FEEDBACK,
    "learn_recurrent": _FEEDBACK,
    "v_threshold": "threshold",
    "v_th": "threshold",
    "step_mode": "step, 'multi' or 'single'",
    "store_v_seq": "record: out, state, trace = neuron.run(x, record=('v',))",
    "v_seq": "record: out, state, trace = neuron.run(x, record=('v',))",
    "decay_input": "an option of LIF, PLIF and KLIF",
    "init_tau": "tau",
    "tau_mem": "tau",
    "c_decay": "alpha of sc.Synaptic",
    "v_decay": "beta of sc.Synaptic",
    "inhibition": "no option here: among the spikes keep that of the neuron with the highest potential",
    "state_quant": "no option here: round the states in a dynamics of your own, with sc.ops.round",
    "learn_graded_spikes_factor": "an nn.Parameter that the spikes are multiplied by",
    "store_state_seqs": "record: out, state, trace = neuron.run(x, record=('v',))",
}
#: Arguments of these libraries, which are no attributes that anybody would set.
_ARGUMENTS: Dict[str, str] = {
    "V": _FEEDBACK,
    "conv2d_channels": _FEEDBACK,
    "kernel_size": _FEEDBACK,
    "R": "the resistance of sc.Lapicque",
    "C": "the capacity of sc.Lapicque",
    "time_step": "of sc.Lapicque alone; other neurons have their time constants in time steps",
    "decode": "a function of what sc.LI gives, such as out[-1] or out.mean(0)",
}
#: Options of layers of torch that a neuron does not take -> what holds instead.
_OF_TORCH: Dict[str, str] = {
    "device": "a neuron computes where its input is, and net.to(device) moves its parameters",
    "dtype": "the output has the dtype of the input, and net.to(dtype) converts parameters",
    "compile": "use torch.compile(net), or compile=True in sc.TrainingOptions or sc.CudaOptions",
}
#: Names that frameworks and their users set on modules of any kind -> where.
FRAMEWORKS: Dict[str, str] = {
    "qconfig": "torch.ao.quantization; None by hand for a module that stays as it is",
    "name": "labels, as those of Keras and of torch.fx nodes",
    "label": "labels",
    "i": "Ultralytics YOLO, parse_model: the index of a layer",
    "f": "Ultralytics YOLO, parse_model: where its input comes from",
    "np": "Ultralytics YOLO, parse_model: how many parameters it has",
    "layer_idx": "Hugging Face Transformers: the index of a layer",
    "gradient_checkpointing": "Hugging Face Transformers: gradient_checkpointing_enable",
    "module_name": "NNI and DeepSpeed's profilers",
}
#: How names begin that DeepSpeed's ZeRO sets: ds_id, ds_inflight_param_registry, ...
_FRAMEWORK_PREFIXES = ("ds_",)
#: Name -> values of these libraries -> ours.
_VALUES: Dict[str, Dict[Any, str]] = {
    "reset": {"subtract": "'soft'", "zero": "'hard'"},
    "step": {"m": "'multi'", "s": "'single'"},
}


def hint(name: str, own: Iterable[str]) -> str:
    """A sentence on what an unknown name may mean, with a space after it; empty if nothing is close."""
    meant = PEERS.get(name, _ARGUMENTS.get(name))
    if meant is not None:
        return f"what other libraries call {name!r} is {meant}. "
    if name in _OF_TORCH:
        return f"{_OF_TORCH[name]}. "
    close = difflib.get_close_matches(name, list(own), n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def hint_of_value(name: str, value: Any) -> str:
    """The end of an error's sentence: what a value of another library is here; empty if it is none."""
    if name == "v_reset" and value is None:
        return "; for a reset by subtraction write reset='soft'"
    ours = _VALUES.get(name, {}).get(value) if isinstance(value, str) else None
    return f"; what other libraries call {value!r} is {name}={ours}" if ours else ""


def check_new(module: nn.Module, name: str, value: Any, own: Collection[str]) -> None:
    """Raise AttributeError if nothing would read this new attribute of the module."""
    held = module.__dict__
    if name in own or any(name in held.get(kind, ()) for kind in ("_parameters", "_buffers", "_modules")):
        return
    cls = type(module)
    if any(name in getattr(base, "__annotations__", ()) for base in cls.__mro__) or _is_own(module):
        return
    states = getattr(module, "states", ())
    if name not in PEERS and name not in states:
        if isinstance(value, (Tensor, nn.Module)) or name in FRAMEWORKS or name.startswith(_FRAMEWORK_PREFIXES):
            return
        if _is_set_by_library() and not difflib.get_close_matches(name, list(own), n=1):
            return
    meant = f"it is {_STATE}. " if name in states else hint(name, own) or of_others(cls, name)
    raise AttributeError(
        f"{cls.__name__} has no attribute {name!r}, and setting it would change nothing; {meant}There are: "
        f"{', '.join(own)}. For data of your own use a name that begins with an underscore, or declare it in the class"
    )


def of_others(cls: Type[nn.Module], name: str) -> str:
    """A sentence on which neurons of spikecore have a parameter or a setting of this name, as :func:`hint`."""
    waiting: List[Any] = [base for base in cls.__mro__ if base.__module__ == "spikecore.neuron"][-1:]
    found: Set[str] = set()
    public = sys.modules["spikecore"]
    while waiting:
        base = waiting.pop()
        waiting += base.__subclasses__()
        named: Any = getattr(public, base.__name__, object)
        if named is base and (name in base.params or name in base.configuration):
            found.add(f"sc.{base.__name__}")
    return f"{', '.join(sorted(found))} {'has' if len(found) == 1 else 'have'} it. " if found else ""


def _is_set_by_library() -> bool:
    """Whether the nearest code that is not spikecore's is that of an installed library."""
    frame: Optional[FrameType] = sys._getframe(2)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "spikecore":
        frame = frame.f_back
    file = "" if frame is None else frame.f_code.co_filename
    return "site-packages" in file or "dist-packages" in file


def _is_own(module: nn.Module) -> bool:
    """Whether torch or a method of ``module`` sets the attribute."""
    frame: Optional[FrameType] = sys._getframe(1)
    first = True
    while frame is not None:
        code = frame.f_code
        if code.co_name != "__setattr__" and frame.f_globals.get("__name__") != __name__:
            if first and str(frame.f_globals.get("__name__")).partition(".")[0] == "torch":
                return True
            first = False
            if (
                code.co_argcount
                and frame.f_locals.get(code.co_varnames[0]) is module
                and code in _methods(type(module))
            ):
                return True
        frame = frame.f_back
    return False


def _methods(cls: Type[nn.Module]) -> Set[CodeType]:
    """The code of the methods of a class, but for torch's: ``net.apply(function)`` would make any function one."""
    found: Set[CodeType] = set()
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] != "torch":
            for value in vars(base).values():
                accessors = (value.fget, value.fset) if isinstance(value, property) else (value,)
                for function in map(inspect.unwrap, filter(callable, accessors)):
                    if isinstance(function, FunctionType):
                        found.add(function.__code__)
    return found
