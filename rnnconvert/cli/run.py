"""From the arguments of a command to its exit code: every command goes through here."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from rnnconvert.errors import ConversionError, last_resort


def run_command(command: Callable[..., int], arguments: dict[str, Any]) -> None:
    """Call a command, and turn what it raises into one line and an exit code."""
    from rnnconvert.cli.output import Output

    if not arguments["debug"]:  # TensorFlow warns of functions that it means to remove
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
    debug = arguments.pop("debug")
    output = Output(
        quiet=arguments.pop("quiet"),
        verbose=arguments.pop("verbose", False),
        no_color=arguments.pop("no_color"),
        as_json=arguments.pop("as_json"),
        report=arguments.pop("report", None),
        html=arguments.pop("html", None),
        debug=debug,
    )
    try:
        with last_resort():
            code = command(output, **arguments)
    except ConversionError as error:
        output.error(error)
        code = error.exit_code
    sys.exit(code)
