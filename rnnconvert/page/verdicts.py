"""The verdict of a report in a sentence for those who don't know what a tensor is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_PROVED = {
    "model": "Both whole models were run on the same random inputs, and every output agrees.",
    "layers": "Each recurrent layer was computed from the old and from the new weights, and the "
    "results agree. The whole model was not run.",
    "weights": "Every weight was compared. No layer and no model was run.",
    "none": "No level of the verification passed.",
}


_HEADLINES = {
    "model": (
        "The converted model gives the same results as the original",
        "The two models give the same results",
    ),
    "layers": (
        "Layer by layer, the converted model gives the same results as the original",
        "Layer by layer, the two models give the same results",
    ),
    "weights": (
        "The converted weights are the original's; nothing was run to show it",
        "The two models have the same weights; nothing was run to show more",
    ),
    "none": ("The results were not shown to be the same", "The models were not compared"),
}
"""By the deepest level that passed: of a conversion, and of a comparison."""


@dataclass(frozen=True)
class Verdict:
    """The verdict as a page shows it.

    Attributes:
        kind: "good", "warn" or "bad", which decides its colour.
        word: that stands in tables of several models.
        headline, sentences: what it means.
    """

    kind: str
    word: str
    headline: str
    sentences: tuple[str, ...]


def verdict_of(document: Mapping[str, Any]) -> Verdict:
    """The verdict of a cleaned JSON document."""
    word = str(document.get("verdict", ""))
    name, _, condition = word.partition(", if ")
    if name == "equivalent":
        return _equivalent(document, word, condition)
    if name in ("different", "not-convertible"):
        return _failed(document, name)
    if name == "nothing-to-convert":
        told = "The file needs no conversion: it holds nothing that depends on cuDNN alone."
        if document.get("command") == "keras-to-cudnn":
            told = "The file holds no layer that this direction of the conversion changes."
        return Verdict("good", "nothing to convert", "There is nothing to convert.", (told,))
    if name == "convertible":
        told = "Nothing was written: this is only a look at the model."
        return Verdict("good", name, "This model can be converted.", (told,))
    if name == "unverified":
        told = "The verification was switched off (--verify none), or work is only planned."
        return Verdict("warn", name, "Nothing was proved about this model.",
                       (told, *_written(document)))  # fmt: skip
    return Verdict("warn", word or "unknown", "This report has no verdict that is known here.", ())


def _equivalent(document: Mapping[str, Any], word: str, condition: str) -> Verdict:
    compared = document.get("command") == "verify"
    proved = str(document.get("proved", "none"))
    headline = _HEADLINES.get(proved, _HEADLINES["none"])[compared]
    ending = f", if {condition}" if condition else ""
    sentences = [_PROVED.get(proved, _PROVED["none"]), *_why_not_deeper(document, proved)]
    if condition:
        sentences.append(
            "The file does not tell what stands behind “if”; whoever made the model knows it."
        )
    kind = "good" if proved == "model" and not condition else "warn"
    return Verdict(kind, word, f"{headline}{ending}.",
                   (*sentences, *_written(document)))  # fmt: skip


def _why_not_deeper(document: Mapping[str, Any], proved: str) -> tuple[str, ...]:
    verification = document.get("verification")
    levels = verification.get("model") if isinstance(verification, dict) else None
    if proved == "model" or not isinstance(levels, list):
        return ()
    reasons = [
        str(level.get("reason"))
        for level in levels
        if isinstance(level, dict) and level.get("reason") and level.get("device") != "gpu"
    ]
    return tuple(f"Why the whole model was not run: {reason}." for reason in reasons)


def _failed(document: Mapping[str, Any], name: str) -> Verdict:
    compared = document.get("command") == "verify"
    if name == "different" and compared:
        told = "The largest difference is beyond what rounding explains; see the proof below."
        return Verdict("bad", name, "The two models do not give the same results.",
                       (told, *_where(document)))  # fmt: skip
    if name == "different":
        told = "The proof found a difference, so no output was written; the input is untouched."
        return Verdict("bad", name, "The conversion would change the results.",
                       (told, *_where(document)))  # fmt: skip
    info = document.get("input")
    untouched = "No output was written; the input is untouched."
    if isinstance(info, dict) and info.get("container") == "unknown":
        headline = "The models were not compared." if compared else "Nothing was converted."
        return Verdict("bad", "failed", headline, (f"The reason stands below. {untouched}",))
    return Verdict("bad", "not convertible", "This model can't be converted exactly.",
                   (f"What stands in the way is listed below. {untouched}",))  # fmt: skip


def _where(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The place of the worst difference, of the first level that failed."""
    verification = document.get("verification")
    for level in verification.values() if isinstance(verification, dict) else ():
        for each in level if isinstance(level, list) else [level]:
            if isinstance(each, dict) and each.get("status") == "failed" and each.get("worst"):
                return (f"It is largest at {each['worst']}.",)
    return ()


def _written(document: Mapping[str, Any]) -> tuple[str, ...]:
    if document.get("command") in ("verify", "inspect"):
        return ()
    output = document.get("output")
    if isinstance(output, dict):
        return (f"It was written to {output.get('path')}.",)
    return ("Nothing was written.",)
