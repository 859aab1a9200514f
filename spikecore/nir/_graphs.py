"""Graphs of NIR as lists: subgraphs dissolved, loops found, nodes in the order in which they are computed."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Set, Tuple

Edge = Tuple[str, str]


class Flat:
    """A graph whose only nodes are those that compute. Edges from ``INPUT`` and to ``OUTPUT`` are its ends."""

    INPUT, OUTPUT = "<input>", "<output>"

    def __init__(self, graph: Any) -> None:
        self.nodes: Dict[str, Any] = {}
        self.edges: List[Edge] = []
        self._ends: Dict[str, str] = {}
        self._take("", graph)
        for name in self._ends:
            self._dissolve(name)
        self._check()

    def _take(self, prefix: str, graph: Any) -> None:
        kinds: Dict[str, List[str]] = {"Input": [], "Output": []}
        for key, node in graph.nodes.items():
            name, kind = prefix + key, type(node).__name__
            if kind in kinds:
                kinds[kind].append(name)
                self._ends[name] = kind
            elif kind == "NIRGraph":
                self._take(name + ".", node)
            else:
                self.nodes[name] = node
        for kind, names in kinds.items():
            if len(names) != 1:
                where = f"subgraph {prefix[:-1]!r}" if prefix else "the graph"
                raise ValueError(
                    f"sc.nir.load: {where} has {len(names)} nodes of type {kind} ({', '.join(names) or 'none'}), "
                    "wanted is one; join them, or load a part"
                )
        (start,), (end,) = kinds["Input"], kinds["Output"]
        inside = {key: type(node).__name__ == "NIRGraph" for key, node in graph.nodes.items()}
        for source, target in graph.edges:
            for name in (source, target):
                if name not in inside:
                    raise ValueError(
                        f"sc.nir.load: edge {source!r} -> {target!r} names a node that is not there: {name!r}"
                    )
            # a subgraph is left by its output and entered by its input
            left = self._end_of(graph.nodes[source], "Output", prefix + source) if inside[source] else prefix + source
            entered = self._end_of(graph.nodes[target], "Input", prefix + target) if inside[target] else prefix + target
            self.edges.append((left, entered))
        if not prefix:
            self.edges += [(self.INPUT, start), (end, self.OUTPUT)]

    @staticmethod
    def _end_of(graph: Any, kind: str, prefix: str) -> str:
        return next(f"{prefix}.{key}" for key, node in graph.nodes.items() if type(node).__name__ == kind)

    def _dissolve(self, name: str) -> None:
        """Join what leads to a node with what it leads to."""
        before = [source for source, target in self.edges if target == name]
        after = [target for source, target in self.edges if source == name]
        at = next((position for position, edge in enumerate(self.edges) if name in edge), 0)
        kept = [edge for edge in self.edges[:at] if name not in edge]
        rest = [edge for edge in self.edges[at:] if name not in edge]
        self.edges = [*kept, *[(source, target) for target in after for source in before], *rest]

    def _check(self) -> None:
        for edge in self.edges:
            if self.edges.count(edge) > 1:
                raise ValueError(
                    f"sc.nir.load: edge {edge[0]!r} -> {edge[1]!r} is there twice; NIR adds an output once"
                )
        for name in self.nodes:
            if not self.before(name) or not self.after(name):
                lacks = "leads to it" if not self.before(name) else "it leads to"
                raise ValueError(
                    f"sc.nir.load: node {name!r} has no edge that {lacks}, so it takes no part in the output"
                )

    def before(self, name: str) -> List[str]:
        """The sources of a node, in the order of the edges."""
        return [source for source, target in self.edges if target == name]

    def after(self, name: str) -> List[str]:
        """The targets of a node."""
        return [target for source, target in self.edges if source == name]

    def reached(self, name: str) -> Set[str]:
        """What can be reached from a node."""
        seen: Set[str] = set()
        ahead = self.after(name)
        while ahead:
            each = ahead.pop()
            if each not in seen:
                seen.add(each)
                ahead += self.after(each)
        return seen

    def loops(self) -> List[Set[str]]:
        """Nodes that lead back to themselves, those that lead to each other together."""
        reached = {name: self.reached(name) for name in self.nodes}
        found: List[Set[str]] = []
        for name, ahead in reached.items():
            if name in ahead and not any(name in loop for loop in found):
                found.append({name} | {each for each in ahead if each in reached and name in reached[each]})
        return found

    def replaced(self, members: Sequence[str], name: str) -> None:
        """Take several nodes for one of this name, without the edges among them."""
        held = set(members)
        for member in members:
            self.nodes.pop(member)
        self.nodes[name] = None
        outside = [(source, target) for source, target in self.edges if not (source in held and target in held)]
        renamed = [(name if a in held else a, name if b in held else b) for a, b in outside]
        self.edges = list(dict.fromkeys(renamed))

    def in_order(self) -> List[str]:
        """Names, each after all of its sources."""
        order: List[str] = []
        left = list(self.nodes)
        while left:
            ready = [name for name in left if all(source in (*order, self.INPUT) for source in self.before(name))]
            if not ready:
                raise ValueError(
                    f"sc.nir.load: nodes {', '.join(left)} lead to each other in a loop that is not delayed"
                )
            order += ready
            left = [name for name in left if name not in ready]
        return order


def common_name(members: Sequence[str], others: Sequence[str]) -> str:
    """The level that all members and nobody else are in, as ``rlif`` of ``rlif.lif`` and ``rlif.w_rec``; "" if none."""
    levels = {name.rpartition(".")[0] for name in members}
    if len(levels) != 1:
        return ""
    level = levels.pop()
    taken = any(name == level or name.startswith(level + ".") for name in others)
    return "" if taken else level
