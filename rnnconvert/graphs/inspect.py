"""What is inside a SavedModel, frozen graph or MetaGraph: its cuDNN ops and signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rnnconvert.errors import ConversionError, UsageError
from rnnconvert.graphs import lowering
from rnnconvert.keras_models.config.recurrent import names_cudnn_layers
from rnnconvert.keras_models.config.trust import refusals
from rnnconvert.keras_models.files import saved_model
from rnnconvert.kinds import Kind
from rnnconvert.options import Options
from rnnconvert.report import FileInfo, LayerRecord, TensorRecord, head
from rnnconvert.verification.frameworks import CannotRun, import_tensorflow


@dataclass(frozen=True)
class LoweredOp:
    """One op for the report."""

    op: lowering.CudnnOp

    def to_dict(self) -> dict[str, Any]:
        op = self.op
        return LayerRecord(
            path=op.place,
            class_name=op.op,
            cell=op.mode,
            source_layout="cudnn-op",
            target_layout="tensorflow-ops" if op.needs_lowering else "left",
            units=op.units,
            input_dim=op.input_size,
            direction=op.direction,
            flags=[flag for flag in ("time_major", "is_training") if getattr(op, flag)],
            tensors=tuple(TensorRecord(name, name) for name in op.params),
            more={"layers": op.num_layers},
        ).to_dict()


@dataclass(frozen=True)
class GraphInspection:
    """What `inspect` found in a SavedModel or frozen graph.

    Attributes:
        input: the model.
        signatures: names, of a SavedModel.
        ops: every cuDNN op, twins of plain Keras layers included.
        has_keras_config: whether `--to keras` can rebuild a Keras model.
        only_rebuilds: a Keras model with CuDNN layers, saved without any function: there is no
            graph to lower.
        warnings: about options that a graph has no use for, and Lambda layers of the Keras model.
    """

    input: FileInfo
    signatures: tuple[str, ...]
    ops: tuple[lowering.CudnnOp, ...]
    has_keras_config: bool = False
    only_rebuilds: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[lowering.CudnnOp, ...]:
        """As the other kinds call what they find."""
        return self.ops

    @property
    def rebuilt_by(self) -> str:
        """The option that makes a Keras file of it; Keras itself can't load a Lambda unasked."""
        return "--to h5" if any("Lambda" in text for text in self.warnings) else "--to keras"

    @property
    def verdict(self) -> str:
        needs = self.only_rebuilds or any(op.needs_lowering for op in self.ops)
        return "convertible" if needs else "nothing-to-convert"

    def to_dict(self) -> dict[str, Any]:
        return {
            **head("inspect", self.input),
            "signatures": list(self.signatures),
            "layers": [LoweredOp(op).to_dict() for op in self.ops],
            "has_keras_config": self.has_keras_config,
            "only_rebuilds": self.only_rebuilds,
            "warnings": list(self.warnings),
            "verdict": self.verdict,
        }


def lowering_options(options: Options) -> lowering.LoweringOptions:
    """What the options say of lowering; the sizes count where a graph does not tell them."""
    stack = options.stack
    return lowering.LoweringOptions(
        ignore_dropout=options.ignore_dropout,
        unroll=options.unroll,
        input_size=stack.input_size,
        num_units=stack.num_units,
        num_layers=stack.num_layers,
    )


def _lambdas(path: Path) -> list[str]:
    """The Lambda layers of a SavedModel's Keras model, and what they call."""
    try:
        found = refusals(saved_model.saved_config_of(path).model)
    except ConversionError:
        return []  # rebuilding says why
    return [refusal.text for refusal in found if "is a Lambda layer" in refusal.text]


def without_effect(options: Options) -> tuple[str, ...]:
    """A warning about options for checkpoints whose answers a graph has in its ops."""
    stack = options.stack
    given = [
        f"--{name.replace('_', '-')}"
        for name in ("scope", "cell", "direction", "forget_bias", "activation")
        if getattr(stack, name) is not None
    ]
    if not given:
        return ()
    return (f"{', '.join(given)}: without effect on a graph, which is lowered as it says itself",)


