"""``spikecore kernel``: the texts of generated kernels."""

from __future__ import annotations

import difflib
from typing import Any, Mapping, Sequence

import click
from rich.console import Console
from rich.syntax import Syntax
from torch import nn

from spikecore.backend import BackendError
from spikecore.cli._named import named
from spikecore.core.neuron import Neuron
from spikecore.dtypes import DTYPES
from spikecore.inspect import kernel_source
from spikecore.neurons import MODELS, example
from spikecore.surrogate import SURROGATES


def kernel(
    neuron: str, backend: str, dtype: str, steps: int, values: Sequence[str], direction: str, **options: Any
) -> None:
    """Make the neuron, with those options that were given, and print the texts of its kernels."""
    try:
        options = {name: value for name, value in options.items() if value}
        options.update(map(_pair, values))
        if "surrogate" in options:
            options["surrogate"] = _named("surrogate", options["surrogate"], SURROGATES)()
        texts = kernel_source(_neuron(neuron, options), backend, DTYPES[dtype], steps)
    except (BackendError, ImportError, TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    _show("\n".join(text for name, text in texts.items() if direction in (name, "both")))


def _neuron(text: str, options: Mapping[str, Any]) -> Neuron:
    """The neuron of this name, with these arguments; or that of ``MODULE:NAME``."""
    if ":" not in text and not text.endswith(".py"):
        _named("neuron", text, MODELS)
        return example(text, **options)
    value = named(text)
    if isinstance(value, Neuron) and options:
        raise ValueError(f"{text} is a neuron already; name its class for --set, --learn, --reset and --surrogate")
    made: Neuron = value if isinstance(value, nn.Module) or not callable(value) else value(**options)
    return made  # what it is, kernel_source checks


def _named(what: str, name: str, known: Mapping[str, Any]) -> Any:
    """The value of this name. The error has the nearest name and all of them."""
    if name in known:
        return known[name]
    lower = {key.lower(): key for key in known}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    hint = f"did you mean {lower[close[0]]!r}? " if close else ""
    raise ValueError(f"no {what} is called {name!r}; {hint}Known: {', '.join(known)}")


def _pair(text: str) -> Any:
    name, _, value = text.partition("=")
    flags = {"true": True, "false": False}
    try:
        return name.strip(), flags[value.lower()] if value.lower() in flags else float(value)
    except ValueError:
        raise ValueError(f"--set {text!r} must be NAME=VALUE with a number, true or false: beta=0.8") from None


def _show(text: str) -> None:
    """In colours on a terminal; elsewhere the text and nothing else."""
    console = Console()
    if console.is_terminal:
        lexer = "cuda" if "__global__" in text else "python"
        console.print(Syntax(text, lexer, theme="ansi_dark").highlight(text), soft_wrap=True, end="")
    else:
        click.echo(text, nl=False)
