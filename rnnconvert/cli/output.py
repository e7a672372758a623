"""What the user sees: tables and sentences to stdout, messages to stderr, or one JSON document."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rnnconvert.cli.tables import (
    class_of,
    conclusion,
    file_line,
    formula,
    level_line,
    loads,
    new_table,
    printable,
    target_class,
    verdict_line,
)
from rnnconvert.errors import ConversionError

if TYPE_CHECKING:
    from rnnconvert.inspection.checkpoints import CheckpointInspection, StackLayer
    from rnnconvert.inspection.graphs import GraphInspection
    from rnnconvert.inspection.keras import Inspection
    from rnnconvert.lowering import CudnnOp
    from rnnconvert.options import Options
    from rnnconvert.plan import SiteChange
    from rnnconvert.report import Assumption, Report

_WIDE = 125
"""Width from which the table has room for the formula of the number of weights."""
_PLAIN_WIDTH = 240
"""Width where output goes to a file or a pipe: names are never cut there."""
_NOTHING = {
    ("cudnn-to-keras", "layers"): "no CuDNN layer",
    ("cudnn-to-keras", "stacks"): "nothing of cuDNN in it; --to keras makes Keras models of it",
    ("cudnn-to-keras", "ops"): "no cuDNN op that running the model can get to",
    ("keras-to-cudnn", "layers"): "no LSTM or GRU layer",
    ("keras-to-cudnn", "stacks"): "no RNN stack that is not cuDNN's already",
}
"""Why a command leaves an input alone."""


def _kind_of_layers(report: Report) -> str:
    """What the report's layers are: "stacks" of a checkpoint, "ops" of a graph, or "layers"."""
    container = report.input.container
    if container.startswith("tf-checkpoint"):
        return "stacks"
    lowered = container in ("savedmodel", "frozen-graph", "meta-graph")
    return "ops" if lowered and all(hasattr(each, "op") for each in report.layers) else "layers"


