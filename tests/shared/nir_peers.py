"""Networks of other libraries as graphs of NIR, with inputs and the outputs that their own library computes.

``tests/extensions/nir/peers.zip`` has these. ``python tests/shared/nir_peers.py tests/extensions/nir/peers.zip`` writes
it, with snnTorch 1.0.0, Norse 1.1.0, sinabs 3.1.3, Rockpool 3.1.0, SpikingJelly 2.0.0, nir 1.0.8 and nirtorch 2.6.
Each library is imported where it is used.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Callable, Dict, Tuple
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import torch
from torch import Tensor, nn

T, B, WIDTH = 40, 3, 10
Written = Tuple[Any, Tensor, Tensor]


def _input(gain: float, seed: int = 1) -> Tensor:
    # of few bits, so that the archive is small
    return (gain * torch.randn(T, B, WIDTH, generator=torch.Generator().manual_seed(seed)) * 16).round() / 16


def _drawn(size: int, low: float, high: float) -> Tensor:
    return torch.rand(size) * (high - low) + low


def _sizes(make: Callable[[int], nn.Module]) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 12), make(12), nn.Linear(12, 6), make(6))


def _snntorch(make: Callable[[Any, int], nn.Module]) -> Written:
    import snntorch
    from snntorch.export_nir import export_to_nir

    torch.manual_seed(0)
    net, x = _sizes(lambda size: make(snntorch, size)), _input(2.0)
    graph = export_to_nir(net, torch.zeros(1, WIDTH), ignore_dims=[0])
    for layer in net:
        if hasattr(layer, "reset_mem"):
            layer.reset_mem()
    with torch.no_grad():
        return graph, x, torch.stack([net(step) for step in x])


def _leaky(snn: Any, size: int, **options: Any) -> nn.Module:
    return snn.Leaky(beta=_drawn(size, 0.6, 0.9), threshold=_drawn(size, 0.5, 1.0), init_hidden=True, **options)


def _synaptic(snn: Any, size: int, **options: Any) -> nn.Module:
    alpha, beta = _drawn(size, 0.3, 0.8), _drawn(size, 0.6, 0.9)
    return snn.Synaptic(alpha, beta, threshold=_drawn(size, 0.5, 1.0), init_hidden=True, **options)


def _rleaky(snn: Any, size: int, **options: Any) -> nn.Module:
    return snn.RLeaky(beta=0.8, linear_features=size, init_hidden=True, **options)


#: Their neurons that do what NIR says: to zero, at once.
AT_ONCE: Dict[str, Any] = {"reset_mechanism": "zero", "reset_delay": False}


def _norse(cell: Callable[[int], nn.Module]) -> Written:
    import norse.torch
    from norse.torch.utils.export_nir import to_nir

    torch.manual_seed(0)
    net, x = norse.torch.SequentialState(*_sizes(cell)), _input(8.0)
    graph, state, outputs = to_nir(net, x[0]), None, []
    with torch.no_grad():
        for step in x:
            z, state = net(step, state)
            outputs.append(z)
    return graph, x, torch.stack(outputs)


def _norse_box(size: int) -> nn.Module:
    from norse.torch.functional.lif_box import LIFBoxParameters
    from norse.torch.module.lif_box import LIFBoxCell

    return LIFBoxCell(LIFBoxParameters(_drawn(size, 100, 200), _drawn(size, 0, 0.1), _drawn(size, 0.1, 0.3)))


def _norse_lif(size: int) -> nn.Module:
    from norse.torch import LIFCell, LIFParameters

    zero = torch.zeros(size)
    return LIFCell(LIFParameters(_drawn(size, 150, 250), _drawn(size, 100, 200), zero, _drawn(size, 0.3, 0.6), zero))


def _norse_iaf(size: int) -> nn.Module:
    from norse.torch import IAFCell
    from norse.torch.functional.iaf import IAFParameters

    return IAFCell(IAFParameters(v_th=_drawn(size, 1.0, 2.0)))


def _sinabs(**options: Any) -> Written:
    import sinabs
    from sinabs.layers import IAFSqueeze, LIFSqueeze
    from sinabs.nir import to_nir

    torch.manual_seed(0)
    x = _input(6.0)
    of_iaf = {name: value for name, value in options.items() if name != "norm_input"}
    net = nn.Sequential(
        nn.Linear(WIDTH, 12),
        LIFSqueeze(tau_mem=_drawn(12, 3, 9), spike_threshold=_drawn(12, 0.1, 0.4), batch_size=B, **options),
        nn.Linear(12, 6),
        IAFSqueeze(spike_threshold=_drawn(6, 0.5, 1.0), batch_size=B, **of_iaf),
    )
    flat = x.transpose(0, 1).reshape(B * T, WIDTH)
    with torch.no_grad():
        net(flat)
        graph = to_nir(net, flat)
        sinabs.reset_states(net)
        return graph, x, net(flat).view(B, T, 6).transpose(0, 1).contiguous()


def _sinabs_conv() -> Written:
    import sinabs
    from sinabs.activation import MembraneReset, SingleSpike
    from sinabs.layers import IAFSqueeze, SumPool2d
    from sinabs.nir import to_nir

    torch.manual_seed(0)
    x = _input(2.0).repeat(1, 1, 10).view(T, B, 1, 10, 10)
    once = {"batch_size": B, "spike_fn": SingleSpike, "reset_fn": MembraneReset()}
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, bias=False),
        IAFSqueeze(**once),
        SumPool2d(2),
        nn.Flatten(),
        nn.Linear(75, 6),
        IAFSqueeze(**once),
    )
    flat = x.transpose(0, 1).reshape(B * T, 1, 10, 10)
    with torch.no_grad():
        net(flat)
        graph = to_nir(net, flat)
        graph.infer_types()
        sinabs.reset_states(net)
        return graph, x, net(flat).view(B, T, 6).transpose(0, 1).contiguous()


def _sinabs_single(**options: Any) -> Written:
    from sinabs.activation import MembraneReset, SingleSpike

    return _sinabs(spike_fn=SingleSpike, reset_fn=MembraneReset(), **options)


def _rockpool(make: Callable[[Any, int], Any], gain: float) -> Written:
    import rockpool.nn.modules as modules
    from rockpool.nn.combinators import Sequential
    from rockpool.nn.modules.torch.nir import to_nir

    torch.manual_seed(0)
    x = _input(gain)
    first, second = make(modules, 12), make(modules, 6)
    linear = modules.LinearTorch
    net = Sequential(linear((WIDTH, 12), has_bias=True), first, linear((12, 6), has_bias=False), second)
    graph = to_nir(net)
    # its state is that behind the sample which to_nir computed
    out, _, _ = net.reset_state()(x.transpose(0, 1).contiguous())
    return graph, x, out.detach().transpose(0, 1).contiguous()


def _rockpool_lif(modules: Any, size: int, **options: Any) -> Any:
    taus = {"tau_mem": _drawn(size, 0.01, 0.03), "tau_syn": _drawn(size, 0.005, 0.02).unsqueeze(1)}
    return modules.LIFTorch((size,), **taus, threshold=_drawn(size, 0.7, 1.5), **options)


def _rockpool_neuron(modules: Any, size: int, **options: Any) -> Any:
    return modules.LIFNeuronTorch(
        (size,), tau_mem=_drawn(size, 0.01, 0.03), threshold=_drawn(size, 0.7, 1.5), **options
    )


def _spikingjelly() -> Written:
    from spikingjelly.activation_based import functional, neuron
    from spikingjelly.activation_based.nir_exchange import export_to_nir

    torch.manual_seed(0)
    x = _input(4.0)
    net = nn.Sequential(
        nn.Linear(WIDTH, 12),
        neuron.LIFNode(tau=3.0, v_threshold=0.4),
        nn.Linear(12, 8),
        neuron.LIFNode(tau=2.5, decay_input=False, v_threshold=0.6),
        nn.Linear(8, 6),
        neuron.IFNode(v_threshold=0.5),
    )
    graph = export_to_nir(net, x[0])
    functional.reset_net(net)
    with torch.no_grad():
        return graph, x, torch.stack([net(step) for step in x])


def _once() -> Dict[str, Any]:
    return {"max_spikes_per_dt": torch.tensor(1.0)}


#: What is written -> how.
WRITERS: Dict[str, Callable[[], Written]] = {
    "snntorch_leaky": lambda: _snntorch(_leaky),
    "snntorch_leaky_at_once": lambda: _snntorch(lambda snn, size: _leaky(snn, size, **AT_ONCE)),
    "snntorch_synaptic": lambda: _snntorch(_synaptic),
    "snntorch_synaptic_at_once": lambda: _snntorch(lambda snn, size: _synaptic(snn, size, **AT_ONCE)),
    "snntorch_rleaky": lambda: _snntorch(_rleaky),
    "snntorch_rleaky_at_once": lambda: _snntorch(lambda snn, size: _rleaky(snn, size, **AT_ONCE)),
    "norse_box": lambda: _norse(_norse_box),
    "norse_lif": lambda: _norse(_norse_lif),
    "norse_iaf": lambda: _norse(_norse_iaf),
    "sinabs": _sinabs,
    "sinabs_single": _sinabs_single,
    "sinabs_single_conv": _sinabs_conv,
    "sinabs_single_not_normalised": lambda: _sinabs_single(norm_input=False),
    "rockpool_lif": lambda: _rockpool(_rockpool_lif, 0.3),
    "rockpool_lif_once": lambda: _rockpool(lambda modules, size: _rockpool_lif(modules, size, **_once()), 0.3),
    "rockpool_neuron": lambda: _rockpool(_rockpool_neuron, 2.0),
    "spikingjelly": _spikingjelly,
}


def how(name: str) -> Dict[str, Any]:
    """The arguments of ``sc.nir.load`` for what is written under this name."""
    from spikecore_nir import CONVENTIONS

    library = name.partition("_")[0]
    like = CONVENTIONS[library]
    if library == "snntorch" and name.endswith("at_once"):
        # nothing of snnTorch but its time step: the file means what NIR means
        return {"dt": 1e-4, "discretization": "euler"}
    if name.startswith("sinabs_single"):
        like = replace(like, many=False, reset="hard", lif="jump" if name.endswith("normalised") else "current")
    if name.endswith("once"):
        like = replace(like, many=False)
    return {"convention": like}


def write(path: Path) -> None:
    """Write every graph, with its input and output, to one archive."""
    import nir
    import numpy as np

    with ZipFile(path, "w", ZIP_DEFLATED) as archive, TemporaryDirectory() as folder:
        for name, writer in WRITERS.items():
            graph, x, y = writer()
            files = Path(folder, f"{name}.nir"), Path(folder, f"{name}.npz")
            nir.write(files[0], graph)
            np.savez(files[1], x=x.numpy(), y=y.numpy().astype("uint8"))
            for file in files:
                # one date for all, so that the same files make the same archive
                archive.writestr(ZipInfo(file.name, (2026, 11, 23, 0, 0, 0)), file.read_bytes(), ZIP_DEFLATED)
            print(f"{name}: {y.mean():.3f} spikes a step, {int(y.max())} at most")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
