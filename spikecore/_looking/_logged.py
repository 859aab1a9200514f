"""What a monitor saw in a TensorBoard log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, Optional, Tuple

from torch import Tensor

from spikecore import plot
from spikecore._base.errors import a_kind

if TYPE_CHECKING:
    from spikecore._looking._seen import Call, Layer, Seen

#: What is called of a writer.
_NEEDED = ("add_scalar", "add_histogram", "add_figure")
#: A histogram of more numbers than this is one of every n-th.
_MOST = 1_000_000


def log(seen: Seen, writer: Any, step: Optional[int], figures: bool) -> None:
    """Write rates, states and pictures of all layers that were called."""
    lacking = [name for name in _NEEDED if not callable(getattr(writer, name, None))]
    if lacking:
        raise TypeError(
            f"writer is {a_kind(writer)} without {lacking[0]}; give a torch.utils.tensorboard.SummaryWriter"
        )
    for layer in seen.layers:
        if not layer.calls:
            continue
        name = layer.name or "net"
        if layer.rate is not None:
            writer.add_scalar(f"rate/{name}", layer.rate, step)
        each = _rates(layer)
        if each is not None:
            writer.add_scalar(f"silent/{name}", float((each == 0).double().mean()), step)
            writer.add_scalar(f"saturated/{name}", float((each >= 1).double().mean()), step)
            writer.add_histogram(f"rates of neurons/{name}", each, step)
        last = layer.calls[-1]
        for state, values in last.states.items():
            writer.add_histogram(f"{state}/{name}", _thinned(values), step)
        for tag, figure in _figures(last) if figures else ():
            writer.add_figure(f"{tag}/{name}", figure, step)


def _rates(layer: Layer) -> Optional[Tensor]:
    """The rates of neurons, where there are some."""
    sizes = {call.outputs // max(1, call.steps * call.batch) for call in layer.calls}
    return layer.rates.detach().cpu() if layer.fires and len(sizes) == 1 else None


def _figures(call: Call) -> Iterator[Tuple[str, Any]]:
    """Pictures of the first sample of a call. A figure of its own each, which no global list of pyplot's keeps."""

    def axes() -> Any:
        from matplotlib.figure import Figure  # where there is something to draw, and it need not be installed

        return Figure(figsize=(5.0, 3.0), constrained_layout=True).subplots()

    spikes = None if call.total is None else call.spikes
    if spikes is not None and spikes.ndim > 1:
        yield "raster", plot.raster(spikes, ax=axes()).figure
    for state, values in call.states.items():
        if values.ndim > 1:
            beside = spikes if spikes is not None and spikes.shape == values.shape else None
            yield f"traces of {state}", plot.traces(values, spikes=beside, label=state, ax=axes()).figure


def _thinned(values: Tensor) -> Tensor:
    values = values.detach().flatten()
    return values[:: max(1, -(-values.numel() // _MOST))].float().cpu()
