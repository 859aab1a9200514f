"""Networks as graphs of NIR, which other libraries and neuromorphic chips read and write; needs the package nir."""

from spikecore.layers import SumPool2d
from spikecore_nir._checking import FileCheck, NodeCheck, check
from spikecore_nir._conventions import CONVENTIONS, Convention
from spikecore_nir._reading import load
from spikecore_nir._writing import save
from spikecore_nir.modules import (
    NIRLI,
    NIRLIF,
    DelaySteps,
    Network,
    NIRCubaLI,
    NIRCubaLIF,
    Scale,
    Threshold,
)

__all__ = [
    "CONVENTIONS",
    "NIRLI",
    "NIRLIF",
    "Convention",
    "DelaySteps",
    "FileCheck",
    "NIRCubaLI",
    "NIRCubaLIF",
    "Network",
    "NodeCheck",
    "Scale",
    "SumPool2d",
    "Threshold",
    "check",
    "load",
    "save",
]
__dir__ = __all__.copy
