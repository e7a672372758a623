"""Whether a graph may be run without being asked for: nothing in it may do harm.

Every node counts, of the main graph and of its whole library of functions: it must be one of the
ops of `harmless`. Ops that touch files may do so with the names that TensorFlow's loader or this
program gives them, and with no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from rnnconvert.graphs import ops
from rnnconvert.graphs.files import belongs_to
from rnnconvert.graphs.find.scopes import Library, Producer, Scope
from rnnconvert.graphs.framework import (
    AssetFileDef,
    MetaGraphDef,
    SavedModel,
    data_inputs,
    node_attribute,
    op_def,
)
from rnnconvert.graphs.opening import OpenedGraph, open_graph
from rnnconvert.graphs.verify.harmless import (
    ASSET_READERS,
    CHECKPOINT_READERS,
    CHECKPOINT_WRITERS,
    HARMLESS,
)

_CONSENT = "--allow-code runs it"
_FILE_OPS = ASSET_READERS | CHECKPOINT_READERS | CHECKPOINT_WRITERS
_STREAMS = ("stderr", "stdout", "log(info)", "log(warning)", "log(error)")
"""Where PrintV2 may print: it writes to any file by the name "file://..."."""

_STARTS = ("saved_model_main_op", "legacy_init_op", "saved_model_train_op")
"""Collections of nodes that TensorFlow 1's loader runs."""

_ASSETS = "saved_model_assets"
"""The collection in which TensorFlow 1 kept what is now the field `asset_file_def`."""

_PLAIN_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_FAR = 5_000  # tensors that a search backwards visits at most


@dataclass(frozen=True)
class _Use:
    """What is run of a graph, and which of its tensors are given the names of files.

    Attributes:
        runs: nodes of the main graph that are run.
        functions: that are called from outside.
        restore: the node that is run to restore the checkpoint.
        checkpoint: the node that is fed the checkpoint's name.
        assets: nodes that are fed the path of an asset inside the SavedModel.
        bound_assets: functions' arguments that are such a path: name and number.
    """

    runs: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    restore: str | None = None
    checkpoint: str | None = None
    assets: frozenset[str] = frozenset()
    bound_assets: frozenset[tuple[str, int]] = frozenset()


def why_not_run(model: Path | OpenedGraph) -> str | None:
    """Why a model may not be run unasked: an op of it, its node, and the way to run it; or None.

    Args:
        model: a SavedModel's directory, a MetaGraph (.meta) or a frozen graph, read or not.

    Raises:
        UnreadableInputError: it is none of them.
    """
    opened = open_graph(model)
    if isinstance(opened.message, SavedModel):
        return why_not_run_saved_model(opened.path, opened.message)
    if isinstance(opened.message, MetaGraphDef):
        return why_not_run_meta_graph(opened.message)
    return why_not_run_graph(opened.message)


def why_not_run_graph(graph_def: Any) -> str | None:
    """The same of a frozen graph, which may touch no file at all."""
    library = Library(graph_def)
    everything = _Use(tuple(library.main.by_name), tuple(library.functions))
    return _reason(library, everything)


def why_not_run_meta_graph(meta_graph: Any, runs: Iterable[str] | None = None) -> str | None:
    """The same of a MetaGraph, of which the checkpoint is restored and some nodes are run.

    Args:
        meta_graph: the proto.
        runs: names of those nodes; None is cuDNN's forward ops.
    """
    saver, nodes = meta_graph.saver_def, meta_graph.graph_def.node
    forward = [node.name for node in nodes if node.op in ops.FORWARD]
    use = _Use(
        runs=tuple(forward if runs is None else runs),
        restore=_node(saver.restore_op_name),
        checkpoint=_node(saver.filename_tensor_name),
    )
    return _reason(Library(meta_graph.graph_def), use)


def why_not_run_saved_model(directory: Path, saved_model: Any) -> str | None:
    """The same of a SavedModel, which TensorFlow's loaders restore and initialise.

    Args:
        directory: of its assets.
        saved_model: the proto.
    """
    for meta_graph in saved_model.meta_graphs:
        objects, saver = meta_graph.object_graph_def, meta_graph.saver_def
        inside = [_is_inside(directory, asset) for asset in _assets(meta_graph)]
        use = _Use(
            runs=tuple(_started(meta_graph)),
            functions=tuple(_named_functions(objects)),
            restore=_node(saver.restore_op_name),
            checkpoint=_node(saver.filename_tensor_name),
            assets=frozenset(
                _node(asset.tensor_info.name)
                for asset, sound in zip(_assets(meta_graph), inside, strict=True)
                if sound
            ),
            bound_assets=frozenset(_bound_assets(meta_graph.graph_def, objects, inside)),
        )
        reason = _reason(Library(meta_graph.graph_def, objects.concrete_functions), use)
        if reason:
            return reason
    return None


