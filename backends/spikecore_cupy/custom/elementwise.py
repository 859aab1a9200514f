"""Kernels without time: the same function of every element."""

from __future__ import annotations

from typing import Any, List, Mapping

from spikecore_cupy.custom.core import Body
from spikecore_cupy.custom.declared import declared
from spikecore_cupy.custom.kernel import CustomKernel
from spikecore_cupy.custom.text import CustomWriter, section


class ElementwiseKernel(CustomKernel):
    """A function of every element of tensors of one shape, compiled for NVIDIA GPUs::

        double = ElementwiseKernel("double", inputs=["x"], outputs=["y"], body="y = x + x;")
        y = double(x=x)          # or double(x=x, y=y), which fills y; y may be x

    Parameters
    ----------
    name: of the kernel, in its source and in profiles.
    inputs, outputs: names, or a mapping of names to dtypes. Without one (None) a tensor has the dtype of the call:
        float16, bfloat16, float32 or float64. Integers and bool can be declared.
    body: a C text in these names, or a function of expressions, called once with its values by name, that returns the
        output or a tuple of them.
    params: names of numbers, or a mapping of names to ``float``, ``int``, or a dtype or None for a tensor, which has
        the shape of the inputs or one number.
    header: C text before the kernel, such as functions that the body calls.

    A C text may read ``i``, the place of the element in memory, and ``N``, how many there are; ``real`` is the type of
    arithmetic. An output that it does not set is 0.
    """

    access = 16

    def __init__(
        self,
        name: str,
        *,
        inputs: Any = (),
        outputs: Any,
        body: Body,
        params: Any = (),
        header: str = "",
    ) -> None:
        roles: Mapping[str, Any] = {"input": inputs, "param": params, "output": outputs}
        values = [value for role, given in roles.items() for value in declared(name, role, given)]
        super().__init__(name, values, body, header)

    def _lines(self, writer: CustomWriter) -> List[str]:
        return [*writer.opening(), *section("step"), *writer.step(timed=False)]
