"""``spikecore kernel``: the texts of generated kernels."""

from __future__ import annotations

import difflib
from typing import Any, Dict, List, Mapping, Optional, TypeVar

import typer
from rich.console import Console
from rich.syntax import Syntax

from spikecore.backend import BackendError
from spikecore.dtypes import DTYPES
from spikecore.inspect import kernel_source
from spikecore.neuron import Neuron
from spikecore.neurons import MODELS, example
from spikecore.surrogate import SURROGATES

DIRECTIONS = ("forward", "backward")
_T = TypeVar("_T")


def kernel(
    neuron: str = typer.Argument(..., metavar="NEURON", help=f"{', '.join(MODELS)}."),
    backend: str = typer.Option("cupy", help="The backend that prints; it need not be usable here."),
    dtype: str = typer.Option("float32", help=f"{', '.join(DTYPES)}: of inputs and outputs."),
    surrogate: str = typer.Option("ATan", help=f"{', '.join(SURROGATES)}."),
    reset: Optional[str] = typer.Option(None, help="hard, soft or none; by default the neuron's own."),
    steps: int = typer.Option(4, min=1, help="Time steps; beyond 16 the kernels are those for any number."),
    learn: List[str] = typer.Option([], help="Learn this parameter; may be repeated."),
    values: List[str] = typer.Option(
        [],
        "--set",
        metavar="NAME=VALUE",
        help="Set an argument of the neuron: beta=0.8, decay_input=false; may be repeated. Leaky has beta=0.9 without.",
    ),
    direction: str = typer.Option("both", help="forward, backward or both."),
) -> None:
    """Show the kernels that a backend generates for a neuron. Needs no GPU, and no compiler."""
    try:
        directions = _one("direction", direction, {**{name: (name,) for name in DIRECTIONS}, "both": DIRECTIONS})
        made = _made(neuron, surrogate, reset, learn, dict(_pair(text) for text in values))
        texts = kernel_source(made, backend, _one("dtype", dtype, DTYPES), steps)
    except (BackendError, TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    _show("\n".join(texts[name] for name in directions))


def _made(name: str, surrogate: str, reset: Optional[str], learn: List[str], given: Mapping[str, Any]) -> Neuron:
    _one("neuron", name, MODELS)
    options: Dict[str, Any] = {"surrogate": _one("surrogate", surrogate, SURROGATES)(), **given}
    if reset is not None:
        options["reset"] = reset
    if learn:
        options["learn"] = tuple(learn)
    return example(name, **options)


def _one(what: str, name: str, known: Mapping[str, _T]) -> _T:
    """The one of this name, or an error with the nearest."""
    if name in known:
        return known[name]
    lower = {key.lower(): key for key in known}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    hint = f"did you mean {lower[close[0]]!r}? " if close else ""
    raise ValueError(f"no {what} is called {name!r}; {hint}Known: {', '.join(known)}")


def _pair(text: str) -> Any:
    name, equals, value = text.partition("=")
    flags = {"true": True, "false": False}
    try:
        return name.strip(), flags[value.lower()] if value.lower() in flags else float(value)
    except ValueError:
        said = f"--set {text!r} must be NAME=VALUE with a number, true or false"
        raise ValueError(said if equals else f"{said}, such as beta=0.8") from None


def _show(text: str) -> None:
    """In colours on a terminal; elsewhere the text and nothing else."""
    console = Console()
    if console.is_terminal:
        lexer = "cuda" if "__global__" in text else "python"
        console.print(Syntax(text, lexer, theme="ansi_dark").highlight(text), soft_wrap=True, end="")
    else:
        typer.echo(text, nl=False)
