"""Steps that are replayed from CUDA graphs where they can be, and run without them where not, for ``fast=True``."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict, Optional, Tuple

from torch import Tensor

from spikecore.backend import Unsupported
from spikecore.training._cuda_graph.options import CudaOptions
from spikecore.training._cuda_graph.step import GraphedInference, GraphedTraining


class _Captured:
    """What training and inference share: the captured step, and what runs once there is none."""

    def __init__(self, make: Callable[[Any, CudaOptions], Any], eager: Any, options: CudaOptions) -> None:
        self.net, self.options = eager.net, options
        self._eager = eager
        self._graphed: Optional[Any] = None
        self._why = ""
        if options.scaler is not None:
            self._leave_out("the scaler decides on the host whether to update; autocast=torch.bfloat16 needs none")
            return
        try:
            self._graphed = make(eager, options)
        except (Unsupported, TypeError, ValueError) as error:
            self._leave_out(str(error))

    @property
    def form(self) -> Dict[str, str]:
        """Of the options ``channels_last``, ``compile``, ``pack_spikes`` and ``graph``, what became of each."""
        return {**self._eager.form, "graph": f"left out: {self._why}" if self._graphed is None else "used"}

    def _run(self, *batch: Any) -> Any:
        if self._graphed is not None:
            try:
                return self._graphed(*batch)
            except Unsupported as error:
                self._leave_out(str(error))
        return self._eager(*batch)

    def _leave_out(self, why: str) -> None:
        self._graphed, self._why = None, why
        warnings.warn(
            f"fast=True: graph is left out, because {why}; graph=False says so without this warning",
            RuntimeWarning,
            stacklevel=4,
        )


class CapturedTraining(_Captured):
    """``step(inputs, targets) -> (outputs, loss)``."""

    def __init__(self, eager: Any, options: CudaOptions) -> None:
        super().__init__(GraphedTraining, eager, options)
        self.loss, self.optimizer = eager.loss, eager.optimizer

    def __call__(self, inputs: Any, targets: Any) -> Tuple[Any, Tensor]:
        """Train on one batch; the outputs and the loss, detached, are those from before the update."""
        outputs, loss = self._run(inputs, targets)
        return outputs, loss

    @property
    def skipped(self) -> int:
        """As that of the eager step."""
        return int(self._eager.skipped)

    def state_dict(self) -> Dict[str, Any]:
        """As that of the eager step."""
        state: Dict[str, Any] = self._eager.state_dict()
        return state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """As that of the eager step."""
        self._eager.load_state_dict(state)


class CapturedInference(_Captured):
    """``predict(inputs) -> outputs``."""

    def __init__(self, eager: Any, options: CudaOptions) -> None:
        super().__init__(GraphedInference, eager, options)

    def __call__(self, inputs: Any) -> Any:
        """Outputs in eval mode, without gradients."""
        return self._run(inputs)
