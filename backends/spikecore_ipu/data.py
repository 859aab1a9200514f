"""Batches for PopTorch: each holds all the micro batches of one call, and all are of one size."""

from __future__ import annotations

import warnings
from typing import Any

from spikecore_ipu.executor import checked_options
from spikecore_ipu.sdk import poptorch


def data_loader(dataset: Any, options: Any, **kwargs: Any) -> Any:
    """A ``poptorch.DataLoader``; warns of samples that each pass leaves out, since all batches are of one size."""
    loader = poptorch().DataLoader(checked_options(options), dataset, **kwargs)
    if "drop_last" not in kwargs and hasattr(dataset, "__len__") and kwargs.get("batch_sampler") is None:
        batch = loader.combinedBatchSize
        left_out = 0 if batch is None else len(dataset) % batch
        if left_out:
            warnings.warn(
                f"{left_out} of {len(dataset)} samples are left out of each pass: a call takes {batch}, and an IPU "
                "program has one batch size; drop_last=True says that this is meant",
                UserWarning,
                stacklevel=4,
            )
    return loader
