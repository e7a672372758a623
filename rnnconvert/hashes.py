"""SHA-256 of files, of directories, and of a file while something else is done.

What takes long to import stands in functions: most commands compute no hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def sha256(*files: Path) -> str:
    """SHA-256 of files one after another, read in pieces."""
    import hashlib

    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while piece := file.read(2**20):
                digest.update(piece)
    return digest.hexdigest()


@contextmanager
def sha256_meanwhile(path: Path, *, wanted: bool) -> Iterator[Callable[[], str | None]]:
    """Inside, the SHA-256 of a file is computed in a thread of its own.

    Args:
        wanted: else nothing is computed.

    Yields:
        A function that waits for it, and returns it, or None if it is not wanted; raises OSError.
    """
    import hashlib
    from concurrent.futures import ThreadPoolExecutor

    stopped = False

    def compute() -> str:
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while not stopped and (piece := file.read(2**20)):
                digest.update(piece)
        return digest.hexdigest()

    if not wanted:
        yield lambda: None
        return
    with ThreadPoolExecutor(1) as pool:
        computed = pool.submit(compute)
        try:
            yield computed.result
        finally:
            stopped = True


def tree_sha256(directory: Path, files: Sequence[Path]) -> str:
    """SHA-256 of the lines "NAME HASH" of files in a directory."""
    import hashlib

    lines = (f"{file.relative_to(directory).as_posix()} {sha256(file)}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
