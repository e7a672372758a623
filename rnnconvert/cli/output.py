"""What the user sees: tables and sentences to stdout, messages to stderr, or one JSON document."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnnconvert.cli.batch import Line, outcome_of, show_batch
from rnnconvert.cli.console import make_console, say
from rnnconvert.cli.contents import kind_of_layers, show_converted, show_inspection
from rnnconvert.cli.documents import Documents
from rnnconvert.cli.tables import conclusion, export_lines, file_line, level_line, loads, printable
from rnnconvert.errors import ConversionError

if TYPE_CHECKING:
    from rnnconvert.checkpoints.inspect import CheckpointInspection
    from rnnconvert.cli.progress_bar import ProgressBar
    from rnnconvert.graphs.inspect import GraphInspection
    from rnnconvert.keras_models.inspect import Inspection
    from rnnconvert.options import Options
    from rnnconvert.report import Assumption, Report
    from rnnconvert.stores.finding import StoredModel
    from rnnconvert.stores.urls import StoreUrl

_NOTHING = {
    ("cudnn-to-keras", "layers"): "no CuDNN layer",
    ("cudnn-to-keras", "stacks"): "nothing of cuDNN in it; --to keras makes Keras models of it",
    ("cudnn-to-keras", "ops"): "no cuDNN op that running the model can get to",
    ("keras-to-cudnn", "layers"): "no LSTM or GRU layer",
    ("keras-to-cudnn", "stacks"): "no RNN stack that is not cuDNN's already",
}
"""Why a command leaves an input alone."""


class Output:
    """Prints the results of one run of a command.

    Attributes:
        documents: the JSON documents of the results, and the files they are written to.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        verbose: bool = False,
        no_color: bool = False,
        as_json: bool = False,
        report: str | None = None,
        html: str | None = None,
        debug: bool = False,
    ) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self.debug = debug
        self.documents = Documents(as_json=as_json, report=report, html=html)
        self._several = False
        self._lines: list[Line] = []
        self._bar: ProgressBar | None = None
        self._out = make_console(no_color, sys.stdout)
        self._err = make_console(no_color, sys.stderr)

    @property
    def _is_silent(self) -> bool:
        return self.documents.on_stdout or self.quiet

    @property
    def _in_detail(self) -> bool:
        """Several inputs have a line each, and more of them with -v only."""
        return not self._is_silent and (self.verbose or not self._several)

    @contextmanager
    def working_on(
        self, paths: Sequence[Path | StoreUrl | StoredModel]
    ) -> Iterator[ProgressBar | None]:
        """Show how far the work on some inputs is: a bar, where stderr is a terminal."""
        self._several = self._several or len(paths) > 1
        if self._is_silent or not sys.stderr.isatty() or not self._err.is_terminal:
            yield None
            return
        from rnnconvert.cli.progress_bar import ProgressBar
        from rnnconvert.publish import bytes_of

        sizes = [bytes_of(path) if isinstance(path, Path) else path.bytes for path in paths]
        bar = ProgressBar(self._err, sizes)
        try:
            with bar.running():
                self._bar = bar
                yield bar
        finally:
            self._bar = None

    def show_as_batch(self) -> None:
        """One line for each input, even where there is only one; the report is a list."""
        self._several = self.documents.are_a_list = True

    def done_before(self, path: str, document: dict[str, Any]) -> None:
        """An input that an earlier run has done; its document is kept."""
        self.documents.append(document)
        written = (document.get("output") or {}).get("path", "")
        self._lines.append(Line(path, "done before", written=str(written)))

    def _print(self, markup: str) -> None:
        if self._bar is not None:
            self._bar.hide()
        say(self._out, markup)

    def _message(self, markup: str) -> None:
        if self._bar is not None:
            self._bar.hide()
        say(self._err, markup)

    def _document(self, result: Any, **more: Any) -> None:
        """Keep a result for `finish`; nothing is worked out that nobody asked for."""
        if self.documents.are_wanted:
            self.documents.append({**result.to_dict(), **more})

    # --- results ----------------------------------------------------------------------------

    def conversion(self, report: Report, options: Options) -> None:
        """The result of a conversion that did not fail."""
        more = {"options": options.to_dict()} if self.documents.are_a_list else {}
        self._document(report, **more)  # an earlier run's options, for one that goes on from it
        self._notes(report.input.path, report.warnings, report.assumptions)
        self._lines.append(_line(report, options))
        if self._in_detail:
            self._print(f"[bold]{printable(report.input.path)}[/]  {file_line(report.input)}")
            self._conversion(report, options)

    def _conversion(self, report: Report, options: Options) -> None:
        if report.verdict == "nothing-to-convert":
            kind = kind_of_layers(report)
            said = f"{_NOTHING[report.command, kind]}{loads(report, kind)}"
            self._print(f"  nothing to convert: {said}")
            return
        show_converted(self._out, report, verbose=self.verbose)
        if options.check:
            self._print("  [yellow]needs conversion[/]")
            return
        for name, level in report.levels:
            self._print(f"  {level_line(name, level)}")
        self._written(report)

    def exported(self, report: Report) -> None:
        """The result of an `export` that did not fail."""
        self._document(report)
        self._notes(report.input.path, report.warnings, report.assumptions)
        if self._is_silent:
            return
        self._print(f"[bold]{printable(report.input.path)}[/]  {file_line(report.input)}")
        for written in report.exported:
            for line in export_lines(written):
                self._print(f"  {line}")
        for name, level in report.levels:
            self._print(f"  {level_line(name, level)}")
        self._written(report)

    def _written(self, report: Report) -> None:
        """The last line: what was written, and how far it is proved."""
        told = "[green]would be written[/] (dry run, nothing was written)"
        if report.output is not None:
            told = (f"[green]written[/] {printable(report.output.path)} "
                    f"({report.output.bytes:,} bytes)")  # fmt: skip
        self._print(f"  {told}, {conclusion(report)}")

    def inspection(self, found: Inspection | CheckpointInspection | GraphInspection) -> None:
        """The result of `inspect`."""
        self._document(found)
        path = found.input.path
        self._notes(path, found.warnings, getattr(found, "assumptions", ()))
        outcome = "can't be converted" if found.verdict == "not-convertible" else found.verdict
        layers = len(found.layers)
        self._lines.append(Line(path, outcome.replace("-", " "), layers))
        if self._in_detail:
            self._print(f"[bold]{printable(path)}[/]  {file_line(found.input)}")
            show_inspection(self._out, found, verbose=self.verbose)

    def comparison(self, report: Report, earlier: Path | None) -> None:
        """The result of `verify`."""
        self._document(report)
        self._notes(report.input.path, (), report.assumptions)
        if self._is_silent:
            return
        for info in (report.input, report.output):
            self._print(f"[bold]{printable(info.path)}[/]  {file_line(info)}")  # type: ignore[union-attr]
        if earlier is not None:
            self._print(f"  [green]ok[/] the files are those of {printable(earlier)}")
        for name, level in report.levels:
            self._print(f"  {level_line(name, level)}")
        self._print(f"  {conclusion(report)}")

    def failure(self, command: str, path: object, error: ConversionError) -> None:
        """What is known of an input that failed, its error, and with --debug the traceback."""
        self.unfinished(command, path, error, outcome_of(error))
        self.error(error)

    def unfinished(
        self, command: str, path: object, error: ConversionError, outcome: str = "interrupted"
    ) -> None:
        """A report for an input that failed, or that was never come to."""
        from rnnconvert.report import FileInfo, Report

        report = error.report
        if report is None:
            report = Report(
                command=command,
                input=FileInfo(str(path), 0, "unknown"),
                problems=tuple(_problems(error)),
                verdict="not-convertible",
            )
        else:
            self._notes(str(path), report.warnings, report.assumptions)
        self._document(report)
        self._lines.append(Line(str(path), outcome))

    # --- messages ---------------------------------------------------------------------------

    def error(self, error: ConversionError) -> None:
        """One line, or one for each problem under a first one that counts them."""
        if self.debug:
            self.traceback(error)
        lines = _problems(error)
        if len(lines) > 1:
            place = f"{error.path}: " if error.path else ""
            self._message(f"[red]error:[/] {printable(place)}{len(lines)} problems")
            for line in error.problems:
                self._message(f"  {printable(line)}")
            self._message(f"  {error.explained()}")
        else:
            line = f"{lines[0]} {error.explained()}"
            self._message(f"[red]error:[/] {printable(line)}")

    def traceback(self, error: ConversionError) -> None:
        """The traceback of an error (`--debug`)."""
        import traceback

        sys.stderr.writelines(traceback.format_exception(error))

    def _notes(self, path: str, warnings: Sequence[str], assumptions: Sequence[Assumption]) -> None:
        if self.quiet:
            return
        place = f"{printable(path)}: " if self._several else ""
        for warning in warnings:
            self._message(f"[yellow]warning:[/] {place}{printable(warning)}")
        for each in assumptions:
            self._message(f"[yellow]assumed:[/] {place}{printable(each)} ({printable(each.why)})")

    # --- the end ----------------------------------------------------------------------------

    def finish(self, others: Sequence[str] = ()) -> None:
        """Print the table of several inputs, and write the documents.

        Args:
            others: sentences on what was no input.
        """
        if self._several and not self._is_silent:
            if self.verbose:
                self._out.print()
            show_batch(self._out, self._lines, others)
        self.documents.write()


def _line(report: Report, options: Options) -> Line:
    """What became of an input, for the table of several."""
    path, layers = report.input.path, len(report.layers)
    if report.verdict == "nothing-to-convert":
        return Line(path, "nothing to convert", layers)
    if options.check:
        return Line(path, "needs conversion", layers)
    depth = {"model": "whole model", "none": "not verified"}.get(report.proved, report.proved)
    proof = f"{report.verdict} ({depth})" if report.is_equivalent else report.verdict
    if report.output is None:
        return Line(path, "would be converted", layers, proof)
    return Line(path, "converted", layers, proof, report.output.path)


def _problems(error: ConversionError) -> list[str]:
    place = f"{error.path}: " if error.path else ""
    return [f"{place}{problem}" for problem in error.problems]