# --- what is run, and which files it is given ----------------------------------------------


def _node(tensor: str) -> str:
    return tensor.removeprefix("^").split(":")[0]


def _started(meta_graph: Any) -> Iterator[str]:
    """Nodes that are run: the results of signatures, and what initialises the model."""
    for signature in meta_graph.signature_def.values():
        for info in signature.outputs.values():
            yield _node(info.name)
            yield _node(info.coo_sparse.values_tensor_name)
            yield _node(info.coo_sparse.indices_tensor_name)
            yield _node(info.coo_sparse.dense_shape_tensor_name)
            yield from (_node(part.name) for part in info.composite_tensor.components)
    for name in _STARTS:
        if name in meta_graph.collection_def:
            yield from map(_node, meta_graph.collection_def[name].node_list.value)


def _named_functions(objects: Any) -> Iterator[str]:
    """Functions that the loader of TensorFlow 2 may call: whatever the object graph names."""
    yield from objects.concrete_functions
    for node in objects.nodes:
        yield from node.function.concrete_functions
        yield node.bare_concrete_function.concrete_function_name


def _assets(meta_graph: Any) -> list[Any]:
    if meta_graph.asset_file_def or _ASSETS not in meta_graph.collection_def:
        return list(meta_graph.asset_file_def)
    found = []
    for value in meta_graph.collection_def[_ASSETS].any_list.value:
        asset = AssetFileDef()
        try:
            asset.ParseFromString(value.value)
        except DecodeError:
            continue
        found.append(asset)
    return found


def _is_inside(directory: Path, asset: Any) -> bool:
    """Whether an asset is a regular file of the SavedModel, links followed."""
    try:
        path = (directory / "assets" / asset.filename).resolve()
        return path.is_file() and belongs_to(directory.resolve(), path)
    except (OSError, ValueError, RuntimeError):  # a name with a NUL, links in a circle
        return False


def _bound_assets(graph_def: Any, objects: Any, inside: list[bool]) -> Iterator[tuple[str, int]]:
    """Arguments of concrete functions that are bound to an asset inside the SavedModel."""
    arguments = {f.signature.name: len(f.signature.input_arg) for f in graph_def.library.function}
    for name, function in objects.concrete_functions.items():
        first = arguments.get(name, 0) - len(function.bound_inputs)
        for position, number in enumerate(function.bound_inputs):
            node = objects.nodes[number] if 0 <= number < len(objects.nodes) else None
            if node is None or not node.HasField("asset"):
                continue
            index = node.asset.asset_file_def_index
            if 0 <= index < len(inside) and inside[index]:
                yield name, first + position


# --- the check -------------------------------------------------------------------------------


def _reason(library: Library, use: _Use) -> str | None:
    everything = [(scope, node) for scope in library.all_scopes() for node in scope.nodes]
    for scope, node in everything:
        problem = _unknown(library, node)
        if problem:
            return f"{problem} ({_place(scope, node)}); {_CONSENT}"
    touching = [(scope, node) for scope, node in everything if node.op in _FILE_OPS]
    if not touching:
        return None
    run = _needed(library, use.runs, use.functions)
    restoring = _needed(library, [use.restore] if use.restore else [], ())
    for scope, node in touching:
        key = (scope.name, node.name)
        if key not in run and key not in restoring:
            continue
        if (key in run and node.op not in ASSET_READERS) or not _is_sound(
            library, scope, node, use
        ):
            return (
                f"{node.op} would touch a file that is not the model's own "
                f"({_place(scope, node)}); {_CONSENT}"
            )
    return None


def _is_sound(library: Library, scope: Scope, node: Any, use: _Use) -> bool:
    """Whether a node that is run touches a file of the model only."""
    inputs = data_inputs(node)
    if node.op in CHECKPOINT_READERS:
        names = [use.checkpoint] if use.checkpoint else []
        return bool(inputs) and _is_given(library, scope, inputs[0], names, use)
    if node.op in ASSET_READERS:
        return len(inputs) > 1 and _is_given(library, scope, inputs[1], use.assets, use)
    return False  # a writer


def _place(scope: Scope, node: Any) -> str:
    return f"node {node.name}" + (f" of function {scope.name}" if scope.name else "")


def _unknown(library: Library, node: Any) -> str | None:
    """What of a node is not known to be harmless, if anything."""
    if node.op == "PrintV2":
        stream = node_attribute(node, "output_stream")
        return None if stream in _STREAMS else f"the op PrintV2 prints to {stream!r}"
    if not _is_known(library, node.op) and node.op not in _FILE_OPS:
        return f"the op {node.op} is not known to be harmless"
    for name in _functions(node.attr.values()):
        if not _is_known(library, name):
            return f"the function {name} is not known to be harmless"
    return None


