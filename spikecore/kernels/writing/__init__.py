"""What writers of kernel texts share, whatever language they write: names, arguments, leaves, values that are kept.

A target subclasses :class:`KernelPrinter` for its expressions and :class:`KernelWriter` for its kernels. What it adds
is what differs: how a value is loaded and stored, how steps and neurons are looped over, how a function is declared.
A launch finds the values of a kernel's arguments with :class:`Places`.
"""

from spikecore.kernels.writing._analysis import negated_choice
from spikecore.kernels.writing._arguments import (
    BACKWARD_GROUPS,
    FILLED,
    FORWARD_GROUPS,
    STORED,
    Argument,
    ArgumentTable,
    Places,
    named,
)
from spikecore.kernels.writing._leaves import (
    cotangent_leaves,
    input_leaf,
    output_cotangent,
    param_leaf,
    state_cotangent,
    state_leaf,
)
from spikecore.kernels.writing._lines import commented, dtype_name, filled, indented
from spikecore.kernels.writing._printer import PYTHON_TEMPLATES, KernelPrinter, PythonSyntax
from spikecore.kernels.writing._writer import KernelWriter

__all__ = [
    "BACKWARD_GROUPS",
    "FILLED",
    "FORWARD_GROUPS",
    "PYTHON_TEMPLATES",
    "STORED",
    "Argument",
    "ArgumentTable",
    "KernelPrinter",
    "KernelWriter",
    "Places",
    "PythonSyntax",
    "commented",
    "cotangent_leaves",
    "dtype_name",
    "filled",
    "indented",
    "input_leaf",
    "named",
    "negated_choice",
    "output_cotangent",
    "param_leaf",
    "state_cotangent",
    "state_leaf",
]
