"""Kernels over time: the same step for every element, from the first to the last or back, with what it carries."""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence

from spikecore.kernels.writing import indented
from spikecore_cupy.custom.core import Body
from spikecore_cupy.custom.declared import declared, states
from spikecore_cupy.custom.kernel import CustomKernel
from spikecore_cupy.custom.text import CustomWriter, section

#: Steps whose loads the compiler may put before the first use.
UNROLL = 4


class ScanKernel(CustomKernel):
    """A step over the time of tensors ``[T, *N]``, compiled for NVIDIA GPUs::

        cumsum = ScanKernel("cumsum", inputs=["x"], state={"sum": 0.0}, outputs=["y"], body="sum += x; y = sum;")
        y = cumsum(x=x)

    All as in :class:`~spikecore_cupy.ElementwiseKernel`, and:

    Parameters
    ----------
    state: a mapping of names to first values. A call may give others, as numbers or as tensors ``[*N]``. States are
        float32, or float64 where a tensor is.
    final: states that are given back, after the outputs, as ``<name>_end``: what they are after the last step.
    params: a tensor among them has the shape ``[*N]`` of one step, or one number.
    reverse: from the last step to the first.
    body: a C text that changes its states in place, or a function of expressions that returns
        ``(outputs, {state: next value})``, as ``dynamics`` of a neuron does.

    A C text may also read ``t``, the step, and ``T``, how many there are. Results share no memory with other tensors.
    """

    timed = True
    places = ("i", "N", "t", "T")

    def __init__(
        self,
        name: str,
        *,
        inputs: Any = (),
        outputs: Any = (),
        body: Body,
        state: Mapping[str, float] = {},  # never written to
        final: Sequence[str] = (),
        params: Any = (),
        reverse: bool = False,
        header: str = "",
    ) -> None:
        roles: Mapping[str, Any] = {"input": inputs, "param": params, "output": outputs}
        values = [value for role, given in roles.items() for value in declared(name, role, given)]
        self.reverse = reverse
        super().__init__(name, [*values, *states(name, state, final)], body, header)

    def _lines(self, writer: CustomWriter) -> List[str]:
        steps = writer.argument("T", "T", "int", "T")
        loop = f"int t = {steps} - 1; t >= 0; --t" if self.reverse else f"int t = 0; t < {steps}; ++t"
        return [
            *writer.opening(),
            *writer.starting(),
            *section("step"),
            f"#pragma unroll {UNROLL}",
            f"for ({loop}) {{",
            *indented(writer.step(timed=True)),
            "}",
            *section("tail"),
            *writer.ending(),
        ]
