"""An argument that is a path, or a URL of an object store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rnnconvert.stores.urls import place_of


class Place(click.Path):
    """A `Path`, or a `StoreUrl`; a path is completed by the shell."""

    name = "path"

    def __init__(self) -> None:
        super().__init__(path_type=Path, readable=False)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        place = place_of(value) if isinstance(value, str) else value
        return super().convert(value, param, ctx) if isinstance(place, Path) else place
