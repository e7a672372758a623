"""A progress bar on stderr for work of more than a second: what is done, how much, time left."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from rnnconvert.cli.tables import printable
from rnnconvert.progress import BYTES, Step, listen

_AFTER = 1.0
"""Seconds of work before a bar is shown."""
_BAR = 24
_NARROW = 70
"""Width below which there is no room for a bar, only for its numbers."""


class _Bar(BarColumn):
    """Nothing where it is not known how much there is to do."""

    def render(self, task: Task) -> Any:
        return Text(" " * _BAR) if task.total is None else super().render(task)


class _Amount(ProgressColumn):
    """E.g. "12/60 layers" or "1.2/4.0 GB"."""

    def render(self, task: Task) -> Text:
        unit = task.fields["unit"]
        if task.total is None:
            return Text("")
        done, total = int(task.completed), int(task.total)
        if unit == BYTES:
            return Text(f"{decimal(done)} of {decimal(total)}")
        return Text(f"{done}/{total} {unit}")


class _TimeLeft(ProgressColumn):
    """E.g. "0:12 left"; how long it has taken where nothing tells how long it will take."""

    def render(self, task: Task) -> Text:
        begun, at, now = task.fields["begun"], task.fields["at"], time.monotonic()
        left = -1.0
        if task.total and task.completed:
            to_do = (task.total - task.completed) / task.completed
            left = to_do * (at - begun) - (now - at)
        return Text(_clock(now - begun) if left < 0 else f"{_clock(left)} left")


def _now() -> dict[str, Any]:
    """When the work on a step began, and when it was last heard of."""
    return dict.fromkeys(("begun", "at"), time.monotonic())


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class ProgressBar:
    """One line for the step that is worked on and, for several files, one for all of them."""

    def __init__(self, console: Console, sizes: Sequence[int]) -> None:
        """`sizes` are the bytes of each file, in the order of the work."""
        whole = Column(no_wrap=True)  # a name takes a second line where there is no room
        name = Column(overflow="fold")
        columns = (TextColumn("{task.description}", table_column=name), _Amount(whole),
                   _TimeLeft(whole.copy()))  # fmt: skip
        bar = () if console.width < _NARROW else (_Bar(bar_width=_BAR),)
        self._progress = Progress(
            columns[0], *bar, *columns[1:], console=console, transient=True,
            redirect_stdout=False, redirect_stderr=False, refresh_per_second=4,
        )  # fmt: skip
        self._lock = threading.RLock()
        self._due = False
        self._shown = False
        self._sizes = sizes
        self._name = ""
        self._what = ""
        self._files = None
        if len(sizes) > 1:
            self._files = self._progress.add_task("", total=sum(sizes), unit=BYTES, **_now())
            self._count(0)
        self._step = self._progress.add_task("", total=None, unit="", visible=False, **_now())

    @contextmanager
    def running(self) -> Iterator[ProgressBar]:
        """Show it from the first second on, as long as the work takes."""
        timer = threading.Timer(_AFTER, self._come)
        timer.daemon = True
        timer.start()
        try:
            with listen(self.step):
                yield self
        finally:
            timer.cancel()
            with self._lock:
                self._due = False
                self.hide()

    def begin(self, name: str) -> None:
        """Work begins on a file of that name."""
        with self._lock:
            self._name = printable(name)
            self._what = ""
            self.step(Step("reading"))

    def end(self, done: Sequence[int]) -> None:
        """These files are done, by their numbers."""
        with self._lock:
            self._progress.update(self._step, visible=False)
            if self._files is not None:
                size = sum(self._sizes[number] for number in done)
                self._progress.update(self._files, completed=size, at=time.monotonic())
                self._count(len(done))

    def _count(self, done: int) -> None:
        assert self._files is not None
        text = f"{done}/{len(self._sizes)} files"
        self._progress.update(self._files, description=text)

    def step(self, step: Step) -> None:
        """The listener of `progress`."""
        with self._lock:
            if step.what != self._what:  # another part of the work has a speed of its own
                self._what = step.what
                self._begin(step)
            self._progress.update(
                self._step, completed=step.done, total=step.total, at=time.monotonic()
            )
            self._show()

    def _begin(self, step: Step) -> None:
        """Another line instead of the last: what is drawn meanwhile is never half of each."""
        last = self._step
        self._step = self._progress.add_task(
            f"{self._name}  {step.what}", total=step.total, unit=step.unit, **_now()
        )
        self._progress.remove_task(last)

    def hide(self) -> None:
        """Make room for other output; the next step brings it back."""
        with self._lock:
            if self._shown:
                self._shown = False
                self._progress.stop()

    def _come(self) -> None:
        with self._lock:
            self._due = True
            self._show()

    def _show(self) -> None:
        if self._due and not self._shown:
            self._shown = True
            self._progress.start()
