"""``torch.compile`` and registered operators, where the backend declares them.

All but one use ``aot_eager``, which captures and differentiates the graph as the default backend does, and generates no
code.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch
from torch import nn

import spikecore as sc
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch
from spikecore.testing._context import Context
from spikecore.testing._subject import Subject

_GRADIENTS = ("gradients",)
_CAPTURE = "aot_eager"


def add_to(cases: Collection) -> None:
    """Add the cases of this tier."""

    def add(name: str, holds: str, run: Callable[..., None], needs: Sequence[str] = ()) -> None:
        quiet = partial(_quietly, run)
        cases.add(f"compile/{name}", "compile", holds, quiet, ("torch_compile", *needs), undeclared="nothing")

    for model, reset in (("lif", "hard"), ("alif", "soft"), ("leaky", "soft")):
        same = partial(compiled, model=model, reset=reset)
        add(f"{model}-{reset}", "torch.compile(fullgraph=True) gives the same outputs and gradients", same, _GRADIENTS)
    add(
        "inductor",
        "so it does with the default backend, which generates code",
        partial(compiled, model="lif", reset="hard", shape=(3, 3, 7), backend="inductor"),
        _GRADIENTS,
    )
    add(
        "parameters",
        "learnt parameters get their gradients through a compiled graph",
        parameters,
        (*_GRADIENTS, "parameter_gradients"),
    )
    add("network", "a neuron between two layers compiles in one graph", network, _GRADIENTS)
    add("sizes", "a compiled neuron takes other numbers of neurons", partial(sizes, shapes=((4, 5, 7), (4, 8, 9))))
    add(
        "steps",
        "a compiled neuron takes other numbers of steps",
        partial(sizes, shapes=((6, 3, 7), (9, 3, 7), (17, 3, 7))),
    )
    add(
        "opcheck",
        "torch.library.opcheck finds no fault with the operators that a compiled neuron calls",
        opcheck,
        _GRADIENTS,
    )


def _quietly(run: Callable[[Context], None], context: Context) -> None:
    """Run without torch's warnings about torch, which a strict pytest would raise inside of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(context)


def _compile(context: Context, subject: Subject, module: Any, backend: Any = _CAPTURE) -> Callable[..., Any]:
    """The compiled module, once its neuron has been seen to run on this backend."""
    subject.check_outputs(subject.neuron(subject.x()))
    # a counter around the runner would be compiled as well: from now on the neuron gets the runner itself
    context.witness.aside = True
    sc.set_backend(subject.neuron, context.name)
    torch._dynamo.reset()
    made: Callable[..., Any] = torch.compile(module, fullgraph=True, backend=backend)
    return made


def compiled(
    context: Context, model: str, reset: str, shape: Sequence[int] = (5, 3, 7), backend: str = _CAPTURE
) -> None:
    """Forward and backward."""
    s = Subject(context, model, reset, shape=shape)
    call = _compile(context, s, s.neuron, backend)
    x = s.x(grad=True)
    output = call(x)
    s.check_outputs(output, " under torch.compile")
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    s.check("input gradient", x.grad, s.gradients(cotangent).inputs[0], name="torch.compile")


def parameters(context: Context) -> None:
    """tau and threshold."""
    s = Subject(context, "lif", "hard", learn=("tau", "threshold"), shape=(5, 3, 7))
    output = _compile(context, s, s.neuron)(s.x())
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    expected = s.gradients(cotangent).params
    for name, parameter in s.neuron.named_parameters():
        s.check("parameter gradient", parameter.grad, expected[name], name=f"{name} under torch.compile")


def network(context: Context) -> None:
    """Identity layers around it, so that the oracle is the neuron's."""
    s = Subject(context, "lif", "soft", shape=(5, 3, 7))
    layers = [nn.Linear(7, 7, bias=False) for _ in range(2)]
    for layer in layers:
        nn.init.eye_(layer.weight)
    net = context.place(nn.Sequential(layers[0], s.neuron, layers[1]))
    x = s.x(grad=True)
    output = _compile(context, s, net)(x)
    s.check_outputs(output, " of a compiled network")
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    s.check("input gradient", x.grad, s.gradients(cotangent).inputs[0], name="a compiled network")


def sizes(context: Context, shapes: Sequence[Sequence[int]]) -> None:
    """One shape after the other, so that PyTorch begins to take a size for a variable."""
    s = Subject(context, "lif", "hard", shape=(4, 3, 7))
    call = _compile(context, s, s.neuron)
    for shape in ((4, 3, 7), *shapes):
        other = Subject(context, "lif", "hard", shape=shape)
        other.check_outputs(call(other.x()), " of other sizes under torch.compile")


def opcheck(context: Context) -> None:
    """Every operator that is not PyTorch's own, with the arguments it is called with. A backend need have none."""
    s = Subject(
        context, "lif", "hard", learn=("tau",) if context.declares("parameter_gradients") else (), shape=(5, 3, 7)
    )
    for operator, args, kwargs in _operator_calls(context, s):
        try:
            _opcheck()(operator, args, kwargs)
        except Exception as error:
            raise Mismatch(f"opcheck of {operator}: {type(error).__name__}: {error}") from error


def _opcheck() -> Any:
    check = getattr(torch.library, "opcheck", None)  # since torch 2.4
    if check is None:
        from torch.testing._internal.optests import generate_tests

        check = generate_tests.opcheck
    return check


def _operator_calls(context: Context, subject: Subject) -> List[Tuple[Any, Tuple[Any, ...], Dict[str, Any]]]:
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

    _compile(context, subject, subject.neuron, watched)(subject.x(grad=True))
    return seen
