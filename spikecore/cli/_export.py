"""``spikecore export``: a network as a program in C."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

import click
import torch
from torch import Tensor

import spikecore as sc
from spikecore.backend import BackendError
from spikecore.cli._named import network as named_network

#: Arguments that errors name, as options.
_OPTIONS = {
    "inputs=sc.quant.Format(0, 0, 1)": "--inputs 0,0,1",
    "inputs=sc.quant.Format(frac, low, high)": "--inputs FRAC,LOW,HIGH",
    "dtype='float32'": "--dtype float32",
    "dtype='fixed'": "--dtype fixed",
}


def export(network: str, example: Path, out: Path, name: str, dtype: str, inputs: Optional[str], as_json: bool) -> None:
    """Write the program, and print its files and sizes."""
    try:
        net = named_network(network).eval()
        format = None if inputs is None else _format(inputs)
        written = sc.export_c(net, _example(example), out, name=name, dtype=dtype, inputs=format)
    except (BackendError, ImportError, TypeError, ValueError, OSError) as error:
        raise click.UsageError(_in_shell(str(error))) from error
    facts = {
        "folder": str(written.folder),
        "files": [*written.files],
        "flash": written.flash,
        "memory": written.memory,
        "inputs": _in_words(written.inputs),
        "outputs": _in_words(written.outputs),
    }
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    click.echo(
        f"wrote {', '.join(written.files)}\nto {written.folder}\n\n"
        f"  tables in flash   {written.flash} bytes, beside the code\n"
        f"  state in memory   {written.memory} bytes\n"
        f"  inputs            {facts['inputs']}\n"
        f"  outputs           {facts['outputs']}\n\n"
        f"  make -C {written.folder} test"
    )


def _example(path: Path) -> Tensor:
    value: Any = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(value, Tensor):
        raise TypeError(f"--example {path} holds {type(value).__name__}; save one tensor [T, B, ...]")
    return value


def _format(text: str) -> Any:
    try:
        frac, low, high = (int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--inputs {text!r} must be FRAC,LOW,HIGH: 0,0,1 for spikes") from None
    return sc.quant.Format(frac, low, high)


def _in_shell(text: str) -> str:
    """An error with the command's options in place of Python's arguments."""
    for argument, option in _OPTIONS.items():
        text = text.replace(argument, option)
    return text


def _in_words(format: Any) -> str:
    return "floats" if format is None else f"{format.low} to {format.high}, times 2^{-(format.frac or 0)}"
