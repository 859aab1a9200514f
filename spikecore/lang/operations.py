"""Operations of the language: one row each, which every tool reads.

:mod:`spikecore.lang.ops` declares them, each once. :data:`ROWS` is read by nodes (arity), the reference (torch),
adjoints (gradient), printers (c, python), values that record (names that torch and NumPy have for it), tables of other
libraries (numpy), the pages, and the suite's lists. A target has a line of its own where it has no such function.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

#: Precedences of operators, loosest first. A template's arguments are put in parentheses when they bind less tightly.
TERNARY, OR, AND, EQUALITY, ORDER, SUM, PRODUCT, UNARY, ATOM = range(9)

#: Precedence of a text, and its template. Beside the arguments a template may have ``{f}``, the suffix of C's functions
#: for floats; ``{math}``, the module of Python's; ``{zero}``, ``{one}`` and ``{compare}``, ``>`` or ``>=``.
Template = Tuple[int, str]
#: op -> its template.
Templates = Dict[str, Template]

#: rule(g, y, args): what the arguments of a node get of its cotangent g, None for nothing; y is the node's value. The
#: values record, so a rule is written with operators and torch's functions.
Rule = Callable[[Any, Any, Sequence[Any]], Sequence[Any]]


class Operation(NamedTuple):
    """An operation: what it means, how it is differentiated and written."""

    name: str
    #: Number of arguments.
    arity: int
    #: Value and derivative of tensors.
    torch: Callable[..., Any]
    #: The reverse rule; None where no gradient flows, and for ``spike`` and ``select``, which torch has not.
    gradient: Optional[Rule]
    c: Template
    #: Template for compilers of Python.
    python: Template
    #: Template for readers; None for a call by name.
    text: Optional[Template] = None
    #: "number", "comparison" (numbers give a truth value), "logic" (of truth values) or "choice" (by a truth value).
    kind: str = "number"
    #: Names of ``torch.<name>`` that record the operation.
    names: Tuple[str, ...] = ()
    #: NumPy's function of the same values, which JAX has, too; "" where there is none.
    numpy: str = ""
    #: True if each bit of the value is fixed: IEEE 754 rounds it, or nothing does.
    exact: bool = False
    #: True if the derivative can be infinite, or not a number, at finite arguments of moderate size.
    unbounded: bool = False
    #: Names of the arguments, for messages, and what the last ones are where they are left out.
    arguments: str = "x"
    defaults: Tuple[float, ...] = ()
    #: Description in a sentence.
    doc: str = ""

    @property
    def is_function(self) -> bool:
        """True if a definition writes it as ``sc.ops.<name>(...)``, and not as an operator or ``self.spike``."""
        return self.text is None


#: Every operation that is not a leaf, in the order in which they are declared, and by name.
ROWS: List[Operation] = []
OPERATION: Dict[str, Operation] = {}

#: Functions of the language that are formulas of operations, by name: a program has the operations alone.
COMPOSED: Dict[str, Callable[..., Any]] = {}

#: Computes an operation on tensors and numbers, or records it: called as ``apply(name, *arguments)``.
#: :mod:`spikecore.lang.eager` sets it, which is above the modules that read the rows.
apply: Callable[..., Any]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def declare(*args: Any, **fields: Any) -> None:
    """Add a row."""
    row = Operation(*args, **fields)
    ROWS.append(row)
    OPERATION[row.name] = row


def composed(written: _Function) -> _Function:
    """Declare a function that is a formula of operations, and has no row: targets need nothing for it."""
    COMPOSED[written.__name__] = written
    return written


def operator(
    name: str,
    torch_: Callable[..., Any],
    gradient: Optional[Rule],
    template: Template,
    numpy: str,
    python: Optional[Template] = None,
    **fields: Any,
) -> None:
    """Declare an operator of one or two arguments; ``python``: how Python and people write it, where C does not."""
    arity, text = 1 + ("{1}" in template[1]), python or template
    declare(name, arity, torch_, gradient, template, text, text, numpy=numpy, exact=True, **fields)


def function(
    torch_: Callable[..., Any],
    gradient: Optional[Rule] = None,
    *,
    c: Union[str, Template] = "",
    python: Union[str, Template] = "",
    helper: bool = False,
    names: Optional[Tuple[str, ...]] = None,
    numpy: Optional[str] = None,
    **fields: Any,
) -> Callable[[_Function], _Function]:
    """Declare the operation that the function below is, which gives name, arguments, defaults and sentence.

    It is a function of the libraries of C, Python and NumPy. ``c``, ``python`` and ``numpy`` are its names there, where
    they differ, or a template of the text. ``helper``: a function that each target defines itself, since a template of
    operators would write an argument twice. What is keyword-only chooses a formula, and is no argument of it.
    """

    def declared(written: _Function) -> _Function:
        name = written.__name__
        parameters = [p for p in inspect.signature(written).parameters.values() if p.kind is not p.KEYWORD_ONLY]
        places = ", ".join(f"{{{i}}}" for i in range(len(parameters)))
        of_c = c if isinstance(c, tuple) else (ATOM, f"{c or name}{'' if helper else '{f}'}({places})")
        call = f"{'' if helper else '{math}.'}{python or name}({places})"
        declare(
            name,
            len(parameters),
            torch_,
            gradient,
            of_c,
            python if isinstance(python, tuple) else (ATOM, call),
            names=(name,) if names is None else names,
            numpy=("" if helper else name) if numpy is None else numpy,
            arguments=", ".join(p.name for p in parameters),
            defaults=tuple(p.default for p in parameters if p.default is not p.empty),
            doc=inspect.cleandoc(written.__doc__ or ""),
            **fields,
        )
        return written

    return declared
