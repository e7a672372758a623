"""What of a model file may run when it is verified. By itself: every command needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Permissions:
    """What of a model file may run.

    Attributes:
        allow_code: Lambda layers, whose code is in the file.
        custom_objects: name to class or function, for custom layers.
    """

    allow_code: bool = False
    custom_objects: Mapping[str, Any] = field(default_factory=dict)
