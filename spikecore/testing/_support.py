"""Support of a backend, in a word for each row of the documentation's table: from the results of a whole run.

The words stand in the result of the run (:mod:`spikecore.testing._pages`), which the table is made from.
"""

from __future__ import annotations

from typing import Dict, Sequence, Set, Tuple

import torch

from spikecore._plugins.registry import default_registry
from spikecore.backend import Capabilities
from spikecore.testing._cases import CASES
from spikecore.testing._models import MODELS
from spikecore.testing._report import Report
from spikecore.testing._verdict import Result

#: Families of core cases that there are of every neuron.
_PER_NEURON = ("forward", "exact", "bits", "single-step", "gradient")
#: The tiers whose results decide a word.
_TIERS = ("core", "dtypes", "parameters", "state", "language", "layouts", "robust", "compile")
_ASKER = "the support table"


def words(report: Report) -> Dict[str, Dict[str, str]]:
    """Table -> row -> word. Raises ``BackendError`` where the backend is not installed here."""
    registry = default_registry()
    info = registry.info(report.backend, _ASKER)
    can = registry.get(report.backend, _ASKER).capabilities_on(torch.device(report.device).type)
    results = [result for result in report.results if result.tier in _TIERS]
    names = sorted({model.neuron.__name__ for model in MODELS}, key=str.lower)
    neurons = {f"`{name}`": _word(can, results, _of_neuron(name)) for name in names}
    surrogates = {case.id for case in CASES if case.id.startswith("surrogate/")}
    neurons["all surrogates"] = _word(can, results, surrogates, ("gradients",))
    neurons["neurons of your own"] = _word(can, results, {case.id for case in CASES if case.tier == "language"})
    capabilities = {
        f"`{name}`": _word(can, results, {case.id for case in CASES if name in case.needs}, (name,))
        for name in Capabilities.__dataclass_fields__
    }
    devices = "any" if "*" in info.devices else ", ".join(info.devices)
    return {
        "Neurons and surrogates": neurons,
        "Capabilities": capabilities,
        "Devices": {"device types": devices},
    }


def _of_neuron(neuron: str) -> Set[str]:
    """The ids of the core cases of a neuron."""
    ids: Set[str] = set()
    names = sorted((model.name for model in MODELS), key=len, reverse=True)
    mine = {model.name for model in MODELS if model.neuron.__name__ == neuron}
    for case in CASES:
        family, _, variant = case.id.partition("/")
        model = next((name for name in names if variant == name or variant.startswith(f"{name}-")), None)
        if case.tier == "core" and family in _PER_NEURON and model in mine:
            ids.add(case.id)
    return ids


def _word(can: Capabilities, results: Sequence[Result], ids: Set[str], needs: Tuple[str, ...] = ()) -> str:
    """The word for these cases. needs: capabilities without which it is no."""
    if any(not getattr(can, need) for need in needs):
        return "no"
    ran = [result for result in results if result.id in ids]
    if any(not result.ok for result in ran):
        return "wrong"
    if any(result.outcome == "xfailed" for result in ran):
        return "partly"
    return "yes" if any(result.outcome == "passed" for result in ran) else "no"
