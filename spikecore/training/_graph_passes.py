"""What is changed in the graph of a compiled network, forward and backward together, before the compiler sees it."""

from __future__ import annotations

from typing import Any, Dict

import torch
from torch import fx, nn

from spikecore.backend import Unsupported
from spikecore.training import _averages, _products

#: Modules whose ``change(graph)`` is run, in this order.
_PASSES = (_averages, _products)


def compiling_options(net: nn.Module) -> Dict[str, Any]:
    """Options of ``torch.compile`` that have this done; none where this torch has no such passes. Raises Unsupported
    where ``net`` would compute wrong gradients without them.
    """
    try:
        import torch._inductor.config as config
        from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

        config.joint_custom_pre_pass  # noqa: B018  # older versions have no such pass
    except (ImportError, AttributeError) as error:
        if any(_averages.clips(module) for module in net.modules()):
            raise Unsupported(_averages.WAY_OUT) from error
        return {}

    class Change(CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            for one in _PASSES:
                one.change(graph)

        def uuid(self) -> Any:
            # what torch has compiled and kept on disk is made again where the rules, or what they go by, have changed
            return get_hash_for_files(tuple(one.__file__ for one in _PASSES)), torch.get_float32_matmul_precision()

    return {"joint_custom_pre_pass": Change()}
