"""Lowering a graph: find the cuDNN ops, plan, and put ordinary ops in their place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rnnconvert.errors import NotConvertibleError
from rnnconvert.graphs import ops
from rnnconvert.graphs.find.scopes import Library
from rnnconvert.graphs.find.search import FoundOp, search
from rnnconvert.graphs.find.shapes import Captured, Shapes
from rnnconvert.graphs.framework import data_inputs, input_types, node_attribute, tf
from rnnconvert.graphs.lower.bodies import Recipe, canonical_counts, trace
from rnnconvert.graphs.lower.inline import Inliner
from rnnconvert.graphs.ops import CudnnOp, LoweredGraph, LoweringOptions


@dataclass
class RewrittenGraph:
    """A lowered graph and, for each replaced node of the main graph, the new nodes' names."""

    result: LoweredGraph
    added: dict[str, list[str]] = field(default_factory=dict)


def lower_graph_def(
    graph_def: Any,
    *,
    roots: Iterable[str] = (),
    captured: Mapping[str, Sequence[Captured | None]] | None = None,
    options: LoweringOptions | None = None,
) -> LoweredGraph:
    """Rewrite every cuDNN RNN op of a GraphDef into ordinary ops, in place.

    Every other node stays as it is, known to TensorFlow or not. Ops that running the model can't
    reach, and GPU variants of functions that have a CPU variant, are left alone.

    Args:
        graph_def: is changed, unless an error is raised.
        roots: functions that are run from outside: a SavedModel's concrete functions.
        captured: what those are bound to.
        options: how.

    Raises:
        NotConvertibleError: active dropout, or sizes that can't be told; `problems` has all.
    """
    return rewrite_graph(graph_def, roots, captured, options or LoweringOptions()).result


def rewrite_graph(
    graph_def: Any,
    roots: Iterable[str],
    captured: Mapping[str, Sequence[Captured | None]] | None,
    options: LoweringOptions,
) -> RewrittenGraph:
    """As `lower_graph_def`, and tells which nodes are new."""
    library = Library(graph_def, roots)
    found, planned = _plan(library, captured, options)
    inliner, bodies = Inliner(library), dict[Recipe, Any]()
    done = RewrittenGraph(planned)
    for each in found:
        recipe = recipe_of(each, options)
        if recipe not in bodies:
            bodies[recipe] = trace(recipe)
        new = inliner.replace(each.scope, each.node, bodies[recipe])
        if each.scope is library.main:
            done.added[each.op.name] = new
    if found and not options.keep_devices:
        _drop_gpu_devices(library)
    return done


def plan_graph_def(
    graph_def: Any,
    *,
    roots: Iterable[str] = (),
    captured: Mapping[str, Sequence[Captured | None]] | None = None,
    options: LoweringOptions | None = None,
) -> LoweredGraph:
    """What `lower_graph_def` would lower and leave, and what it would raise; nothing is changed."""
    return _plan(Library(graph_def, roots), captured, options or LoweringOptions())[1]


def _plan(
    library: Library,
    captured: Mapping[str, Sequence[Captured | None]] | None,
    options: LoweringOptions,
) -> tuple[list[FoundOp], LoweredGraph]:
    found = search(library, Shapes(library, captured), options)
    plan = [each for each in found if each.op.needs_lowering]
    left = tuple(each.op for each in found if not each.op.needs_lowering)
    problems = [f"{each.op.place}: {text}" for each in plan for text in _problems(each, options)]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise NotConvertibleError(problems[0] + more, problems=tuple(problems))
    lowered = tuple(each.op for each in plan)
    return plan, LoweredGraph(lowered, left, _warnings(plan, options))


def _problems(found: FoundOp, options: LoweringOptions) -> list[str]:
    """Why an op can't be lowered."""
    op, shape = found.op, found.shape
    if shape is None:
        return [op.problem or "its sizes can't be told"]
    problems = []
    if _drops_out(op) and not options.ignore_dropout:
        problems.append(
            f"active dropout {op.dropout:g} between layers, whose random numbers can't be "
            "reproduced; export the model for inference, or give --ignore-dropout"
        )
    if op.op in ops.TO_CANONICAL | ops.FROM_CANONICAL:
        counts = canonical_counts(shape)
        stated = _stated_counts(found.node)
        if stated != counts:
            problems.append(
                f"{stated[0]} matrices and {stated[1]} biases in its attributes, but its sizes "
                f"make {counts[0]} and {counts[1]}"
            )
    return problems


def _drops_out(op: CudnnOp) -> bool:
    """Whether dropout acts in this op. A backward op is there for training only."""
    active = op.is_training if op.op in ops.FORWARD else op.op in ops.BACKWARD
    return bool(active and op.dropout > 0 and (op.num_layers or 1) > 1)


def _stated_counts(node: Any) -> tuple[int, int]:
    names = ("num_params", "num_params")
    if node.op.endswith("V2"):
        names = ("num_params_weights", "num_params_biases")
    first, second = (int(node_attribute(node, name) or 0) for name in names)
    return first, second


def recipe_of(found: FoundOp, options: LoweringOptions) -> Recipe:
    """All that the ordinary ops depend on which take an op's place; its sizes must be known."""
    assert found.shape is not None
    node, op = found.node, found.op
    return Recipe(
        op=op.op,
        shape=found.shape,
        dtype=op.dtype,
        input_types=tuple(input_types(node)[: len(data_inputs(node))]),
        time_major=op.time_major,
        is_training=op.is_training is not False,
        size_type=tf.as_dtype(node_attribute(node, "S") or tf.int32).name,
        unroll=options.unroll if op.op in ops.FORWARD | ops.BACKWARD else None,
    )


def _warnings(plan: list[FoundOp], options: LoweringOptions) -> tuple[str, ...]:
    warnings = []
    for each in plan:
        op = each.op
        if options.ignore_dropout and _drops_out(op):
            warnings.append(f"{op.place}: lowered without its dropout of {op.dropout:g}")
        many = each.shape is not None and each.shape.pairs > 1
        if op.op in ops.FORWARD and not op.time_major and many:
            warnings.append(
                f"{op.place}: states of several layers or directions with time_major=False: "
                "TensorFlow reads their memory as [layers*directions, batch, units] without "
                "transposing, and so does the lowered op"
            )
    return tuple(warnings)


def _drop_gpu_devices(library: Library) -> None:
    for scope in library.all_scopes():
        if scope is library.main or scope.name in library.reachable:
            for node in scope.nodes:
                node.device = _GPU.sub("", node.device)


_GPU = re.compile(r"/(device:)?gpu:(\d+|\*)", re.IGNORECASE)
