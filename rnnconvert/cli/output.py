"""What the user sees: tables and sentences to stdout, messages to stderr, or one JSON document."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rnnconvert.errors import ConversionError, OutputError, UsageError

if TYPE_CHECKING:
    from rnnconvert.checkpoint_inspection import CheckpointInspection, StackLayer
    from rnnconvert.inspection import Inspection
    from rnnconvert.pipeline import Options
    from rnnconvert.plan import Plan, SiteChange
    from rnnconvert.report import LevelResult, Report

_WIDE = 125
"""Width from which the table has room for the formula of the number of weights."""
_PLAIN_WIDTH = 240
"""Width where output goes to a file or a pipe: names are never cut there."""
_NOTHING = {
    "cudnn-to-keras": "no CuDNN layer, and Keras 3 loads it as it is",
    "keras-to-cudnn": "no LSTM or GRU layer",
}
"""Why a command leaves a file alone."""


def printable(text: object) -> str:
    """Text from a model file, made safe to print: no control characters, no markup."""
    clean = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))
    return escape(clean)


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
        if self._json or self.quiet or failed:
            return
        self._out.print(f"[bold]{printable(report.input.path)}[/]  {_file_line(report.input)}")
        if report.verdict == "nothing-to-convert":
            self._out.print(f"  nothing to convert: {_NOTHING[report.command]}")
            return
        if report.input.container.startswith("tf-checkpoint"):
            self._stacks(report.layers)
        else:
            self._sites(report.layers)
        if self.verbose and not report.input.container.startswith("tf-checkpoint"):
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
            self._out.print(f"  {_level_line(name, level)}")
        if report.output is None:
            self._out.print("  [green]would be written[/] (dry run, nothing was written)")
        else:
            self._out.print(
                f"  [green]written[/] {printable(report.output.path)} "
                f"({report.output.bytes:,} bytes), {report.verdict}"
            )

    def inspection(self, found: Inspection) -> None:
        self._documents.append(found.to_dict())
        self._warnings(found.plan.warnings)
        if self._json or self.quiet:
            return
        self._out.print(f"[bold]{printable(found.input.path)}[/]  {_file_line(found.input)}")
        self._model(found)
        self._sites(found.plan.sites)
        if self.verbose:
            self._details(found.plan.sites, found.plan.config_changes)
        self._points(found.plan.target_points)
        self._out.print(f"  {_verdict_line(found.plan)}")

    def comparison(self, report: Report, earlier: Path | None) -> None:
        """The result of `verify`."""
        self._documents.append(report.to_dict())
        if self._json or self.quiet:
            return
        for info in (report.input, report.output):
            self._out.print(f"[bold]{printable(info.path)}[/]  {_file_line(info)}")  # type: ignore[union-attr]
        if earlier is not None:
            self._out.print(f"  [green]ok[/] the files are those of {printable(earlier)}")
        for name, level in report.levels:
            self._out.print(f"  {_level_line(name, level)}")
        self._out.print(f"  {report.verdict}")

    def take_existing_report(self) -> Path | None:
        """The file of `--report` if it exists: then it is to be read, and not to be replaced."""
        if self._report is None or not Path(self._report).exists():
            return None
        existing, self._report = Path(self._report), None
        return existing

    def checkpoint(self, found: CheckpointInspection) -> None:
        """The result of `inspect` for a checkpoint."""
        from rnnconvert.cli.stacks import variable_lines

        self._documents.append(found.to_dict())
        self._warnings(tuple(found.to_dict()["warnings"]))
        if self._json or self.quiet:
            return
        self._out.print(f"[bold]{printable(found.input.path)}[/]  {_file_line(found.input)}")
        for line in variable_lines(found.found):
            self._out.print(f"  {printable(line)}", soft_wrap=True)
        own = {name for stack in found.found.stacks for name in stack.variables}
        own |= {slot.variable for stack in found.found.stacks for slot in stack.slots}
        others = [name for name in found.variables if name not in own]
        shown = others if self.verbose else others[:6]
        more = "" if len(shown) == len(others) else f", and {len(others) - len(shown)} more (-v)"
        self._out.print(
            f"  {len(others)} other variables: {printable(', '.join(shown))}{more}", soft_wrap=True
        )
        self._stacks(found.layers)
        for problem in found.found.problems:
            self._out.print(f"  [red]can't be converted:[/] {printable(problem)}", soft_wrap=True)
        if found.verdict == "convertible":
            self._out.print("  [green]convertible[/]")
        elif not found.found.problems:
            self._out.print(
                "  nothing of cuDNN in it; --to keras makes Keras models of TF1's cells"
            )

    def _stacks(self, layers: Sequence[StackLayer]) -> None:
        from rnnconvert.cli.stacks import rows

        if not layers:
            self._out.print("  no RNN stacks")
            return
        table = _table("layer", "cell", "from", "to", ">units", ">inputs", ">weights", "", ">after")
        for row in rows(layers):
            table.add_row(*(printable(cell) for cell in row))
        self._out.print(table)

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

    def check_report_path(self, inputs: Sequence[Path], target: Path | None) -> None:
        """Refuse a report that would replace a model, before any work is done.

        Raises:
            UsageError: the report and an input or the output are the same file.
            OutputError: the report's path is a pipe, a device or a directory.
        """
        if self._report is None:
            return
        report = Path(self._report)
        for path in (*inputs, *([target] if target else [])):
            same = report.absolute() == path.absolute()
            if same or (report.exists() and path.exists() and report.samefile(path)):
                raise UsageError("the report would replace a model", path=str(report))
        if report.exists() and not report.is_file():
            raise OutputError("the report's path is not a regular file", path=str(report))

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

    def _points(self, points: tuple[str, ...]) -> None:
        for point in points:
            self._out.print(f"  [cyan]target:[/] {printable(point)}", soft_wrap=True)

    def _model(self, found: Inspection) -> None:
        table = _table("layer", "class", ">weights")
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
        table = _table(*columns, *(["formula"] if wide else []))
        for change in sites:
            site = change.site
            cells = [
                printable(site.path.removeprefix("model/")),
                site.class_name or _class_of(site.layout, site.cell),
                _target_class(change) if change.changes else "as it is",
                str(site.units),
                str(site.input_dim),
                str(site.parameters),
                "->",
                str(site.parameters_as(change.target_layout)),
            ]
            table.add_row(*cells, *([_formula(change)] if wide else []))
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


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for column in columns:
        right = column.startswith(">")
        table.add_column(
            column.lstrip(">"), justify="right" if right else "left", no_wrap=right,
            overflow="fold",
        )  # fmt: skip
    add_row = table.add_row

    def indented(*cells: str) -> None:
        add_row("", *cells)

    table.add_row = indented  # type: ignore[method-assign,assignment]
    return table


def _target_class(change: SiteChange) -> str:
    site = change.site
    if change.target_layout != site.layout:
        return _class_of(change.target_layout, site.cell)
    return f"{site.class_name} rescaled"


def _class_of(layout: str, cell: str) -> str:
    """The Keras class that stores `cell` in `layout`."""
    if layout == "keras-cudnn":
        return f"CuDNN{cell.upper()}"
    return {
        "lstm": "LSTM",
        "gru": "GRU(reset_after)",
        "gru_reset_before": "GRU",
        "conv_lstm": "ConvLSTM",
    }.get(cell, "SimpleRNN")


def _formula(change: SiteChange) -> str:
    """The count by formula: gates x units x (inputs + units + biases)."""
    site = change.site
    if site.cell == "conv_lstm" or not site.units:
        return ""
    from rnnconvert.layouts import CELLS

    gates = len(CELLS[site.cell].gates)
    per_gate = gates * site.units

    def biases(layout: str) -> int:
        return site.parameters_as(layout) // per_gate - site.input_dim - site.units

    here, there = biases(site.layout), biases(change.target_layout)
    shown = f"{here}" if here == there else f"{here}->{there}"
    return f"{gates}*{site.units}*({site.input_dim}+{site.units}+{shown})"


def _file_line(info: Any) -> str:
    kind = {
        "keras-h5-model": "Keras HDF5, whole model",
        "keras-h5-weights": "Keras HDF5, weights",
        "keras": "Keras 3 .keras",
        "tf-checkpoint-v1": "TensorFlow checkpoint V1",
        "tf-checkpoint-v2": "TensorFlow checkpoint V2",
        "npz": "numpy .npz",
    }
    version = f", Keras {printable(info.keras_version)}" if info.keras_version else ""
    return f"{kind.get(info.container, info.container)}{version}, {info.bytes:,} bytes"


def _level_line(name: str, level: LevelResult) -> str:
    if level.device == "gpu" or name == "model":
        name = f"{name} ({level.device})" if level.device else name
    if level.status == "skipped":
        return f"[yellow]-[/] {name}: skipped, {printable(level.reason)}"
    mark = "[green]ok[/]" if level.status == "passed" else "[red]FAILED[/]"
    text = f"{mark} {name}: "
    if level.max_abs is not None:
        text += f"max difference {level.max_abs:.2g} (tolerance {level.tolerance:.2g}), "
    engine = f", {level.engine}" if level.engine else ""
    return text + printable((level.detail or "") + engine)


def _verdict_line(plan: Plan) -> str:
    if plan.problems:
        listed = "\n    ".join(printable(problem) for problem in plan.problems)
        return f"[red]can't be converted:[/]\n    {listed}"
    if plan.is_empty:
        return "nothing to convert"
    cudnn = sum(change.site.is_cudnn for change in plan.sites)
    parts = []
    if cudnn:
        parts.append(f"{cudnn} CuDNN layers to convert")
    scaled = sum(bool(c.changes) and not c.site.is_cudnn for c in plan.sites)
    if scaled:
        parts.append(f"{scaled} hard_sigmoid layers to rescale")
    if plan.config_changes:
        parts.append(f"{len(plan.config_changes)} config repairs (-v lists them)")
    return f"[green]convertible:[/] {', '.join(parts)}"
