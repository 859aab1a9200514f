"""Networks for chips: arithmetic in fixed point, programs in C, and Verilog."""

from spikecore_chips import quant as quant
from spikecore_chips._export_c import CProgram, LoadedProgram, export_c
from spikecore_chips._export_c._inference import CInference
from spikecore_chips._export_verilog import VerilogProgram, export_verilog

__all__ = ["CInference", "CProgram", "LoadedProgram", "VerilogProgram", "export_c", "export_verilog", "quant"]
