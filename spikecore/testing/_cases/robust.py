"""PyTorch's machinery around a neuron, odd numbers, wrong calls, and ``torch.compile``."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import spikecore as sc
from spikecore.testing._calls import Call, check_parameters, learnable
from spikecore.testing._case import Collection, Undeclared
from spikecore.testing._config import Config
from spikecore.testing._context import Context
from spikecore.testing._oracle import run
from spikecore.testing._subject import Subject, subject
from spikecore.testing.compare import Mismatch, as_array, same
from spikecore.testing.tolerances import TOLERANCES

CASES = Collection()
_case = CASES.family("robust")
_BACK = ("gradients",)
_LEARN = (*_BACK, "parameter_gradients")


# -- modules and machinery


@_case("checkpoint", "torch.utils.checkpoint gives the same gradients", *_LEARN)
def _checkpoint(context: Context) -> None:
    for reentrant in (False, True):
        call = Call(subject(context, "plif", "soft", learn=("w",)), f"a checkpoint with use_reentrant={reentrant}")
        call.check(checkpoint(call.s.neuron, call.x, use_reentrant=reentrant))


@_case("autocast", "under autocast state and arithmetic stay float32, the output in the input's dtype", *_BACK)
def _autocast(context: Context) -> None:
    """Final states to the bit, where the neuron is of + - * /; forward and backward."""
    for model in ("lif", "plif", "eif"):
        s = subject(context, model, "hard", learn=learnable(context, "threshold"))
        call = Call(s, "a call under autocast")
        with torch.autocast(context.device.type, dtype=torch.bfloat16):
            call.forward()
            _, final = s.neuron.run(call.x.detach())
            call.backward()
        exact = s.model.arithmetic
        s.check_states(final, (s.bits() if exact else s.seen).final, "final state, under autocast,", exact)
        call.check_outputs().check_inputs()
        check_parameters(s, [call], call.which)


def _identity() -> nn.Linear:
    linear = nn.Linear(7, 7, bias=False)
    nn.init.eye_(linear.weight)
    return linear


@_case("training-step", "a training step moves the weights as the equations say", *_BACK)
def _training_step(context: Context) -> None:
    """A step of SGD on a linear layer before a LIF; loss: the sum of spikes, weighted."""
    s = subject(context, "lif", "hard", shape=(6, 4, 7))
    linear = _identity()
    net = context.place(nn.Sequential(linear, s.neuron))
    weights = s.cotangent(s.x())
    step = sc.training_model(net, _weighted_sum, torch.optim.SGD(net.parameters(), lr=0.01), backend=context.name)
    outputs, loss = step(s.x(), weights)
    s.check_outputs(outputs, " of a training step")
    near = TOLERANCES["float32", "parameter gradient"]
    same("loss", s.of, as_array(loss), np.asarray((s.seen.outputs[0] * as_array(weights)).sum()), near, axes="")
    grad = np.einsum("tbo,tbi->oi", s.gradients(weights).inputs[0], s.inputs[0])
    same("weight after one step", repr(net), as_array(linear.weight), np.eye(7) - 0.01 * grad, near, axes="out, in")


def _weighted_sum(output: Tensor, weights: Tensor) -> Tensor:
    return (output * weights).sum()


# -- numbers

_ODD = (float("nan"), float("inf"), float("-inf"))
_NON_FINITE = "do to a neuron what IEEE arithmetic does, and nothing to its neighbours"


@_case("non-finite-if-soft", f"NaN and infinite inputs {_NON_FINITE}", model="if", reset="soft")
@_case("non-finite-lif-hard", f"NaN and infinite inputs {_NON_FINITE}", model="lif", reset="hard")
@_case("non-finite-lif-soft", f"NaN and infinite inputs {_NON_FINITE}", model="lif", reset="soft")
@_case("non-finite-klif-hard", f"NaN and infinite inputs {_NON_FINITE}", model="klif", reset="hard")
@_case("non-finite-leaky-hard", f"NaN and infinite inputs {_NON_FINITE}", model="leaky", reset="hard")
@_case("non-finite-li-none", f"NaN and infinite inputs {_NON_FINITE}", model="li", reset="none")
def _non_finite(context: Context, model: str, reset: str) -> None:
    """Each of NaN, inf, -inf at some step of some neuron."""
    s = subject(context, model, reset, shape=(6, 3, 7))
    x = s.inputs[0].copy()
    for i, value in enumerate(_ODD):
        x[i, 0, i] = x[2 * i + 1, 1, i + 3] = x[5, 2, i] = value
    s.inputs = (x,)
    _check_odd(s, "with NaN and infinities")


@_case("non-finite-parameters", f"NaN and infinite parameters {_NON_FINITE}", "full_parameters")
def _non_finite_parameters(context: Context) -> None:
    """Each of NaN, inf, -inf as tau, threshold and v_reset of some neuron."""
    names = ("tau", "threshold", "v_reset")
    s = subject(context, "lif", "hard", params="full", shape=(6, 3, 7), options={"bounds": None})
    for i, name in enumerate(names):
        for k, value in enumerate(_ODD):
            s.params[name][i, 2 * k] = s.spread[name][i, 2 * k] = value
            getattr(s.neuron, name)[i, 2 * k] = value
    s.takes(s.inputs)
    _check_odd(s, "with parameters of NaN and infinities")


@_case("spikes-then-currents", "an input that begins as spikes and goes on as currents is read as it is", what="spikes")
@_case("silent-steps", "a state decays in steps without any input, too", what="silence")
def _changed_input(context: Context, what: str) -> None:
    """Zeros and ones in the first step, and of the first neuron; nothing in two steps."""
    s = subject(context, "li", "none")
    x = s.inputs[0].copy()
    if what == "spikes":
        x[0], x[:, 0, 0] = x[0] > 0, x[:, 0, 0] > 0
    else:
        x[[2, 5]] = 0
    s.takes([x])
    output, final = s.neuron.run(s.x())
    s.check_outputs(output, f" with {what}", exact=True)
    s.check_states(final, s.bits().final, f"final state, with {what},", exact=True)


@_case("subnormal", "subnormal numbers are kept")
def _subnormal(context: Context) -> None:
    """IF adds numbers below the smallest normal one."""
    s = subject(context, "if", "none", values={"threshold": 3e-39, "v_reset": 0.0}, shape=(4, 3))
    s.inputs = (np.asarray([[1e-39, 2e-39, 5e-40]] * 4, np.float32),)
    _check_odd(s, "of subnormal inputs")


def _check_odd(s: Subject, what: str) -> None:
    """State and outputs are those of the oracle in float32; the state first, since it tells more."""
    right = run(s.twin, s.inputs, s.spread, dtype=np.float32)
    output, final = s.neuron.run(s.x())
    s.check_states(final, right.final, f"final state, {what},", exact=True)
    same(f"outputs {what}", s.of, as_array(output), right.outputs[0], tested=right.tested)


@_case("large-beside-small", "a gradient that is large in one neuron costs no other neuron its digits", *_BACK)
def _large_beside_small(context: Context) -> None:
    s = subject(context, "lif", "soft")
    call = Call(s, "a call with a large cotangent in one neuron")
    call.cotangent[:, 0, 0] *= 1e4
    call.right = s.gradients(call.cotangent)
    call.check()


@_case("deterministic", "the same call twice gives the same bits, gradients of shared parameters included", *_LEARN)
def _deterministic(context: Context) -> None:
    """Five times."""
    s = subject(context, "lif", "hard", shape=(8, 31, 67), learn=("tau", "threshold"))
    cotangent = s.cotangent(s.x())
    seen: List[Dict[str, Tensor]] = []
    for _ in range(5):
        s.neuron.zero_grad(set_to_none=True)
        x = s.x(grad=True)
        output = s.neuron(x)
        s.backward(output, cotangent)
        leaves = {"input gradient": x, **dict(s.neuron.named_parameters())}
        grads = {name: leaf.grad.clone() for name, leaf in leaves.items() if leaf.grad is not None}
        seen.append({"output": output.detach(), **grads})
    for again in seen[1:]:
        for name, value in again.items():
            first = as_array(seen[0][name])
            same(f"{name}, computed again,", s.of, as_array(value), first, axes="", right="the first time")


# -- torch.compile and registered operators. All but one case use ``aot_eager``, which captures and differentiates the
# graph as the default backend does, and generates no code.


def _compile_case(name: str, holds: str, *needs: str, **more: Any) -> Callable[[Any], Any]:
    add = CASES.case(f"compile/{name}", "compile", holds, "torch_compile", *needs, undeclared="nothing", **more)

    def quiet(run: Callable[..., None]) -> Callable[..., None]:
        add(partial(_quietly, run))
        return run

    return quiet


def _quietly(run: Callable[..., None], context: Context, **options: Any) -> None:
    """Run without torch's warnings about torch, which a strict pytest would raise inside of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(context, **options)


