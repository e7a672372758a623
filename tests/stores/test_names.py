"""URLs, and names of objects that are no safe local paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnnconvert.errors import UsageError
from rnnconvert.stores.names import refused_names
from rnnconvert.stores.translate import renamed
from rnnconvert.stores.urls import StoreUrl, place_of


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../m.h5", '".."'),
        ("a/../m.h5", '".."'),
        ("a/./m.h5", '"."'),
        ("a//m.h5", '""'),
        ("/etc/m.h5", "slash"),
        ("a\\m.h5", "backslash"),
        ("a\nb.h5", "control"),
        ("\x1b[31mm.h5", "control"),
        ("a\u2028b.h5", "control"),
        ("a\udc80b.h5", "control"),
        ("x" * 256 + "/m.h5", "longer than 255"),
        ("ü" * 128, "longer than 255"),
    ],
)
def test_names_that_are_refused(name, why):
    assert why in refused_names([name])[name]


def test_names_that_are_not():
    names = ["m.h5", "a/b c/m.h5", "ä/日本.h5", "2018-01-01T10:00:00/m.h5", "..a/b..", "x" * 255]
    assert refused_names(names, windows=False) == {}


@pytest.mark.parametrize("name", ["a:b/m.h5", "a/m?.h5", "a/m.h5.", "a /m.h5"])
def test_names_that_windows_can_not_have(name):
    assert refused_names([name], windows=True) == {name: "Windows can't have its name"}
    assert refused_names([name], windows=False) == {}


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (["a/M.h5", "a/m.h5", "b/m.h5"], ["a/M.h5", "a/m.h5"]),
        (["stra\u00dfe.h5", "STRASSE.h5"], ["stra\u00dfe.h5", "STRASSE.h5"]),
        (["\u00e9.h5", "e\u0301.h5"], ["\u00e9.h5", "e\u0301.h5"]),
        (["a", "a/m.h5"], ["a"]),
        (["a", "a/b/m.h5", "ab"], ["a"]),
    ],
)
def test_names_that_clash(names, refused):
    assert list(refused_names(names)) == refused


def test_urls():
    assert place_of("models/m.h5") == Path("models/m.h5")
    assert place_of(Path("s3:/b/m.h5")) == Path("s3:/b/m.h5")
    assert place_of("C://m.h5") == Path("C://m.h5")
    assert place_of("S3://b/m.h5") == StoreUrl("s3", "b/m.h5")
    assert place_of("gs://b/a/") == StoreUrl("gs", "b/a", is_directory=True)
    assert place_of("s3://b") == StoreUrl("s3", "b", is_directory=True)
    url = StoreUrl("s3", "b/a/m.h5")
    assert (str(url), url.name, str(url.parent)) == ("s3://b/a/m.h5", "m.h5", "s3://b/a")
    assert str(StoreUrl("s3", "b").parent) == "s3://b"


@pytest.mark.parametrize(
    "text", ["http://x/m.h5", "file:///m.h5", "s3://", "s3:///m.h5", "s3://b/zip::s3://c/m.h5"]
)
def test_urls_that_are_refused(text):
    with pytest.raises(UsageError):
        place_of(text)


def test_an_unknown_store_is_a_usage_error(cli):
    result = cli("inspect", "ftp://host/m.h5")
    assert result.code == 2
    assert result.err == (
        "error: ftp://host/m.h5: expected a path, or a URL that begins with "
        "s3://, gs://, gcs://, memory://\n"
    )


def test_names_are_translated_wherever_they_stand():
    from rnnconvert.report import FileInfo, LevelResult, Report

    report = Report(
        "verify",
        FileInfo("/t/x/m.h5", 1, "c"),
        warnings=("see /t/x/m.h5",),
        weights_level=LevelResult("passed", detail="/t/x"),
        verdict="equivalent",
    )
    found = renamed(report, {"/t/x": "s3://b"})
    assert (found.input.path, found.warnings, found.weights_level.detail) == (
        "s3://b/m.h5", ("see s3://b/m.h5",), "s3://b",
    )  # fmt: skip
    assert renamed(report, {"nowhere": "x"}) is report
