"""What a path holds. The content decides, never the name."""

from __future__ import annotations

from pathlib import Path

from rnnconvert.errors import NotConvertibleError, UnreadableInputError

_HDF5 = b"\x89HDF\r\n\x1a\n"
_ZIP = b"PK\x03\x04"
_LFS = b"version https://git-lfs"
_USERBLOCKS = (0, 512, 1024, 2048, 4096, 8192)


def exists(path: Path) -> bool:
    """Whether there is such a path.

    Raises:
        UnreadableInputError: the system refuses even to look, as for a name that is too long.
    """
    try:
        return path.exists()
    except OSError as error:
        raise UnreadableInputError(f"can't be read: {error.strerror}", path=str(path)) from error


def is_hdf5(path: Path) -> bool:
    """Whether a file holds HDF5, whatever its name."""
    with path.open("rb") as file:
        start = file.read(_USERBLOCKS[-1] + len(_HDF5))
    return any(start[at : at + len(_HDF5)] == _HDF5 for at in _USERBLOCKS)


def is_zip(path: Path) -> bool:
    """Whether a file holds a zip archive, as `.keras` files are."""
    with path.open("rb") as file:
        return file.read(len(_ZIP)) == _ZIP


def require_hdf5(path: Path) -> None:
    """Raise a clear error unless `path` is an HDF5 file.

    Raises:
        UnreadableInputError: missing, a directory, empty, a git-lfs pointer, or something else.
        NotConvertibleError: a zip file.
    """
    if not exists(path):
        raise UnreadableInputError("no such file")
    if path.is_dir():
        raise UnreadableInputError(
            "a directory without a model: no saved_model.pb and no checkpoint is in it"
        )
    if not path.is_file():
        raise UnreadableInputError("not a regular file; expected a Keras .h5 file")
    try:
        with path.open("rb") as file:
            start = file.read(8192 + len(_HDF5))
    except OSError as error:
        raise UnreadableInputError(f"can't be read: {error.strerror}") from error
    if any(start[at : at + len(_HDF5)] == _HDF5 for at in _USERBLOCKS):
        return
    raise _explain(start)


def _explain(start: bytes) -> UnreadableInputError | NotConvertibleError:
    if not start:
        return UnreadableInputError("the file is empty")
    if start.startswith(_LFS):
        return UnreadableInputError(
            "a git-lfs pointer, not the model itself; run 'git lfs pull' to fetch the model"
        )
    if start.startswith(_ZIP):
        return NotConvertibleError("a zip file (a .keras model?), where an .h5 file is expected")
    if _is_text(start):
        first = start.decode("utf-8", "replace").splitlines()[0][:60]
        return UnreadableInputError(f"a text file, not an HDF5 model; it begins with {first!r}")
    return UnreadableInputError("not an HDF5 file: expected a Keras .h5 model or weights file")


def _is_text(start: bytes) -> bool:
    try:
        text = start.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character.isspace() for character in text)
