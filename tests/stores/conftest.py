"""The two stores that most of these tests run on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from object_stores import CREDENTIALS, MemoryStore, ObjectStore, S3Store, s3_server

NUMBERS = count()


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def s3(s3_address: str, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    import boto3

    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": s3_address}.items():
        monkeypatch.setenv(name, value)
    return S3Store(boto3.client("s3"), f"bucket-{next(NUMBERS)}")


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    pytest.importorskip("fsspec")
    return MemoryStore() if request.param == "memory" else request.getfixturevalue("s3")


@pytest.fixture(autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch):
    """Where temporary copies lie: none is left, whatever a test does."""
    directory = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    yield directory
    assert not list(Path(directory).iterdir())
