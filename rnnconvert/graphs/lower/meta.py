"""MetaGraphs and SavedModels in memory: a graph with its collections, signatures and objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from google.protobuf.message import DecodeError

from rnnconvert.graphs.find.search import find_ops
from rnnconvert.graphs.find.shapes import Captured
from rnnconvert.graphs.framework import CondContextDef, WhileContextDef, op_def
from rnnconvert.graphs.lower.rewrite import plan_graph_def, rewrite_graph
from rnnconvert.graphs.ops import CudnnOp, LoweredGraph, LoweringOptions


def find_ops_in_meta_graph(
    meta_graph: Any, *, options: LoweringOptions | None = None
) -> tuple[CudnnOp, ...]:
    """All cuDNN RNN ops of a MetaGraphDef; see `search.find_ops`."""
    objects = meta_graph.object_graph_def
    return find_ops(
        meta_graph.graph_def,
        roots=objects.concrete_functions,
        captured=captured_variables(objects),
        options=options,
    )


def lower_meta_graph(meta_graph: Any, *, options: LoweringOptions | None = None) -> LoweredGraph:
    """Lower the graph of a MetaGraphDef in place, with all in it that depends on the graph.

    Repaired along with it: TensorFlow 1's cuDNN layers name objects in the collection
    `saveable_objects` that are no nodes, so that nothing could load such a graph.

    Raises:
        NotConvertibleError: as `rewrite.lower_graph_def`.
    """
    objects = meta_graph.object_graph_def
    done = rewrite_graph(
        meta_graph.graph_def,
        objects.concrete_functions,
        captured_variables(objects),
        options or LoweringOptions(),
    )
    repaired = clean_saveable_objects(meta_graph)
    if done.result.lowered:
        _extend_contexts(meta_graph, done.added)
        _extend_op_list(meta_graph)
    return replace(done.result, repaired=repaired)


def plan_meta_graph(meta_graph: Any, *, options: LoweringOptions | None = None) -> LoweredGraph:
    """What `lower_meta_graph` would do, and what it would raise; nothing is changed."""
    objects = meta_graph.object_graph_def
    return plan_graph_def(
        meta_graph.graph_def,
        roots=objects.concrete_functions,
        captured=captured_variables(objects),
        options=options,
    )


def lower_saved_model_proto(
    saved_model: Any, *, options: LoweringOptions | None = None
) -> tuple[LoweredGraph, ...]:
    """Lower every MetaGraph of a SavedModel in place; one result for each.

    Raises:
        NotConvertibleError: as `rewrite.lower_graph_def`.
    """
    return tuple(lower_meta_graph(each, options=options) for each in saved_model.meta_graphs)


def captured_variables(objects: Any) -> dict[str, list[Captured | None]]:
    """What the last arguments of each concrete function of a SavedObjectGraph are bound to.

    None for what is no variable: a table, an asset, a constant.
    """

    def variable(number: int) -> Captured | None:
        if not 0 <= number < len(objects.nodes) or not objects.nodes[number].HasField("variable"):
            return None
        found = objects.nodes[number].variable
        sizes = tuple(dim.size if dim.size >= 0 else None for dim in found.shape.dim)
        return Captured(found.name, sizes, number)

    return {
        name: [variable(number) for number in function.bound_inputs]
        for name, function in objects.concrete_functions.items()
    }


def captured_constants(objects: Any) -> dict[str, list[str | None]]:
    """As `captured_variables`, for constants: the names of their nodes in the main graph."""

    def constant(number: int) -> str | None:
        if not 0 <= number < len(objects.nodes) or not objects.nodes[number].HasField("constant"):
            return None
        return str(objects.nodes[number].constant.operation)

    return {
        name: [constant(number) for number in function.bound_inputs]
        for name, function in objects.concrete_functions.items()
    }


def clean_saveable_objects(meta_graph: Any) -> bool:
    """Drop names of no node from the collection, which TensorFlow looks up; whether there were."""
    if "saveable_objects" not in meta_graph.collection_def:
        return False
    nodes = {node.name for node in meta_graph.graph_def.node}
    values = meta_graph.collection_def["saveable_objects"].node_list.value
    kept = [value for value in values if value.split(":")[0] in nodes]
    if len(kept) == len(values):
        return False
    del meta_graph.collection_def["saveable_objects"]
    if kept:
        meta_graph.collection_def["saveable_objects"].node_list.value.extend(kept)
    return True


def _extend_contexts(meta_graph: Any, added: dict[str, list[str]]) -> None:
    """Enter the new nodes into TensorFlow 1's loops and conditions that hold the replaced node."""
    kinds: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("while_context", WhileContextDef),
        ("cond_context", CondContextDef),
    )
    for collection, make in kinds:
        if collection not in meta_graph.collection_def:
            continue
        values = meta_graph.collection_def[collection].bytes_list.value
        for number, content in enumerate(values):
            context = make()
            try:
                context.ParseFromString(content)
            except DecodeError:
                continue
            if _enter(context, added):
                values[number] = context.SerializeToString(deterministic=True)


def _enter(context: Any, added: dict[str, list[str]]) -> bool:
    inside = {value.split(":")[0] for value in context.values_def.values}
    new = [name for node, names in added.items() if node in inside for name in names]
    context.values_def.values.extend(f"{name}:0" for name in new)
    nested = [
        each.while_ctxt if each.HasField("while_ctxt") else each.cond_ctxt
        for each in context.nested_contexts
    ]
    changed = [_enter(each, added) for each in nested]
    return bool(new) or any(changed)


def _extend_op_list(meta_graph: Any) -> None:
    """Name the ops that the graph uses now in its list of ops, as TensorFlow's exporters do."""
    graph = meta_graph.graph_def
    used = {node.op for node in graph.node}
    used |= {node.op for function in graph.library.function for node in function.node_def}
    listed = {op.name for op in meta_graph.meta_info_def.stripped_op_list.op}
    for name in sorted(used - listed):
        definition = op_def(name)
        if definition is not None:
            added = meta_graph.meta_info_def.stripped_op_list.op.add()
            added.CopyFrom(definition)
