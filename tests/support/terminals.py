"""Run the program in a terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import NamedTuple

_HIDDEN_CURSOR = "\x1b[?25l"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen(NamedTuple):
    """What a program wrote to its terminal.

    `bar` is what it drew while the cursor was hidden, which is a progress bar; `text` is the rest.
    Neither has escape sequences.
    """

    code: int
    text: str
    bar: str

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n")


def in_terminal(columns: int, directory: Path, *arguments: str) -> Screen:
    """Run `rnnconvert ARGUMENTS` in a directory, its output and messages in one terminal."""
    code = "from rnnconvert.cli.main import main; import sys; sys.argv[0] = 'rnnconvert'; main()"
    return run_in_terminal(columns, directory, [sys.executable, "-c", code, *arguments])


def run_in_terminal(columns: int, directory: Path, command: list[str]) -> Screen:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    wanted = {"TERM": "xterm-256color", "TF_CPP_MIN_LOG_LEVEL": "3"}
    unwanted = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
    environment = {k: v for k, v in os.environ.items() if k not in unwanted}
    child = subprocess.Popen(
        command, cwd=directory, env={**environment, **wanted},
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    pieces = []
    while True:
        try:
            pieces.append(os.read(ours, 2**16))
        except OSError:  # the last process that had the terminal open has ended
            break
        if not pieces[-1]:
            break
    os.close(ours)
    return _screen(child.wait(), b"".join(pieces).decode().replace("\r\n", "\n"))


def _screen(code: int, written: str) -> Screen:
    text, *drawn = written.split(_HIDDEN_CURSOR)
    bars = []
    for part in drawn:
        bar, _, rest = part.partition("\x1b[?25h")
        bars.append(bar)
        text += rest.split("\x1b[2K", 1)[-1]  # behind what takes the bar away
    plain = [_ESCAPES.sub("", each).replace("\r", "") for each in (text, "".join(bars))]
    return Screen(code, *plain)
