"""``spikecore explain``: what a network does with its tensors."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict
from typing import Optional, Sequence

import click
import torch

from spikecore import batches
from spikecore.backend import BackendError
from spikecore.cli._named import network as named_network
from spikecore.cli._named import shape
from spikecore.dtypes import DTYPES
from spikecore.inspect import explain as explain_network


def explain(
    network: str,
    shapes: Sequence[str],
    dtype: str,
    device: str,
    backend: Optional[str],
    inference: bool,
    autocast: Optional[str],
    channels_last: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Run the network on random inputs, and print what the library says about it."""
    try:
        torch.manual_seed(seed)
        place = _device(device)
        net = named_network(network).to(place, DTYPES[dtype])
        inputs = [torch.rand(shape(text)).to(place, DTYPES[dtype]) for text in shapes]
        if channels_last:
            net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # which torch.nn.Module has
            inputs = batches.channels_last(inputs, 2)
        casts = torch.autocast(place.type, dtype=DTYPES[autocast]) if autocast else nullcontext()
        with casts:
            explanation = explain_network(net, tuple(inputs), backend=backend, training=not inference)
    except BackendError as error:
        raise click.UsageError(str(error)) from error
    except RuntimeError as error:  # of a layer, which names no option
        raise click.UsageError(f"{network} on --input {' --input '.join(shapes)}: {error}") from error
    except (ImportError, TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    click.echo(json.dumps(asdict(explanation), indent=2) if as_json else str(explanation))


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
