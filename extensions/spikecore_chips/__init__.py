"""Networks for chips: arithmetic in fixed point, and programs in C."""

from spikecore_chips import quant as quant
from spikecore_chips._export_c import CProgram, LoadedProgram, export_c

__all__ = ["CProgram", "LoadedProgram", "export_c", "quant"]
