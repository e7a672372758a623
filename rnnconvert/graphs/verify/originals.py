"""The original of a lowered model, made ready to run here.

Either a copy of it whose cuDNN ops `reference.py` computes, or the original itself on a device
that has cuDNN. And what its ops receive as parameters while such a copy runs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.graphs.framework import MetaGraphDef, SavedModel, data_inputs, tf
from rnnconvert.graphs.lower.meta import clean_saveable_objects
from rnnconvert.graphs.opening import SAVED_MODEL, checkpoint_files
from rnnconvert.graphs.ops import ALL, FORWARD
from rnnconvert.graphs.verify.reference_graph import Record, ReferenceGraphs
from rnnconvert.graphs.verify.runners import (
    CPU,
    FAILURES,
    GraphRunner,
    first_that_runs,
    frozen_runner,
    new_session,
    saved_model_runner,
)
from rnnconvert.graphs.verify.signature_inputs import Choices

Received = Mapping[tuple[str, str], Sequence["np.ndarray[Any, Any]"]]
"""Different parameters that ops received, by function ("" for the main graph) and node."""

_MOST = 4  # different parameters that are kept of one op


@contextmanager
def reference_saved_model(
    original: Path, saved_model: Any, records: Sequence[Record | None] = ()
) -> Iterator[Path]:
    """A copy of a SavedModel, in a directory that is removed at the end, that runs without cuDNN.

    Args:
        original: its directory.
        saved_model: the proto; is not changed.
        records: for each MetaGraph, what is told of the parameters that its ops receive.
    """
    references, changed = ReferenceGraphs(), SavedModel()
    changed.CopyFrom(saved_model)
    for number, meta_graph in enumerate(changed.meta_graphs):
        references.replace_ops(meta_graph.graph_def, records[number] if records else None)
    with _copy(original, changed) as folder:
        yield folder


@contextmanager
def restorable_saved_model(original: Path, saved_model: Any) -> Iterator[Path]:
    """A copy of a SavedModel that a machine without cuDNN can load, but not run.

    What its saver computes by cuDNN ops, which make the buffers of what is stored, the reference
    computes; the ops of the model itself are as they were.

    Args:
        original, saved_model: as of `reference_saved_model`.
    """
    references, changed = ReferenceGraphs(), SavedModel()
    changed.CopyFrom(saved_model)
    for meta_graph in changed.meta_graphs:
        references.replace_ops(meta_graph.graph_def, kinds=ALL - FORWARD)
    with _copy(original, changed) as folder:
        yield folder


@contextmanager
def loadable_saved_model(original: Path, saved_model: Any) -> Iterator[Path]:
    """The directory of a SavedModel as it is, or of a copy that TensorFlow can load.

    The copy has the same graph; TensorFlow 1's cuDNN layers name objects in the collection
    `saveable_objects` on which every loader stumbles.
    """
    changed = SavedModel()
    changed.CopyFrom(saved_model)
    repaired = {clean_saveable_objects(meta_graph) for meta_graph in changed.meta_graphs}
    if True not in repaired:
        yield original
        return
    with _copy(original, changed) as folder:
        yield folder


@contextmanager
def _copy(original: Path, changed: Any) -> Iterator[Path]:
    for meta_graph in changed.meta_graphs:
        clean_saveable_objects(meta_graph)
    with tempfile.TemporaryDirectory(prefix=".rnnconvert-") as folder:
        for path in original.iterdir():
            if path.is_dir():
                _link(path, Path(folder) / path.name)
        (Path(folder) / SAVED_MODEL).write_bytes(changed.SerializeToString())
        yield Path(folder)


def _link(source: Path, target: Path) -> None:
    try:
        os.symlink(source.resolve(), target, target_is_directory=True)
    except OSError:  # where links need a privilege
        shutil.copytree(source, target)


@contextmanager
def reference_frozen(graph_def: Any, record: Record | None = None) -> Iterator[GraphRunner]:
    """A frozen graph whose cuDNN ops the reference computes; the GraphDef is changed."""
    references = ReferenceGraphs()
    references.replace_ops(graph_def, record)
    with frozen_runner(graph_def, CPU) as runner:
        yield runner


def received_in_saved_model(original: Path, saved_model: Any, choices: Choices) -> list[Received]:
    """What the ops of each MetaGraph receive while its signatures run on random inputs.

    Nothing for ops that no signature gets to, and for models that do not run here.
    """
    notes = [_Notes() for _ in saved_model.meta_graphs]
    with reference_saved_model(original, saved_model, notes) as folder:
        for meta_graph in saved_model.meta_graphs:
            _run_all(saved_model_runner(folder, meta_graph, CPU), choices)
    return [note.received for note in notes]


def received_in_frozen(graph_def: Any, choices: Choices) -> Received:
    """The same of a frozen graph, from its placeholders; the GraphDef is changed."""
    notes = _Notes()
    _run_all(reference_frozen(graph_def, notes), choices)
    return notes.received


def received_in_meta_graph(meta_graph: Any, prefix: Path) -> Received:
    """The parameters of the main graph's ops after TensorFlow itself restored the checkpoint.

    Args:
        meta_graph: is not changed.
        prefix: of the checkpoint; without one there is nothing.
    """
    notes = _Notes()
    wanted = [node for node in meta_graph.graph_def.node if node.op in FORWARD]
    if not checkpoint_files(prefix):
        return notes.received
    references, changed = ReferenceGraphs(), MetaGraphDef()
    changed.CopyFrom(meta_graph)
    references.replace_ops(changed.graph_def)
    clean_saveable_objects(changed)
    try:
        with tf.Graph().as_default() as graph, new_session(graph, CPU) as session:
            saver = tf.compat.v1.train.import_meta_graph(changed, clear_devices=True)
            if saver is None:
                return notes.received
            saver.restore(session, str(prefix))
            for node in wanted:
                reference = data_inputs(node)[3]
                name = reference if ":" in reference else f"{reference}:0"
                notes("", node.name, session.run(name))
    except FAILURES:
        pass  # what was noted stays; the rest was not to be had so
    return notes.received


def _run_all(model: AbstractContextManager[GraphRunner], choices: Choices) -> None:
    try:
        with model as runner:
            for name, signature in sorted(runner.signatures.items()):
                if not signature.problem:
                    first_that_runs([runner], name, choices)
    except FAILURES:
        pass  # it does not load here


class _Notes:
    """Collects the different parameters of each op."""

    def __init__(self) -> None:
        self.received: dict[tuple[str, str], list[np.ndarray[Any, Any]]] = defaultdict(list)

    def __call__(self, function: str, name: str, params: Any) -> None:
        known = self.received[function, name]
        if len(known) < _MOST and not any(same_bits(params, other) for other in known):
            known.append(np.array(params))


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays are the same, NaN and zeros' signs included."""
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
