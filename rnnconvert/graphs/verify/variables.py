"""The values of a model's variables, read from its checkpoint with numpy.

A graph knows a variable by its name, or as an object of the SavedModel's object graph; the
checkpoint has it under a key that may be the name, or a path through that object graph.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.containers.checkpoint import Checkpoint, find_checkpoint, open_checkpoint
from rnnconvert.containers.object_graph import ObjectGraph, read_object_graph


class Variables:
    """The variables of a checkpoint, by what a graph calls them.

    Args:
        prefix: of the checkpoint; there may be none, and then no variable has a value.
        objects: the SavedObjectGraph of a SavedModel's MetaGraph, where there is one.

    Raises:
        UnreadableInputError: something of a checkpoint that can't be read.
    """

    def __init__(self, prefix: Path | None, objects: Any | None = None) -> None:
        found = find_checkpoint(prefix) if prefix is not None else None
        self._checkpoint: Checkpoint | None = open_checkpoint(found) if found else None
        graph = read_object_graph(self._checkpoint) if self._checkpoint else None
        self._of_object = _keys_of_objects(objects, graph) if objects and graph else {}
        self._by_name: dict[str, set[str]] = defaultdict(set)
        for node in graph.nodes if graph else ():
            if node.variable is not None:
                self._by_name[node.variable.name].add(node.variable.key)

    def keys_of_name(self, name: str) -> frozenset[str]:
        """Keys of all variables of this name: none, one, or several in an object-based one."""
        if self._checkpoint is not None and name in self._checkpoint.variables:
            return frozenset({name})
        return frozenset(self._by_name.get(name, ()))

    def keys_of_object(self, number: int) -> frozenset[str]:
        """The key of a node of the SavedModel's object graph, if it has one."""
        return frozenset({self._of_object[number]} if number in self._of_object else ())

    def read(self, key: str) -> np.ndarray[Any, Any]:
        """The values; the errors are those of `Checkpoint.read`."""
        assert self._checkpoint is not None  # it gave the key
        return self._checkpoint.read(key)


def _keys_of_objects(objects: Any, graph: ObjectGraph) -> dict[int, str]:
    """The key of each variable in a SavedObjectGraph.

    Both graphs are walked from their roots by the same names of children, which is how TensorFlow's
    loader restores the variables. The names of the variables say less: two may share one.
    """
    keys: dict[int, str] = {}
    todo, visited = [(0, 0)], set()
    while todo:
        saved, stored = pair = todo.pop()
        if pair in visited or saved >= len(objects.nodes):
            continue
        visited.add(pair)
        variable = graph.variable(stored)
        if variable is not None and objects.nodes[saved].HasField("variable"):
            keys[saved] = variable.key
        for child in objects.nodes[saved].children:
            other = graph.child(stored, child.local_name)
            if other is not None:
                todo.append((child.node_id, other))
    return keys
