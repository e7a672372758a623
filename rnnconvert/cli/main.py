"""The commands and their options."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from rnnconvert.cli.config import read_variables
from rnnconvert.cli.explain import explain
from rnnconvert.cli.groups import GroupedCommand, option_group
from rnnconvert.cli.opaque import opaque
from rnnconvert.cli.places import Place
from rnnconvert.cli.report import report_command
from rnnconvert.cli.run import run_command
from rnnconvert.cli.stacks import stack_options
from rnnconvert.cli.supervise import INTERRUPTED, stop_on_sigterm
from rnnconvert.errors import ConversionError, OutputError, UsageError

LEVELS = ["none", "weights", "layers", "model"]
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

Command = Callable[..., Any]


display_options = option_group(
    "Report and terminal",
    click.option(
        "--report",
        type=click.Path(readable=False),
        metavar="FILE",
        help="Write the JSON report to FILE, also on failure; - is stdout.",
    ),
    click.option(
        "--html",
        type=click.Path(readable=False),
        metavar="FILE",
        help="Write the report as a page to look at, also on failure.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the JSON report to stdout."),
    click.option("--no-color", is_flag=True, help="No colours (as NO_COLOR does)."),
    click.option("-q", "--quiet", is_flag=True, help="Show errors only."),
    click.option("-v", "--verbose", is_flag=True, help="Show every tensor and config change."),
    click.option("--debug", is_flag=True, help="Show tracebacks."),
)
"""The options that every command has."""


_PATHS = click.argument("paths", nargs=-1, required=True, type=Place(), metavar="PATH...")


folder_options = option_group(
    "Folders",
    click.option("--include", multiple=True, metavar="GLOB",
                 help="Of a folder only files of such names, or paths in it."),
    click.option("--exclude", multiple=True, metavar="GLOB",
                 help="Of a folder no files or directories of such names, or paths in it."),
)  # fmt: skip
"""For the commands that walk a directory which is no model."""


def _choice(name: str, choices: list[str], default: str, text: str) -> Callable[[Command], Command]:
    """An option with a few values, its default shown."""
    return click.option(
        name, type=click.Choice(choices), default=default, show_default=True, help=text
    )


def conversion_options(suffix: str, containers: list[str]) -> Callable[[Command], Command]:
    """What the converting commands share, PATH... included.

    Args:
        suffix: put into the name of an output that was given none.
        containers: that the output can be.
    """

    options = option_group(
        "What is written",
        click.option(
            "-o", "--output", "output_path", type=click.Path(readable=False), metavar="PATH",
            help="Where to write; with several inputs a directory. "
            f"Default: model.h5 -> model{suffix}.h5.",
        ),
        click.option(
            "--to", type=click.Choice(containers),
            help="The output's container. Default: as the input, or by the output's extension.",
        ),
        _choice("--optimizer", ["convert", "drop"], "convert", "What happens to optimizer state."),
        click.option(
            "--check", is_flag=True, help="Write nothing; exit 1 if any input needs conversion."
        ),
        click.option("-n", "--dry-run", is_flag=True, help="Do everything, and write nothing."),
        click.option("-f", "--force", is_flag=True, help="Overwrite an existing output."),
        click.option("--in-place", is_flag=True, help="Replace the input, by an atomic rename."),
        click.option(
            "-j", "--jobs", type=click.IntRange(1), default=1, show_default=True,
            help="Inputs converted side by side.",
        ),
        click.option(
            "--resume", is_flag=True,
            help="Go on where an earlier run with this --report was stopped.",
        ),
        _choice(
            "--engine", ["local", "dask"], "local",
            "Who works on several inputs: this machine, or a Dask cluster.",
        ),
        click.option(
            "--scheduler", metavar="ADDRESS", help="Of the Dask cluster, as tcp://10.0.0.1:8786."
        ),
    )  # fmt: skip
    return lambda command: _PATHS(folder_options(options(command)))


_MAX_BYTES = click.option(
    "--max-bytes", type=click.IntRange(1), metavar="N",
    help="What parts of an input may take unpacked. Default: by the input's size.",
)  # fmt: skip
_DEEPEST = "How deep to verify, each level with those before it."

verification_options = option_group(
    "Verification",
    _choice(
        "--device", ["auto", "cpu", "gpu"], "auto",
        "Where models run: the CPU always, a GPU too where there is one; gpu insists on it.",
    ),
    click.option(
        "--seed", type=click.IntRange(0), default=0, show_default=True,
        help="Of the random inputs.",
    ),
    click.option("--batch", type=click.IntRange(1), help="Batch size of the inputs. Default: 3."),
    click.option(
        "--timesteps", type=click.IntRange(1),
        help="Length of inputs whose length the model leaves open. Default: 7.",
    ),
    click.option(
        "--rtol", type=click.FloatRange(0),
        help="Tolerance relative to the largest output. Default: by dtype and depth.",
    ),
    click.option(
        "--atol", type=click.FloatRange(0),
        help="Absolute tolerance, added to that of --rtol; alone, the only one.",
    ),
    click.option(
        "--allow-code", is_flag=True,
        help="Run the code of Lambda layers, and graphs with ops that may do harm.",
    ),
    click.option(
        "--custom-objects", multiple=True, metavar="MODULE:NAME",
        help="A class, function or dict of them that the model needs; it is imported.",
    ),
    click.option(
        "--strict", is_flag=True,
        help="Fail (exit 4) on an assumption, or on a level that could not run.",
    ),
    _MAX_BYTES,
)  # fmt: skip
"""How models are compared: by the commands that convert, and by `verify`."""


ci_options = option_group(
    "Continuous integration",
    click.option(
        "--summary", type=click.Path(readable=False), metavar="FILE",
        help="Append a summary in Markdown to FILE, as $GITHUB_STEP_SUMMARY expects it.",
    ),
    click.option(
        "--annotations", type=click.Path(readable=False), metavar="FILE",
        help="Append GitHub's annotations (::error file=...) to FILE.",
    ),
)  # fmt: skip


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from rnnconvert.versions import tool_versions

    versions = tool_versions()
    others = ", ".join(f"{k} {v}" for k, v in versions.items() if v and k != "rnnconvert")
    click.echo(f"rnnconvert {versions['rnnconvert']} ({others})")
    context.exit()


@click.group(context_settings=_CONTEXT)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version,
    help="Show the version and exit.",
)  # fmt: skip
@click.pass_context
def cli(context: click.Context) -> None:
    """Make Keras models with cuDNN LSTM and GRU layers portable, and prove them equal.

    \b
    rnnconvert inspect model.h5             what is inside
    rnnconvert cudnn-to-keras model.h5      convert, verify, write model.portable.h5
    rnnconvert keras-to-cudnn model.h5      the inverse, for an old stack: model.cudnn.h5
    rnnconvert verify old.h5 new.h5         compare two models numerically
    rnnconvert export model.h5 -o m.onnx    to ONNX, TFLite or torch, proved in that runtime
    rnnconvert opaque size|unpack|pack      cuDNN's flat buffer of parameters
    rnnconvert explain [TOPIC|PATH]         the layouts in words and small pictures
    rnnconvert report r.json -o r.html      a saved report as a page to look at

    Exit codes: 0 done or nothing to do; 1 a difference, or --check found work; 2 usage;
    3 unreadable input; 4 not convertible; 5 output exists or can't be written; 130 interrupted.

    Options can also stand in [tool.rnnconvert] of pyproject.toml, and in variables like
    RNNCONVERT_TARGET.
    """
    from rnnconvert.cli.config import check_variables, default_map

    check_variables(cli)
    context.default_map = default_map(cli)


@cli.command("cudnn-to-keras", cls=GroupedCommand, context_settings=_CONTEXT)
@conversion_options(
    ".portable", ["h5", "keras", "weights", "savedmodel", "graph", "checkpoint", "npz"]
)
@option_group(
    "What the output is like",
    _choice("--target", ["keras3", "keras2"], "keras3", "Decides where one file can't serve both."),
    _choice(
        "--names", ["tf1", "keras"], "tf1", "Checkpoints: names of the variables that are written."
    ),
    click.option(
        "--ignore-dropout", is_flag=True,
        help="Graphs: lower training ops with dropout between their layers, without it.",
    ),
    click.option(
        "--unroll", type=click.IntRange(1), metavar="T",
        help="Graphs: no loops, for inputs of T time steps.",
    ),
)  # fmt: skip
@option_group("Verification", _choice("--verify", LEVELS, "model", _DEEPEST))
@verification_options
@stack_options
@ci_options
@display_options
def cudnn_to_keras(**arguments: Any) -> None:
    """Convert CuDNNLSTM and CuDNNGRU layers to LSTM and GRU(reset_after=True).

    Reads a Keras .h5 file (whole model or weights only, any extension), writes one that Keras 3
    and Keras 2 load without a GPU and without custom_objects. Plain LSTM, GRU and SimpleRNN layers
    that Keras 3 refuses are repaired on the way. The input is never changed.

    Of a TensorFlow checkpoint (prefix, .index or directory) each RNN stack becomes a Keras model
    (--to h5, keras), its cuDNN buffers become canonical tensors (--to checkpoint, the default), or
    arrays (--to npz).

    The cuDNN ops of a SavedModel or frozen graph (.pb) become ordinary ones; with --to h5, keras
    the Keras model that a SavedModel or .keras file describes is rebuilt and converted.
    """
    from rnnconvert.cli.commands import convert_all

    run_command(convert_all, {**arguments, "command": "cudnn-to-keras"})


@cli.command("keras-to-cudnn", cls=GroupedCommand, context_settings=_CONTEXT)
@conversion_options(".cudnn", ["h5", "weights", "checkpoint"])
@option_group("Verification", _choice("--verify", LEVELS, "model", _DEEPEST))
@verification_options
@stack_options
@ci_options
@display_options
def keras_to_cudnn(**arguments: Any) -> None:
    """Convert LSTM and GRU(reset_after=True) layers to CuDNNLSTM and CuDNNGRU: the inverse.

    For an old Keras 2 whose models run on cuDNN. Reads a .h5 file of Keras 2, or one that
    rnnconvert wrote; the output is for the Keras that first wrote it. A layer that cuDNN has no
    form of (another activation, no biases, dropout inside, a mask, reset_after=False) is an error.
    The input is never changed.
    """
    from rnnconvert.cli.commands import convert_all

    run_command(convert_all, {**arguments, "command": "keras-to-cudnn"})


@cli.command("inspect", cls=GroupedCommand, context_settings=_CONTEXT)
@_PATHS
@folder_options
@option_group(
    "Reading and planning",
    _choice("--target", ["keras3", "keras2"], "keras3", "Which Keras the output would be for."),
    _MAX_BYTES,
)
@stack_options
@display_options
def inspect_command(**arguments: Any) -> None:
    """Show what a model file holds, and what a conversion would do. Writes nothing."""
    from rnnconvert.cli.commands import inspect_all

    run_command(inspect_all, arguments)


@cli.command("export", cls=GroupedCommand, context_settings=_CONTEXT)
@click.argument("path", type=Place())
@option_group(
    "What is written",
    click.option(
        "-o", "--output", "output_path", type=click.Path(readable=False), metavar="PATH",
        required=True,
        help="Where to write: .onnx, .tflite, .safetensors; of several stacks a directory.",
    ),
    click.option(
        "--to", type=click.Choice(["onnx", "tflite", "torch", "keras"]),
        help="Default: by the output's extension. keras is for --stateful-step.",
    ),
    click.option("--opset", type=click.IntRange(1), metavar="N", help="ONNX: of the operators."),
    _choice("--quantize", ["none", "dynamic"], "none", "TFLite: dynamic stores weights as int8."),
    click.option(
        "--stateful-step", is_flag=True,
        help="One time step in; outputs and states out, states as further inputs.",
    ),
    click.option(
        "--allow-select-ops", is_flag=True,
        help="TFLite: allow TensorFlow's own operators, which need the Flex delegate.",
    ),
    click.option("-n", "--dry-run", is_flag=True, help="Do everything, and write nothing."),
    click.option("-f", "--force", is_flag=True, help="Overwrite an existing output."),
)  # fmt: skip
@option_group("Verification", _choice("--verify", LEVELS, "model", _DEEPEST))
@verification_options
@stack_options
@display_options
def export_command(**arguments: Any) -> None:
    """Write a model for ONNX, TFLite or torch, and prove it in that runtime.

    Reads all that the other commands read; CuDNN layers are converted on the way. The written file
    runs beside the original model on the same random inputs: a difference is exit 1, and nothing
    is written.
    """
    from rnnconvert.cli.commands import export_one

    run_command(export_one, arguments)


@cli.command("verify", cls=GroupedCommand, context_settings=_CONTEXT)
@click.argument("original", type=Place())
@click.argument("converted", type=Place())
@option_group("Verification", _choice("--verify", LEVELS[1:], "model", _DEEPEST))
@verification_options
@stack_options
@ci_options
@display_options
def verify_command(**arguments: Any) -> None:
    """Compare two models numerically; either may hold CuDNN layers or ops.

    Whole models are run side by side on the same random inputs; weights-only files are compared
    tensor by tensor and layer by layer, RNN stacks of checkpoints with another checkpoint or with
    a Keras file, SavedModels and graphs by their signatures. If the file of --report exists, it is
    not replaced: its hashes must be those of the two files, so that what is deployed is what was
    verified.
    """
    from rnnconvert.cli.commands import verify_pair

    run_command(verify_pair, arguments)


cli.add_command(opaque)
cli.add_command(explain)
cli.add_command(report_command)
read_variables(cli)


def main() -> None:
    """Entry point of the console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names the terminal can't show
    stop_on_sigterm()
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        text = io.StringIO()
        error.show(text)
        click.echo(f"{text.getvalue().rstrip()} {UsageError.explained()}", err=True)
        sys.exit(UsageError.exit_code)
    except ConversionError as error:  # of the settings; a command tells of its own
        from rnnconvert.cli.output import Output

        Output().error(error)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; no unfinished output is left", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader has seen enough; what Python still holds goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(OutputError.exit_code)


if __name__ == "__main__":
    main()
