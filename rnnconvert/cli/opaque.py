"""`rnnconvert opaque`: cuDNN's flat parameter buffer, between .npy and .npz files.

The three commands are TensorFlow's operators CudnnRNNParamsSize, CudnnRNNParamsToCanonical and
CudnnRNNCanonicalToParams, without TensorFlow and without a GPU. Imports stand where they are
needed: the help must not wait for numpy.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from rnnconvert.cli.run import run_command
from rnnconvert.errors import ConversionError, DifferenceError, UnreadableInputError, UsageError

if TYPE_CHECKING:
    from rnnconvert.cli.output import Output
    from rnnconvert.layouts.opaque import OpaqueShape
    from rnnconvert.layouts.weights import Array

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_SCHEMA = 1
_BYTES = {"float16": 2, "float32": 4, "float64": 8}
_NPY = b"\x93NUMPY"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_RATIO = {0: 1, 8: 1032}
"""How many bytes one byte of a zip member can stand for at most, stored (0) or deflated (8)."""
_CHUNK = 2**20
"""Bytes that are read or compared at once."""

Command = Callable[..., Any]


def _options(command: Command, options: Sequence[Callable[[Command], Command]]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def _hyperparameters(*, required: bool) -> Callable[[Command], Command]:
    """The options that say what network a buffer belongs to, with TensorFlow's meaning."""
    cells = ["lstm", "gru", "rnn_tanh", "rnn_relu"]
    directions = ["unidirectional", "bidirectional"]
    modes = ["linear_input", "skip_input", "auto_select"]

    def choice(name: str, choices: list[str]) -> Callable[[Command], Command]:
        default = choices[0] if required else None
        return click.option(name, type=click.Choice(choices), default=default, show_default=True)

    options: list[Callable[[Command], Command]] = [
        click.option("--cell", type=click.Choice(cells), required=required),
        click.option("--layers", "num_layers", type=int, required=required),
        click.option("--units", "num_units", type=int, required=required, help="Of one direction."),
        click.option("--input-size", type=int, required=required, help="Of the first layer."),
        choice("--direction", directions),
        choice("--input-mode", modes),
        click.option("--num-proj", type=int, help="Size of an LSTM's projected output; 0: none."),
        click.option(
            "--dropout",
            type=click.FloatRange(0, 1),
            expose_value=False,
            help="Accepted; dropout has no parameters.",
        ),
    ]
    return lambda command: _options(command, options)


def _display(command: Command) -> Command:
    options = [
        click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout."),
        click.option("--no-color", is_flag=True, help="No colours (NO_COLOR does the same)."),
        click.option("-q", "--quiet", is_flag=True, help="Show errors only."),
        click.option("--debug", is_flag=True, help="Show tracebacks."),
    ]
    return _options(command, options)


def _files(command: Command) -> Command:
    path = click.Path(path_type=Path, readable=False)
    options = [
        click.argument("path", type=path, metavar="PATH"),
        click.option("-o", "--output", "target", type=path, required=True, metavar="PATH",
                     help="Where to write."),
        click.option("-f", "--force", is_flag=True, help="Overwrite an existing output."),
    ]  # fmt: skip
    return _options(command, options)


@click.group(context_settings=_CONTEXT)
def opaque() -> None:
    """cuDNN's flat parameter buffer: its size, and its weights one by one.

    \b
    rnnconvert opaque size --cell lstm --layers 2 --units 128 --input-size 64
    rnnconvert opaque unpack params.npy -o canonical.npz --cell lstm --layers 2 ...
    rnnconvert opaque pack canonical.npz -o params.npy
    """


@opaque.command(context_settings=_CONTEXT)
@_hyperparameters(required=True)
@_display
def size(**arguments: Any) -> None:
    """Print the number of elements of the buffer, and its bytes in each dtype."""
    run_command(_size, arguments)


@opaque.command(context_settings=_CONTEXT)
@_files
@_hyperparameters(required=True)
@_display
def unpack(**arguments: Any) -> None:
    """Cut a buffer into one array per layer, direction, gate and kind.

    PATH is a .npy file, or a .npz file that holds one array, of shape (elements,). The output is a
    .npz file with arrays named like lstm/layer_0/forward/input_kernel/i.
    """
    run_command(_unpack, arguments)


