"""What a model holds, as the commands print it: layers, RNN stacks, cuDNN ops and their changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rnnconvert.cli.console import Column, say, show_table
from rnnconvert.cli.tables import (
    class_of,
    printable,
    target_class,
    verdict_line,
    weights_formula,
)

if TYPE_CHECKING:
    from rnnconvert.checkpoints.inspect import CheckpointInspection, StackLayer
    from rnnconvert.graphs.inspect import GraphInspection
    from rnnconvert.graphs.ops import CudnnOp
    from rnnconvert.keras_models.inspect import Inspection
    from rnnconvert.keras_models.plan import SiteChange
    from rnnconvert.report import OptimizerRecord, Report

_LISTED = 6
"""Other variables of a checkpoint that are named without -v."""
_BEFORE_AND_AFTER = (
    Column("from"),
    Column("to"),
    Column("units", right=True),
    Column("inputs", right=True),
    Column("weights", right=True),
    Column("", joined=True),
    Column("after", right=True, joined=True),
)
_SITES = (Column("recurrent layer"), *_BEFORE_AND_AFTER, Column("formula", spare=True))
_STACKS = (Column("layer"), Column("cell"), *_BEFORE_AND_AFTER)
_OPS = (
    Column("op"),
    Column("in"),
    Column("cell"),
    Column("layers", right=True),
    Column("direction"),
    Column("units", right=True),
    Column("inputs", right=True),
    Column("fed by"),
    Column(""),
)


def kind_of_layers(report: Report) -> str:
    """What the report's layers are: "stacks" of a checkpoint, "ops" of a graph, or "layers"."""
    container = report.input.container
    if container.startswith("tf-checkpoint"):
        return "stacks"
    lowered = container in ("savedmodel", "frozen-graph", "meta-graph")
    return "ops" if lowered and all(hasattr(each, "op") for each in report.layers) else "layers"


def show_converted(console: Console, report: Report, *, verbose: bool) -> None:
    """The layers that a conversion changed, and what else of the model it did."""
    kind = kind_of_layers(report)
    if kind == "stacks":
        show_stacks(console, report.layers)
    elif kind == "ops":
        show_ops(console, [layer.op for layer in report.layers], verbose=verbose)
    else:
        show_sites(console, report.layers)
    if kind == "layers" and verbose:
        show_details(console, report.layers, report.config_changes)
    elif report.config_changes:
        count = len(report.config_changes)
        what = "changes" if report.command == "keras-to-cudnn" else "repairs"
        say(console, f"  config: {count} {what} (-v lists them)")
    show_points(console, report.target_points)
    _optimizer(console, report.optimizer)


def show_inspection(console: Console, found: Any, *, verbose: bool) -> None:
    """What `inspect` found in a model of any kind."""
    # By name: to import a class here would import all that the other kinds of input need.
    kind = type(found).__name__
    if kind == "CheckpointInspection":
        _checkpoint(console, found, verbose)
    elif kind == "GraphInspection":
        _graph(console, found, verbose)
    else:
        _keras(console, found, verbose)


def _keras(console: Console, found: Inspection, verbose: bool) -> None:
    if found.model:  # else a warning said why its layers can't be listed
        _model(console, found)
        show_sites(console, found.plan.sites)
    if verbose:
        show_details(console, found.plan.sites, found.plan.config_changes)
    show_points(console, found.plan.target_points)
    for line in verdict_line(found.plan).splitlines():
        say(console, f"  {line}")


def _model(console: Console, found: Inspection) -> None:
    columns = (Column("layer"), Column("class"), Column("weights", right=True))
    rows = [
        [printable(layer.name), printable(layer.class_name), str(layer.parameters)]
        for layer in found.model
    ]
    total = str(sum(layer.parameters for layer in found.model))
    show_table(console, columns, [*rows, ["total", "", total]])