def _compile(context: Context, s: Subject, module: Any, backend: Any = "aot_eager") -> Callable[..., Any]:
    """The compiled module, once its neuron has been seen to run on this backend."""
    s.check_outputs(s.neuron(s.x()))
    # a counter around the runner would be compiled as well: from now on the neuron gets the runner itself
    context.witness.aside = True
    sc.set_backend(s.neuron, context.name)
    torch._dynamo.reset()
    made: Callable[..., Any] = torch.compile(module, fullgraph=True, backend=backend)
    return made


_SAME = "torch.compile(fullgraph=True) gives the same outputs and gradients"


_SIZE: Dict[str, Any] = {"shape": (5, 3, 7)}
_SMALL, _LEARNT = Config(shape=(3, 3, 7)), Config(learn=("tau", "threshold"), **_SIZE)
_INDUCTOR = "so it does with the default backend, which generates code"
_OF_PARAMETERS = "learnt parameters get their gradients through a compiled graph"


@_compile_case("lif-hard", _SAME, *_BACK, config=Config(**_SIZE))
@_compile_case("alif-soft", _SAME, *_BACK, config=Config("alif", "soft", **_SIZE))
@_compile_case("leaky-soft", _SAME, *_BACK, config=Config("leaky", "soft", **_SIZE))
@_compile_case("inductor", _INDUCTOR, *_BACK, config=_SMALL, backend="inductor")
@_compile_case("parameters", _OF_PARAMETERS, *_LEARN, config=_LEARNT)
def _compiled(context: Context, config: Config, backend: str = "aot_eager") -> None:
    s = Subject(context, config)
    compiled = _compile(context, s, s.neuron, backend)
    call = Call(s, "a call under torch.compile")
    call.check(compiled(call.x))


