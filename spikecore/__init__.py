"""One definition of a spiking neuron, written as equations; every accelerator runs it, trains it, and agrees on it.

A name of ``sc`` is imported when it is first used, with what its module needs: ``import spikecore`` imports not even
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Dict, List, Mapping, Tuple

from spikecore._version import __version__ as __version__

if TYPE_CHECKING:  # the same names once more, for type checkers and editors
    from spikecore import backend as backend
    from spikecore import core as core
    from spikecore import dtypes as dtypes
    from spikecore import encode as encode
    from spikecore import functional as functional
    from spikecore import inspect as inspect
    from spikecore import interpreter as interpreter
    from spikecore import kernels as kernels
    from spikecore import lang as lang
    from spikecore import layers as layers
    from spikecore import losses as losses
    from spikecore import metrics as metrics
    from spikecore import neurons as neurons
    from spikecore import parallel as parallel
    from spikecore import plot as plot
    from spikecore import stochastic as stochastic
    from spikecore import surrogate as surrogate
    from spikecore import testing as testing
    from spikecore import training as training
    from spikecore.core.neuron import Neuron as Neuron
    from spikecore.functional import carry_state as carry_state
    from spikecore.functional import detach as detach
    from spikecore.functional import get_state as get_state
    from spikecore.functional import reset as reset
    from spikecore.functional import set_backend as set_backend
    from spikecore.functional import set_state as set_state
    from spikecore.functional import set_step as set_step
    from spikecore.inspect import energy as energy
    from spikecore.inspect import explain as explain
    from spikecore.inspect import monitor as monitor
    from spikecore.inspect.recorded import record as record
    from spikecore.lang import ops as ops
    from spikecore.lang import vector as vector
    from spikecore.layers import Delay as Delay
    from spikecore.layers import fuse as fuse
    from spikecore.layers import unfuse as unfuse
    from spikecore.neurons import *
    from spikecore.parallel import checkpoint as checkpoint
    from spikecore.plugins.selection import backends as backends
    from spikecore.plugins.selection import use_backend as use_backend
    from spikecore.surrogate import Surrogate as Surrogate
    from spikecore.training import CudaOptions as CudaOptions
    from spikecore.training import DataLoader as DataLoader
    from spikecore.training import TrainingOptions as TrainingOptions
    from spikecore.training import inference_model as inference_model
    from spikecore.training import load_checkpoint as load_checkpoint
    from spikecore.training import save_checkpoint as save_checkpoint
    from spikecore.training import training_model as training_model
    from spikecore_convert import ann2snn as ann2snn
    from spikecore_convert import convert as convert
    from spikecore_convert import load_weights as load_weights
    import spikecore_models  # isort: skip
    import spikecore_nir  # isort: skip

    models, nir = spikecore_models, spikecore_nir
    from spikecore_chips import export_c as export_c
    from spikecore_chips import export_verilog as export_verilog
    from spikecore_chips import quant as quant
    from spikecore_online import OnlineOptions as OnlineOptions

#: Module -> names of ``sc`` that it has, beside the models of ``spikecore.neurons``.
_NAMES: Mapping[str, str] = {
    "spikecore_convert": "ann2snn convert load_weights",
    "spikecore.plugins.selection": "backends use_backend",
    "spikecore.functional": "carry_state detach get_state reset set_backend set_state set_step",
    "spikecore.inspect": "energy explain monitor",
    "spikecore.inspect.recorded": "record",
    "spikecore.lang": "ops vector",
    "spikecore.layers": "Delay fuse unfuse",
    "spikecore.core.neuron": "Neuron",
    "spikecore.parallel": "checkpoint",
    "spikecore.surrogate": "Surrogate",
    "spikecore.training": (
        "CudaOptions DataLoader TrainingOptions inference_model load_checkpoint save_checkpoint training_model"
    ),
    "spikecore_chips": "export_c export_verilog",
    "spikecore_online": "OnlineOptions",
}
_MODULES: Dict[str, str] = {name: module for module, names in _NAMES.items() for name in names.split()}
#: Modules that stand in ``dir(sc)``.
_LISTED = [
    *"backend encode functional inspect layers losses metrics models nir parallel".split(),
    *"plot quant stochastic surrogate testing".split(),
]
#: Attribute -> the extension that it is: a package of its own in the same distribution, on public names of spikecore.
_EXTENSIONS = {"models": "spikecore_models", "nir": "spikecore_nir", "quant": "spikecore_chips.quant"}
#: Public modules, which are attributes without an import of their own.
_INNER = "core dtypes interpreter kernels lang neurons training"
_PUBLIC = frozenset([*_LISTED, *_INNER.split()])

#: Module -> names of it that ``dir(sc)`` does not list: programs and plugins have them from ``sc``.
_MOVED_TO: Mapping[str, str] = {
    "spikecore_convert": "Conversion",
    "spikecore.backend": (
        "Backend BackendError BackendInfo BackendLoadError BackendStatus BackendUnavailable Capabilities "
        "UnknownBackend Unsupported hookimpl"
    ),
    "spikecore.functional": "project",
    "spikecore.inspect": "Energy Explanation Seen kernel_source",
    "spikecore.lang": "Program TraceError",
    "spikecore.layers": "pack unpack",
    "spikecore.parallel": "Pipeline",
    "spikecore.stochastic": "EscapeNoise Stochastic",
    "spikecore.training": "InferenceStep TrainingStep",
    "spikecore_chips": "CInference CProgram VerilogProgram",
    "spikecore_online": "STDP OnlineTraining",
}
#: Such a name -> its module, and its name there.
_MOVED: Dict[str, Tuple[str, str]] = {
    **{name: (module, name) for module, names in _MOVED_TO.items() for name in names.split()},
    "load_state": ("spikecore_convert", "load_weights"),
    "load_state_dict_of_state": ("spikecore.functional", "set_state"),
    "state_dict_of_state": ("spikecore.functional", "get_state"),
}

_REPEAT = (
    "sc.{} is gone: leave out sc.encode.Constant(T) and give the first neuron repeat=T, as in sc.LIF(repeat=T). The "
    "layers in front of it then see one step, [B, ...], without sc.layers.TimeBatched, and compute once"
)
#: Names that are gone, and what to write now.
_GONE = {
    "hoist": _REPEAT.format("hoist"),
    "packed_spikes": "sc.packed_spikes() is gone: sc.layers.pack(net) puts in layers that keep spikes as bits",
    "unhoist": _REPEAT.format("unhoist"),
}


def _models() -> Dict[str, object]:
    """The models and what is around them, by name: a class in a module of ``spikecore.neurons`` is in no list here."""
    neurons = import_module("spikecore.neurons")
    return {**neurons.MODELS, "Recurrent": neurons.Recurrent}


if not TYPE_CHECKING:  # a checker would take every name for one of these

    def __getattr__(name: str) -> object:
        if name == "__all__":
            return sorted([*_MODULES, *_models(), *_LISTED])
        if name == "ops":  # a module of its package
            import_module(f"{__name__}.lang.ops")
        if name in _PUBLIC:
            value: object = import_module(_EXTENSIONS.get(name, f"{__name__}.{name}"))
        elif name in _MODULES:
            value = getattr(import_module(_MODULES[name]), name)
        elif name[:1].isupper() and name in _models():
            value = _models()[name]
        elif name in _MOVED:
            module, now = _MOVED[name]
            value = getattr(import_module(module), now)
        elif name in _GONE or name.startswith("_"):
            raise AttributeError(_GONE.get(name, f"module {__name__!r} has no attribute {name!r}"))
        else:
            raise AttributeError(import_module(f"{__name__}._base.misnamed").missing_in(__name__, name))
        globals()[name] = value
        return value


def __dir__() -> List[str]:
    return sorted([*(name for name in list(globals()) if name.startswith("__")), *_MODULES, *_models(), *_LISTED])
