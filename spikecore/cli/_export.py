"""``spikecore export``: a network as a program in C, or as a file of ONNX."""

from __future__ import annotations

import json
import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, Optional

import click
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.backend import BackendError
from spikecore.cli._named import network as named_network
from spikecore.core.modules import makes_time

#: Arguments that errors name, as options.
_OPTIONS = {
    "inputs=sc.quant.Format(0, 0, 1)": "--inputs 0,0,1",
    "inputs=sc.quant.Format(frac, low, high)": "--inputs FRAC,LOW,HIGH",
    "dtype='float32'": "--dtype float32",
    "dtype='fixed'": "--dtype fixed",
    "leave dimension 0 out of dynamic_shapes": "give --steps N",
}
#: Options of programs in C, which ONNX does not have, and their defaults.
_OF_C = {"name": "network", "dtype": "fixed", "inputs": None}
#: What the axes are called in a file.
_STEPS, _BATCH = "steps", "batch"


def export(
    network: str, example: Path, out: Optional[Path], onnx: Optional[Path], steps: str, as_json: bool, **of_c: Any
) -> None:
    """Write the program or the file, and print what it is."""
    if (out is None) == (onnx is None):
        raise click.UsageError("give --out DIR for a program in C, or --onnx FILE")
    unused = [f"--{name} {of_c[name]}" for name, default in _OF_C.items() if of_c[name] != default]
    if onnx is not None and unused:
        raise click.UsageError(f"{unused[0]} is of programs in C; leave it out beside --onnx")
    if onnx is None and steps != "any":
        raise click.UsageError(f"--steps {steps} is of ONNX; a program in C computes one step at a call")
    try:
        net, x = named_network(network).eval(), _example(example)
        if onnx is None:
            _program(net, x, out, as_json=as_json, **of_c)
        else:
            _file(net, x, onnx, steps, as_json)
    except (BackendError, ImportError, TypeError, ValueError, OSError) as error:
        raise click.UsageError(_in_shell(str(error))) from error


def _program(net: nn.Module, x: Tensor, out: Any, name: str, dtype: str, inputs: Optional[str], as_json: bool) -> None:
    format = None if inputs is None else _format(inputs)
    written = sc.export_c(net, x, out, name=name, dtype=dtype, inputs=format)
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


def _file(net: nn.Module, example: Tensor, file: Path, steps: str, as_json: bool) -> None:
    """Write ONNX, and compare it with the network where ONNX Runtime is installed."""
    lacking = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if lacking:
        raise ImportError(f"--onnx needs {' and '.join(lacking)}: pip install 'spikecore[onnx]'")
    if not hasattr(getattr(torch, "compiler", None), "is_exporting"):
        raise ImportError(f"--onnx needs torch 2.7 or later, and this is {torch.__version__}")
    if makes_time(net):
        raise ValueError(
            "the network makes time itself, and --onnx takes inputs over time, [T, B, ...]; leave repeat= and encoders "
            "out, net[1].repeat = None, and save x.expand(T, *x.shape)"
        )
    x, dynamic = _sized(example, steps)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it says which libraries it did not see
    # without gradients, which a scan of a layer with delays would make part of its step
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own modules
        program = _exported(nn.Sequential(net), x, dynamic)  # a neuron by itself takes several inputs
        # the optimiser takes minutes for hundreds of unrolled steps
        written: Any = torch.onnx.export(program, (), dynamo=True, verbose=False, optimize=steps == "any")
        want = net(x)
    for node in written.model.graph.all_nodes():
        node.metadata_props.clear()  # lines of sources, with the folders of this machine
    written.save(str(file), external_data=False)
    compared = _compared(file, x, want) if isinstance(want, Tensor) else None
    size, sizes = file.stat().st_size, [steps if steps == "any" else int(steps), "any", *x.shape[2:]]
    if as_json:
        click.echo(json.dumps({"file": str(file), "bytes": size, "input": sizes, "compared": compared}, indent=2))
        return
    result = "not compared, for want of onnxruntime"
    if compared is not None:
        most = f", by {compared['most']:.1g} at most" if compared["differing"] else ""
        result = f"{compared['differing']} of {compared['outputs']} outputs of the example differ from PyTorch's{most}"
    click.echo(
        f"wrote {file}\n\n"
        f"  size              {size} bytes\n"
        f"  input             [{', '.join(map(str, sizes))}]: steps, batch and one step\n"
        f"  in ONNX Runtime   {result}"
    )


def _sized(x: Tensor, steps: str) -> Any:
    """The example, and its dynamic dimensions. torch takes a size of 1 for a constant."""
    if x.ndim < 2 or not x.numel():
        raise ValueError(f"--example has a tensor of shape {[*x.shape]}; save inputs over time, [T, B, ...]")
    if x.shape[1] == 1:
        x = torch.cat([x, x], 1)
    dynamic = {1: torch.export.Dim(_BATCH)}
    if steps == "any":
        return torch.cat([x, x]) if x.shape[0] == 1 else x, {0: torch.export.Dim(_STEPS, min=2), **dynamic}
    if not steps.isdecimal() or not int(steps):
        raise ValueError(f"--steps {steps} must be any, or a whole number above 0")
    if x.shape[0] < int(steps):
        raise ValueError(
            f"--steps {steps}: the example has {x.shape[0]} steps; save one of {steps} or more, or give any"
        )
    return x[: int(steps)].contiguous(), dynamic


def _exported(net: nn.Module, x: Tensor, dynamic: Any) -> Any:
    """The program of torch, or its error without advice for those who call torch.export."""
    try:
        return torch.export.export(net, (x,), dynamic_shapes=(dynamic,))
    except BackendError:
        raise
    except RuntimeError as error:
        text = str(error).strip()
        if f"({_STEPS})" in text:
            raise ValueError(f"the network does not take any number of steps; give --steps {x.shape[0]}") from error
        raise ValueError(f"torch.export cannot trace the network: {text.splitlines()[0]}") from error


def _compared(file: Path, x: Tensor, want: Tensor) -> Optional[Dict[str, Any]]:
    """Outputs of the file on the example that are not those of PyTorch; None without ONNX Runtime."""
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(str(file), options)
    (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    apart = (torch.from_numpy(got) - want).abs()
    return {"outputs": apart.numel(), "differing": int(apart.count_nonzero()), "most": float(apart.max())}


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