@opaque.command(context_settings=_CONTEXT)
@_files
@_hyperparameters(required=False)
@_display
def pack(**arguments: Any) -> None:
    """Make the buffer of the arrays that `unpack` wrote, bit for bit the same.

    Needs no further options: the names and shapes of the arrays say what they are. An option that
    disagrees with them is an error.
    """
    run_command(_pack, arguments)


# --- the commands ---------------------------------------------------------------------------


def _size(output: Output, **given: Any) -> int:
    shape = _shape(given)
    document = {
        "command": "opaque size",
        "hyperparameters": asdict(shape),
        "elements": shape.size,
        "bytes": {dtype: shape.size * width for dtype, width in _BYTES.items()},
    }
    lines = [f"elements  {shape.size:,}"]
    lines += [f"{dtype}   {shape.size * width:,} bytes" for dtype, width in _BYTES.items()]
    _print(output, document, "\n".join(lines))
    return 0


def _unpack(output: Output, *, path: Path, target: Path, force: bool, **given: Any) -> int:
    import numpy as np

    from rnnconvert.layouts import opaque as layout

    shape = _shape(given)
    _check_paths(path, target, force=force)
    buffer = _one_array(path)
    with _as(UsageError, path):
        arrays = layout.to_arrays(shape, layout.unpack(shape, buffer))

    def verify(written: Path) -> None:
        _require_same_bits(buffer, layout.pack(*layout.from_arrays(_read(written))))

    _write(target, lambda file: np.savez(file, **arrays), verify)  # type: ignore[arg-type]
    _report(output, "unpack", path, target, shape, arrays)
    return 0


def _pack(output: Output, *, path: Path, target: Path, force: bool, **given: Any) -> int:
    import numpy as np

    from rnnconvert.layouts import opaque as layout

    _check_paths(path, target, force=force)
    arrays = _read(path)
    if "" in arrays:
        raise UnreadableInputError(
            "one array; expected the .npz file of 'rnnconvert opaque unpack'", path=str(path)
        )
    with _as(UnreadableInputError, path):
        found = layout.shape_of(arrays)
        shape, layers = layout.from_arrays(arrays, replace(found, **_chosen(given)))
    buffer = layout.pack(shape, layers)

    def verify(written: Path) -> None:
        _require_same_bits(buffer, _one_array(written))

    _write(target, lambda file: np.save(file, buffer), verify)
    _report(output, "pack", path, target, shape, arrays)
    return 0


