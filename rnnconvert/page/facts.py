"""From the JSON document of a report to what its page says.

A document comes from a file that anybody may have written, so nothing in it is taken for granted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rnnconvert.page.pictures import Picture, TimeLine, gate_pictures, time_line
from rnnconvert.page.verdicts import Verdict, verdict_of

_ABSENT = "(absent)"
_CONTAINERS = {
    "keras-h5-model": "Keras HDF5 file, whole model",
    "keras-h5-weights": "Keras HDF5 file, weights",
    "keras": ".keras file",
    "keras-weights": ".weights.h5 file",
    "tf-checkpoint-v1": "TensorFlow checkpoint, format V1",
    "tf-checkpoint-v2": "TensorFlow checkpoint, format V2",
    "npz": "numpy .npz",
    "savedmodel": "TensorFlow SavedModel",
    "frozen-graph": "TensorFlow frozen graph",
    "meta-graph": "TensorFlow MetaGraph with its checkpoint",
    "unknown": "not known",
}
_LEVELS = {
    "weights": "Weights",
    "layers": "Layers, by the equations",
    "model": "Whole model",
}
_SHOWS = {
    "weights": "every stored weight is the original's, or its correctly rounded sum",
    "layers": "each recurrent layer computes the same from the same random input and states",
    "model": "both whole models give the same outputs for the same random inputs",
}


@dataclass(frozen=True)
class FileFacts:
    """A row for each fact of the input or the output."""

    title: str
    path: str
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class PartView:
    """A layer or output in the table of differences; `percent` of its tolerance is used."""

    name: str
    difference: str
    tolerance: str
    percent: str
    share: float
    passed: bool
    line: TimeLine | None


@dataclass(frozen=True)
class LevelView:
    title: str
    shows: str
    status: str
    facts: tuple[tuple[str, str], ...]
    parts: tuple[PartView, ...]


@dataclass(frozen=True)
class LayerView:
    name: str
    facts: tuple[tuple[str, str], ...]
    pictures: tuple[Picture, ...]
    tensors: tuple[Mapping[str, str], ...]


@dataclass(frozen=True)
class ConfigView:
    """The changes of one layer's config: key, old value and new value; None where it was absent."""

    path: str
    changes: tuple[tuple[str, str | None, str | None], ...]


@dataclass(frozen=True)
class View:
    """All that the page says of one document."""

    name: str
    command: str
    verdict: Verdict
    files: tuple[FileFacts, ...]
    levels: tuple[LevelView, ...]
    layers: tuple[LayerView, ...]
    config: tuple[ConfigView, ...]
    lists: tuple[tuple[str, str, tuple[str, ...]], ...]
    """Title, class and sentences: problems, assumptions, warnings, points of the target."""
    versions: tuple[tuple[str, str], ...]


def view_of(document: Mapping[str, Any]) -> View:
    """What the page says of a document."""
    document = _mapping(_clean(document))
    files = tuple(
        _file(title, _mapping(document[key]))
        for key, title in (("input", "Input"), ("output", "Output"))
        if document.get(key)
    )
    return View(
        name=_text(_mapping(document.get("input")).get("path")) or "?",
        command=_text(document.get("command")),
        verdict=verdict_of(document),
        files=files,
        levels=_levels(_mapping(document.get("verification"))),
        layers=tuple(_layer(_mapping(layer)) for layer in _list(document.get("layers"))),
        config=_config(_list(document.get("config_changes"))),
        lists=_lists(document),
        versions=tuple(
            (name, _text(version) or "not installed")
            for name, version in _mapping(document.get("tool")).items()
        ),
    )