def _is_known(library: Library, name: str) -> bool:
    """Whether a name is of a harmless op, or of a library function that hides no other op."""
    return name in HARMLESS or (name in library.functions and op_def(name) is None)


def _functions(values: Iterable[Any]) -> Iterator[str]:
    """Names of all functions in attributes, and in the attributes of those."""
    todo = list(values)
    while todo:
        value = todo.pop()
        for function in (value.func, *value.list.func):
            if function.name:
                yield function.name
            todo += function.attr.values()


def _needed(
    library: Library, nodes: Iterable[str], functions: Iterable[str]
) -> frozenset[tuple[str, str]]:
    """All nodes that some nodes of the main graph and some functions need, or may.

    Of a function that is called, that is every node.
    """
    todo: list[tuple[Scope, Any]] = []
    called: set[str] = set()

    def call(name: str) -> None:
        if name in library.scopes and name not in called:
            called.add(name)
            todo.extend((library.scopes[name], node) for node in library.scopes[name].nodes)

    main = library.main
    todo += [(main, main.by_name[name]) for name in nodes if name in main.by_name]
    for name in functions:
        call(name)
    found: set[tuple[str, str]] = set()
    while todo:
        scope, node = todo.pop()
        if (scope.name, node.name) in found:
            continue
        found.add((scope.name, node.name))
        for name in (node.op, *_functions(node.attr.values())):
            call(name)
        names = [_node(reference) for reference in node.input]
        todo += [(scope, scope.by_name[name]) for name in names if name in scope.by_name]
    return frozenset(found)


def _is_given(
    library: Library, scope: Scope, reference: str, nodes: Iterable[str], use: _Use
) -> bool:
    """Whether a tensor can be nothing but what is fed to some nodes or assets' arguments.

    Only arguments and Identity are followed: a loop could put another value in its place.
    """
    given = {("", name) for name in nodes}
    todo, seen = [(scope, reference)], set[tuple[str, str]]()
    while todo:
        scope, reference = todo.pop()
        if (scope.name, reference) in seen:
            continue
        seen.add((scope.name, reference))
        producer = library.producer(scope, reference)
        if producer is None or len(seen) > _FAR:
            return False
        if producer.node is not None and (scope.name, producer.node.name) in given:
            continue
        handed_on = _handed_on(library, scope, producer, use)
        if handed_on is None:
            return False
        todo += handed_on
    return True


def _handed_on(
    library: Library, scope: Scope, producer: Producer, use: _Use
) -> list[tuple[Scope, str]] | None:
    """All that a tensor may be handed on from; none for an asset, None where it is made anew."""
    node, index = producer.node, producer.index
    if node is None:
        bound = (scope.name, index) in use.bound_assets
        calls = _calls_of(library, scope.name)
        if calls is None or not (bound or calls) or (scope.name in use.functions and not bound):
            return None
        if any(len(data_inputs(call)) <= index for _, call in calls):
            return None
        return [(caller, data_inputs(call)[index]) for caller, call in calls]
    if node.op == "Identity":
        return [(scope, reference) for reference in data_inputs(node)[:1]] or None
    if node.op == "ReadVariableOp" and scope is library.main:
        return _assigned(library, _node(data_inputs(node)[0])) if data_inputs(node) else None
    return None


def _assigned(library: Library, variable: str) -> list[tuple[Scope, str]] | None:
    """All values that a variable of the main graph may have; None if that can't be told.

    TensorFlow 2 keeps the path of an asset in a variable, which is read to fill a table.
    """
    handle = library.main.by_name.get(variable)
    if handle is None or handle.op != "VarHandleOp":
        return None
    shared = node_attribute(handle, "shared_name") or handle.name
    same = [
        node for scope in library.all_scopes() for node in scope.nodes
        if node.op == "VarHandleOp" and shared in (node_attribute(node, "shared_name"), node.name)
    ]  # fmt: skip
    values = []
    for node in library.main.nodes:
        inputs = data_inputs(node)
        if variable not in map(_node, inputs):
            continue
        if node.op == "AssignVariableOp" and len(inputs) == 2 and _node(inputs[0]) == variable:
            values.append((library.main, inputs[1]))
        elif node.op not in ("ReadVariableOp", "VarIsInitializedOp"):
            return None
    return values if values and len(same) == 1 else None


def _calls_of(library: Library, function: str) -> list[tuple[Scope, Any]] | None:
    """Nodes that call a function; None if one does so otherwise than by handing inputs on."""
    calls = []
    for scope in library.all_scopes():
        for node in scope.nodes:
            if function in (node.op, *_functions(node.attr.values())):
                if node.op != function and node.op not in _PLAIN_CALLS:
                    return None
                calls.append((scope, node))
    return calls
