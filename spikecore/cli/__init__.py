"""The ``spikecore`` command: its commands, their options and their help.

Rules of this package:

- Click and Rich are imported here and nowhere else.
- This module imports no torch, so that help and completion start at once. What a command does is the function ``name``
  of the module ``_name``, which is imported when the command runs.
- A command calls the library and shows the result; ``--json`` prints the same facts for programs, and nothing else.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Callable, List, Mapping, TypeVar

import click

from spikecore._version import __version__

#: The exit status of what SIGINT (2) ends: 128 + 2.
INTERRUPTED = 130
#: ``--json`` without a file: standard output.
STDOUT = "-"
_DTYPES = ("float16", "bfloat16", "float32", "float64")
_EXIT_CODES = """\b
Exit codes:
  0  it conforms: the whole default suite ran and every core case passed,
     or whole tiers ran and nothing failed
  1  it does not conform
  2  an argument is wrong
  3  partial: nothing is wrong, and something was left out
  4  not tested: nothing passed

"""
_F = TypeVar("_F", bound=Callable[..., Any])

#: Heading of the help -> the commands below it.
_SECTIONS: Mapping[str, List[str]] = {
    "Commands": ["backends", "explain", "kernel", "export", "check", "cache", "bench"],
    "Commands for authors of a backend": ["conformance", "new-backend"],
}


class _Group(click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in _SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(100)) for name in names])


class _Conformance(click.Command):
    def parse_args(self, ctx: click.Context, args: List[str]) -> List[str]:
        """Takes ``--json`` with and without a file, and ``--merge`` with several. A word after ``--json`` is a file if
        it is ``-`` or ends in ``.json``: else ``--json mine`` would write a file of the name of the backend.
        """
        words: List[str] = []
        option = ""
        for word in [*args, ""]:
            file = word == STDOUT or word.endswith(".json")
            if option == "--json" and not file:
                words.append(STDOUT)
            if option == "--merge" and file and words[-1] != "--merge":
                words.append("--merge")
            option = option if option == "--merge" and file else word
            words.append(word)
        return super().parse_args(ctx, words[:-1])


def _examples(*calls: str) -> str:
    """The end of a help. Click breaks no lines of a paragraph that begins with a backspace."""
    return "\n".join(["\b", "Examples:", *(f"  spikecore {call}" for call in calls)])


def _option(*names: str, help: str, metavar: str = "NAME", **extra: Any) -> Callable[[_F], _F]:
    return click.option(*names, metavar=metavar, help=help, **extra)


def _options(*names: str, help: str, **extra: Any) -> Callable[[_F], _F]:
    return _option(*names, multiple=True, help=f"{help} May be repeated.", **extra)


def _number(*names: str, **extra: Any) -> Callable[[_F], _F]:
    return _option(*names, **{"type": int, "metavar": "N", **extra})


def _choice(name: str, *values: str, help: str, **extra: Any) -> Callable[[_F], _F]:
    return click.option(name, type=click.Choice(values), help=help, **extra)


def _path(*names: str, help: str, metavar: str = "FILE", **extra: Any) -> Callable[[_F], _F]:
    return _option(
        *names, type=click.Path(dir_okay=metavar == "DIR", path_type=Path), metavar=metavar, help=help, **extra
    )


def _flag(*names: str, help: str) -> Callable[[_F], _F]:
    return click.option(*names, is_flag=True, help=help)


def _run(name: str, options: Mapping[str, Any]) -> None:
    try:
        getattr(import_module(f"{__name__}._{name}"), name)(**options)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None


@click.group(
    "spikecore",
    cls=_Group,
    context_settings={"show_default": True},
    epilog=_examples("backends --probe", "explain model.py:net --input 8,1,28,28", "kernel LIF --learn tau"),
)
@click.version_option(__version__, message="spikecore %(version)s")
def app() -> None:
    """Spiking neurons, written once as equations, run on every accelerator."""


@app.command(epilog=_examples("backends", "backends --probe", "backends --probe --numbers --into folder"))
@_flag("--probe", help="Load each backend and try whether it works here.")
@_flag("--numbers", help="Measure errors of + - * / and functions, subnormals and contraction on each that works.")
@_flag("--json", "as_json", help="Print JSON: a list with one object per backend.")
@_path("--into", metavar="DIR", help="Write what --numbers measures into this folder, a file for each device.")
def backends(**options: Any) -> None:
    """List the backends, and which of them are installed.

    Without --probe no backend is imported.
    """
    _run("backends", options)


@app.command(
    epilog=_examples(
        "explain model.py:net --input 8,1,28,28",
        "explain package.module:Net --input 8,32,700 --device cuda",
        "explain model.py:net --input 8,1,28,28 --inference --json",
    )
)
@click.argument("network", metavar="MODULE:NAME")
@_options("--input", "shapes", metavar="SHAPE", required=True, help="Shape of an input: 8,1,28,28.")
@_choice("--dtype", *_DTYPES, default="float32", help="Type of the inputs and the network.")
@_option("--device", default="auto", help="cpu, cuda or another device of torch. auto is the GPU if there is one.")
@_option("--backend", help="Backend of every neuron. Without it each has the one that it would get.")
@_flag("--inference", help="A forward pass in eval mode, no backward pass.")
@_choice("--autocast", "bfloat16", "float16", help="Run under torch.autocast.")
@_flag("--channels-last", help="Network and images in this memory format.")
@_number("--seed", type=click.IntRange(0), default=0, help="Seed of the weights and of the inputs.")
@_flag("--json", "as_json", help="Print JSON: layers, advice, device, training.")
def explain(**options: Any) -> None:
    """Run a network once and show what each layer does with its tensors, with advice.

    The inputs are uniform random numbers in [0, 1). MODULE:NAME is a network, or a class or function that makes one
    without arguments. MODULE is a file's path or an importable module.
    """
    _run("explain", options)


@app.command(
    epilog=_examples(
        "kernel LIF",
        "kernel Leaky --set beta=0.8 --dtype bfloat16 --direction forward",
        "kernel neurons.py:MyNeuron --backend triton --learn tau",
    )
)
@click.argument("neuron")
@_option("--backend", default="cupy", help="The backend. It need not work on this machine.")
@_choice("--dtype", *_DTYPES, default="float32", help="Type of inputs and outputs.")
@_option("--surrogate", help="ATan, Sigmoid, Triangular, ... Without it the neuron's own.")
@_option("--reset", help="hard, soft or none. Without it the neuron's own.")
@_number("--steps", type=click.IntRange(1), default=4, help="Time steps. Above 16 one kernel serves all numbers.")
@_options("--learn", help="Learn this parameter.")
@_options("--set", "values", metavar="NAME=VALUE", help="Set an argument: beta=0.8, decay_input=false.")
@_choice("--direction", "forward", "backward", "both", default="both", help="Which of the two kernels.")
def kernel(**options: Any) -> None:
    """Show the kernels that a backend generates for a neuron.

    It needs no GPU and no compiler.

    NEURON is a neuron of spikecore (LIF, Leaky, Synaptic, ...; a wrong name lists them all), or one of your own as
    MODULE:NAME. MODULE is a file's path or an importable module, and NAME a class or an object.
    """
    _run("kernel", options)


@app.command(
    epilog=_examples(
        "export package.module:network --example data.pt --out folder",
        "export model.py:net --example x.pt --out folder --inputs 0,0,1",
        "export model.py:net --example x.pt --onnx net.onnx",
    )
)
@click.argument("network", metavar="MODULE:NAME")
@_path("--example", required=True, help="Inputs over time, [T, B, ...], as torch.save wrote them.")
@_path("--out", metavar="DIR", help="Write a program in C into this folder.")
@_path("--onnx", help="Write this file of ONNX instead.")
@_option("--steps", metavar="any|N", default="any", help="Time steps that ONNX takes: any number, or N unrolled ones.")
@_option("--name", default="network", help="Name of the program in C: of its files, its struct and its functions.")
@_choice("--dtype", "fixed", "float32", default="fixed", help="C of integers, or of floats of 32 bits.")
@_option("--inputs", metavar="FRAC,LOW,HIGH", help="Format of the inputs of C: 0,0,1 for spikes.")
@_flag("--json", "as_json", help="Print JSON: folder, files and sizes, or file, bytes, input and compared.")
def export(**options: Any) -> None:
    """Write a network as a program in C11, for machines without Python, or as ONNX.

    MODULE:NAME is a network, or a class or function that makes one without arguments. MODULE is a file's path or an
    importable module.
    """
    _run("export", options)


@app.command(
    epilog="\b\nExit codes:\n  0  equal\n  1  a node differs\n  2  cannot be compared\n\n"
    + _examples("check digits.nir --against snntorch", "check theirs.nir --against norse --dt 1e-3 --input 100,8,784")
)
@click.argument("file", type=click.Path(path_type=Path))
@_option("--against", metavar="LIBRARY", required=True, help="snntorch, norse or sinabs, which must be installed.")
@_number("--dt", type=float, metavar="SECONDS", help="Time step.  [default: that of the file, or of the library]")
@_choice("--discretization", "euler", "exp", help="Read NIR's equations, in Euler's or the exact steps.")
@_option(
    "--convention",
    metavar="LIBRARY[,FIELD=VALUE]",
    help="Read the file as this library computes what it writes; fields of sc.nir.Convention change that.",
)
@_option(
    "--input", "shape", metavar="SHAPE", help="T,B,... of the random input.  [default: 40,8, and as the file says]"
)
@_options("--scale", "scales", type=float, metavar="X", help="Size of the input's samples.", default=(0.5, 2, 8, 32))
@_number("--seed", type=click.IntRange(0), default=0, help="Seed of the input.")
@_flag("--json", "as_json", help="Print JSON: file, library, inputs, nodes, first, silent, equal.")
def check(**options: Any) -> None:
    """Run a file of NIR here and in another library, and show which node differs.

    Without --discretization and --convention a file of spikecore is read as it was saved, another one as LIBRARY
    computes what it writes.
    """
    _run("check", options)


@app.command(epilog=_examples("cache", "cache --json", "cache --clear"))
@_flag("--clear", help="Remove all compiled kernels. They are compiled again when needed.")
@_flag("--json", "as_json", help="Print JSON: folder, limit, files and bytes by kind.")
def cache(**options: Any) -> None:
    """Show the folder of compiled kernels and its size, or empty it.

    SPIKECORE_CACHE_DIR names another folder, and SPIKECORE_CACHE_SIZE is its limit in MiB.
    """
    _run("cache", options)


@app.command(
    epilog=_examples(
        "bench --quick",
        "bench --suite neurons --neuron LIF --steps 16 --json lif.json",
        "bench --from lif.json --plot lif.svg",
    )
)
@_options(
    "--suite",
    "suites",
    default=["all"],
    help="neurons, layouts, steps, small, single, calls, beside, documents, networks, norms, recurrent, online, "
    "pipeline, open-neuromorphic, shd or all.",
)
@_option("--device", default="auto", help="cpu, cuda or cuda:1. auto is the GPU if there is one.")
@_flag("--quick", help="Rough figures of a few cases in one to three minutes.")
@_options("--backend", "backends", help="Measure this backend only.")
@_options("--neuron", "neurons", help="Measure this neuron only: LIF, own-neuron.")
@_options("--network", "networks", help="Train this network only: fc, cifar10.")
@_options("--form", "forms", help="Train in this form only: eager, 'channels-last compiled CUDA graph'.")
@_options("--dtype", "dtypes", help="float32, bfloat16, float16 or float64.")
@_options("--steps", type=int, metavar="N", help="Time steps of neurons and small layers.")
@_options("--layout", "layouts", help="Layout of the suite steps: flat, odd.")
@_number("--elements", help="Time steps times neurons of a row. By default they fill the device.")
@_number("--size", default=40, help="Neurons of a small layer.")
@click.option(
    "--peers/--no-peers", default=True, help="Measure SpikingJelly, snnTorch, Norse and others where installed."
)
@_options("--peer", "peer_names", help="Measure this other library only.")
@_options("--case", "cases", help="Measure this size of open-neuromorphic or shd only: n=4096, 'H=128,B=64'.")
@_option(
    "--budget",
    metavar="SECONDS",
    type=float,
    default=None,
    help="Seconds of each library in a case of open-neuromorphic or shd.  [default: 60, on a CPU 120]",
)
@_number("--compile-steps", help="Measure torch.compile up to N steps, 0 for never.  [default: 4, with --quick 0]")
@_number("--threads", type=click.IntRange(1), help="Threads of torch on the CPU.")
@_number("--repetitions", help="Turns of every implementation. A figure is their median.  [default: 9]")
# how the tables of docs/benchmarks are measured, which says what these are
@_option("--turn", type=float, hidden=True, help="Seconds of a turn at least.  [default: 0.02, on a CPU 0.05]")
@_number("--workers", default=0, hidden=True, help="Processes that compile networks before the first is timed.")
@_path("--json", help="Write the report to this file, after every case.")
@_path("--plot", help="Draw the report to this file: .png, .svg, .pdf.")
@_path("--from", "given", help="Measure nothing. Show this report of --json.")
def bench(**options: Any) -> None:
    """Measure backends, torch.compile and other libraries on this machine.

    Spikes and gradients are checked first. Exit code 1: a backend computes something else than the reference.
    Ctrl-C shows what was measured by then and exits with 130.
    """
    _run("bench", options)


@app.command(
    cls=_Conformance,
    epilog=_EXIT_CODES
    + _examples(
        "conformance torch --tier core",
        "conformance mine --case 'gradient/*'",
        "conformance mine --json report.json --badge badge.svg",
    ),
)
@click.argument("name", required=False)
@_options(
    "--tier",
    help="Run this tier: core, dtypes, parameters, state, language, edges, fixed, layouts, sequences, ownership, "
    "robust, compile, generated, random or own.",
)
@_options("--case", metavar="ID", help="Run this case, or those of a pattern, in this order: 'gradient/*'.")
@_flag("--list", "list_cases", help="List the cases and what must hold. Run nothing.")
@_option("--device", help="Device of torch. Without it the CPU if the backend takes it, else its first.")
@_number("--seed", type=click.IntRange(0), help="Seed of random programs (also: SPIKECORE_SEED).")
@_flag("--require", help="A backend that cannot be tested is a failure (also: SPIKECORE_REQUIRE).")
@_option("--json", "as_json", metavar="[FILE.json]", help="Write the report as JSON. Without a file, print it only.")
@_path("--junit", "junit_file", help="Write the report as JUnit XML.")
@_path("--badge", "badge_file", help="Write the verdict as an SVG badge.")
@_flag("--report", "as_text", help="Print the report as Markdown, to be pasted into an issue.")
@_path("--compare", metavar="OLD.json", help="Say what changed since this report. What got worse is a failure.")
@_path("--merge", "merged", metavar="A.json B.json", multiple=True, help="Run nothing. Merge reports of parts.")
def conformance(**options: Any) -> None:
    """Check that a backend computes what the equations say.

    NAME is the backend.
    """
    _run("conformance", options)


@app.command("new-backend", epilog=_examples("new-backend tape", "new-backend tape --kernel --into projects"))
@click.argument("name")
@_flag("--kernel", help="Begin with two launches, forward and backward, on arrays.")
@_path("--into", metavar="DIR", default=".", help="Folder to write the project into.")
def new_backend(name: str, kernel: bool, into: Path) -> None:
    """Write a project for a new backend.

    It can be installed and passes the conformance suite as it is. NAME is a lower-case identifier.
    """
    from spikecore._scaffold import write_project

    try:
        root = write_project(name, into, kernel)
    except (ValueError, FileExistsError) as error:
        raise click.UsageError(str(error)) from error
    click.echo(
        f"wrote {root}\n\n"
        f"  pip install -e {root}\n"
        f"  spikecore conformance {name} --tier core\n\n"
        f"The backend is {root / f'spikecore_{name}' / '__init__.py'}; docs/backends.md says what it must do."
    )


def main() -> None:
    """Entry point of the console script."""
    app()
