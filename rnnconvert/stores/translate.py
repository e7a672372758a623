"""The names of objects in place of those of their local copies, in reports and errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

from rnnconvert.errors import ConversionError


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A report, or any part of one, with other names in all of its texts.

    Args:
        names: each text that is replaced, and by what.

        >>> renamed(("/tmp/x/m.h5", 3), {"/tmp/x": "s3://bucket"})
        ('s3://bucket/m.h5', 3)
    """
    if isinstance(value, str):
        for old, new in names.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, tuple | list):
        parts = [renamed(each, names) for each in value]
        same = all(new is old for new, old in zip(parts, value, strict=True))
        return value if same else type(value)(parts)
    if isinstance(value, dict):
        other = {renamed(key, names): renamed(each, names) for key, each in value.items()}
        return value if other == value else other
    if is_dataclass(value) and not isinstance(value, type):
        before = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        after = {name: renamed(part, names) for name, part in before.items()}
        changed = {name: part for name, part in after.items() if part is not before[name]}
        return replace(value, **changed) if changed else value
    return value


@contextmanager
def errors_renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Errors that are raised inside, with other names in their texts and their reports."""
    try:
        yield
    except ConversionError as error:
        for attribute in ("message", "problems", "path", "report"):
            setattr(error, attribute, renamed(getattr(error, attribute), names))
        raise
