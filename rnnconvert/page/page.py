"""The page itself: the template filled with what `facts` says of each document."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from rnnconvert.errors import UnreadableInputError
from rnnconvert.outputs import PAGE_MARK
from rnnconvert.page.facts import view_of
from rnnconvert.report import SCHEMA

_FOLDER = Path(__file__).parent
_OPEN = 3
"""Layers whose pictures are shown at once; of more, each one's are opened by a click or a key."""


def page_of(content: Any) -> str:
    """A whole HTML page, which loads nothing and runs nothing.

    Args:
        content: a report's JSON document, or a list of them.

    Raises:
        UnreadableInputError: it is no report, or one of another schema.
    """
    documents = content if isinstance(content, list) else [content]
    for document in documents:
        _require_report(document)
    views = [view_of(document) for document in documents]
    return str(_template().render(views=views, mark=PAGE_MARK, most_open=_OPEN))


@cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html.jinja")


def _require_report(document: Any) -> None:
    if not isinstance(document, dict) or "schema" not in document or "input" not in document:
        raise UnreadableInputError("no report: expected what --report or --json writes")
    if document["schema"] != SCHEMA:
        raise UnreadableInputError(
            f"a report of schema {document['schema']!r}, expected {SCHEMA}; use the version of "
            "rnnconvert that wrote it, or a newer one"
        )
