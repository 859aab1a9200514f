"""A drawn neuron: the text of one step, which a backend and the oracle both run.

The library makes a neuron class of it, as of any source. The oracle runs the same text with
:class:`~spikecore.testing._oracle.Value` in the place of inputs, states and parameters, so it uses nothing of the
language.
"""

from __future__ import annotations

import dataclasses
import itertools
import linecache
import textwrap
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

import numpy as np
import torch

import spikecore as sc
from spikecore.testing._oracle import Array, Value, distances, ops
from spikecore.testing.models import Model, as_written

Names = Tuple[str, ...]

_count = itertools.count()


@dataclass(frozen=True)
class Program:
    """Declarations of a neuron, and the bodies of its methods."""

    name: str
    inputs: Names
    states: Mapping[str, Union[float, str]]
    params: Mapping[str, float]
    #: Lines of ``dynamics``.
    body: Names
    #: Of each output ``spikes`` or ``output``.
    outputs: Names
    #: The surrogate: its class, its numbers, its derivative in ``u``.
    surrogate: str
    fields: Mapping[str, float]
    derivative: str
    reset_states: Optional[Names] = None
    #: True if every operation is rounded in one way only.
    exact: bool = False

    def __str__(self) -> str:
        """Functions ``dynamics`` and ``derivative`` in Python."""
        body = textwrap.indent("\n".join(self.body), "    ")
        return f"def dynamics(self, x, s, p):\n{body}\n\ndef derivative(self, u):\n    return {self.derivative}\n"

    @property
    def declared(self) -> str:
        """Declarations of the class, in words."""
        return (
            f"class {self.name!r}: inputs {self.inputs}, states {dict(self.states)}, params {dict(self.params)}, "
            f"reset_states {self.reset_states}, surrogate {self.surrogate!r} {dict(self.fields)}"
        )

    @property
    def facts(self) -> Tuple[Names, Names, Names, Names]:
        """Names of inputs, states and parameters, and what outputs are."""
        return self.inputs, tuple(self.states), tuple(self.params), self.outputs

    def functions(self, **space: Any) -> Dict[str, Any]:
        """The functions of the text, which tracebacks can show."""
        text, file = str(self), f"<random program {next(_count)}>"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        exec(compile(text, file, "exec"), space)
        return space

    def model(self) -> Model:
        """The neuron as a case sees it: the library's class beside the oracle."""
        made = self.functions(sc=sc, torch=torch)
        body = {"derivative": made["derivative"], "__annotations__": dict.fromkeys(self.fields, float), **self.fields}
        surrogate: Any = dataclasses.dataclass(frozen=True)(type(self.surrogate, (sc.Surrogate,), body))
        declared = {"inputs": self.inputs, "states": dict(self.states), "params": dict(self.params)}
        more = {"reset_states": self.reset_states, "dynamics": made["dynamics"]}
        neuron: Any = type(self.name, (sc.Neuron,), {**declared, **more})
        here = self.functions(sc=SimpleNamespace(ops=ops), torch=ops)
        return Model(
            self.name,
            neuron,
            as_written(neuron, outputs=len(self.outputs)),
            dict(self.params),
            (-2.0, 3.0),
            resets=("none",),
            arithmetic=self.exact,
            outputs=self.outputs,
            surrogate=WrittenDerivative(surrogate, here["derivative"], self.fields),
        )


class WrittenDerivative:
    """The derivative of a surrogate, by its text."""

    name = "written"
    arguments: Mapping[str, float] = {}  # never written to

    def __init__(self, library: type, function: Any, fields: Mapping[str, float]) -> None:
        self.library, self.function, self.fields = library, function, SimpleNamespace(**fields)

    def __call__(self, u: Array) -> Array:
        """The derivative at ``u``."""
        return np.asarray(self.function(self.fields, Value(u)).array)

    def distances(self, u: Array) -> List[Array]:
        """Distance of ``u`` from each jump."""
        return distances([self.function(self.fields, Value(u))])
