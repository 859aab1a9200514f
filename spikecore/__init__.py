"""One definition of a spiking neuron, written as equations; every accelerator runs it, trains it, and agrees on it.

A name of ``sc`` is imported when it is first used, with what its module needs: ``import spikecore`` imports not even
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Dict, List, Mapping

from spikecore._version import __version__ as __version__

if TYPE_CHECKING:  # the same names once more, for type checkers and editors
    from spikecore import encode as encode
    from spikecore import functional as functional
    from spikecore import layers as layers
    from spikecore import losses as losses
    from spikecore import metrics as metrics
    from spikecore import models as models
    from spikecore import nir as nir
    from spikecore import plot as plot
    from spikecore import stochastic as stochastic
    from spikecore import surrogate as surrogate
    from spikecore._convert import Conversion as Conversion
    from spikecore._convert import ann2snn as ann2snn
    from spikecore._convert import convert as convert
    from spikecore._convert import load_state as load_state
    from spikecore._plugins.registry import BackendStatus as BackendStatus
    from spikecore._plugins.registry import hookimpl as hookimpl
    from spikecore._plugins.selection import backends as backends
    from spikecore._plugins.selection import use_backend as use_backend
    from spikecore._transforms import fuse as fuse
    from spikecore._transforms import hoist as hoist
    from spikecore._transforms import unfuse as unfuse
    from spikecore.backend import Backend as Backend
    from spikecore.backend import BackendError as BackendError
    from spikecore.backend import BackendInfo as BackendInfo
    from spikecore.backend import BackendLoadError as BackendLoadError
    from spikecore.backend import BackendUnavailable as BackendUnavailable
    from spikecore.backend import Capabilities as Capabilities
    from spikecore.backend import UnknownBackend as UnknownBackend
    from spikecore.backend import Unsupported as Unsupported
    from spikecore.functional import carry_state as carry_state
    from spikecore.functional import detach as detach
    from spikecore.functional import load_state_dict_of_state as load_state_dict_of_state
    from spikecore.functional import project as project
    from spikecore.functional import reset as reset
    from spikecore.functional import set_backend as set_backend
    from spikecore.functional import set_step as set_step
    from spikecore.functional import state_dict_of_state as state_dict_of_state
    from spikecore.inspect import Energy as Energy
    from spikecore.inspect import Explanation as Explanation
    from spikecore.inspect import Seen as Seen
    from spikecore.inspect import energy as energy
    from spikecore.inspect import explain as explain
    from spikecore.inspect import kernel_source as kernel_source
    from spikecore.inspect import monitor as monitor
    from spikecore.lang import Program as Program
    from spikecore.lang import TraceError as TraceError
    from spikecore.lang import ops as ops
    from spikecore.layers._delay import Delay as Delay
    from spikecore.layers._packed import pack as pack
    from spikecore.layers._packed import unpack as unpack
    from spikecore.neuron import Neuron as Neuron
    from spikecore.neurons import *
    from spikecore.parallel import Pipeline as Pipeline
    from spikecore.parallel import checkpoint as checkpoint
    from spikecore.stochastic import EscapeNoise as EscapeNoise
    from spikecore.stochastic import Stochastic as Stochastic
    from spikecore.surrogate import Surrogate as Surrogate
    from spikecore.training import CudaOptions as CudaOptions
    from spikecore.training import DataLoader as DataLoader
    from spikecore.training import InferenceStep as InferenceStep
    from spikecore.training import TrainingOptions as TrainingOptions
    from spikecore.training import TrainingStep as TrainingStep
    from spikecore.training import inference_model as inference_model
    from spikecore.training import load_checkpoint as load_checkpoint
    from spikecore.training import save_checkpoint as save_checkpoint
    from spikecore.training import training_model as training_model

#: Module -> names of ``sc`` that it has, beside the models of ``spikecore.neurons``.
_NAMES: Mapping[str, str] = {
    "spikecore._convert": "Conversion ann2snn convert load_state",
    "spikecore.layers._delay": "Delay",
    "spikecore._transforms": "fuse hoist unfuse",
    "spikecore.inspect": "Energy Explanation Seen energy explain kernel_source monitor",
    "spikecore.layers._packed": "pack unpack",
    "spikecore._plugins.registry": "BackendStatus hookimpl",
    "spikecore._plugins.selection": "backends use_backend",
    "spikecore.backend": (
        "Backend BackendError BackendInfo BackendLoadError BackendUnavailable Capabilities UnknownBackend Unsupported"
    ),
    "spikecore.functional": (
        "carry_state detach load_state_dict_of_state project reset set_backend set_step state_dict_of_state"
    ),
    "spikecore.lang": "Program TraceError ops",
    "spikecore.neuron": "Neuron",
    "spikecore.parallel": "Pipeline checkpoint",
    "spikecore.stochastic": "EscapeNoise Stochastic",
    "spikecore.surrogate": "Surrogate",
    "spikecore.training": (
        "CudaOptions DataLoader InferenceStep TrainingOptions TrainingStep inference_model load_checkpoint "
        "save_checkpoint training_model"
    ),
}
_MODULES: Dict[str, str] = {name: module for module, names in _NAMES.items() for name in names.split()}
#: Public modules, which are attributes without an import of their own.
_PUBLIC = frozenset(
    "backend bench dtypes encode functional interpreter kernels lang layers losses metrics models neuron neurons nir "
    "parallel plot stochastic surrogate testing training".split()
)
#: Those of them that a user of ``sc`` needs.
_LISTED = "encode functional layers losses metrics models nir plot stochastic surrogate".split()

#: Names that are gone, and what to write now.
_GONE = {
    "packed_spikes": "sc.packed_spikes() is gone: sc.pack(net) puts in layers that keep spikes as bits",
    "unhoist": "sc.unhoist is gone: to keep the network as it was, hoist a copy, sc.hoist(copy.deepcopy(net))",
}


def _models() -> Dict[str, object]:
    """The models and what is around them, by name: a class in a module of ``spikecore.neurons`` is in no list here."""
    neurons = import_module("spikecore.neurons")
    return {**neurons.MODELS, "Recurrent": neurons.Recurrent}


if not TYPE_CHECKING:  # a checker would take every name for one of these

    def __getattr__(name: str) -> object:
        if name == "__all__":
            return sorted([*_MODULES, *_models(), *_LISTED])
        if name in _PUBLIC:
            return import_module(f"{__name__}.{name}")
        if name == "ops":  # a module of its package
            import_module(f"{__name__}.lang.ops")
        if name in _MODULES:
            value = getattr(import_module(_MODULES[name]), name)
        elif name[:1].isupper() and name in _models():
            value = _models()[name]
        elif name in _GONE or name.startswith("_"):
            raise AttributeError(_GONE.get(name, f"module {__name__!r} has no attribute {name!r}"))
        else:
            raise AttributeError(import_module(f"{__name__}._base.misnamed").missing_in(__name__, name))
        globals()[name] = value
        return value


def __dir__() -> List[str]:
    return sorted({*globals(), *_MODULES, *_models(), *_PUBLIC})
