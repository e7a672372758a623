"""SavedModel directories, frozen graphs and MetaGraph files: read, lowered, written elsewhere.

Targets are temporary ones of the caller, who publishes them; sources are only read.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from rnnconvert.containers.checkpoint import CheckpointPath, index_path, open_checkpoint
from rnnconvert.errors import NotConvertibleError, OutputError, UnreadableInputError
from rnnconvert.graphs.framework import GraphDef, MetaGraphDef, SavedModel
from rnnconvert.graphs.lower.meta import lower_meta_graph, lower_saved_model_proto, plan_meta_graph
from rnnconvert.graphs.lower.rewrite import lower_graph_def, plan_graph_def
from rnnconvert.graphs.ops import CudnnOp, LoweredGraph, LoweringOptions

SAVED_MODEL = "saved_model.pb"
FINGERPRINT = "fingerprint.pb"
KERAS_METADATA = "keras_metadata.pb"
_VARIABLES = "variables/variables"
_VARIABLE_OPS = frozenset({"VarHandleOp", "VariableV2", "Variable"})
_PROTO_LIMIT = 2**31 - 1  # bytes; protobuf has no larger messages
_SHARD = re.compile(r"\.data-(\d{5})-of-(\d{5})$")


@dataclass(frozen=True)
class LoweredFiles:
    """What was lowered in a model's files.

    Attributes:
        graphs: one for each graph; a SavedModel may have several.
        warnings: of all graphs, and of the files.
    """

    graphs: tuple[LoweredGraph, ...]
    warnings: tuple[str, ...] = ()

    @property
    def lowered(self) -> tuple[CudnnOp, ...]:
        return tuple(op for graph in self.graphs for op in graph.lowered)

    @property
    def left(self) -> tuple[CudnnOp, ...]:
        return tuple(op for graph in self.graphs for op in graph.left)


def lower_saved_model_dir(
    source: Path, target: Path, *, options: LoweringOptions | None = None
) -> LoweredFiles:
    """Lower a SavedModel into an existing empty directory.

    Variables, assets and whatever else lies there are copied as they are. The fingerprint is made
    anew. Keras' own description of the model is left out if it names CuDNN layers: Keras 2 would
    build the model from it, cuDNN ops and all.

    Raises:
        UnreadableInputError: no SavedModel, its variables are missing or incomplete, or a link in
            it leads elsewhere.
        NotConvertibleError: as `rewrite.lower_graph_def`.
        OutputError: the target can't be written.
    """
    saved_model = read_saved_model(source)
    graphs = lower_saved_model_proto(saved_model, options=options)
    warnings = [warning for graph in graphs for warning in graph.warnings]
    left_out = set()
    if any(graph.changed for graph in graphs):
        left_out = {SAVED_MODEL, FINGERPRINT}
    if any(graph.lowered for graph in graphs):
        left_out |= _keras_descriptions(source, saved_model, warnings)
    for file in list(_files_of(source)):
        name = file.relative_to(source).as_posix()
        if name not in left_out:
            _copy(file, target / name)
    if SAVED_MODEL in left_out:
        _write(target / SAVED_MODEL, saved_model)
        if (source / FINGERPRINT).exists():
            _renew_fingerprint(target)
    return LoweredFiles(graphs, tuple(warnings))


def _keras_descriptions(source: Path, saved_model: Any, warnings: list[str]) -> set[str]:
    """Files to leave out, and a warning, where Keras 2 would build CuDNN layers from a description.

    Until TensorFlow 2.4 that stands in the object graph, where TensorFlow needs the rest of it.
    """
    found = set()
    if (source / KERAS_METADATA).is_file() and b"CuDNN" in _read(source / KERAS_METADATA):
        found.add(KERAS_METADATA)
    if found or any(
        "CuDNN" in node.user_object.metadata
        for graph in saved_model.meta_graphs
        for node in graph.object_graph_def.nodes
    ):
        left_out = f" ({KERAS_METADATA} is left out)" if found else ""
        warnings.append(
            f"Keras' description of this model names CuDNN layers{left_out}: load it with "
            "tf.saved_model.load, not with Keras 2"
        )
    return found


def lower_frozen_graph(
    source: Path, target: Path, *, options: LoweringOptions | None = None
) -> LoweredFiles:
    """Lower a frozen GraphDef (.pb) into another file.

    Raises:
        UnreadableInputError: the source is no graph.
        NotConvertibleError: as `rewrite.lower_graph_def`.
        OutputError: the target can't be written.
    """
    graph_def = read_graph_def(source)
    result = lower_graph_def(graph_def, options=options)
    _write(target, graph_def)
    return LoweredFiles((result,), result.warnings)


def lower_meta_graph_file(
    source: Path, target: Path, *, options: LoweringOptions | None = None
) -> LoweredFiles:
    """Lower a MetaGraph (NAME.meta) into another; the checkpoint NAME is copied along with it.

    The lowered graph restores the checkpoint as it is, and writes one of the same kind.

    Args:
        source: NAME.meta; the checkpoint's files, if there are any, lie beside it.
        target: OTHER.meta; the checkpoint becomes OTHER.

    Raises:
        UnreadableInputError: no MetaGraph, or its checkpoint is incomplete.
        NotConvertibleError: as `rewrite.lower_graph_def`.
        OutputError: the target can't be written.
    """
    meta_graph = read_meta_graph(source)
    prefix, new_prefix = source.with_suffix(""), target.with_suffix("")
    files = checkpoint_files(prefix)
    result = lower_meta_graph(meta_graph, options=options)
    for file in files:
        _copy(file, new_prefix.with_name(new_prefix.name + file.name[len(prefix.name) :]))
    _write(target, meta_graph)
    return LoweredFiles((result,), result.warnings)


def plan_model(source: Path, *, options: LoweringOptions | None = None) -> LoweredFiles:
    """What lowering a model would do, told from its graphs alone: nothing is copied or changed.

    Args:
        source: a SavedModel's directory, a MetaGraph (.meta) or a frozen graph.
        options: of the lowering.

    Raises:
        UnreadableInputError: it is none of them, or its variables are missing or incomplete.
        NotConvertibleError: as `rewrite.lower_graph_def`.
    """
    if source.is_dir():
        saved_model = read_saved_model(source)
        list(_files_of(source))  # what can't be copied is refused now, too
        graphs = tuple(plan_meta_graph(each, options=options) for each in saved_model.meta_graphs)
        warnings = [warning for graph in graphs for warning in graph.warnings]
        if any(graph.lowered for graph in graphs):
            _keras_descriptions(source, saved_model, warnings)
        return LoweredFiles(graphs, tuple(warnings))
    if source.suffix == ".meta":
        checkpoint_files(source.with_suffix(""))
        planned = plan_meta_graph(read_meta_graph(source), options=options)
    else:
        planned = plan_graph_def(read_graph_def(source), options=options)
    return LoweredFiles((planned,), planned.warnings)


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


def graph_defs_of(model: Path) -> list[Any]:
    """The GraphDefs of a SavedModel directory, a .meta file or a frozen graph.

    Raises:
        UnreadableInputError: it is none of them.
    """
    if model.is_dir():
        return [meta_graph.graph_def for meta_graph in read_saved_model(model).meta_graphs]
    if model.suffix == ".meta":
        return [read_meta_graph(model).graph_def]
    return [read_graph_def(model)]


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
    content = _read(path)
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


def _read(path: Path) -> bytes:
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


def _files_of(source: Path) -> Iterator[Path]:
    """All files of a SavedModel's directory; links inside it are followed, as are those of a cache
    of downloads; others are refused.

    Raises:
        UnreadableInputError: a link that leads out of the directory, in a circle or to nothing, or
            something that is no regular file.
    """
    root = source.resolve()
    todo: list[tuple[Path, tuple[Path, ...]]] = [(source, (root,))]
    while todo:
        folder, above = todo.pop()
        for path in sorted(folder.iterdir()):
            real = _inside(source, root, path)
            if path.is_dir():
                if real in above:
                    raise UnreadableInputError(f"{path.relative_to(source)} is a link in a circle")
                todo.append((path, (*above, real)))
            elif path.is_file():
                yield path
            else:
                raise UnreadableInputError(f"{path.relative_to(source)} is not a regular file")


def _inside(source: Path, root: Path, path: Path) -> Path:
    """Where a path of a SavedModel really lies."""
    name = path.relative_to(source)
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise UnreadableInputError(f"{name} is a link to nothing") from error
    if not belongs_to(root, real):
        raise UnreadableInputError(
            f"{name} is a link that leads out of the SavedModel, and is not followed; "
            f"'cp -rL {source} COPY' makes a directory without links"
        )
    return real


def belongs_to(root: Path, real: Path) -> bool:
    """Whether a file lies in a model's directory, or was downloaded for it.

    The cache of Hugging Face keeps the files of a repository in `REPOSITORY/blobs`, and a directory
    of links to them in `REPOSITORY/snapshots/REVISION`.

    Args:
        root, real: the directory and the file, without links.
    """
    if root in real.parents:
        return True
    repository = real.parent.parent
    return (
        real.is_file()
        and real.parent.name == "blobs"
        and "--" in repository.name
        and repository / "snapshots" in root.parents
    )


def _copy(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    except OSError as error:
        raise _output_error(target, error) from error


def _write(target: Path, message: Any) -> None:
    try:
        target.write_bytes(message.SerializeToString(deterministic=True))
    except OSError as error:
        raise _output_error(target, error) from error


def _output_error(target: Path, error: OSError) -> OutputError:
    return OutputError(f"can't be written: {error.strerror}", path=str(target))


def _renew_fingerprint(target: Path) -> None:
    """A fingerprint of the new files, where this TensorFlow can make one.

    TensorFlow gives it a random number; here it is one of the content, as the rest of it is.
    """
    try:
        from tensorflow.core.protobuf.fingerprint_pb2 import FingerprintDef
        from tensorflow.python.saved_model.pywrap_saved_model import (
            fingerprinting,
        )

        made = FingerprintDef.FromString(fingerprinting.CreateFingerprintDef(str(target)))
    except (ImportError, AttributeError, RuntimeError):
        return
    if made.uuid:
        made.uuid = ""
        digest = hashlib.sha256(made.SerializeToString(deterministic=True)).digest()
        made.uuid = str(int.from_bytes(digest[:8], "little"))
    (target / FINGERPRINT).write_bytes(made.SerializeToString(deterministic=True))
