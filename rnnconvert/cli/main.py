"""The commands and their options."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rnnconvert.errors import ConversionError, OutputError, UsageError

INTERRUPTED = 130
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

Command = Callable[..., Any]


def display_options(command: Command) -> Command:
    """The options that every command has."""
    for option in (
        click.option("--debug", is_flag=True, help="Show tracebacks."),
        click.option("-v", "--verbose", is_flag=True, help="Show every tensor and config change."),
        click.option("-q", "--quiet", is_flag=True, help="Show errors only."),
        click.option("--no-color", is_flag=True, help="No colours (NO_COLOR does the same)."),
        click.option("--json", "as_json", is_flag=True, help="Print the JSON report to stdout."),
        click.option(
            "--report",
            type=click.Path(readable=False),
            metavar="FILE",
            help="Write the JSON report to FILE, also on failure; - is stdout.",
        ),
    ):
        command = option(command)
    return command


_PATHS = click.argument(
    "paths",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, readable=False),
    metavar="PATH...",
)


def _choice(name: str, choices: list[str], default: str, text: str) -> Callable[[Command], Command]:
    """An option with a few values, its default shown."""
    return click.option(
        name, type=click.Choice(choices), default=default, show_default=True, help=text
    )


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from rnnconvert.report import tool_versions

    versions = tool_versions()
    others = ", ".join(f"{k} {v}" for k, v in versions.items() if v and k != "rnnconvert")
    click.echo(f"rnnconvert {versions['rnnconvert']} ({others})")
    context.exit()


@click.group(context_settings=_CONTEXT)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version,
    help="Show the version and exit.",
)  # fmt: skip
def cli() -> None:
    """Make Keras models with cuDNN LSTM and GRU layers portable, and prove them equal.

    \b
    rnnconvert inspect model.h5             what is inside
    rnnconvert cudnn-to-keras model.h5      convert, verify, write model.portable.h5

    Exit codes: 0 done or nothing to do; 1 a difference, or --check found work; 2 usage;
    3 unreadable input; 4 not convertible; 5 output exists or can't be written; 130 interrupted.
    """


@cli.command("cudnn-to-keras", context_settings=_CONTEXT)
@_PATHS
@click.option(
    "-o",
    "--output",
    "output_path",
    type=click.Path(readable=False),
    metavar="PATH",
    help="Where to write; with several inputs a directory. Default: model.h5 -> model.portable.h5.",
)
@click.option(
    "--to",
    type=click.Choice(["h5", "keras", "weights"]),
    help="The output's container. Default: as the input, or by the output's extension.",
)
@_choice("--verify", ["none", "weights", "layers"], "layers", "How deep to verify before writing.")
@_choice("--target", ["keras3", "keras2"], "keras3", "Decides where one file can't serve both.")
@_choice("--optimizer", ["convert", "drop"], "convert", "What happens to optimizer state.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the random inputs."
)
@click.option("--batch", type=click.IntRange(1), help="Batch size of the random inputs.")
@click.option("--timesteps", type=click.IntRange(1), help="Time steps of the random inputs.")
@click.option("--rtol", type=click.FloatRange(0), help="Relative tolerance. Default: by dtype.")
@click.option("--atol", type=click.FloatRange(0), help="Absolute tolerance. Default: by dtype.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if any input needs conversion.")
@click.option("-n", "--dry-run", is_flag=True, help="Do everything, and write nothing.")
@click.option("-f", "--force", is_flag=True, help="Overwrite an existing output.")
@click.option("--in-place", is_flag=True, help="Replace the input, by an atomic rename.")
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Inputs converted side by side.",
)
@display_options
def cudnn_to_keras(**arguments: Any) -> None:
    """Convert CuDNNLSTM and CuDNNGRU layers to LSTM and GRU(reset_after=True).

    Reads a Keras .h5 file (whole model or weights only, any extension), writes one that Keras 3
    and Keras 2 load without a GPU and without custom_objects. Plain LSTM, GRU and SimpleRNN layers
    that Keras 3 refuses are repaired on the way. The input is never changed.
    """
    from rnnconvert.cli.commands import convert_all

    _run(convert_all, arguments)


@cli.command(context_settings=_CONTEXT)
@_PATHS
@_choice("--target", ["keras3", "keras2"], "keras3", "Which Keras the plan is for.")
@display_options
def inspect(**arguments: Any) -> None:
    """Show what a model file holds, and what a conversion would do. Writes nothing."""
    from rnnconvert.cli.commands import inspect_all

    _run(inspect_all, arguments)


def _run(command: Callable[..., int], arguments: dict[str, Any]) -> None:
    """Call a command, and turn what it raises into one line and an exit code."""
    from rnnconvert.cli.output import Output

    debug = arguments.pop("debug")
    output = Output(
        quiet=arguments.pop("quiet"),
        verbose=arguments.pop("verbose"),
        no_color=arguments.pop("no_color"),
        as_json=arguments.pop("as_json"),
        report=arguments.pop("report"),
        debug=debug,
    )
    try:
        code = command(output, **arguments)
    except ConversionError as error:
        if debug:
            output.traceback(error)
        output.error(error)
        code = error.exit_code
    sys.exit(code)


def main() -> None:
    """Entry point of the console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names the terminal can't show
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(UsageError.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; no unfinished output is left", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader has seen enough; what Python still holds goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(OutputError.exit_code)


if __name__ == "__main__":
    main()
