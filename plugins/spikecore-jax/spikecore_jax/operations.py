"""The operations of the language on JAX arrays, with the bits that the language asks for.

XLA rewrites arithmetic. On a CPU, LLVM makes one operation of a product and the sum it is added to, a division by a
value that is the same for all neurons becomes a product with its reciprocal, and the algebraic simplifier folds
constants. Each moves a potential by one unit in the last place, and with it a spike. So

- every product and every divisor passes through an exclusive or of its bits with a 0 that is an argument of the
  compiled function: no compiler knows it, and none can look through it;
- constants are arguments, too (:class:`Table`);
- the simplifier is off (:data:`OPTIONS`);
- on a GPU, where XLA's float32 quotients and roots may be off by one unit in the last place (PTX's ``div.full``), both
  are computed in float64, and hidden before they are rounded: of a quotient that is rounded LLVM makes one of float32.
  Their arguments are hidden, too: XLA leaves out a rounding to float32 whose result becomes float64 again.
  Quotients and roots of float64 numbers that are float32's have the same bits, rounded twice, as rounded once.

``lax.optimization_barrier`` and ``lax.reduce_precision`` do not keep LLVM from contracting (jaxlib 0.10.2).
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from spikecore.lang import Node, topological
from spikecore.lang.operations import ROWS
from spikecore_jax.tensors import x64

#: Of XLA, for one compiled function.
OPTIONS = {"xla_disable_hlo_passes": "algsimp"}
#: Platforms on which float32 quotients and roots are not rounded correctly.
INEXACT = ("cuda", "rocm")


def constants_of(roots: Sequence[Node]) -> Tuple[float, ...]:
    """The constants of some expressions, each once, in a fixed order."""
    found = dict.fromkeys(_bits(float(str(node.attr))) for node in topological(list(roots)) if node.op == "const")
    return tuple(float(np.int64(bits).view(np.float64)) for bits in found)


def _bits(value: float) -> int:
    # -0 is another constant than 0, and NaN is equal to itself
    return int(np.float64(value).view(np.int64))


def approximates() -> bool:
    """True if JAX has a device whose float32 quotients and roots are approximate; numbers of its other devices are
    right either way. (With ``lax.platform_dependent`` JAX 0.6 cannot derive a scan.)
    """
    for platform in INEXACT:
        try:
            if jax.devices(platform):
                return True
        except RuntimeError:  # how JAX says that there is none
            continue
    return False


class Table(Mapping[str, Callable[..., Any]]):
    """The functions of a compiled function: op name -> function, as ``spikecore.kernels.Functions``.

    zero: an unsigned 0 of as many bits as a number has, of which no compiler may know that it is 0: one, or one for
    each neuron. constants: each number that the expressions hold, and the array that stands for it.
    """

    def __init__(self, zero: Any, constants: Iterable[Tuple[float, Any]]) -> None:
        self._zero = zero
        some = zero if zero.size else jnp.zeros(1, zero.dtype)  # of no neurons there is nothing to keep
        self._one_zero = some.ravel()[0] if zero.ndim else zero
        self._constants = {_bits(value): array for value, array in constants}
        self._functions: Dict[str, Callable[..., Any]] = {
            name: self._lifted(function) for name, function in self._all().items()
        }

    def __getitem__(self, op: str) -> Callable[..., Any]:
        return self._functions[op]

    def __iter__(self) -> Any:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def lifted(self, value: Any) -> Any:
        """A number as the argument that stands for it; arrays as they are."""
        return self._constants[_bits(value)] if isinstance(value, float) else value

    def kept(self, value: Any) -> Any:
        """The same value, of which no compiler knows how it was computed."""
        zero = self._zero if value.ndim else self._one_zero
        if value.dtype.itemsize != zero.dtype.itemsize:
            zero = lax.convert_element_type(zero, jnp.uint64)
        return lax.bitcast_convert_type(lax.bitcast_convert_type(value, zero.dtype) ^ zero, value.dtype)

    def _lifted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: function(*[self.lifted(arg) if isinstance(arg, float) else arg for arg in args])

    def _div(self, a: Any, b: Any) -> Any:
        a, b = jnp.broadcast_arrays(a, b)
        return self._rounded(lax.div, a, self.kept(b))

    def _rounded(self, function: Callable[..., Any], *numbers: Any) -> Any:
        """A quotient or a root, rounded correctly on any platform."""
        if numbers[0].dtype != jnp.float32:
            return function(*numbers)

        def wide(*numbers: Any) -> Any:
            with x64(True):
                found = function(*[lax.convert_element_type(self.kept(number), jnp.float64) for number in numbers])
                return lax.convert_element_type(self.kept(found), jnp.float32)

        return wide(*numbers) if approximates() else function(*numbers)

    def _all(self) -> Dict[str, Callable[..., Any]]:
        return {
            **{row.name: getattr(jnp, row.numpy) for row in ROWS if row.numpy},
            "mul": lambda a, b: self.kept(a * b),
            "div": self._div,
            "sqrt": lambda a: self._rounded(lax.sqrt, a),
            "sigmoid": lax.logistic,
            "softplus": lambda a: _maximum(a, jnp.zeros_like(a)) + lax.log1p(lax.exp(-lax.abs(a))),
            "erf": lax.erf,
            "sign": _sign,
            "power": _power,
            "minimum": _minimum,
            "maximum": _maximum,
            "clamp": lambda x, low, high: _minimum(_maximum(x, low), high),
            "select": lambda z, a, b: jnp.where(z != 0, a, b),
            "detach": lax.stop_gradient,
            "spike": _spike,
        }


def _sign(a: Any) -> Any:
    one = jnp.ones_like(a)
    return jnp.where(a > 0, one, jnp.where(a < 0, -one, jnp.zeros_like(a)))


def _minimum(a: Any, b: Any) -> Any:
    return jnp.where((a < b) | (a != a), a, b)


def _maximum(a: Any, b: Any) -> Any:
    return jnp.where((a > b) | (a != a), a, b)


def _power(a: Any, b: Any) -> Any:
    a, b = jnp.broadcast_arrays(a, b)
    # as C's pow: 1 where one of the two makes the other one's value unimportant
    return jnp.where((b == 0) | (a == 1), jnp.ones_like(a), lax.pow(a, b))


def _spike(u: Any, strict: bool, *derivative: Any) -> Any:
    return ((u > 0) if strict else (u >= 0)).astype(u.dtype)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function compiled by XLA with :data:`OPTIONS`."""
    made: Callable[..., Any] = jax.jit(function, compiler_options=OPTIONS)
    return made


def numbers(values: Sequence[float], dtype: Any) -> List[Any]:
    """Numbers, each rounded once to a dtype; one that is too large for it is infinite."""
    with np.errstate(over="ignore"):
        return [np.asarray(value, np.float64).astype(dtype) for value in values]
