"""Going on after a run over many models was stopped: what its report says is done is not redone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rnnconvert.containers.checkpoint import find_checkpoint, open_checkpoint
from rnnconvert.errors import ConversionError, UnreadableInputError
from rnnconvert.hashes import sha256
from rnnconvert.options import Options
from rnnconvert.report import SCHEMA, FileInfo
from rnnconvert.versions import tool_versions

_DONE = ("equivalent", "unverified", "nothing-to-convert")


def read_entries(report: Path) -> dict[str, dict[str, Any]]:
    """The documents of a report that an earlier run wrote, by the paths of their inputs.

    Raises:
        UnreadableInputError: it is no report.
    """
    if not report.exists() or not report.stat().st_size:
        return {}
    try:
        content = json.loads(report.read_text(encoding="utf-8"))
        documents = content if isinstance(content, list) else [content]
        return {document["input"]["path"]: document for document in documents}
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UnreadableInputError("no report of an earlier run", path=str(report)) from error


def has_hash(path: Path | str, info: Any) -> bool:
    """Whether a file has the SHA-256 that a report's "input" or "output" has."""
    return isinstance(info, dict) and info.get("sha256") is not None and (
        info["sha256"] == _hash_of(Path(path))
    )  # fmt: skip


def was_done(
    entry: dict[str, Any],
    source: Any,
    options: Options,
    is_unchanged: Callable[[Any, Any], bool] = has_hash,
) -> bool:
    """Whether an entry's conversion need not be done again.

    The same version converted the same bytes with the same options, and the output, where there is
    one, still has the bytes that it wrote.

    Args:
        entry: the report of the earlier run, of this input.
        source: the input's path, or what `is_unchanged` takes for one.
        is_unchanged: whether an input, or the path of an output, is what the report has of it.
    """
    verdict = str(entry.get("verdict")).partition(",")[0]
    same = (
        entry.get("schema") == SCHEMA
        and entry.get("command") == options.command
        and entry.get("options") == options.to_dict()
        and entry.get("tool") == tool_versions()
        and verdict in _DONE
    )
    if not same or not is_unchanged(source, entry.get("input")):
        return False
    output = entry.get("output")
    if verdict == "nothing-to-convert":
        return output is None
    return isinstance(output, dict) and is_unchanged(str(output.get("path")), output)


def _hash_of(path: Path) -> str | None:
    """SHA-256 as a report has it; None for what is not there."""
    try:
        if path.is_file():
            return sha256(path)
        checkpoint = None if (path / "saved_model.pb").is_file() else find_checkpoint(path)
        if checkpoint is not None:
            return sha256(*open_checkpoint(checkpoint).files)
        return FileInfo.of(path, "", with_hash=True).sha256 if path.is_dir() else None
    except (ConversionError, OSError):
        return None
