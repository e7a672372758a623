"""The JSON documents of a run, and the files that are made of them: `--report`, `--html`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_SHARE = 20
"""So many times as long as saving the report takes, the work goes on before the next time."""


class Documents:
    """One JSON document for each input.

    Attributes:
        on_stdout: whether they go to stdout; then nothing else does.
        report: the file of `--report`, if any.
        are_a_list: a list even where there is one document only.
    """

    def __init__(self, *, as_json: bool, report: str | None, html: str | None) -> None:
        self.on_stdout = as_json or report == "-"
        self.report = None if report in (None, "-") else Path(str(report))
        self._html = None if html is None else Path(html)
        self.are_a_list = False
        self._all: list[dict[str, Any]] = []
        self._saved_at = self._saving_took = 0.0

    @property
    def are_wanted(self) -> bool:
        """Whether a report is asked for; only then are files hashed."""
        return self.on_stdout or self.are_written

    @property
    def are_written(self) -> bool:
        """Whether they become files."""
        return self.report is not None or self._html is not None

    def append(self, document: dict[str, Any]) -> None:
        self._all.append(document)

    def take_existing_report(self) -> Path | None:
        """The file of `--report` if it exists: then it is to be read, and not to be replaced."""
        if self.report is None or not self.report.exists():
            return None
        existing, self.report = self.report, None
        return existing

    def check_paths(
        self, inputs: Sequence[Path], outputs: Sequence[Path], *, may_exist: bool = False
    ) -> None:
        """Refuse files that would replace a model, or can't be written, before any work is done.

        Args:
            inputs, outputs: files and directories; no report goes into a directory of theirs.
            may_exist: a report that exists is read, and not replaced.

        Raises:
            UsageError: one of them and an input or an output are the same file.
            OutputError: a path is a pipe, a device or a directory, a file that is no report, or
                lies in a directory that is missing or not writable.
        """
        from rnnconvert.outputs import check_page, check_report

        models = (*inputs, *outputs)
        if self.report is not None:
            check_report(self.report, models, is_read=may_exist)
        if self._html is not None:
            others = () if self.report is None else (self.report,)
            check_page(self._html, (*models, *others))

    def _text(self) -> str:
        alone = len(self._all) == 1 and not self.are_a_list
        return json.dumps(self._all[0] if alone else self._all, indent=2, default=str) + "\n"

    def save(self) -> None:
        """Write the report of a folder as far as it is, so that a killed run can be resumed.

        Of many models not after each, or writing would take longer than the work.
        """
        if self.report is None or not self.are_a_list:
            return
        from rnnconvert.publish import write_text

        start = time.monotonic()
        if start - self._saved_at < _SHARE * self._saving_took:
            return
        write_text(self.report, self._text())
        self._saved_at = time.monotonic()
        self._saving_took = self._saved_at - start

    def write(self) -> None:
        """Write them: one report, or a list of them for several inputs."""
        if not self.are_wanted:
            return
        text = self._text()
        if self.on_stdout:
            sys.stdout.write(text)
        if self.are_written:
            from rnnconvert.publish import write_text

            if self.report is not None:
                write_text(self.report, text)
            if self._html is not None:
                from rnnconvert.page.page import page_of

                write_text(self._html, page_of(json.loads(text)))
