"""What is changed in the graph of a compiled network, forward and backward together, before the compiler sees it."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from torch import fx, nn

from spikecore.backend import Unsupported
from spikecore.training import _averages, _products

#: Modules whose ``change(graph)`` is run, in this order.
_PASSES = (_averages, _products)


def compiling_options(net: Optional[nn.Module] = None) -> Dict[str, Any]:
    """Options of ``torch.compile`` that have this done, behind the passes that the user has set at the same place;
    none where this torch has no such passes. Raises Unsupported where a pooling module of ``net``, a network that is
    trained, may need them then.
    """
    users = _users()
    if users is None:
        if net is not None and any(_averages.clips(module) for module in net.modules()):
            raise Unsupported(_averages.WAY_OUT)
        return {}
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class Change(CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            for one in users or ():
                one(graph)
            for module in _PASSES:
                module.change(graph)

        def uuid(self) -> Any:
            # What torch has compiled and kept on disk is made again where the rules, or what they go by, have changed.
            # None, of a pass of the user's, means that nothing is kept.
            theirs: List[Any] = [one.uuid() for one in users or ()]
            rules = get_hash_for_files((__file__, *[module.__file__ for module in _PASSES]))
            return None if None in theirs else (*theirs, rules, _products.precision())

    return {"joint_custom_pre_pass": Change()}


def _users() -> Optional[List[Any]]:
    """The passes that the user has set; None where this torch has none."""
    try:
        import torch._inductor.config as config
        import torch._inductor.custom_graph_pass  # noqa: F401

        found: Any = config.joint_custom_pre_pass
    except (ImportError, AttributeError):
        return None
    several = isinstance(found, (list, tuple))
    return [*found] if several else [found] if found is not None else []
