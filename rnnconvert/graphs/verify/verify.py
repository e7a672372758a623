"""A lowered model run beside the original, signature by signature, on the same random inputs.

The lowered model runs on the CPU. There the original can't: so its graph is copied, each cuDNN op
in the copy replaced by `reference.py`, and the copy is run. Where TensorFlow has a GPU, the
original itself can be run on it instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.errors import UsageError
from rnnconvert.graphs import ops
from rnnconvert.graphs.framework import node_attribute, tf
from rnnconvert.graphs.opening import OpenedGraph, open_graph
from rnnconvert.graphs.verify.compare import (
    BY_REFERENCE,
    TOLERANCES,
    compare_outputs,
    first_line,
)
from rnnconvert.graphs.verify.originals import (
    loadable_saved_model,
    reference_frozen,
    reference_saved_model,
)
from rnnconvert.graphs.verify.permission import (
    why_not_run,
    why_not_run_graph,
    why_not_run_saved_model,
)
from rnnconvert.graphs.verify.runners import (
    CPU,
    FAILURES,
    GraphRunner,
    first_that_runs,
    frozen_runner,
    saved_model_runner,
)
from rnnconvert.graphs.verify.signature_inputs import Choices, shapes_of, words_of_assets
from rnnconvert.report import LevelResult
from rnnconvert.verification.devices import tf32_off

REFERENCE = "reference"
GPU = "gpu"


def verify_saved_model(
    original: Path | OpenedGraph,
    lowered: Path | OpenedGraph,
    *,
    choices: Choices | None = None,
    original_on: str = REFERENCE,
    allow_code: bool = False,
) -> list[LevelResult]:
    """Run every signature of a lowered SavedModel beside the original.

    Args:
        original, lowered: directories, read or not.
        choices: of the inputs; its strings are taken from the assets where there are any.
        original_on: "reference": a copy whose cuDNN ops numpy computes, on the CPU. "gpu": the
            original itself, on TensorFlow's first GPU, without TF32. Or that on any other device,
            by TensorFlow's name, e.g. "/GPU:1".
        allow_code: run ops, too, that are not known to be harmless.

    Returns:
        One result for each signature of each MetaGraph; none where there is no signature. One that
        is skipped for them all where the models may not be run.

    Raises:
        UsageError: TensorFlow has no such device.
    """
    device = _device(original_on)
    source, copy = open_graph(original), open_graph(lowered)
    choices = with_words_of_assets(choices or Choices(), source.path)
    saved_model = source.message
    reason = why_not_run_saved_model(source.path, saved_model) or why_not_run(copy)
    if reason and not allow_code:
        return [not_run(reason)]
    precision = lowest_precision(graph.graph_def for graph in saved_model.meta_graphs)
    make = loadable_saved_model if device else reference_saved_model
    results: list[LevelResult] = []
    with make(source.path, saved_model) as folder:
        for meta_graph in saved_model.meta_graphs:
            with _without_tf32(saved_model_runner(folder, meta_graph, device or CPU)) as expected:
                results += _compare_all(
                    expected,
                    saved_model_runner(copy.path, meta_graph, CPU),
                    sorted(meta_graph.signature_def),
                    choices,
                    precision,
                )
    return [_run_on(result, device) for result in results]


def verify_frozen_graph(
    original: Path | OpenedGraph,
    lowered: Path | OpenedGraph,
    *,
    choices: Choices | None = None,
    original_on: str = REFERENCE,
    allow_code: bool = False,
) -> list[LevelResult]:
    """Run a lowered frozen graph beside the original, from placeholders to results.

    Args and errors are those of `verify_saved_model`, with files for directories.
    """
    device = _device(original_on)
    graph_def, copy = open_graph(original).copy(), open_graph(lowered)
    reason = why_not_run_graph(graph_def) or why_not_run(copy)
    if reason and not allow_code:
        return [not_run(reason)]
    precision = lowest_precision([graph_def])
    runner = frozen_runner(graph_def, device) if device else reference_frozen(graph_def)
    with _without_tf32(runner) as expected:
        results = _compare_all(
            expected, frozen_runner(copy.copy(), CPU), ["graph"],
            choices or Choices(), precision,
        )  # fmt: skip
    return [_run_on(result, device) for result in results]


def _run_on(result: LevelResult, device: str | None) -> LevelResult:
    """With the device that the original ran on, and what computed its cuDNN ops."""
    if device is None:
        return replace(result, device="cpu", engine=BY_REFERENCE)
    kind = "gpu" if "GPU" in device.upper() else "cpu"
    return replace(result, device=kind, engine=f"tensorflow, the original on {device}, TF32 off")


def not_run(reason: str) -> LevelResult:
    """The one result of a model with ops that are not known to be harmless; it has no name."""
    return LevelResult("skipped", reason=reason)


def with_words_of_assets(choices: Choices, original: Path) -> Choices:
    """The choices, with strings that a SavedModel's tables know."""
    words = words_of_assets(original)
    return replace(choices, strings=words) if words else choices


