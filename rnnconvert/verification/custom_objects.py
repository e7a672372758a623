"""Custom classes by name, as `--custom-objects module:name` gives them. This imports user code."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from rnnconvert.errors import UsageError


def import_objects(specs: Iterable[str]) -> dict[str, Any]:
    """Import classes and functions.

    Args:
        specs: "module:name", where the name is a class, a function, or a dict of such by name.

    Returns:
        Keras' `custom_objects`: name to class or function.

    Raises:
        UsageError: not of that form, or there is no such thing.
    """
    found: dict[str, Any] = {}
    for spec in specs:
        module_name, _, attribute = spec.partition(":")
        if not module_name or not attribute:
            raise UsageError(f"--custom-objects {spec!r}: expected module:name")
        try:
            value: Any = importlib.import_module(module_name)
        except Exception as error:  # whatever the user's module raises, or a name that is none
            told = f"{type(error).__name__}: {error}"
            raise UsageError(f"--custom-objects {spec}: can't be imported ({told})") from error
        for part in attribute.split("."):
            if not hasattr(value, part):
                raise UsageError(f"--custom-objects {spec}: {module_name} has no {attribute}")
            value = getattr(value, part)
        if isinstance(value, Mapping):
            found.update(value)
        elif callable(value):
            found[getattr(value, "__name__", attribute)] = value
        else:
            raise UsageError(f"--custom-objects {spec}: expected a class, a function or a dict")
    return found
