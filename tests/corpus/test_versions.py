"""The oldest, a middle and the newest Keras 3 load every converted fixture, and give its numbers.

The wheels are installed into a temporary folder; where pip can't do that the test fails.
"""

from __future__ import annotations

import importlib.metadata

import pytest
from compatibility import chosen, convert_all, load_in_keras3, newest_of_each

pytestmark = [pytest.mark.corpus, pytest.mark.timeout(900)]
pytest.importorskip("torch", reason="torch, Keras' backend that starts fastest, is not installed")

VERSIONS = ("3.0.5", "3.9.2", "newest")
FIRST = {
    "bi_state": (3, 2),
    "nested_frozen": (3, 2),
    "plain_frozen_branch": (3, 2),
    "plain_frozen_deep": (3, 2),
    "plain_identity": (3, 2),
    "td_model": (3, 4),
    "plain_td_branches": (3, 4),
}
"""The first version that loads a case; those before it refuse it, and the report says so."""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return newest_of_each(convert_all(chosen(), tmp_path_factory.mktemp("files")))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_case(version, jobs, tmp_path_factory):
    if version == "newest":
        version = importlib.metadata.version("keras")
    wheels = tmp_path_factory.mktemp("wheels")
    found = load_in_keras3(version, jobs, tmp_path_factory.mktemp("results"), wheels)
    numbers = tuple(int(part) for part in version.split(".")[:2])
    expected = {case for case, first in FIRST.items() if numbers < first}
    refused = {outcome.name.partition("-")[2] for outcome in found if outcome.status == "refused"}
    assert [outcome for outcome in found if outcome.status == "wrong"] == []
    assert refused == expected, [outcome for outcome in found if outcome.status == "refused"]