def _chosen(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _shape(given: dict[str, Any]) -> OpaqueShape:
    from rnnconvert.layouts.opaque import OpaqueShape

    return OpaqueShape(**_chosen(given))


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
    _print(
        output,
        document,
        f"written {click.format_filename(target)}: {shape.size:,} elements of {dtype}, "
        f"{len(arrays)} arrays; read back bit for bit",
    )


def _print(output: Output, document: dict[str, Any], text: str) -> None:
    if output.wants_report:
        click.echo(json.dumps({"schema": _SCHEMA, **document}, indent=2))
    elif not output.quiet:
        click.echo(text)


@contextmanager
def _as(kind: type[ConversionError], path: Path) -> Iterator[None]:
    """The ValueError of a layout as an error of the command line, with the file's name."""
    try:
        yield
    except ValueError as error:
        raise kind(str(error), path=str(path)) from error
    except ConversionError as error:
        error.path = error.path or str(path)
        raise


# --- writing --------------------------------------------------------------------------------


def _check_paths(path: Path, target: Path, *, force: bool) -> None:
    """Refuse what can't be read or mustn't be written, before any work is done."""
    from rnnconvert.publish import check_output

    with _reading(path):
        if not path.exists():
            raise UnreadableInputError("no such file")
        if not path.is_file():
            raise UnreadableInputError("not a regular file; expected a .npy or .npz file")
        if target.exists() and target.samefile(path):
            raise UsageError("output and input are the same file")
    check_output(path, target, force=force, in_place=False)


def _write(
    target: Path, write: Callable[[IO[bytes]], None], verify: Callable[[Path], None]
) -> None:
    from rnnconvert.publish import publish, temporary_file, write_errors

    with temporary_file(target.parent, target.suffix) as temporary:
        with write_errors(target), temporary.open("wb") as file:
            write(file)
        verify(temporary)
        publish(temporary, target)


def _require_same_bits(expected: Array, found: Array) -> None:
    import numpy as np

    pieces = [slice(at, at + _CHUNK) for at in range(0, expected.nbytes, _CHUNK)]
    first, second = expected.view(np.uint8), found.view(np.uint8)
    same = expected.dtype == found.dtype and len(first) == len(second)
    if not same or not all(np.array_equal(first[piece], second[piece]) for piece in pieces):
        raise DifferenceError("what was written reads back differently; nothing was published")


# --- reading --------------------------------------------------------------------------------


def _one_array(path: Path) -> Array:
    """The flat buffer in a file.

    Raises:
        UnreadableInputError: the file holds several arrays, or one of another rank.
    """
    arrays = _read(path)
    if len(arrays) != 1:
        raise UnreadableInputError(
            f"expected one flat array, found {len(arrays)}; 'rnnconvert opaque pack' makes a "
            "buffer of several arrays", path=str(path),
        )  # fmt: skip
    (array,) = arrays.values()
    if array.ndim != 1:
        raise UnreadableInputError(
            f"expected a flat array of shape (elements,), found shape {array.shape}", path=str(path)
        )
    return array


def _read(path: Path) -> dict[str, Array]:
    """The arrays of a .npz file, or the one of a .npy file under the name "".

    Every size that the file claims is checked before memory is asked for; Python objects are never
    loaded.

    Raises:
        UnreadableInputError: not such a file, or damaged.
    """
    with _reading(path):
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(len(_NPY))
            file.seek(0)
            if start == _NPY:
                return {"": _read_array(file, size, "the array")}
            if start.startswith(_ZIP):
                return _read_archive(file, size)
        raise UnreadableInputError("neither a .npy nor a .npz file" if size else "an empty file")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever goes wrong while reading, as one clear error with the file's name."""
    try:
        yield
    except ConversionError as error:
        error.path = error.path or str(path)
        raise
    except OSError as error:
        reason = f"can't be read: {error.strerror or error}"
        raise UnreadableInputError(reason, path=str(path)) from error
    except MemoryError as error:
        raise UnreadableInputError("too large for the memory", path=str(path)) from error
    except Exception as error:  # the parsers of zip, deflate and npy raise many classes
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UnreadableInputError(f"the file is damaged: {reason}", path=str(path)) from error


def _read_archive(file: IO[bytes], size: int) -> dict[str, Array]:
    import numpy as np

    arrays: dict[str, Array] = {}
    with np.load(file) as archive:
        members = archive.zip.infolist()
        if sum(member.compress_size for member in members) > size:
            raise UnreadableInputError("the file is damaged: its arrays are larger than itself")
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name == member.filename or name in arrays:
                raise UnreadableInputError(f"{member.filename}: no array, or there twice")
            ratio = _RATIO.get(member.compress_type, 0)
            if member.flag_bits & 1 or member.file_size > ratio * member.compress_size:
                raise UnreadableInputError(
                    f"{name}: encrypted, compressed in an unknown way, or its size is false"
                )
            with archive.zip.open(member) as stream:
                arrays[name] = _read_array(stream, member.file_size, name)
    return arrays


def _read_array(stream: IO[bytes], size: int, name: str) -> Array:
    """One array in .npy format from a stream of `size` bytes."""
    import numpy as np
    from numpy.lib import format as npy

    from rnnconvert.layouts.opaque import DTYPES

    version = npy.read_magic(stream)
    headers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in headers:
        raise UnreadableInputError(f"{name}: format {version} is not one for plain arrays")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns of headers that Python 2 wrote
        shape, fortran_order, dtype = headers[version](stream)
    if dtype.name not in DTYPES or dtype.names or dtype.subdtype:
        raise UnreadableInputError(f"{name}: expected floating-point numbers, found {dtype}")
    claimed, left = prod(shape) * dtype.itemsize, size - stream.tell()
    if claimed != left or any(length < 0 for length in shape):
        raise UnreadableInputError(
            f"{name}: the header says shape {shape} of {dtype}, {claimed:,} bytes, but {left:,} "
            "bytes follow; the file is truncated or damaged"
        )
    flat = np.empty(prod(shape), dtype)
    memory = flat.view(np.uint8).data
    done = 0
    while done < left:
        read = stream.readinto(memory[done : done + _CHUNK])  # type: ignore[attr-defined]
        if not read:
            raise UnreadableInputError(f"{name}: the file is truncated")
        done += read
    return flat.reshape(shape, order="F" if fortran_order else "C")
