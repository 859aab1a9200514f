"""The expression language: values that record, programs, their adjoints, and their text."""

from spikecore.lang import ops as ops  # declares the operations, which the others read
from spikecore.lang._expr import FROM_TORCH, Expr, TraceError
from spikecore.lang._graph import topological
from spikecore.lang._numbers import Numbers
from spikecore.lang._program import Adjoint, Program, differentiable_leaves
from spikecore.lang._trace import trace
from spikecore.lang.eager import apply as _apply  # noqa: F401  # answers what is called in ops
from spikecore.lang.node import Node, SpikeRule, computed_once, loop_invariant
from spikecore.lang.vectors import Vector, vector

__all__ = [
    "FROM_TORCH",
    "Adjoint",
    "Expr",
    "Node",
    "Numbers",
    "Program",
    "SpikeRule",
    "TraceError",
    "Vector",
    "computed_once",
    "differentiable_leaves",
    "loop_invariant",
    "topological",
    "trace",
    "vector",
]
