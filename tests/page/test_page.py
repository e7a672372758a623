"""The page of a report: what it says, that it loads nothing, and that no name gets out of it."""

from __future__ import annotations

import itertools
import json
import re
from html.parser import HTMLParser

import pytest
from helpers import make_model_h5

from rnnconvert.errors import UnreadableInputError
from rnnconvert.outputs import PAGE_MARK
from rnnconvert.page.page import page_of
from rnnconvert.page.pictures import gate_pictures, time_line

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style><svg onload=alert(1)>",
    "</title><script>alert(1)</script>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    "\u202egnp.exe\x00\x1b[31m",
    "&lt;script&gt;",
]
VOID = {"meta", "br", "rect", "line", "polyline"}


class Page(HTMLParser):
    """The elements of a page: tags with their attributes, and the text of each."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    @property
    def text(self) -> str:
        shown = (text for tag, text in self.texts if tag not in ("style", "title"))
        return " ".join(" ".join(shown).split())

    def tags(self, name):
        return [attributes for tag, attributes in self.elements if tag == name]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """The report of a conversion that was proved layer by layer."""
    import rnnconvert

    directory = tmp_path_factory.mktemp("page")
    make_model_h5(directory / "m.h5")
    return rnnconvert.convert(directory / "m.h5", directory / "out.h5", verify="layers").to_dict()


def changed(document, **others):
    return {**json.loads(json.dumps(document, default=str)), **others}


# --- what it says ---------------------------------------------------------------------------


def test_the_verdict_comes_first_and_in_words(converted):
    page = Page(page_of(converted))
    headings = [text for tag, text in page.texts if tag in ("h1", "h2") and text.strip()]
    assert headings[0] == (
        "Layer by layer, the converted model gives the same results as the original."
    )
    assert "Why the whole model was not run: not asked for (--verify layers)." in page.text


@pytest.mark.parametrize(
    ("others", "kind", "headline"),
    [
        ({"proved": "model"}, "good",
         "The converted model gives the same results as the original."),
        ({"proved": "model", "command": "verify"}, "good", "The two models give the same results."),
        ({"proved": "model", "verdict": "equivalent, if forget_bias is 1.0"}, "warn",
         "The converted model gives the same results as the original, if forget_bias is 1.0."),
        ({"verdict": "different", "output": None}, "bad",
         "The conversion would change the results."),
        ({"verdict": "different", "command": "verify"}, "bad",
         "The two models do not give the same results."),
        ({"verdict": "nothing-to-convert"}, "good", "There is nothing to convert."),
        ({"verdict": "not-convertible"}, "bad", "This model can't be converted exactly."),
        ({"verdict": "not-convertible", "input": {"path": "x", "container": "unknown"}}, "bad",
         "Nothing was converted."),
        ({"verdict": "unverified"}, "warn", "Nothing was proved about this model."),
        ({"verdict": "convertible"}, "good", "This model can be converted."),
        ({"verdict": "splendid"}, "warn", "This report has no verdict that is known here."),
    ],
)  # fmt: skip
def test_every_verdict_has_its_words(converted, others, kind, headline):
    page = Page(page_of(changed(converted, **others)))
    assert headline in page.text
    sections = [each["class"] for each in page.tags("section") if "class" in each]
    assert sections[0] == f"verdict {kind}"


def test_everything_of_the_report_is_on_the_page(converted):
    document = changed(
        converted, warnings=["a warning"], problems=["a problem"], target_points=["a point"],
        assumptions=[{"what": "forget_bias", "value": 1.0, "why": "no graph tells it"}],
        optimizer={"state": "dropped", "notes": ["why it was"]},
    )  # fmt: skip
    text = Page(page_of(document)).text
    level = document["verification"]["layers"]
    for told in (
        document["input"]["sha256"], document["output"]["sha256"], document["output"]["path"],
        f"{level['max_abs']:.3g}", f"{level['tolerance']:.3g}", "a warning", "a problem",
        "a point", "forget_bias is 1.0: no graph tells it", "why it was",
        document["tool"]["numpy"], "model_weights/cu_lstm/cu_lstm/bias:0",
    ):  # fmt: skip
        assert told in text
    for change in document["config_changes"]:
        assert change["key"] in text
    assert "+ LSTM" in text
    assert "- CuDNNLSTM" in text


def test_differences_of_each_layer_with_their_tolerance(converted):
    parts = converted["verification"]["layers"]["parts"]
    assert [part["name"] for part in parts] == ["model/cu_lstm", "model/cu_gru"]
    assert all(len(part["by_step"]) == 7 for part in parts)
    worst = max(parts, key=lambda part: part["max_abs"] / part["tolerance"])
    assert worst["max_abs"] == converted["verification"]["layers"]["max_abs"]
    page = Page(page_of(converted))
    assert len([each for each in page.tags("svg") if each.get("class", "").startswith("line")]) == 2
    assert len(page.tags("polyline")) == 2


def test_infinity_is_a_difference_and_no_fault(converted):
    document = changed(converted)
    document["verification"]["layers"]["parts"][0].update(max_abs="inf", by_step=["inf", 0.0])
    assert "beyond it" in Page(page_of(document)).text


def test_several_documents_begin_with_a_table(converted):
    page = Page(page_of([converted, changed(converted, verdict="different")]))
    assert [each["href"] for each in page.tags("a")] == ["#main", "#m1", "#m2"]
    identities = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(identities) == len(set(identities))


# --- pictures -------------------------------------------------------------------------------


def arrows(picture):
    """Pairs of gates that an arrow joins."""

    def at(blocks, x):
        return next(b.gate for b in blocks if b.x <= x < b.x + picture.box)

    return {(at(picture.sources, a.x1), at(picture.targets, a.x2)) for a in picture.arrows}


def test_gates_that_change_places():
    kernel, recurrent, bias = gate_pictures("gru", "cudnn-opaque", "keras", (5, 7), biased=True)
    assert [block.gate for block in kernel.sources] == ["r", "z", "n"]
    assert [block.gate for block in kernel.targets] == ["z", "r", "n"]
    assert arrows(kernel) == arrows(recurrent) == {("r", "r"), ("z", "z"), ("n", "n")}
    assert kernel.text.startswith("place 1: z from place 2; place 2: r from place 1")
    assert {one == other for one, other in arrows(bias)} == {True}
    assert (kernel.before, kernel.after) == ("3 blocks of 7 x 5", "5 x 21, gates side by side")


def test_two_biases_become_one():
    bias = gate_pictures("lstm", "keras-cudnn", "keras", (5, 7), biased=True)[2]
    assert [block.gate for block in bias.targets] == ["i", "f", "c", "o"]
    assert {pair for pair in arrows(bias) if pair[1] == "f"} == {
        ("f, input", "f"), ("f, recurrent", "f"),
    }  # fmt: skip


def test_no_picture_of_a_layout_that_is_not_in_the_table():
    assert gate_pictures("lstm", "tf1:basic_lstm_cell", "keras", (5, 7), biased=True) == ()
    assert gate_pictures("conv_lstm", "keras", "keras", (5, 7), biased=True) == ()


def test_the_line_is_above_the_tolerance_where_the_difference_is():
    line = time_line([1e-9, 1e-6, 1e-3, 0.0, float("inf")], 1e-6)
    heights = [float(point.split(",")[1]) for point in line.points.split()]
    assert heights[0] > line.tolerance > heights[2]
    assert heights[1] == line.tolerance
    assert heights[3] == max(heights)
    assert heights[4] == min(heights)
    assert time_line([1.0], 1.0) is None
    assert time_line([1.0, 2.0], 0.0) is None


# --- for everybody, and against everybody ---------------------------------------------------


def test_a_page_loads_and_runs_nothing(converted):
    html = page_of(converted)
    page = Page(html)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "form", "image", "use"}
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "src"]
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"url\(|@import|https?:", html)
    assert PAGE_MARK in html[:1000]


def test_a_page_can_be_read_without_seeing_it(converted):
    page = Page(page_of(converted))
    assert [each.get("lang") for each in page.tags("html")] == ["en"]
    assert len(page.tags("main")) == len(page.tags("h1")) == 1
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert {each.get("scope") for each in page.tags("th")} <= {"row", "col"}
    for drawing in page.tags("svg"):
        named = drawing.get("role") == "img" and drawing.get("aria-label")
        assert named or drawing.get("aria-hidden") == "true"
    for attributes in (each for tag, each in page.elements if tag in ("section", "article")):
        labels = attributes.get("aria-labelledby")
        assert labels is None or labels in {a.get("id") for _, a in page.elements}


def luminance(colour):
    digits = colour.lstrip("#")
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_text_has_the_contrast_of_wcag_aa(converted, scheme):
    blocks = re.findall(r":root \{(.*?)\}", page_of(converted), re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#\w+)", blocks[scheme]))
    pairs = [(text, paper) for text in ("ink", "soft", "good", "warn", "bad", "link")
             for paper in ("paper", "card")]  # fmt: skip
    pairs += [(kind, f"{kind}-paper") for kind in ("good", "warn", "bad")]
    pairs += [("ink", f"{kind}-paper") for kind in ("good", "warn", "bad")]
    pairs += [("gate-ink", gate) for gate in "ifco"]
    for text, paper in pairs:
        one, other = sorted(luminance(colours[name]) for name in (text, paper))
        assert (other + 0.05) / (one + 0.05) >= 4.5, (text, paper)


def poisoned(value, text):
    """The document with a hostile text in every place that holds one, and as every key."""
    if isinstance(value, str):
        return text
    if isinstance(value, list):
        return [poisoned(item, text) for item in value]
    if isinstance(value, dict):
        return {key: poisoned(item, text) for key, item in value.items()}
    return value


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_no_text_of_a_report_becomes_markup(converted, text):
    whole = changed(
        converted, warnings=["w"], problems=["p"], target_points=["t"],
        assumptions=[{"what": "a", "value": "v", "why": "w"}],
        optimizer={"state": "s", "notes": ["n"]},
    )  # fmt: skip
    harmless, hostile = (Page(page_of(poisoned(whole, each))) for each in ("harmless", text))
    same = [(tag, sorted(attributes)) for tag, attributes in harmless.elements]
    found = [(tag, sorted(attributes)) for tag, attributes in hostile.elements]
    assert found == same
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    assert " ".join(shown.split()) in hostile.text


def twisted(value):
    """Documents whose values are of other types than they should be."""
    for other in (None, -1.5, "text", [None], {"a": None}):
        for key in value:
            yield {**value, key: other}
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from ({**value, key: each} for each in twisted(inner))
        elif isinstance(inner, list) and inner and isinstance(inner[0], dict):
            yield from ({**value, key: [each]} for each in twisted(inner[0]))


def test_a_report_of_any_form_is_a_page_or_no_report(converted):
    document = changed(converted, assumptions=[{"what": "a", "value": "v", "why": "w"}])
    document["layers"] = document["layers"][:1]
    document["config_changes"] = document["config_changes"][:1]
    pages = 0
    for each in twisted(document):
        try:
            assert page_of(each)
            pages += 1
        except UnreadableInputError:
            assert each.get("schema") != 1
    assert pages > 200


# --- the command line -----------------------------------------------------------------------


def test_html_beside_report_and_from_a_saved_one(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    given = ["--report", "r.json", "--html", "r.html"]
    assert cli("cudnn-to-keras", "m.h5", "--verify", "layers", *given).code == 0
    result = cli("report", "r.json", "-o", "again.html")
    assert (result.code, result.out, result.err) == (0, "written again.html\n", "")
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "r.html").read_bytes()
    assert cli("report", "r.json", "-q").out == ""  # replaces r.html, a page of ours
    assert cli("inspect", "m.h5", "--html", "i.html").code == 0
    assert "This model can be converted." in (tmp_path / "i.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["m.h5", "--verify", "layers", "--atol", "0"], 1, "The conversion would change"),
        (["cut.h5"], 3, "the HDF5 file is truncated"),
        (["missing.h5"], 3, "no such file"),
        (["m.h5", "-o", "taken.h5"], 5, "the output exists"),
    ],
)
def test_a_failed_run_writes_its_page(cli, tmp_path, arguments, code, told):
    make_model_h5(tmp_path / "m.h5")
    (tmp_path / "cut.h5").write_bytes((tmp_path / "m.h5").read_bytes()[:3000])
    (tmp_path / "taken.h5").write_bytes(b"mine")
    assert cli("cudnn-to-keras", *arguments, "--html", "r.html").code == code
    assert told in Page((tmp_path / "r.html").read_text(encoding="utf-8")).text


def test_a_page_replaces_pages_only(cli, tmp_path):
    make_model_h5(tmp_path / "m.h5")
    (tmp_path / "mine.html").write_text("<html>mine</html>")
    kept = (tmp_path / "m.h5").read_bytes()
    for arguments, code in (
        (["m.h5", "--html", "mine.html"], 5),
        (["m.h5", "--html", "m.h5"], 2),
        (["m.h5", "--html", "m.portable.h5"], 2),
        (["m.h5", "--html", "missing/r.html"], 5),
        (["m.h5", "--report", "r", "--html", "r"], 2),
    ):
        assert cli("cudnn-to-keras", *arguments, "--verify", "weights").code == code
    assert (tmp_path / "mine.html").read_text() == "<html>mine</html>"
    assert (tmp_path / "m.h5").read_bytes() == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.h5", "mine.html"]


@pytest.mark.parametrize("content", ["", "{}", "[1]", "nonsense", '{"schema": 2, "input": {}}'])
def test_what_is_no_report_is_refused(cli, tmp_path, content):
    (tmp_path / "r.json").write_text(content)
    result = cli("report", "r.json")
    assert result.code == 3
    assert result.err.startswith("error: r.json: ")
    assert not (tmp_path / "r.html").exists()
