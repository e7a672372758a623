"""What every minor version of Keras 3 accepts: the table `accepted.json`.

`fixtures/make_accepted.py` makes it of Keras' own wheels: kind to class to the versions that have
it ("" for all, else "FIRST-LAST", either end open), the keys of its config that all of those take,
and the others with their versions.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

Spans = dict[str, str]


@cache
def _table() -> dict[str, Any]:
    path = Path(__file__).with_name("accepted.json")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def known_versions() -> tuple[str, ...]:
    """The minor versions in the table, e.g. "3.0", oldest first."""
    return tuple(_table()["versions"])


def versions_with(kind: str, name: str, key: str | None = None) -> tuple[str, ...]:
    """The versions that have a class, or that take a key in its config.

    Args:
        kind: "layers", "initializers", "regularizers", "constraints", "optimizers",
            "optimizers.schedules", "losses", "metrics" or "activations".
    """
    entry = _table()[kind].get(name)
    if entry is None:
        return ()
    own, common, *others = entry
    if key is None or key in common.split():
        return _within(own)
    span = (others[0] if others else {}).get(key)
    return () if span is None else _within(span)


def accepted_keys(kind: str, name: str) -> frozenset[str] | None:
    """The keys that every version takes; None where not every version has the class."""
    entry = _table()[kind].get(name)
    return None if entry is None or entry[0] else frozenset(entry[1].split())


def is_of_keras(name: str) -> bool:
    """Whether any version has anything of this name, or it is short for one."""
    if name in ("acc", "accuracy", "ce", "crossentropy", "mse", "mae", "mape", "msle", "kld"):
        return True
    return any(name in classes for kind, classes in _table().items() if kind != "versions")


def module_of_operation(name: str) -> str | None:
    """The module of an operation that can be a layer; None for what is no operation of Keras."""
    entry = _table()["operations"].get(name)
    return None if entry is None else str(entry[1])


def _within(span: str) -> tuple[str, ...]:
    versions = known_versions()
    first, _, last = span.partition("-")
    start = versions.index(first) if first else 0
    stop = versions.index(last) + 1 if last else len(versions)
    return versions[start:stop]
