"""What happened to a config: each change, each warning, each problem, with its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rnnconvert.keras_models.config.tree import Config

ABSENT = "(absent)"


@dataclass(frozen=True)
class ConfigChange:
    """One key of one layer's config, before and after. `ABSENT` stands for a missing key."""

    path: str
    key: str
    before: Any
    after: Any

    def to_dict(self) -> dict[str, Any]:
        return {"path": self.path, "key": self.key, "from": self.before, "to": self.after}


@dataclass
class Changes:
    """Collects what the repairs do; the only mutable thing that they share."""

    changes: list[ConfigChange] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    target_points: list[str] = field(default_factory=list)
    """Points in which one file can't serve Keras 3 and Keras 2, and which way was taken."""

    def put(self, path: str, config: Config, key: str, value: Any) -> None:
        """Set a key, and note it where that changes anything."""
        before = config.get(key, ABSENT)
        if before is ABSENT or before != value or type(before) is not type(value):
            self.changes.append(ConfigChange(path, key, before, value))
            config[key] = value

    def drop(self, path: str, config: Config, key: str) -> None:
        """Remove a key, and note it where it was there."""
        if key in config:
            self.changes.append(ConfigChange(path, key, config.pop(key), ABSENT))

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)

    def point(self, text: str) -> None:
        if text not in self.target_points:
            self.target_points.append(text)