def _clean(value: Any) -> Any:
    """The same with every text made printable: no control characters, none that turn it round."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    """A value as a reader expects it; what is no text as JSON writes it."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _number(value: Any) -> float | None:
    """A number, also one that JSON has as a text: infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _told(pairs: list[tuple[str, Any]]) -> tuple[tuple[str, str], ...]:
    """The facts that are there."""
    return tuple((name, _text(value)) for name, value in pairs if value not in (None, "", []))


# --- files, layers, configs -----------------------------------------------------------------


def _file(title: str, info: Mapping[str, Any]) -> FileFacts:
    container = _text(info.get("container"))
    size = info.get("bytes")
    known = container != "unknown"
    facts = _told(
        [
            ("Kind", _CONTAINERS.get(container, container)),
            ("Size", f"{size:,} bytes" if isinstance(size, int) and known else None),
            ("SHA-256", info.get("sha256")),
            ("Keras version in it", info.get("keras_version")),
            ("Backend in it", info.get("backend")),
        ]
    )
    return FileFacts(title, _text(info.get("path")), facts)


def _layer(layer: Mapping[str, Any]) -> LayerView:
    params = _mapping(layer.get("params"))
    tensors = [_mapping(tensor) for tensor in _list(layer.get("tensors"))]
    before, after = params.get("from"), params.get("to")
    flags = ", ".join(_text(flag) for flag in _list(layer.get("flags")))
    facts = [
        ("Class", layer.get("class_name")),
        ("Cell", layer.get("cell")),
        ("Stored as", _arrow(layer.get("from"), layer.get("to"))),
        ("Units", layer.get("units")),
        ("Inputs", layer.get("input_dim")),
        ("Direction", layer.get("direction")),
        ("Options", flags),
        ("Weights", None if before is None else _arrow(before, after)),
    ]
    return LayerView(
        name=_text(layer.get("path")),
        facts=_told(facts),
        pictures=_pictures(layer, tensors) if tensors else (),
        tensors=tuple(
            {
                "source": _text(tensor.get("source")),
                "target": _text(tensor.get("target")),
                "operation": _text(tensor.get("operation")),
                "exact": "bit for bit" if tensor.get("lossless") is True else "rounded once",
            }
            for tensor in tensors
        ),
    )


def _arrow(before: Any, after: Any) -> str:
    one, other = _text(before), _text(after)
    return one if one == other else f"{one} → {other}"


def _pictures(layer: Mapping[str, Any], tensors: list[Mapping[str, Any]]) -> tuple[Picture, ...]:
    inputs, units = layer.get("input_dim"), layer.get("units")
    if not (isinstance(inputs, int) and isinstance(units, int) and inputs > 0 and units > 0):
        return ()
    names = [_text(tensor.get("source")) for tensor in tensors]
    in_one = len(names) == 1  # cuDNN's buffer holds everything
    biased = in_one or any("bias" in name.rpartition("/")[2] for name in names)
    cell, source, target = (_text(layer.get(key)) for key in ("cell", "from", "to"))
    return gate_pictures(cell, source, target, (inputs, units), biased=biased)


def _config(changes: list[Any]) -> tuple[ConfigView, ...]:
    """The changes by layer, in their order."""
    by_path: dict[str, list[tuple[str, str | None, str | None]]] = {}
    for change in map(_mapping, changes):
        values = [
            None if value == _ABSENT else _text(value)
            for value in (change.get("from"), change.get("to"))
        ]
        key = _text(change.get("key"))
        by_path.setdefault(_text(change.get("path")), []).append((key, values[0], values[1]))
    return tuple(ConfigView(path, tuple(found)) for path, found in by_path.items())


def _lists(document: Mapping[str, Any]) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    assumptions = [
        f"{_text(each.get('what'))} is {_text(each.get('value')) or 'none'}: "
        f"{_text(each.get('why'))}"
        for each in map(_mapping, _list(document.get("assumptions")))
    ]
    optimizer = _mapping(document.get("optimizer"))
    state = _text(optimizer.get("state"))
    notes = [_text(note) for note in _list(optimizer.get("notes"))]
    kept = [f"The optimizer's state is {state}.", *notes] if state not in ("", "absent") else []
    found = (
        ("What is wrong", "bad", [_text(p) for p in _list(document.get("problems"))]),
        ("Assumptions", "warn", assumptions),
        ("Warnings", "warn", [_text(w) for w in _list(document.get("warnings"))]),
        ("Where one file can't serve Keras 3 and Keras 2", "note",
         [_text(p) for p in _list(document.get("target_points"))]),
        ("Training state", "note", kept),
    )  # fmt: skip
    return tuple((title, kind, tuple(texts)) for title, kind, texts in found if texts)


# --- levels ---------------------------------------------------------------------------------


def _levels(verification: Mapping[str, Any]) -> tuple[LevelView, ...]:
    found = []
    for name in _LEVELS:
        levels = verification.get(name)
        for level in levels if isinstance(levels, list) else [levels]:
            if isinstance(level, dict) and len(level) > 1:  # else it was never come to
                found.append(_level(name, level))
    return tuple(found)


def _level(name: str, level: Mapping[str, Any]) -> LevelView:
    device = _text(level.get("device")).upper()
    status = _text(level.get("status"))
    facts = _told(
        [
            ("Found", level.get("detail")),
            ("Reason", level.get("reason")),
            ("Largest difference", _shown(level.get("max_abs"))),
            ("Allowed", _shown(level.get("tolerance"))),
            ("Where it is largest", level.get("worst")),
            ("First layer that differs", level.get("first_difference")),
            ("Run by", level.get("engine")),
            ("Seed of the inputs", level.get("seed")),
        ]
    )
    title = _LEVELS[name] + (f" ({device})" if name == "model" and device else "")
    parts = tuple(_part(_mapping(part)) for part in _list(level.get("parts")))
    known = status if status in ("passed", "failed") else "skipped"
    return LevelView(title, _SHOWS[name], known, facts, parts)


def _part(part: Mapping[str, Any]) -> PartView:
    difference, tolerance = _number(part.get("max_abs")), _number(part.get("tolerance"))
    ratio = _ratio(difference, tolerance)
    steps = [_number(value) for value in _list(part.get("by_step"))]
    line = None
    if tolerance is not None and None not in steps:
        line = time_line([value for value in steps if value is not None], tolerance)
    return PartView(
        name=_text(part.get("name")),
        difference=_shown(difference) or "?",
        tolerance=_shown(tolerance) or "?",
        percent=_percent(ratio),
        share=min(max(ratio, 0.0), 1.0),
        passed=ratio <= 1,
        line=line,
    )


def _ratio(difference: float | None, tolerance: float | None) -> float:
    if difference is None or tolerance is None or math.isnan(difference):
        return math.inf
    if difference == 0:
        return 0.0
    return difference / tolerance if tolerance > 0 else math.inf


def _percent(ratio: float) -> str:
    """A difference in words that fit its size."""
    if ratio == 0:
        return "no difference"
    if not math.isfinite(ratio):
        return "beyond it"
    if ratio > 10:
        return f"{ratio:,.0f} times it"
    return f"{100 * ratio:.2g} %" if ratio < 0.995 else f"{100 * ratio:.0f} %"


def _shown(value: Any) -> str | None:
    number = _number(value)
    return None if number is None else f"{number:.3g}"