class _Console(Console):
    """A console that leaves a closed pipe to the caller instead of exiting with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Output:
    """Prints the results of one run of a command."""

    def __init__(
        self,
        *,
        quiet: bool = False,
        verbose: bool = False,
        no_color: bool = False,
        as_json: bool = False,
        report: str | None = None,
        debug: bool = False,
    ) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self.debug = debug
        self._json = as_json or report == "-"
        self._report = None if report == "-" else report
        self._documents: list[dict[str, Any]] = []
        self._out = _console(no_color, sys.stdout)
        self._err = _console(no_color, sys.stderr)

    @property
    def wants_report(self) -> bool:
        """Whether a JSON report is asked for; only then are files hashed."""
        return self._json or self._report is not None

    # --- results ----------------------------------------------------------------------------

    def conversion(self, report: Report, options: Options, *, failed: bool) -> None:
        self._documents.append(report.to_dict())
        self._warnings(report.warnings)
        self._assumptions(report.assumptions)
        if self._json or self.quiet or failed:
            return
        self._out.print(f"[bold]{printable(report.input.path)}[/]  {file_line(report.input)}")
        kind = _kind_of_layers(report)
        if report.verdict == "nothing-to-convert":
            said = f"{_NOTHING[report.command, kind]}{loads(report, kind)}"
            self._out.print(f"  nothing to convert: {said}", soft_wrap=True)
            return
        if kind == "stacks":
            self._stacks(report.layers)
        elif kind == "ops":
            self._ops([layer.op for layer in report.layers])
        else:
            self._sites(report.layers)
        if kind == "layers" and self.verbose:
            self._details(report.layers, report.config_changes)
        elif report.config_changes:
            count = len(report.config_changes)
            what = "changes" if options.is_inverse else "repairs"
            self._out.print(f"  config: {count} {what} (-v lists them)")
        self._points(report.target_points)
        self._optimizer(report)
        if options.check:
            self._out.print("  [yellow]needs conversion[/]")
            return
        for name, level in report.levels:
            self._out.print(f"  {level_line(name, level)}")
        if report.output is None:
            self._out.print(
                "  [green]would be written[/] (dry run, nothing was written), "
                f"{conclusion(report)}",
                soft_wrap=True,
            )
        else:
            self._out.print(
                f"  [green]written[/] {printable(report.output.path)} "
                f"({report.output.bytes:,} bytes), {conclusion(report)}",
                soft_wrap=True,
            )

    def inspection(self, found: Inspection | CheckpointInspection | GraphInspection) -> None:
        """The result of `inspect`."""
        self._documents.append(found.to_dict())
        self._warnings(found.warnings)
        self._assumptions(getattr(found, "assumptions", ()))
        if self._json or self.quiet:
            return
        self._out.print(f"[bold]{printable(found.input.path)}[/]  {file_line(found.input)}")
        # By name: to import a class here would import all that the other kinds of input need.
        bodies: dict[str, Callable[[Any], None]] = {
            "Inspection": self._keras,
            "CheckpointInspection": self._checkpoint,
            "GraphInspection": self._graph,
        }
        bodies[type(found).__name__](found)

    def _keras(self, found: Inspection) -> None:
        if found.model:  # else a warning said why its layers can't be listed
            self._model(found)
            self._sites(found.plan.sites)
        if self.verbose:
            self._details(found.plan.sites, found.plan.config_changes)
        self._points(found.plan.target_points)
        self._out.print(f"  {verdict_line(found.plan)}")

    def comparison(self, report: Report, earlier: Path | None) -> None:
        """The result of `verify`."""
        self._documents.append(report.to_dict())
        self._assumptions(report.assumptions)
        if self._json or self.quiet:
            return
        for info in (report.input, report.output):
            self._out.print(f"[bold]{printable(info.path)}[/]  {file_line(info)}")  # type: ignore[union-attr]
        if earlier is not None:
            self._out.print(f"  [green]ok[/] the files are those of {printable(earlier)}")
        for name, level in report.levels:
            self._out.print(f"  {level_line(name, level)}")
        self._out.print(f"  {conclusion(report)}", soft_wrap=True)

    def take_existing_report(self) -> Path | None:
        """The file of `--report` if it exists: then it is to be read, and not to be replaced."""
        if self._report is None or not Path(self._report).exists():
            return None
        existing, self._report = Path(self._report), None
        return existing

    def _checkpoint(self, found: CheckpointInspection) -> None:
        from rnnconvert.cli.stacks import variable_lines

        for line in variable_lines(found.found):
            self._out.print(f"  {printable(line)}", soft_wrap=True)
        if found.origin:
            self._out.print(f"  {found.origin}")
        own = {name for stack in found.found.stacks for name in stack.variables}
        own |= {slot.variable for stack in found.found.stacks for slot in stack.slots}
        others = [name for name in found.variables if name not in own]
        shown = others if self.verbose else others[:6]
        more = "" if len(shown) == len(others) else f", and {len(others) - len(shown)} more (-v)"
        self._out.print(
            f"  {len(others)} other variables: {printable(', '.join(shown))}{more}", soft_wrap=True
        )
        if found.layers:
            self._stacks(found.layers)
        for problem in found.found.problems:
            self._out.print(f"  [red]can't be converted:[/] {printable(problem)}", soft_wrap=True)
        if found.conclusion:
            color = "green" if found.verdict == "convertible" else "default"
            self._out.print(f"  [{color}]{found.conclusion}[/]", soft_wrap=True)

    def _stacks(self, layers: Sequence[StackLayer]) -> None:
        from rnnconvert.cli.stacks import rows

        if not layers:
            self._out.print("  no RNN stacks")
            return
        table = new_table(
            "layer", "cell", "from", "to", ">units", ">inputs", ">weights", "", ">after"
        )
        for row in rows(layers):
            table.add_row(*(printable(cell) for cell in row))
        self._out.print(table)

    def _graph(self, found: GraphInspection) -> None:
        if found.signatures:
            self._out.print(f"  signatures: {printable(', '.join(found.signatures))}")
        self._ops(found.ops)
        if found.only_rebuilds:
            self._out.print("  a Keras model with CuDNN layers, saved without its functions")
        if found.has_keras_config:
            self._out.print(f"  holds a Keras model: {found.rebuilt_by} rebuilds it")
        if found.verdict == "convertible":
            self._out.print("  [green]convertible[/]")
        else:
            self._out.print("  nothing to convert: no cuDNN op that running the model can get to")

    def _ops(self, ops: Sequence[CudnnOp]) -> None:
        if not ops:
            self._out.print("  no cuDNN ops")
            return
        table = new_table(
            "op", "in", "cell", ">layers", "direction", ">units", ">inputs", "fed by", ""
        )
        shown = ops if self.verbose else [op for op in ops if op.needs_lowering]
        for op in shown:
            table.add_row(
                op.op, printable(op.place), op.mode, str(op.num_layers or "?"), op.direction,
                str(op.units or "?"), str(op.input_size or "?"),
                printable(", ".join(op.params[:2])), printable(op.problem or ""),
            )  # fmt: skip
        if shown:
            self._out.print(table)
        twins = len(ops) - len(shown)
        if twins:
            self._out.print(
                f"  {twins} cuDNN ops that are never reached, or only as the GPU's variant of a "
                "plain Keras layer, are left alone"
            )

    def failed_report(self, command: str, path: Path, error: ConversionError | None) -> None:
        """A report for an input of which nothing is known but the error."""
        from rnnconvert.report import FileInfo, Report

        report = Report(
            command=command,
            input=FileInfo(str(path), 0, "unknown"),
            problems=() if error is None else tuple(self._lines(error)),
            verdict="not-convertible",
        )
        self._documents.append(report.to_dict())

    def error(self, error: ConversionError) -> None:
        """One line, or one for each problem under a first one that counts them."""
        lines = self._lines(error)
        if len(lines) > 1:
            place = f"{error.path}: " if error.path else ""
            self._err.print(f"[red]error:[/] {printable(place)}{len(lines)} problems",
                            soft_wrap=True)  # fmt: skip
            for line in error.problems:
                self._err.print(f"  {printable(line)}", soft_wrap=True)
        else:
            self._err.print(f"[red]error:[/] {printable(lines[0])}", soft_wrap=True)

    def traceback(self, error: ConversionError) -> None:
        """The traceback of an error (`--debug`)."""
        import traceback

        sys.stderr.writelines(traceback.format_exception(error))

    @staticmethod
    def _lines(error: ConversionError) -> list[str]:
        place = f"{error.path}: " if error.path else ""
        return [f"{place}{problem}" for problem in error.problems]

    @property
    def writes_report(self) -> bool:
        """Whether there is a file of `--report`."""
        return self._report is not None

    def check_report_path(
        self, inputs: Sequence[Path], outputs: Sequence[Path], *, may_exist: bool = False
    ) -> None:
        """Refuse a report that would replace a model, or can't be written, before any work is done.

        Args:
            inputs, outputs: files and directories; a report does not go into a directory of theirs.
            may_exist: one that exists is read, and not replaced.

        Raises:
            UsageError: the report and an input or an output are the same file.
            OutputError: the report's path is a pipe, a device or a directory, a file that is no
                report, or lies in a directory that is missing or not writable.
        """
        if self._report is None:
            return
        from rnnconvert.publish import check_report

        check_report(Path(self._report), (*inputs, *outputs), is_read=may_exist)

    def finish(self) -> None:
        """Write the JSON documents: one report, or a list of them for several inputs."""
        if not self.wants_report:
            return
        documents: Any = self._documents[0] if len(self._documents) == 1 else self._documents
        text = json.dumps(documents, indent=2, default=str) + "\n"
        if self._json:
            sys.stdout.write(text)
        if self._report is not None:
            from rnnconvert.publish import write_text

            write_text(Path(self._report), text)

    # --- parts ------------------------------------------------------------------------------

    def _warnings(self, warnings: tuple[str, ...]) -> None:
        if not self.quiet:
            for warning in warnings:
                self._err.print(f"[yellow]warning:[/] {printable(warning)}", soft_wrap=True)

    def _assumptions(self, assumptions: tuple[Assumption, ...]) -> None:
        if not self.quiet:
            for each in assumptions:
                self._err.print(f"[yellow]assumed:[/] {printable(each)} ({printable(each.why)})",
                                soft_wrap=True)  # fmt: skip

    def _points(self, points: tuple[str, ...]) -> None:
        for point in points:
            self._out.print(f"  [cyan]target:[/] {printable(point)}", soft_wrap=True)

    def _model(self, found: Inspection) -> None:
        table = new_table("layer", "class", ">weights")
        for layer in found.model:
            table.add_row(printable(layer.name), printable(layer.class_name), str(layer.parameters))
        table.add_row("total", "", str(sum(layer.parameters for layer in found.model)))
        self._out.print(table)

    def _sites(self, sites: tuple[SiteChange, ...]) -> None:
        if not sites:
            self._out.print("  no recurrent layers")
            return
        wide = self._out.width >= _WIDE
        columns = ["recurrent layer", "from", "to", ">units", ">inputs", ">weights", "", ">after"]
        table = new_table(*columns, *(["formula"] if wide else []))
        for change in sites:
            site = change.site
            cells = [
                printable(site.path.removeprefix("model/")),
                site.class_name or class_of(site.layout, site.cell),
                target_class(change) if change.changes else "as it is",
                str(site.units),
                str(site.input_dim),
                str(site.parameters),
                "->",
                str(site.parameters_as(change.target_layout)),
            ]
            table.add_row(*cells, *([formula(change)] if wide else []))
        self._out.print(table)

    def _details(self, sites: tuple[SiteChange, ...], changes: tuple[Any, ...]) -> None:
        for site in sites:
            if site.site.flags:
                flags = ", ".join(site.site.flags)
                self._out.print(f"  {printable(site.site.path)}: {flags}", soft_wrap=True)
            for change in site.changes:
                shapes = f"{change.source.shape} -> {change.target.shape}"
                self._out.print(
                    f"  tensor {printable(change.source.path)} {shapes}: {change.edit}",
                    soft_wrap=True,
                )
        for change in changes:
            before, after = (json.dumps(v, default=str) for v in (change.before, change.after))
            self._out.print(
                f"  config {printable(change.path)} {printable(change.key)}: "
                f"{printable(before)} -> {printable(after)}",
                soft_wrap=True,
            )

    def _optimizer(self, report: Report) -> None:
        if report.optimizer.state != "absent":
            notes = "; ".join(report.optimizer.notes)
            self._out.print(
                f"  optimizer state: {report.optimizer.state}"
                + (f" ({printable(notes)})" if notes else ""),
                soft_wrap=True,
            )


def _console(no_color: bool, stream: Any) -> _Console:
    plain = no_color or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    force = bool(os.environ.get("FORCE_COLOR")) and not plain
    terminal = stream.isatty()
    return _Console(
        file=stream,
        no_color=plain,
        force_terminal=True if force else None,
        color_system=None if plain or not (terminal or force) else "auto",
        width=None if terminal else _PLAIN_WIDTH,
        highlight=False,
        emoji=False,
    )
