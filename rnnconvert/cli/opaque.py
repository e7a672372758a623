"""`rnnconvert opaque`: cuDNN's flat parameter buffer, between .npy and .npz files.

The three commands are TensorFlow's operators CudnnRNNParamsSize, CudnnRNNParamsToCanonical and
CudnnRNNCanonicalToParams, without TensorFlow and without a GPU. Imports stand where they are
needed: the help must not wait for numpy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rnnconvert.cli.run import run_command
from rnnconvert.errors import ConversionError, UnreadableInputError, UsageError, errors_of

if TYPE_CHECKING:
    from rnnconvert.cli.output import Output
    from rnnconvert.layouts.opaque_shape import OpaqueShape
    from rnnconvert.layouts.weights import Array

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_SCHEMA = 1
_OF_SEVERAL = "'rnnconvert opaque pack' makes a buffer of several arrays"
_BYTES = {"float16": 2, "float32": 4, "float64": 8}

Command = Callable[..., Any]


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    return lambda command: reduce(lambda inner, option: option(inner), reversed(options), command)


def _hyperparameters(*, required: bool) -> Callable[[Command], Command]:
    """The options that say what network a buffer belongs to, with TensorFlow's meaning."""
    cells = ["lstm", "gru", "rnn_tanh", "rnn_relu"]
    directions = ["unidirectional", "bidirectional"]
    modes = ["linear_input", "skip_input", "auto_select"]

    def choice(name: str, choices: list[str]) -> Callable[[Command], Command]:
        default = choices[0] if required else None
        return click.option(name, type=click.Choice(choices), default=default, show_default=True)

    return _options(
        click.option("--cell", type=click.Choice(cells), required=required),
        click.option("--layers", "num_layers", type=int, required=required),
        click.option("--units", "num_units", type=int, required=required, help="Of one direction."),
        click.option("--input-size", type=int, required=required, help="Of the first layer."),
        choice("--direction", directions),
        choice("--input-mode", modes),
        click.option("--num-proj", type=int, help="Size of an LSTM's projected output; 0: none."),
        click.option("--dropout", type=click.FloatRange(0, 1), expose_value=False,
                     help="Accepted; dropout has no parameters."),
    )  # fmt: skip


_PATH = click.Path(path_type=Path, readable=False)
_FILES = _options(
    click.argument("path", type=_PATH, metavar="PATH"),
    click.option("-o", "--output", "target", type=_PATH, required=True, metavar="PATH",
                 help="Where to write."),
    click.option("-f", "--force", is_flag=True, help="Overwrite an existing output."),
)  # fmt: skip
_DISPLAY = _options(
    click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout."),
    click.option("--no-color", is_flag=True, help="No colours (as NO_COLOR does)."),
    click.option("-q", "--quiet", is_flag=True, help="Show errors only."),
    click.option("--debug", is_flag=True, help="Show tracebacks."),
)


@click.group(context_settings=_CONTEXT)
def opaque() -> None:
    """cuDNN's flat parameter buffer: its size, and its weights one by one.

    \b
    rnnconvert opaque size --cell lstm --layers 2 --units 128 --input-size 64
    rnnconvert opaque unpack params.npy -o canonical.npz --cell lstm --layers 2 ...
    rnnconvert opaque pack canonical.npz -o params.npy
    """


@opaque.command("size", context_settings=_CONTEXT)
@_hyperparameters(required=True)
@_DISPLAY
def size_command(**arguments: Any) -> None:
    """Print the number of elements of the buffer, and its bytes in each dtype."""
    run_command(_size, arguments)


@opaque.command("unpack", context_settings=_CONTEXT)
@_FILES
@_hyperparameters(required=True)
@_DISPLAY
def unpack_command(**arguments: Any) -> None:
    """Cut a buffer into one array per layer, direction, gate and kind.

    PATH is a .npy file, or a .npz file that holds one array, of shape (elements,). The output is a
    .npz file with arrays named like lstm/layer_0/forward/input_kernel/i.
    """
    run_command(_unpack, arguments)


@opaque.command("pack", context_settings=_CONTEXT)
@_FILES
@_hyperparameters(required=False)
@_DISPLAY
def pack_command(**arguments: Any) -> None:
    """Make the buffer of the arrays that `unpack` wrote, bit for bit the same.

    Needs no further options: the names and shapes of the arrays say what they are. An option that
    disagrees with them is an error.
    """
    run_command(_pack, arguments)


# --- the commands ---------------------------------------------------------------------------


