"""Cycles of dependencies that snapshot isolation excludes.

Classified as by Adya and Elle: G0 is a cycle of write dependencies; G1c one of write and read dependencies; G-single
has exactly one anti-dependency; G-nonadjacent has several, but never two in a row. Snapshot isolation allows
only cycles with two anti-dependencies in a row (write skew).

All of them are cycles in one graph, whose nodes are transactions together with the way in which they were reached: by
an anti-dependency, after which no other one may follow, or otherwise.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, NamedTuple

from tests.chaos.checkers.dependencies import Dependency, Kind

STARTS_MAX: Final = 100
"""Maximum number of transactions of a component that are tried as parts of a short cycle."""


class Node(NamedTuple):
    """A transaction, and whether it was reached by an anti-dependency."""

    name: str
    is_anti: bool


Graph = dict[Node, list[tuple[Dependency, Node]]]


def find_cycles(edges: Collection[Dependency], is_snapshot: Callable[[str], bool]) -> list[list[Dependency]]:
    """An excluded cycle, as short as possible, of each component of the graph.

    Args:
        edges: the dependencies.
        is_snapshot: whether all reads of the transaction with a name are of one time. If they are not, it may miss
            what a transaction has written that it otherwise depends on.
    """
    graph = _graph(edges, is_snapshot)
    return [_shortest_cycle(graph, component) for component in components(graph)]


def name_of(cycle: Collection[Dependency]) -> str:
    """The name of the anomaly that a cycle is."""
    kinds = [edge.kind for edge in cycle]
    if kinds.count(Kind.ANTI) > 1:
        return "G-nonadjacent"
    if Kind.ANTI in kinds:
        return "G-single (read skew)"
    return "G1c" if Kind.READ in kinds else "G0"


def _graph(edges: Iterable[Dependency], is_snapshot: Callable[[str], bool]) -> Graph:
    graph: Graph = {}
    for edge in edges:
        after = Node(edge.after, edge.kind is Kind.ANTI)
        graph.setdefault(Node(edge.before, is_anti=False), []).append((edge, after))
        if edge.kind is not Kind.ANTI:
            graph.setdefault(Node(edge.before, is_anti=True), []).append((edge, after))
        elif not is_snapshot(edge.before):
            graph[Node(edge.before, is_anti=False)].pop()
    return graph


def _shortest_cycle(graph: Graph, component: Collection[Node]) -> list[Dependency]:
    return min((_cycle(graph, node, component) for node in sorted(component)[:STARTS_MAX]), key=len)


def _cycle(graph: Graph, start: Node, component: Collection[Node]) -> list[Dependency]:
    """The shortest cycle through a node of a component."""
    came: dict[Node, tuple[Dependency, Node]] = {}
    waiting = deque([start])
    while start not in came:
        node = waiting.popleft()
        for edge, after in graph.get(node, ()):
            if after in component and after not in came:
                came[after] = (edge, node)
                waiting.append(after)
    edge, node = came[start]
    cycle = [edge]
    while node != start:
        edge, node = came[node]
        cycle.append(edge)
    return cycle[::-1]


def components(graph: Graph) -> Iterator[set[Node]]:
    """The strongly connected components of more than one node, by Tarjan's algorithm without recursion."""
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: dict[Node, None] = {}
    for root in graph:
        if root in index:
            continue
        walk = [_enter(graph, root, index, low, stack)]
        while walk:
            node, following = walk[-1]
            after = next(following, None)
            if after is None:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[node])
                if low[node] == index[node]:
                    component = _taken_off(stack, node)
                    if len(component) > 1:
                        yield component
            elif after not in index:
                walk.append(_enter(graph, after, index, low, stack))
            elif after in stack:
                low[node] = min(low[node], index[after])


def _enter(
    graph: Graph, node: Node, index: dict[Node, int], low: dict[Node, int], stack: dict[Node, None]
) -> tuple[Node, Iterator[Node]]:
    index[node] = low[node] = len(index)
    stack[node] = None
    return node, (after for _, after in graph.get(node, ()))


def _taken_off(stack: dict[Node, None], node: Node) -> set[Node]:
    """The nodes on the stack from one on."""
    component: set[Node] = set()
    while node not in component:
        component.add(stack.popitem()[0])
    return component