def inspect_graph(path: Path, kind: Kind, options: Options) -> GraphInspection:
    """The cuDNN ops of a graph. Nothing is written, and no graph is run.

    Args:
        options: of it `hashes` and the sizes in `stack` are read.

    Without TensorFlow it tells less of sizes, and a warning says so.

    Raises:
        UnreadableInputError: it is no such model.
    """
    try:
        import_tensorflow()
    except CannotRun:
        return _run_plainly(path, kind, options)
    info, chosen = describe_graph(path, kind, options.hashes), lowering_options(options)
    if kind is Kind.GRAPH:
        found = lowering.find_ops(lowering.read_graph_def(path), options=chosen)
        return GraphInspection(info, (), found, warnings=without_effect(options))
    if kind is Kind.META_GRAPH:
        graphs = [lowering.read_meta_graph(path)]
    else:
        graphs = list(lowering.read_saved_model(path).meta_graphs)
    has_config = kind is Kind.SAVED_MODEL and saved_model.has_keras_config(path)
    return GraphInspection(
        info,
        tuple(name for graph in graphs for name in _signatures(graph)),
        tuple(
            op for graph in graphs for op in lowering.find_ops_in_meta_graph(graph, options=chosen)
        ),
        has_config,
        has_config and only_rebuilds(path, graphs),
        (*without_effect(options), *(_lambdas(path) if has_config else ())),
    )


def _run_plainly(path: Path, kind: Kind, options: Options) -> GraphInspection:
    from rnnconvert.graphs import plain

    graphs = plain.read(path, kind)
    files = []
    if kind is Kind.META_GRAPH:
        files = [path, *plain.plain_checkpoint_files(path.with_suffix(""))]
    found = tuple(op for graph in graphs for op in plain.find_plain_ops(graph, path.name))
    has_config = kind is Kind.SAVED_MODEL and saved_model.has_keras_config(path)
    untraced = has_config and not any(graph.signatures or graph.roots for graph in graphs)
    return GraphInspection(
        FileInfo.of(path, kind.value, with_hash=options.hashes, files=files),
        tuple(name for graph in graphs for name in graph.signatures),
        found,
        has_config,
        untraced and names_cudnn_layers(saved_model.saved_config_of(path).model),
        (
            *without_effect(options),
            *(_lambdas(path) if has_config else ()),
            "read without TensorFlow, which is not installed: lowering needs it, and it tells more "
            "of the ops' sizes",
        ),
    )


def only_rebuilds(path: Path, graphs: Sequence[Any]) -> bool:
    """Whether a Keras SavedModel has CuDNN layers in its config, and no function that runs them.

    `model.save(path, save_traces=False)` makes such a model.

    Args:
        path: its directory, with a Keras config in it.
        graphs: its MetaGraphs.
    """
    for graph in graphs:
        if _signatures(graph) or graph.object_graph_def.concrete_functions:
            return False
    return names_cudnn_layers(saved_model.saved_config_of(path).model)


def _signatures(graph: Any) -> list[str]:
    """Names of the signatures that users call; TensorFlow keeps its own ops among them."""
    return [name for name in graph.signature_def if not name.startswith("__saved_model_")]


def describe_graph(path: Path, kind: Kind, with_hash: bool) -> FileInfo:
    """Of a MetaGraph, its checkpoint's files belong to it."""
    files = []
    if kind is Kind.META_GRAPH:
        files = [path, *lowering.checkpoint_files(path.with_suffix(""))]
    return FileInfo.of(path, kind.value, with_hash=with_hash, files=files)


def require_tensorflow() -> None:
    """Raise UsageError where TensorFlow is missing, which reads and writes graphs."""
    try:
        import_tensorflow()
    except CannotRun as error:
        raise UsageError(f"lowering a graph: {error}") from error
