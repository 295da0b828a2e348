# SPDX-License-Identifier: Apache-2.0
"""Stacks merged by function name, in the form in which Pyroscope answers: levels of bars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

OTHER = "other"
"""Name of the bar in which small ones are put together."""


class FlameGraph(NamedTuple):
    """`levels` has four numbers a bar: offset from the end of the bar before, total, self, index in `names`."""

    names: tuple[str, ...]
    levels: tuple[tuple[int, ...], ...]
    total: int
    max_self: int


@dataclass(slots=True)
class _Node:
    name: str
    total: int = 0
    own: int = 0
    children: dict[str, _Node] = field(default_factory=dict)

    def walk(self) -> Iterator[_Node]:
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())


class _Bar(NamedTuple):
    offset: int
    node: _Node


def flame_graph(stacks: Iterable[tuple[tuple[str, ...], int]], max_nodes: int) -> FlameGraph:
    """Merge (stack with the root first, value) pairs; at most about `max_nodes` bars keep their own name."""
    root = _tree(stacks)
    _merge_small(root, _smallest_kept(root, max_nodes))
    names: dict[str, int] = {}
    levels: list[tuple[int, ...]] = []
    bars, max_self = [_Bar(0, root)], 0
    while bars:
        level: list[int] = []
        below: list[_Bar] = []
        end = 0
        for offset, node in bars:
            index = names.setdefault(node.name, len(names))
            level += [offset - end, node.total, node.own, index]
            end = offset + node.total
            max_self = max(max_self, node.own)
            below += _bars_above(offset + node.own, node)
        levels.append(tuple(level))
        bars = below
    return FlameGraph(tuple(names), tuple(levels), root.total, max_self)


def _tree(stacks: Iterable[tuple[tuple[str, ...], int]]) -> _Node:
    root = _Node("total")
    for stack, value in stacks:
        node = root
        node.total += value
        for name in stack:
            node = node.children.setdefault(name, _Node(name))
            node.total += value
        node.own += value
    return root


def _smallest_kept(root: _Node, max_nodes: int) -> int:
    totals = sorted((node.total for node in root.walk()), reverse=True)
    return totals[max_nodes - 1] if len(totals) > max_nodes else 0


def _merge_small(root: _Node, smallest: int) -> None:
    for node in list(root.walk()):
        small = [child for child in node.children.values() if child.total < smallest]
        for child in small:
            del node.children[child.name]
            other = node.children.setdefault(OTHER, _Node(OTHER))
            other.total += child.total
            other.own += child.total


def _bars_above(offset: int, node: _Node) -> Iterator[_Bar]:
    for child in sorted(node.children.values(), key=lambda child: child.name):
        yield _Bar(offset, child)
        offset += child.total
