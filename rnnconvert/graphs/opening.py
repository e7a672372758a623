"""SavedModel directories, frozen graphs and MetaGraph files: opened."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from rnnconvert.containers.checkpoint import CheckpointPath, index_path, open_checkpoint
from rnnconvert.errors import NotConvertibleError, UnreadableInputError
from rnnconvert.graphs.framework import GraphDef, MetaGraphDef, SavedModel

SAVED_MODEL = "saved_model.pb"
_VARIABLES = "variables/variables"
_VARIABLE_OPS = frozenset({"VarHandleOp", "VariableV2", "Variable"})
_PROTO_LIMIT = 2**31 - 1  # bytes; protobuf has no larger messages
_SHARD = re.compile(r"\.data-(\d{5})-of-(\d{5})$")


@dataclass(frozen=True, eq=False)
class OpenedGraph:
    """A model of graphs, read once and handed down.

    Attributes:
        path: a SavedModel's directory, a MetaGraph (.meta) or a frozen graph.
        message: its SavedModel, MetaGraphDef or GraphDef. It is not to be changed; see `copy`.
    """

    path: Path
    message: Any

    @property
    def graph_defs(self) -> list[Any]:
        if isinstance(self.message, SavedModel):
            return [meta_graph.graph_def for meta_graph in self.message.meta_graphs]
        if isinstance(self.message, MetaGraphDef):
            return [self.message.graph_def]
        return [self.message]

    def copy(self) -> Any:
        """The message, to be changed."""
        copy = type(self.message)()
        copy.CopyFrom(self.message)
        return copy


def open_graph(model: Path | OpenedGraph) -> OpenedGraph:
    """A model's graphs, unless they were read before.

    Raises:
        UnreadableInputError: it is no SavedModel directory, MetaGraph (.meta) nor frozen graph.
        NotConvertibleError: a SavedModel in a form that can't be read yet.
    """
    if isinstance(model, OpenedGraph):
        return model
    if model.is_dir():
        return OpenedGraph(model, read_saved_model(model))
    if model.suffix == ".meta":
        return OpenedGraph(model, read_meta_graph(model))
    return OpenedGraph(model, read_graph_def(model))


def read_saved_model(source: Path) -> Any:
    """The SavedModel proto of a directory.

    Raises:
        UnreadableInputError: none there, damaged, or its variables are missing or incomplete.
        NotConvertibleError: a split one (.cpb) or a text one (.pbtxt).
    """
    path = source / SAVED_MODEL
    for name, kind in (("saved_model.cpb", "split"), ("saved_model.pbtxt", "text")):
        if not path.exists() and (source / name).exists():
            raise NotConvertibleError(f"a {kind} SavedModel ({name}), which can't be read yet")
    saved_model = _parse(path, SavedModel, "SavedModel")
    graphs = saved_model.meta_graphs
    if not graphs or not all(_is_graph(meta_graph.graph_def) for meta_graph in graphs):
        raise UnreadableInputError(f"{SAVED_MODEL} is no SavedModel: it holds no graph")
    if any(node.op in _VARIABLE_OPS for graph in graphs for node in graph.graph_def.node):
        prefix = source / _VARIABLES
        if not checkpoint_files(prefix):
            raise UnreadableInputError(
                f"the model's variables are missing: expected {_VARIABLES}.index; copy the whole "
                "directory, not the .pb alone"
            )
    return saved_model


def read_graph_def(source: Path) -> Any:
    """The GraphDef of a .pb file.

    Raises:
        UnreadableInputError: missing, damaged, or something else.
    """
    graph_def = _parse(source, GraphDef, "graph")
    if not _is_graph(graph_def) or not graph_def.node:
        raise UnreadableInputError("a .pb that is no graph: it holds no nodes")
    return graph_def


def read_meta_graph(source: Path) -> Any:
    """The MetaGraphDef of a .meta file.

    Raises:
        UnreadableInputError: missing, damaged, or something else.
    """
    meta_graph = _parse(source, MetaGraphDef, "MetaGraph")
    if not _is_graph(meta_graph.graph_def) or not meta_graph.graph_def.node:
        raise UnreadableInputError("no MetaGraph: it holds no nodes")
    return meta_graph


def checkpoint_files(prefix: Path) -> list[Path]:
    """The files of a checkpoint, V1 or V2; none if there is no checkpoint.

    The index is read here and not by TensorFlow, which is brought down by some damaged ones.

    Raises:
        UnreadableInputError: a shard is missing or too short, or the index is damaged.
    """
    found = [prefix] if prefix.is_file() else []
    index = index_path(prefix)
    shards = [
        path for path in sorted(prefix.parent.glob("*")) if path.name.startswith(prefix.name)
        and _SHARD.fullmatch(path.name[len(prefix.name) :])
    ]  # fmt: skip
    if not index.exists():
        if shards:
            raise UnreadableInputError(
                f"{index.name} is missing beside its data files; copy all files of the checkpoint "
                "together"
            )
        return found
    checkpoint = open_checkpoint(CheckpointPath(prefix, 2, (index,)))
    checkpoint.require_values()
    counts = {path.name[-5:] for path in checkpoint.files[1:]}  # as in data-00000-of-00002
    return [*found, index, *(path for path in shards if path.name[-5:] in counts or not counts)]


def _parse(path: Path, kind: Any, name: str) -> Any:
    content = read_bytes(path)
    message = kind()
    try:
        message.ParseFromString(content)
    except (DecodeError, RuntimeError) as error:
        if content.startswith(b"version https://git-lfs"):
            raise UnreadableInputError("a git-lfs pointer; run 'git lfs pull'") from error
        raise UnreadableInputError(f"{path.name} is no {name}, or it is damaged") from error
    return message


def _is_graph(graph_def: Any) -> bool:
    """Whether its nodes look like nodes: other bytes may happen to parse."""
    return all(node.name and node.op for node in graph_def.node) and all(
        function.signature.name for function in graph_def.library.function
    )


def read_bytes(path: Path) -> bytes:
    """The content of a file of a model.

    Raises:
        UnreadableInputError: missing, empty, no regular file, or larger than any message.
    """
    try:
        if path.is_file() and path.stat().st_size > _PROTO_LIMIT:
            raise UnreadableInputError(f"{path.name} is larger than 2 GiB: no protobuf message is")
        if path.exists() and not path.is_file():
            raise UnreadableInputError(f"{path.name} is not a regular file")
        content = path.read_bytes()
    except OSError as error:
        raise UnreadableInputError(f"{path.name} can't be read: {error.strerror}") from error
    if not content:
        raise UnreadableInputError(f"{path.name} is empty")
    return content