@_compile_case("network", "a neuron between two layers compiles in one graph", *_BACK)
def _network(context: Context) -> None:
    """Identity layers around it, so that the oracle is the neuron's."""
    s = subject(context, "lif", "soft", shape=(5, 3, 7))
    compiled = _compile(context, s, context.place(nn.Sequential(_identity(), s.neuron, _identity())))
    call = Call(s, "a call of a compiled network")
    call.check(compiled(call.x))


@_compile_case("sizes", "a compiled neuron takes other numbers of neurons", shapes=((4, 5, 7), (4, 8, 9)))
@_compile_case("steps", "a compiled neuron takes other numbers of steps", shapes=((6, 3, 7), (9, 3, 7), (17, 3, 7)))
def _sizes(context: Context, shapes: Sequence[Sequence[int]]) -> None:
    """One shape after the other, so that PyTorch begins to take a size for a variable."""
    s = subject(context, "lif", "hard", shape=(4, 3, 7))
    compiled = _compile(context, s, s.neuron)
    for shape in ((4, 3, 7), *shapes):
        other = subject(context, "lif", "hard", shape=shape)
        other.check_outputs(compiled(other.x()), " of other sizes under torch.compile")


@_compile_case(
    "opcheck", "torch.library.opcheck finds no fault with the operators that a compiled neuron calls", *_BACK
)
def _opcheck(context: Context) -> None:
    """Every operator that is not PyTorch's own, with the arguments it is called with. A backend need have none."""
    if not hasattr(torch.library, "opcheck"):
        raise Undeclared((), f"torch.library.opcheck comes with torch 2.4; this is {torch.__version__}")
    learn = ("tau",) if context.declares("parameter_gradients") else ()
    for operator, args, kwargs in _operator_calls(
        context, subject(context, "lif", "hard", learn=learn, shape=(5, 3, 7))
    ):
        try:
            torch.library.opcheck(operator, args, kwargs)
        except Exception as error:
            raise Mismatch(f"opcheck of {operator}: {type(error).__name__}: {error}") from error


def _operator_calls(context: Context, s: Subject) -> List[Tuple[Any, Tuple[Any, ...], Dict[str, Any]]]:
    """The calls of registered operators in the captured graph: operator, arguments, keyword arguments."""
    seen: List[Tuple[Any, Tuple[Any, ...], Dict[str, Any]]] = []

    class Watch(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            operator: Any = n.target
            if isinstance(operator, torch._ops.OpOverloadPacket):
                operator = operator.default
            if isinstance(operator, torch._ops.OpOverload) and operator.namespace not in ("aten", "prim", "prims"):
                seen.append((operator, *self.fetch_args_kwargs_from_env(n)))
            return super().run_node(n)

    def watched(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        return lambda *args: Watch(graph).run(*args)

    _compile(context, s, s.neuron, watched)(s.x(grad=True))
    return seen
