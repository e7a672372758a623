"""A lowered model run beside the original, whose cuDNN ops numpy computes in float64.

Everything runs on the CPU. The original can't: so its graph is copied, each cuDNN op in it replaced
by `reference.py`, and this copy is run on the same random inputs as the lowered model.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.lowering import ops
from rnnconvert.lowering.compare import (
    TOLERANCES,
    SignatureResult,
    compare_outputs,
    first_line,
)
from rnnconvert.lowering.files import SAVED_MODEL, read_graph_def, read_saved_model
from rnnconvert.lowering.framework import attribute, tf
from rnnconvert.lowering.meta import clean_saveable_objects
from rnnconvert.lowering.reference_graph import ReferenceGraphs
from rnnconvert.lowering.runners import Runner, frozen_runner, saved_model_runner
from rnnconvert.lowering.signature_inputs import (
    Choices,
    make_inputs,
    shapes_of,
    words_of_assets,
)


def verify_saved_model(
    original: Path, lowered: Path, *, choices: Choices | None = None
) -> list[SignatureResult]:
    """Run every signature of a lowered SavedModel beside the original's reference.

    Args:
        original, lowered: directories.
        choices: of the inputs; its strings are taken from the assets where there are any.

    Returns:
        One result for each signature of each MetaGraph; none where there is no signature.
    """
    choices = choices or Choices()
    words = words_of_assets(original)
    if words:
        choices = Choices(choices.seed, choices.batch, choices.timesteps, words)
    saved_model = read_saved_model(original)
    precision = _lowest_precision(graph.graph_def for graph in saved_model.meta_graphs)
    references = ReferenceGraphs()
    for meta_graph in saved_model.meta_graphs:
        references.replace_ops(meta_graph.graph_def)
        clean_saveable_objects(meta_graph)
    results: list[SignatureResult] = []
    with tempfile.TemporaryDirectory(prefix=".rnnconvert-") as folder:
        for path in original.iterdir():
            if path.is_dir():
                _link(path, Path(folder) / path.name)
        (Path(folder) / SAVED_MODEL).write_bytes(saved_model.SerializeToString())
        for meta_graph in saved_model.meta_graphs:
            results += _compare_all(
                saved_model_runner(Path(folder), meta_graph),
                saved_model_runner(lowered, meta_graph),
                sorted(meta_graph.signature_def),
                choices,
                precision,
            )
    return results


def _link(source: Path, target: Path) -> None:
    try:
        os.symlink(source.resolve(), target, target_is_directory=True)
    except OSError:  # where links need a privilege
        shutil.copytree(source, target)


def verify_frozen_graph(
    original: Path, lowered: Path, *, choices: Choices | None = None
) -> list[SignatureResult]:
    """Run a lowered frozen graph beside the original's reference, from placeholders to results."""
    graph_def = read_graph_def(original)
    precision = _lowest_precision([graph_def])
    references = ReferenceGraphs()
    references.replace_ops(graph_def)
    lowered_def = read_graph_def(lowered)
    return _compare_all(
        frozen_runner(graph_def), frozen_runner(lowered_def), ["graph"],
        choices or Choices(), precision,
    )  # fmt: skip


def _compare_all(
    original: AbstractContextManager[Runner],
    lowered: AbstractContextManager[Runner],
    names: list[str],
    choices: Choices,
    precision: str,
) -> list[SignatureResult]:
    """Compare all signatures of two models that are yet to be loaded; `names` if one can't be."""
    with ExitStack() as stack:
        try:
            expected = stack.enter_context(original)
        except _FAILURES as error:
            reason = f"the original does not load: {first_line(error)}"
            return [SignatureResult(name, "skipped", reason) for name in names]
        try:
            found = stack.enter_context(lowered)
        except _FAILURES as error:
            reason = f"the lowered model does not load: {first_line(error)}"
            return [SignatureResult(name, "failed", reason) for name in names]
        return [
            _compare(name, expected, found, choices, precision)
            for name in sorted(expected.signatures)
        ]


_FAILURES = (tf.errors.OpError, ValueError, KeyError, TypeError, OSError)
"""What TensorFlow raises for a graph that it can't load or run."""


def _compare(
    name: str, expected: Runner, found: Runner, choices: Choices, precision: str
) -> SignatureResult:
    signature = expected.signatures[name]
    if signature.problem:
        return SignatureResult(name, "skipped", signature.problem)
    inputs, wanted, error = _first_that_runs(
        lambda given: expected.run(name, given), make_inputs(signature.inputs, choices)
    )
    if wanted is None:
        return SignatureResult(
            name, "skipped", f"the original does not run on random inputs: {error}"
        )
    shapes = shapes_of(inputs)
    try:
        got = found.run(name, inputs)
    except _FAILURES as failure:
        reason = f"the lowered model does not run: {first_line(failure)}"
        return SignatureResult(name, "failed", reason, inputs=shapes, seed=choices.seed)
    result = compare_outputs(name, got, wanted, precision)
    if result.status == "failed" and _moves(found, name, inputs, got):
        reason = "running it twice gives two results: random ops, or a state that is kept"
        return SignatureResult(name, "skipped", reason, inputs=shapes, seed=choices.seed)
    return replace(result, inputs=shapes, seed=choices.seed)


def _first_that_runs(
    run: Callable[[dict[str, Any]], dict[str, Any]], candidates: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any] | None, str]:
    """The first inputs that a model takes, with its outputs; else what it said of the first."""
    first_error = ""
    for inputs in candidates:
        try:
            return inputs, run(inputs), ""
        except _FAILURES as error:
            first_error = first_error or first_line(error)
    return {}, None, first_error


def _moves(runner: Runner, name: str, inputs: dict[str, Any], first: dict[str, Any]) -> bool:
    again = runner.run(name, inputs)
    return any(not np.array_equal(first[key], again[key], equal_nan=False) for key in first)


def _lowest_precision(graph_defs: Iterable[Any]) -> str:
    kinds = {
        tf.as_dtype(attribute(node, "T")).name
        for graph_def in graph_defs
        for nodes in [graph_def.node, *(f.node_def for f in graph_def.library.function)]
        for node in nodes
        if node.op in ops.ALL
    }
    return max(kinds, key=lambda kind: TOLERANCES.get(kind, 0.0), default="float32")
