"""Fixed point: neurons and layers whose floating-point numbers are integers, with the same bits on every backend."""

from spikecore.quant._analysis import Format, Inexact, analyse
from spikecore.quant._fixed import FixedPoint, fixed, fixed_point_of
from spikecore.quant._prepare import prepare
from spikecore.quant._report import Report, report

__all__ = ["FixedPoint", "Format", "Inexact", "Report", "analyse", "fixed", "fixed_point_of", "prepare", "report"]
