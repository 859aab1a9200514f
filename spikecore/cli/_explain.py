"""``spikecore explain``: what a network does with its tensors."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from dataclasses import asdict
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, List, Optional

import torch
import typer
from torch import Tensor, nn

from spikecore._base.errors import a_kind
from spikecore.backend import BackendError
from spikecore.dtypes import DTYPES, NARROW
from spikecore.inspect import explain as explain_network


def explain(
    network: str = typer.Argument(
        ...,
        metavar="MODULE:NAME",
        help="A network, or a function without arguments that makes one: package.module:name, or path/to/file.py:name.",
    ),
    shapes: List[str] = typer.Option(
        ..., "--input", metavar="SHAPE", help="Of an input, as 8,1,28,28; again for each further input of the network."
    ),
    dtype: str = typer.Option("float32", help=f"{', '.join(DTYPES)}: of the inputs and the network."),
    device: str = typer.Option("auto", help="cpu, cuda or another device of torch; auto is the GPU if there is one."),
    backend: Optional[str] = typer.Option(None, help="Of every neuron; by default what each of them would get."),
    inference: bool = typer.Option(False, "--inference", help="A forward pass in eval mode, no backward pass."),
    autocast: Optional[str] = typer.Option(None, help=f"{', '.join(sorted(NARROW))}: run under torch.autocast."),
    channels_last: bool = typer.Option(False, "--channels-last", help="Network and images in this memory format."),
    seed: int = typer.Option(0, help="Of the weights and of the inputs, which are uniform random numbers in [0, 1)."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON: layers, advice, device, training."),
) -> None:
    """Run a network once, and show what it does with its tensors, layer by layer, with advice."""
    try:
        if not 0 <= seed < 2**63:
            raise ValueError(f"--seed {seed} must be from 0 to 2**63 - 1")
        torch.manual_seed(seed)
        place = _device(device)
        net = _network(network).to(place, _one("dtype", dtype))
        inputs = [torch.rand(_shape(text)).to(place, _one("dtype", dtype)) for text in shapes]
        if channels_last:
            net, inputs = _channels_last(net), [_channels_last(x) for x in inputs]
        casts = torch.autocast(place.type, dtype=_one("autocast", autocast)) if autocast else nullcontext()
        with casts:
            explanation = explain_network(net, tuple(inputs), backend=backend, training=not inference)
    except (BackendError, ImportError, RuntimeError, TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(json.dumps(asdict(explanation), indent=2) if as_json else str(explanation))


def _network(text: str) -> nn.Module:
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name:
        raise ValueError(f"{text!r} must be MODULE:NAME or path/to/file.py:NAME")
    sys.path.insert(0, str(Path(where).resolve().parent) if where.endswith(".py") else os.getcwd())
    try:
        module = _file(Path(where)) if where.endswith(".py") else import_module(where)
        value: Any = module
        for part in name.split("."):
            if not hasattr(value, part):
                raise ValueError(f"{where} has no {name!r}")
            value = getattr(value, part)
        if callable(value) and not isinstance(value, nn.Module):
            value = value()
    finally:
        sys.path.pop(0)
    if not isinstance(value, nn.Module):
        raise TypeError(f"{text} is {a_kind(value)}; name an nn.Module or what makes one without arguments")
    return value


def _file(path: Path) -> Any:
    spec = spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ValueError(f"there is no file {path}")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _device(name: str) -> torch.device:
    """The device of this name. Raises ValueError for one that is not here."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:  # torch without CUDA fails an assertion
        why = str(error).splitlines()[0]
        raise ValueError(f"--device {name!r} is not usable here ({why}); give cpu, or leave it out") from error
    return device


def _one(what: str, name: Optional[str]) -> torch.dtype:
    if name is None or name not in DTYPES or (what == "autocast" and name not in NARROW):
        known = sorted(NARROW) if what == "autocast" else DTYPES
        raise ValueError(f"{what} {name!r} is not known; there are: {', '.join(known)}")
    return DTYPES[name]


def _shape(text: str) -> List[int]:
    try:
        shape = [int(part) for part in text.split(",")]
    except ValueError:
        shape = []
    if not shape or min(shape) < 1:
        raise ValueError(f"--input {text!r} must be whole numbers above 0 with commas between them, as 8,1,28,28")
    return shape


def _channels_last(what: Any) -> Any:
    """A network, or the images among the inputs, channels-last; ``[T, B, C, H, W]`` step by step."""
    if isinstance(what, nn.Module):
        return what.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # which torch.nn.Module has
    if isinstance(what, Tensor) and what.ndim == 5:
        return what.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, what.shape[:2])
    return what.contiguous(memory_format=torch.channels_last) if what.ndim == 4 else what
