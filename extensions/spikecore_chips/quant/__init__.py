"""Fixed point: neurons and layers whose floating-point numbers are integers, with the same bits on every backend."""

from spikecore_chips.quant._analysis import Format, Inexact, analyse
from spikecore_chips.quant._fixed import FixedPoint, fixed, fixed_point_of
from spikecore_chips.quant._formats import plain, restored
from spikecore_chips.quant._prepare import prepare
from spikecore_chips.quant._report import Report, report

__all__ = [
    "FixedPoint",
    "Format",
    "Inexact",
    "Report",
    "analyse",
    "fixed",
    "fixed_point_of",
    "plain",
    "prepare",
    "report",
    "restored",
]
__dir__ = __all__.copy
