"""The level `layers` of a lowered graph: each cuDNN op by itself, with the model's own parameters.

An op's parameters are taken from the model's files. Then it is put into a graph of its own with the
same attributes, which is lowered as the model was and run on the CPU, on random inputs; numpy
computes the same in float64. Where the model itself may run here (its cuDNN ops by numpy), what the
op received there must be what the files hold; where it may not, the files alone decide.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rnnconvert.errors import NotConvertibleError, UnreadableInputError
from rnnconvert.graphs.find.scopes import Library
from rnnconvert.graphs.find.search import FoundOp, search
from rnnconvert.graphs.find.shapes import Shapes
from rnnconvert.graphs.framework import GraphDef, data_inputs, tf
from rnnconvert.graphs.lower.layout import RnnShape, solve
from rnnconvert.graphs.lower.meta import captured_constants, captured_variables
from rnnconvert.graphs.lower.rewrite import lower_graph_def, recipe_of
from rnnconvert.graphs.opening import OpenedGraph, open_graph
from rnnconvert.graphs.ops import ALL, FORWARD, FROM_CANONICAL, CudnnOp, LoweringOptions
from rnnconvert.graphs.verify import reference
from rnnconvert.graphs.verify.compare import compare_outputs, first_line
from rnnconvert.graphs.verify.originals import (
    Received,
    received_in_frozen,
    received_in_meta_graph,
    received_in_saved_model,
    same_bits,
)
from rnnconvert.graphs.verify.parameters import Array, Parameters, Unavailable
from rnnconvert.graphs.verify.permission import (
    why_not_run_graph,
    why_not_run_meta_graph,
    why_not_run_saved_model,
)
from rnnconvert.graphs.verify.reference_graph import settings_of
from rnnconvert.graphs.verify.runners import CPU, FAILURES, new_session
from rnnconvert.graphs.verify.signature_inputs import Choices, shapes_of
from rnnconvert.graphs.verify.variables import Variables
from rnnconvert.graphs.verify.verify import with_words_of_assets
from rnnconvert.report import LevelResult

_VARIABLES = "variables/variables"
_INPUTS = ("input", "input_h", "input_c", "params", "sequence_lengths")
_OP = "op"
_WORST_FIRST = ("failed", "skipped", "passed")


def verify_layers(
    original: Path | OpenedGraph,
    *,
    lowered: Path | OpenedGraph | None = None,
    choices: Choices | None = None,
    options: LoweringOptions | None = None,
    allow_code: bool = False,
) -> list[LevelResult]:
    """Verify each forward cuDNN op that gets lowered, by itself.

    Args:
        original: a SavedModel's directory, a MetaGraph (.meta, its checkpoint beside it), or a
            frozen graph, read or not.
        lowered: the lowered counterpart; if given, each op must be gone in it.
        choices: of the inputs. Their batch and time steps are those of the single ops.
        options: with which the model was lowered.
        allow_code: run the model even where an op of it is not known to be harmless.

    Returns:
        One result for each op under `CudnnOp.place`; "skipped", with the reason, where its
        parameters can't be had.

    Raises:
        UnreadableInputError: a file can't be read, or the two are not of one model.
    """
    choices, options = choices or Choices(), options or LoweringOptions()
    source = open_graph(original)
    make = _of_frozen_graph
    if source.path.is_dir():
        make = _of_saved_model
    elif source.path.suffix == ".meta":
        make = _of_meta_graph
    checks = make(source, choices, options, allow_code)
    copy = open_graph(lowered) if lowered else None
    after = copy.graph_defs if copy else []
    if copy and len(after) != len(checks):
        raise UnreadableInputError(
            f"{copy.path.name} has {len(after)} graphs, but the original has {len(checks)}"
        )
    results: list[LevelResult] = []
    for number, check in enumerate(checks):
        left = _cudnn_nodes(after[number]) if after else frozenset()
        results += [_unless_left(check.result(found), found.op, left) for found in check.ops]
    return results


def _of_saved_model(
    opened: OpenedGraph, choices: Choices, options: LoweringOptions, allow_code: bool
) -> list[_Check]:
    original, saved_model = opened.path, opened.message
    checks = [
        _check(graph.graph_def, graph.object_graph_def, original / _VARIABLES, choices, options)
        for graph in saved_model.meta_graphs
    ]
    may_run = allow_code or why_not_run_saved_model(original, saved_model) is None
    if may_run and any(check.ops for check in checks):
        words = with_words_of_assets(choices, original)
        received = received_in_saved_model(original, saved_model, words)
        for check, noted in zip(checks, received, strict=True):
            check.received = noted
    return checks


def _of_meta_graph(
    opened: OpenedGraph, choices: Choices, options: LoweringOptions, allow_code: bool
) -> list[_Check]:
    meta_graph, prefix = opened.message, opened.path.with_suffix("")
    check = _check(meta_graph.graph_def, None, prefix, choices, options)
    if allow_code or why_not_run_meta_graph(meta_graph) is None:
        check.received = received_in_meta_graph(meta_graph, prefix)
    return [check]


def _of_frozen_graph(
    opened: OpenedGraph, choices: Choices, options: LoweringOptions, allow_code: bool
) -> list[_Check]:
    graph_def = opened.message
    check = _check(graph_def, None, None, choices, options)
    if allow_code or why_not_run_graph(graph_def) is None:
        check.received = received_in_frozen(opened.copy(), choices)
    return [check]


def _check(
    graph_def: Any,
    objects: Any | None,
    prefix: Path | None,
    choices: Choices,
    options: LoweringOptions,
) -> _Check:
    roots = objects.concrete_functions if objects is not None else ()
    library = Library(graph_def, roots)
    shapes = Shapes(library, captured_variables(objects) if objects is not None else None)
    constants = captured_constants(objects) if objects is not None else None
    parameters = Parameters(library, shapes, Variables(prefix, objects), constants)
    return _Check(search(library, shapes, options), parameters, choices, options)


def _cudnn_nodes(graph_def: Any) -> frozenset[tuple[str, str]]:
    library = Library(graph_def)
    return frozenset(
        (scope.name, node.name)
        for scope in library.all_scopes()
        for node in scope.nodes
        if node.op in ALL
    )


def _unless_left(result: LevelResult, op: CudnnOp, left: frozenset[tuple[str, str]]) -> LevelResult:
    if (op.function, op.name) not in left:
        return result
    return LevelResult(
        "failed",
        name=op.place,
        reason=f"{op.op} is still there in the lowered file",
        seed=result.seed,
    )


class _Check:
    """Checks the ops of one graph; those that do not differ in anything are run once.

    Args:
        found: the graph's cuDNN ops.
        parameters: from the files.
        choices, options: of `verify_layers`.

    Attributes:
        ops: that are to be checked.
        received: what ops received while the graph ran here.
    """

    def __init__(
        self,
        found: Sequence[FoundOp],
        parameters: Parameters,
        choices: Choices,
        options: LoweringOptions,
    ) -> None:
        self.ops = [each for each in found if each.op.op in FORWARD and each.op.needs_lowering]
        self.received: Received = {}
        self._parameters, self._choices, self._options = parameters, choices, options
        self._done: dict[Any, LevelResult] = {}
        # TensorFlow 1's layers restore a buffer from canonical weights, whose biases are sums.
        self._restores_sums = any(each.op.op in FROM_CANONICAL for each in found)

    def result(self, found: FoundOp) -> LevelResult:
        """How the lowered op compares with the reference."""
        op = found.op
        if found.shape is None:
            return self._skipped(op, op.problem or "its sizes can't be told")
        received = self.received.get((op.function, op.name), ())
        try:
            params = self._parameters.value(found.scope, _params_of(found))
        except Unavailable as error:
            if not received:
                return self._skipped(op, f"its parameters can't be had: {error}")
            to_run = list(received)
        else:
            for other in received:
                if problem := self._disagreement(found, params, other):
                    return LevelResult(
                        "failed", name=op.place, reason=problem, seed=self._choices.seed
                    )
            to_run = [params]
        results = [self._run_once(found, each) for each in to_run]
        worst = min(results, key=lambda result: _WORST_FIRST.index(result.status))
        return replace(worst, name=op.place)

    def _skipped(self, op: CudnnOp, reason: str) -> LevelResult:
        return LevelResult("skipped", name=op.place, reason=reason, seed=self._choices.seed)

    def _disagreement(self, found: FoundOp, params: Array, received: Array) -> str | None:
        """What differs between the parameters in the files and those that the op received."""
        if same_bits(params, received):
            return None
        exact = found.op.params_kind in ("variable", "constant") and not self._restores_sums
        same_form = (params.shape, params.dtype) == (received.shape, received.dtype)
        if exact or not same_form:
            apart = f"{int(np.sum(params != received))} of {params.size}" if same_form else "all"
            return f"the op receives other parameters than the files hold: {apart} differ"
        inputs = self._inputs(found, params)
        if isinstance(inputs, str):
            return inputs
        first, second = (
            _reference(found, {**inputs, "params": each}) for each in (params, received)
        )
        result = compare_outputs(found.op.name, second, first, found.op.dtype)
        if result.status == "passed":
            return None
        return (
            "the op receives other parameters than the files hold: "
            f"{result.worst} differs by {result.max_abs:.3g}"
        )

    def _run_once(self, found: FoundOp, params: Array) -> LevelResult:
        digest = hashlib.sha256(np.ascontiguousarray(params).tobytes()).digest()
        key = (recipe_of(found, self._options), settings_of(found.node), digest)
        if key not in self._done:
            self._done[key] = self._run(found, params)
        return self._done[key]

    def _run(self, found: FoundOp, params: Array) -> LevelResult:
        op = found.op
        inputs = self._inputs(found, params)
        if isinstance(inputs, str):
            return self._skipped(op, inputs)
        graph_def = _graph_of_one(found)
        library = Library(graph_def)
        (alone,) = search(library, Shapes(library), self._options)
        if alone.shape is None or recipe_of(alone, self._options) != recipe_of(
            found, self._options
        ):
            return self._skipped(op, "by itself it would not be lowered in the same way")
        try:
            lower_graph_def(graph_def, options=self._options)
        except NotConvertibleError as error:
            return self._skipped(op, f"it is not lowered: {error}")
        try:
            got = _outputs(graph_def, inputs)
        except FAILURES as error:
            reason = f"the lowered op does not run: {first_line(error)}"
            return LevelResult("failed", name=op.place, reason=reason, seed=self._choices.seed)
        wanted = _reference(found, inputs)
        tolerance = self._choices.tolerance
        result = compare_outputs(op.place, got, wanted, op.dtype, tolerance)
        return replace(result, inputs=shapes_of(inputs), seed=self._choices.seed)

    def _inputs(self, found: FoundOp, params: Array) -> dict[str, Array] | str:
        """Random inputs of an op by the names of its arguments; or why there are none."""
        shape = found.shape
        assert shape is not None
        width = _input_size(shape, params)
        if width is None or np.dtype(params.dtype).name != found.op.dtype:
            return (
                f"{params.dtype} parameters of shape {params.shape} do not fit an op in "
                f"{found.op.dtype} with {shape.num_layers} layers of {shape.units} units"
            )
        steps, batch = self._options.unroll or self._choices.timesteps, self._choices.batch
        generator = np.random.default_rng(self._choices.seed)

        def normal(rows: int, columns: int, depth: int) -> Array:
            sizes = (rows, columns, depth) if found.op.time_major else (columns, rows, depth)
            return (0.7 * generator.standard_normal(sizes)).astype(params.dtype)

        inputs = {
            "input": normal(steps, batch, width),
            "input_h": normal(shape.pairs, batch, shape.output_size),
            "input_c": normal(shape.pairs, batch, shape.units),
            "params": params,
        }
        if found.op.op == "CudnnRNNV3":
            lengths = generator.integers(1, max(steps, 2), batch)
            lengths[0] = steps  # one as long as the input, the others shorter
            inputs["sequence_lengths"] = lengths.astype(np.int32)
        return inputs


def _params_of(found: FoundOp) -> str:
    return data_inputs(found.node)[3]


def _input_size(shape: RnnShape, params: Array) -> int | None:
    """The input size that parameters of this length have; None if none does."""
    if params.ndim != 1:
        return None
    if shape.input_size is not None:
        return shape.input_size if shape.size() == params.size else None
    solved = solve(shape, "input_size", params.size)
    return solved.input_size if solved else None


def _reference(found: FoundOp, inputs: Mapping[str, Array]) -> dict[str, Array]:
    given = [inputs[name] for name in _INPUTS if name in inputs]
    return _named(found.op.mode, reference.forward(settings_of(found.node), *given))


def _named(mode: str, outputs: Sequence[Array]) -> dict[str, Array]:
    """The outputs that mean something, by the names that the ops have for them."""
    names = ("output", "output_h", "output_c")[: 3 if mode == "lstm" else 2]
    return dict(zip(names, outputs, strict=False))


def _graph_of_one(found: FoundOp) -> Any:
    """The op in a graph of its own, its inputs placeholders; all is known of their sizes that the
    model's graph tells.
    """
    shape, op = found.shape, found.op
    assert shape is not None
    states = [shape.pairs, None] if op.time_major else [None, shape.pairs]
    length = shape.size() if shape.input_size is not None or shape.skip_input else None
    sizes = {
        "input": [None, None, shape.input_size],
        "input_h": [*states, shape.output_size],
        "input_c": [*states, shape.units],
        "params": [length],
    }
    if op.op == "CudnnRNNV3":
        sizes["sequence_lengths"] = [None]
    graph_def = GraphDef()
    for name, size in sizes.items():
        node = graph_def.node.add(name=name, op="Placeholder")
        kind = tf.int32 if name == "sequence_lengths" else tf.as_dtype(op.dtype)
        node.attr["dtype"].type = kind.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(size).as_proto())
    node = graph_def.node.add(name=_OP, op=op.op, input=list(sizes))
    for name, value in found.node.attr.items():
        if not name.startswith("_"):
            node.attr[name].CopyFrom(value)
    return graph_def


def _outputs(graph_def: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What the lowered op gives."""
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
    with new_session(graph, CPU) as session:
        feeds = {f"{name}:0": value for name, value in inputs.items()}
        found = session.run([f"{_OP}:{number}" for number in range(3)], feeds)
    return dict(zip(("output", "output_h", "output_c"), found, strict=True))