def _checkpoint(console: Console, found: CheckpointInspection, verbose: bool) -> None:
    from rnnconvert.cli.stacks import variable_lines

    for line in variable_lines(found.found):
        say(console, f"  {printable(line)}")
    if found.origin:
        say(console, f"  {found.origin}")
    own = {name for stack in found.found.stacks for name in stack.variables}
    own |= {slot.variable for stack in found.found.stacks for slot in stack.slots}
    others = [name for name in found.variables if name not in own]
    shown = others if verbose else others[:_LISTED]
    more = "" if len(shown) == len(others) else f", and {len(others) - len(shown)} more (-v)"
    say(console, f"  {len(others)} other variables: {printable(', '.join(shown))}{more}")
    if found.layers:
        show_stacks(console, found.layers)
    for problem in found.found.problems:
        say(console, f"  [red]can't be converted:[/] {printable(problem)}")
    if found.conclusion:
        color = "green" if found.verdict == "convertible" else "default"
        say(console, f"  [{color}]{found.conclusion}[/]")


def _graph(console: Console, found: GraphInspection, verbose: bool) -> None:
    if found.signatures:
        say(console, f"  signatures: {printable(', '.join(found.signatures))}")
    show_ops(console, found.ops, verbose=verbose)
    if found.only_rebuilds:
        say(console, "  a Keras model with CuDNN layers, saved without its functions")
    if found.has_keras_config:
        say(console, f"  holds a Keras model: {found.rebuilt_by} rebuilds it")
    if found.verdict == "convertible":
        say(console, "  [green]convertible[/]")
    else:
        say(console, "  nothing to convert: no cuDNN op that running the model can get to")


def show_stacks(console: Console, layers: Sequence[StackLayer]) -> None:
    from rnnconvert.cli.stacks import rows

    if not layers:
        say(console, "  no RNN stacks")
        return
    show_table(console, _STACKS, [[printable(cell) for cell in row] for row in rows(layers)])


def show_ops(console: Console, ops: Sequence[CudnnOp], *, verbose: bool) -> None:
    if not ops:
        say(console, "  no cuDNN ops")
        return
    shown = ops if verbose else [op for op in ops if op.needs_lowering]
    rows = [
        [
            op.op, printable(op.place), op.mode, str(op.num_layers or "?"), op.direction,
            str(op.units or "?"), str(op.input_size or "?"),
            printable(", ".join(op.params[:2])), printable(op.problem or ""),
        ]
        for op in shown
    ]  # fmt: skip
    if rows:
        show_table(console, _OPS, rows)
    twins = len(ops) - len(shown)
    if twins:
        say(
            console,
            f"  {twins} cuDNN ops that are never reached, or only as the GPU's variant of a "
            "plain Keras layer, are left alone",
        )


def show_sites(console: Console, sites: Sequence[SiteChange]) -> None:
    if not sites:
        say(console, "  no recurrent layers")
        return
    rows = [
        [
            printable(change.site.path.removeprefix("model/")),
            change.site.class_name or class_of(change.site.layout, change.site.cell),
            target_class(change) if change.changes else "as it is",
            str(change.site.units),
            str(change.site.input_dim),
            str(change.site.parameters),
            "->",
            str(change.site.parameters_as(change.target_layout)),
            weights_formula(change),
        ]
        for change in sites
    ]
    show_table(console, _SITES, rows)


def show_details(console: Console, sites: Sequence[SiteChange], changes: Sequence[Any]) -> None:
    """Every tensor and every key of the config that changes."""
    for site in sites:
        if site.site.flags:
            say(console, f"  {printable(site.site.path)}: {', '.join(site.site.flags)}")
        for change in site.changes:
            shapes = f"{change.source.shape} -> {change.target.shape}"
            say(console, f"  tensor {printable(change.source.path)} {shapes}: {change.edit}")
    for change in changes:
        before, after = (json.dumps(v, default=str) for v in (change.before, change.after))
        say(
            console,
            f"  config {printable(change.path)} {printable(change.key)}: "
            f"{printable(before)} -> {printable(after)}",
        )


def show_points(console: Console, points: Sequence[str]) -> None:
    for point in points:
        say(console, f"  [cyan]target:[/] {printable(point)}")


def _optimizer(console: Console, optimizer: OptimizerRecord) -> None:
    if optimizer.state != "absent":
        notes = "; ".join(optimizer.notes)
        told = f" ({printable(notes)})" if notes else ""
        say(console, f"  optimizer state: {optimizer.state}{told}")
