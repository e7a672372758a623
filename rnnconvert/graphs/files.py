"""SavedModel directories, frozen graphs and MetaGraph files: read, lowered, written elsewhere.

Targets are temporary ones of the caller, who publishes them; sources are only read.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rnnconvert.errors import OutputError, UnreadableInputError
from rnnconvert.graphs.lower.meta import lower_meta_graph, lower_saved_model_proto, plan_meta_graph
from rnnconvert.graphs.lower.rewrite import lower_graph_def, plan_graph_def
from rnnconvert.graphs.opening import (
    SAVED_MODEL,
    OpenedGraph,
    checkpoint_files,
    open_graph,
    read_bytes,
)
from rnnconvert.graphs.ops import CudnnOp, LoweredGraph, LoweringOptions

FINGERPRINT = "fingerprint.pb"
KERAS_METADATA = "keras_metadata.pb"


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
    model: Path | OpenedGraph, target: Path, *, options: LoweringOptions | None = None
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
    opened = open_graph(model)
    source, saved_model = opened.path, opened.copy()
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
    if (source / KERAS_METADATA).is_file() and b"CuDNN" in read_bytes(source / KERAS_METADATA):
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
    model: Path | OpenedGraph, target: Path, *, options: LoweringOptions | None = None
) -> LoweredFiles:
    """Lower a frozen GraphDef (.pb) into another file.

    Raises:
        UnreadableInputError: the source is no graph.
        NotConvertibleError: as `rewrite.lower_graph_def`.
        OutputError: the target can't be written.
    """
    graph_def = open_graph(model).copy()
    result = lower_graph_def(graph_def, options=options)
    _write(target, graph_def)
    return LoweredFiles((result,), result.warnings)


def lower_meta_graph_file(
    model: Path | OpenedGraph, target: Path, *, options: LoweringOptions | None = None
) -> LoweredFiles:
    """Lower a MetaGraph (NAME.meta) into another; the checkpoint NAME is copied along with it.

    The lowered graph restores the checkpoint as it is, and writes one of the same kind.

    Args:
        model: NAME.meta; the checkpoint's files, if there are any, lie beside it.
        target: OTHER.meta; the checkpoint becomes OTHER.

    Raises:
        UnreadableInputError: no MetaGraph, or its checkpoint is incomplete.
        NotConvertibleError: as `rewrite.lower_graph_def`.
        OutputError: the target can't be written.
    """
    opened = open_graph(model)
    source, meta_graph = opened.path, opened.copy()
    prefix, new_prefix = source.with_suffix(""), target.with_suffix("")
    files = checkpoint_files(prefix)
    result = lower_meta_graph(meta_graph, options=options)
    for file in files:
        _copy(file, new_prefix.with_name(new_prefix.name + file.name[len(prefix.name) :]))
    _write(target, meta_graph)
    return LoweredFiles((result,), result.warnings)


def plan_model(
    model: Path | OpenedGraph, *, options: LoweringOptions | None = None
) -> LoweredFiles:
    """What lowering a model would do, told from its graphs alone: nothing is copied or changed.

    Args:
        model: a SavedModel's directory, a MetaGraph (.meta) or a frozen graph, read or not.
        options: of the lowering.

    Raises:
        UnreadableInputError: it is none of them, or its variables are missing or incomplete.
        NotConvertibleError: as `rewrite.lower_graph_def`.
    """
    opened = open_graph(model)
    source, message = opened.path, opened.message
    if source.is_dir():
        list(_files_of(source))  # what can't be copied is refused now, too
        graphs = tuple(plan_meta_graph(each, options=options) for each in message.meta_graphs)
        warnings = [warning for graph in graphs for warning in graph.warnings]
        if any(graph.lowered for graph in graphs):
            _keras_descriptions(source, message, warnings)
        return LoweredFiles(graphs, tuple(warnings))
    if source.suffix == ".meta":
        checkpoint_files(source.with_suffix(""))
        planned = plan_meta_graph(message, options=options)
    else:
        planned = plan_graph_def(message, options=options)
    return LoweredFiles((planned,), planned.warnings)


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
