"""Whether the objects of an earlier run still are what they were."""

from __future__ import annotations

from typing import Any

from rnnconvert.commands.resume import has_hash
from rnnconvert.stores.access import object_at
from rnnconvert.stores.finding import StoredModel
from rnnconvert.stores.folder import Source
from rnnconvert.stores.urls import StoreUrl, place_of
from rnnconvert.stores.work import states_of


def is_unchanged(place: Source | str, info: Any) -> bool:
    """Whether an input or output is as a report has it: by the store's own word, or by its hash.

    Args:
        place: of an output, its path or URL as the report has it.
        info: the report's "input" or "output".

    Raises:
        ConversionError: the store can't be used.
    """
    states = info.get("stored") if isinstance(info, dict) else None
    if isinstance(place, StoredModel):
        return states == states_of(place.objects)
    if states is None:
        return has_hash(place, info)
    return isinstance(states, dict) and bool(states) and all(map(_is_at, states.items()))


def _is_at(entry: tuple[str, str]) -> bool:
    url, state = place_of(entry[0]), entry[1]
    found = object_at(url) if isinstance(url, StoreUrl) else None
    return found is not None and found.state == state
