"""The ``spikecore`` command.

Rules of this package:

- Typer and Rich are imported here and nowhere else.
- A command is the function ``name`` of the module ``_name``, which is imported when the command runs: ``--help`` and
  ``--version`` import no torch.
- Options are default values: before Python 3.10 Typer sees no ``Annotated`` behind postponed annotations.
- A command calls the library and shows the result; ``--json`` prints the same facts for programs, and nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, List, Mapping, Optional

import typer
from typer.core import TyperCommand, TyperGroup

from spikecore._version import __version__

#: Command -> what it does, the first line of its help.
COMMANDS: Mapping[str, str] = {
    "backends": "List the installed backends. Imports none of them, unless --probe.",
    "conformance": "Check that a backend computes what the equations say.",
    "bench": "Measure the backends beside a copy of the data, torch.compile and other libraries.",
    "kernel": "Show the kernels that a backend generates for a neuron. Needs no GPU, and no compiler.",
    "explain": "Run a network once, and show what it does with its tensors, layer by layer, with advice.",
    "cache": "Show where compiled kernels are kept, how many and how large; or remove them.",
    "new-backend": "Write a project for a new backend, which installs and passes the conformance suite as it is.",
}


def load(name: str) -> Any:
    """A command, with the function that is called and its options."""
    word = name.replace("-", "_")
    module = import_module(f"{__name__}._{word}")
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name, cls=getattr(module, "Command", TyperCommand))(getattr(module, word))
    return typer.main.get_command(alone)


class _Command(TyperCommand):
    """A command whose module is imported when its arguments are read."""

    def make_context(self, info_name: Optional[str], args: List[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the command itself, which then runs."""
        return load(self.name or "").make_context(info_name, args, parent, **extra)


class _Commands(TyperGroup):
    """The commands of :data:`COMMANDS`."""

    def list_commands(self, ctx: Any) -> List[str]:
        """Names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name."""
        return _Command(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None


app = typer.Typer(
    name="spikecore", cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spikecore {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Spiking neurons, written once as equations, run on every accelerator."""


def main() -> None:
    """Entry point of the console script."""
    app()