def _size(output: Output, **given: Any) -> int:
    from rnnconvert.layouts.opaque_shape import OpaqueShape

    shape = OpaqueShape(**_chosen(given))
    document = {
        "command": "opaque size",
        "hyperparameters": asdict(shape),
        "elements": shape.size,
        "bytes": {dtype: shape.size * width for dtype, width in _BYTES.items()},
    }
    separator = "," if sys.stdout.isatty() else ""  # a script wants digits that it can compute with
    lines = [f"elements  {shape.size:{separator}}"]
    lines += [
        f"{dtype}   {shape.size * width:{separator}} bytes" for dtype, width in _BYTES.items()
    ]
    _print(output, document, "\n".join(lines))
    return 0


def _unpack(output: Output, *, path: Path, target: Path, force: bool, **given: Any) -> int:
    from rnnconvert.containers import safe_npz
    from rnnconvert.layouts import opaque as layout
    from rnnconvert.layouts.opaque_arrays import from_arrays, to_arrays

    shape = layout.OpaqueShape(**_chosen(given))
    _check_paths(path, target, force=force)
    buffer = safe_npz.read_flat_array(path, _OF_SEVERAL)
    with _as(UsageError, path):
        arrays = to_arrays(shape, layout.unpack_buffer(shape, buffer))

    def verify(written: Path) -> None:
        with safe_npz.open_arrays(written) as found:
            safe_npz.require_same_bits(buffer, layout.pack_buffer(*from_arrays(dict(found))))

    _write(target, lambda temporary: safe_npz.write_arrays(temporary, arrays), verify)
    _report(output, "unpack", path, target, shape, arrays)
    return 0


def _pack(output: Output, *, path: Path, target: Path, force: bool, **given: Any) -> int:
    from rnnconvert.containers import safe_npz
    from rnnconvert.layouts import opaque as layout
    from rnnconvert.layouts.opaque_arrays import from_arrays, shape_of

    _check_paths(path, target, force=force)
    with safe_npz.open_arrays(path) as stored:
        if safe_npz.UNNAMED in stored:
            raise UnreadableInputError(
                "one array; expected the .npz file of 'rnnconvert opaque unpack'", path=str(path)
            )
        arrays = dict(stored)
    with _as(UnreadableInputError, path):
        found = shape_of(arrays)
        shape, layers = from_arrays(arrays, replace(found, **_chosen(given)))
    buffer = layout.pack_buffer(shape, layers)

    def verify(written: Path) -> None:
        safe_npz.require_same_bits(buffer, safe_npz.read_flat_array(written))

    _write(target, lambda temporary: safe_npz.write_array(temporary, buffer), verify)
    _report(output, "pack", path, target, shape, arrays)
    return 0


def _chosen(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _report(
    output: Output, verb: str, path: Path, target: Path, shape: OpaqueShape,
    arrays: dict[str, Array],
) -> None:  # fmt: skip
    dtype = next(iter(arrays.values())).dtype.name
    document = {
        "command": f"opaque {verb}",
        "input": str(path),
        "output": str(target),
        "hyperparameters": asdict(shape),
        "elements": shape.size,
        "dtype": dtype,
        "arrays": {name: list(array.shape) for name, array in arrays.items()},
    }
    text = f"written {click.format_filename(target)}: {shape.size:,} elements of {dtype}, "
    _print(output, document, f"{text}{len(arrays)} arrays; read back bit for bit")


def _print(output: Output, document: dict[str, Any], text: str) -> None:
    if output.documents.on_stdout:
        click.echo(json.dumps({"schema": _SCHEMA, **document}, indent=2))
    elif not output.quiet:
        click.echo(text)


@contextmanager
def _as(kind: type[ConversionError], path: Path) -> Iterator[None]:
    """The ValueError of a layout as an error of the command line, with the file's name."""
    try:
        with errors_of(path):
            yield
    except ValueError as error:
        raise kind(str(error), path=str(path)) from error


def _check_paths(path: Path, target: Path, *, force: bool) -> None:
    """Refuse what can't be read or mustn't be written, before any work is done."""
    from rnnconvert.containers.safe_npz import require_file
    from rnnconvert.outputs import check_output
    from rnnconvert.publish import write_errors

    require_file(path)
    with write_errors(target):
        if target.exists() and target.samefile(path):
            raise UsageError("output and input are the same file", path=str(path))
        check_output(path, target, force=force, in_place=False)


def _write(target: Path, write: Callable[[Path], None], verify: Callable[[Path], None]) -> None:
    from rnnconvert.publish import publish, temporary_file, write_errors

    with temporary_file(target.parent, target.suffix) as temporary:
        with write_errors(target):
            write(temporary)
        verify(temporary)
        publish(temporary, target)
