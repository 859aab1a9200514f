"""The expression language: values that record, programs, their adjoints, and their text."""

from spikecore.lang.expr import Expr, TraceError
from spikecore.lang.node import Node, SpikeRule, topological
from spikecore.lang.numbers import Numbers
from spikecore.lang.program import Adjoint, Program, once
from spikecore.lang.trace import trace

__all__ = ["Adjoint", "Expr", "Node", "Numbers", "Program", "SpikeRule", "TraceError", "once", "topological", "trace"]
