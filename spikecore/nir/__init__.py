"""Networks as graphs of NIR, which other libraries and neuromorphic chips read and write; needs the package nir."""

from spikecore.nir._conventions import CONVENTIONS, Convention
from spikecore.nir._modules import (
    NIRLI,
    NIRLIF,
    DelaySteps,
    Network,
    NIRCubaLI,
    NIRCubaLIF,
    Scale,
    SumPool2d,
    Threshold,
)
from spikecore.nir._reading import load
from spikecore.nir._writing import save

__all__ = [
    "CONVENTIONS",
    "NIRLI",
    "NIRLIF",
    "Convention",
    "DelaySteps",
    "NIRCubaLI",
    "NIRCubaLIF",
    "Network",
    "Scale",
    "SumPool2d",
    "Threshold",
    "load",
    "save",
]
