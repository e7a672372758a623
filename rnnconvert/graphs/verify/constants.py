"""The constants of a lowered model against those of the original."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rnnconvert.graphs.opening import OpenedGraph, open_graph


def changed_constants(
    original: Path | OpenedGraph, lowered: Path | OpenedGraph
) -> tuple[int, list[str]]:
    """Compare the constants that both models have, by name.

    A constant that nothing uses any more may be gone: a graph that lacks one it uses can't load.

    Args:
        original, lowered: two SavedModel directories, .pb files or .meta files, read or not.

    Returns:
        How many are the same byte for byte, and the names of the others.
    """
    before = dict(_constants(original))
    same, changed = 0, []
    for name, value in _constants(lowered):
        if name in before:
            if before[name] == value:
                same += 1
            else:
                changed.append(name)
    return same, changed


def _constants(model: Path | OpenedGraph) -> Iterator[tuple[str, bytes]]:
    for number, graph_def in enumerate(open_graph(model).graph_defs):
        parts = {
            "": graph_def.node,
            **{f.signature.name: f.node_def for f in graph_def.library.function},
        }
        for function, nodes in parts.items():
            for node in nodes:
                if node.op == "Const":
                    value = node.attr["value"].SerializeToString(deterministic=True)
                    yield f"{number}/{function}/{node.name}", value