def _device(original_on: str) -> str | None:
    """TensorFlow's name of the device that the original is to run on; None for the reference."""
    if original_on == REFERENCE:
        return None
    device = "/GPU:0" if original_on == GPU else original_on
    names = [each.name for each in tf.config.list_logical_devices()]  # /device:GPU:0
    if device.upper().removeprefix("/DEVICE:").lstrip("/") not in (
        name.removeprefix("/device:") for name in names
    ):
        raise UsageError(f"TensorFlow has no device {device}; it has {', '.join(names)}")
    return device


@contextmanager
def _without_tf32(runner: AbstractContextManager[GraphRunner]) -> Iterator[GraphRunner | str]:
    """A model that runs without TF32; or, if it does not load, what TensorFlow said."""
    with ExitStack() as stack:
        stack.enter_context(tf32_off("tensorflow"))
        loaded: GraphRunner | str
        try:
            loaded = stack.enter_context(runner)
        except FAILURES as error:
            loaded = first_line(error)
        yield loaded


def _compare_all(
    expected: GraphRunner | str,
    lowered: AbstractContextManager[GraphRunner],
    names: list[str],
    choices: Choices,
    precision: str,
) -> list[LevelResult]:
    """Compare all signatures of the original and the lowered model, which is yet to be loaded.

    Args:
        expected: the original; or why it does not load.
        lowered: the lowered model.
        names: of the signatures, for results where one of them does not load.
        choices, precision: of the inputs, and of the cuDNN ops.
    """
    if isinstance(expected, str):
        reason = f"the original does not load: {expected}"
        return [LevelResult("skipped", name=name, reason=reason) for name in names]
    with ExitStack() as stack:
        try:
            found = stack.enter_context(lowered)
        except FAILURES as error:
            reason = f"the lowered model does not load: {first_line(error)}"
            return [LevelResult("failed", name=name, reason=reason) for name in names]
        return [
            _compare(name, expected, found, choices, precision)
            for name in sorted(expected.signatures)
        ]


def _compare(
    name: str, expected: GraphRunner, found: GraphRunner, choices: Choices, precision: str
) -> LevelResult:
    signature = expected.signatures[name]
    if signature.problem:
        return LevelResult("skipped", name=name, reason=signature.problem)
    runners = [expected, found] if choices.unrolled else [expected]
    inputs, wanted, error = first_that_runs(runners, name, choices)
    if wanted is None:
        inputs, wanted, error = first_that_runs([expected], name, choices)
    if wanted is None:
        return LevelResult(
            "skipped", name=name, reason=f"the original does not run on random inputs: {error}"
        )
    shapes = shapes_of(inputs)
    try:
        got = found.run(name, inputs)
    except FAILURES as failure:
        reason = f"the lowered model does not run: {first_line(failure)}"
        return LevelResult("failed", name=name, reason=reason, inputs=shapes, seed=choices.seed)
    result = compare_outputs(name, got, wanted, precision, choices.tolerance)
    if result.status == "failed" and _moves(found, name, inputs, got):
        reason = "running it twice gives two results: random ops, or a state that is kept"
        return LevelResult("skipped", name=name, reason=reason, inputs=shapes, seed=choices.seed)
    return replace(result, inputs=shapes, seed=choices.seed)


def _moves(runner: GraphRunner, name: str, inputs: dict[str, Any], first: dict[str, Any]) -> bool:
    again = runner.run(name, inputs)
    return any(not np.array_equal(first[key], again[key], equal_nan=False) for key in first)


def lowest_precision(graph_defs: Iterable[Any]) -> str:
    """Of the cuDNN ops of graphs, a key of TOLERANCES; without one, float32."""
    kinds = {
        tf.as_dtype(node_attribute(node, "T")).name
        for graph_def in graph_defs
        for nodes in [graph_def.node, *(f.node_def for f in graph_def.library.function)]
        for node in nodes
        if node.op in ops.ALL
    }
    return max(kinds, key=lambda kind: TOLERANCES.get(kind, 0.0), default="float32")
