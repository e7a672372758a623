"""Wrong conversions of a checkpoint's weights, which the proof must see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rnnconvert.checkpoints import convert, rewrite, streams, written


def spoil_weights(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    spoiled: Callable[[Any], Any],
    *,
    is_streamed: bool,
) -> None:
    """Change one tensor of each place, on the way from the source to what is written.

    Args:
        kind: "kernel", "recurrent" or "bias", see `RnnWeights`.
        spoiled: gives the wrong values of a right array.
        is_streamed: do so where weights move in tiles; else have them all in memory.
    """

    def change(weights: Any) -> Any:
        return replace(weights, **{kind: spoiled(getattr(weights, kind))})

    if is_streamed and kind == "bias":
        pack_biases = streams.pack_biases
        monkeypatch.setattr(
            streams,
            "pack_biases",
            lambda place, cell, bias: pack_biases(place, cell, spoiled(bias)),
        )
        return
    pack, layers = rewrite.pack_place, written._layers
    if is_streamed:
        monkeypatch.setattr(streams, "pack_place", lambda place, own: pack(place, change(own)))
        return
    monkeypatch.setattr(convert, "streams_of", lambda *_: [])
    monkeypatch.setattr(rewrite, "pack_place", lambda place, own: pack(place, change(own)))
    monkeypatch.setattr(
        written, "_layers", lambda stack, own: layers(stack, [change(own[0]), *own[1:]])
    )
