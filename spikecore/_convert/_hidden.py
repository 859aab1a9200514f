"""Modules that a network holds in plain lists, tuples, sets and dicts, where ``nn.Module`` does not see them."""

from __future__ import annotations

from collections import deque
from typing import Any, Iterator, List, Mapping, Set, Tuple

from torch import nn

#: Attributes of every module, which are torch's: what ``_modules`` holds is seen.
_OF_TORCH = frozenset(vars(nn.Module()))
_SEQUENCES = (list, tuple, deque, set, frozenset)


def hidden_modules(net: nn.Module) -> Iterator[Tuple[str, nn.Module, str]]:
    """``(place, module, why torch does not see it)`` of each such module, and of those within it, once."""
    seen = set(net.modules())
    waiting: List[Tuple[str, nn.Module]] = list(net.named_modules())
    while waiting:
        name, holder = waiting.pop(0)
        for attribute, value in list(vars(holder).items()):
            if attribute in _OF_TORCH:
                continue
            path = f"{name}.{attribute}" if name else attribute
            if isinstance(value, nn.Module):
                why = f"{path} was set past nn.Module, which does not see it, as sc.reset does not; set it as usual"
            else:
                instead = "nn.ModuleDict" if isinstance(value, Mapping) else "nn.ModuleList"
                why = (
                    f"nn.Module does not see modules in a plain {type(value).__name__}, as parameters() and sc.reset "
                    f"do not; make {path} an {instead}"
                )
            for place, module in _modules(path, value, set()):
                for inner, each in module.named_modules():
                    if each not in seen:
                        seen.add(each)
                        below = f"{place}.{inner}" if inner else place
                        waiting.append((below, each))
                        yield below, each, why


def _modules(path: str, value: Any, within: Set[int]) -> Iterator[Tuple[str, nn.Module]]:
    """Modules in a container and the containers in it, by their places."""
    if isinstance(value, nn.Module):
        yield path, value
        return
    if id(value) in within:  # a container that holds itself
        return
    if isinstance(value, Mapping):
        items = [(f"{path}[{key!r}]", each) for key, each in value.items()]
    elif isinstance(value, _SEQUENCES):
        items = [(f"{path}[{index}]", each) for index, each in enumerate(value)]
    else:
        return
    for place, each in items:
        yield from _modules(place, each, {*within, id(value)})
