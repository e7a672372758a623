"""Object stores for tests: fsspec's in this process, and a server of S3 on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}


class ObjectStore:
    """A bucket: what is put into it and taken from it, by names that nobody checks."""

    def __init__(self, top: str) -> None:
        self.top = top

    def put(self, name: str, content: bytes) -> None:
        raise NotImplementedError

    def all(self) -> dict[str, bytes]:
        raise NotImplementedError

    def put_tree(self, name: str, directory: Path) -> None:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                self.put(f"{name}/{path.relative_to(directory).as_posix()}", path.read_bytes())


class MemoryStore(ObjectStore):
    def __init__(self) -> None:
        super().__init__("memory://bucket")
        from fsspec.implementations.memory import MemoryFileSystem

        self.kept: Any = MemoryFileSystem.store
        self.kept.clear()
        MemoryFileSystem.pseudo_dirs[:] = [""]
        self.put("anchor", b"")  # a bucket is there before anything is in it

    def put(self, name: str, content: bytes) -> None:
        from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

        file = MemoryFile(MemoryFileSystem(), f"/bucket/{name}", content)
        self.kept[f"/bucket/{name}"] = file

    def all(self) -> dict[str, bytes]:
        found = {name.removeprefix("/bucket/"): file.getvalue() for name, file in self.kept.items()}
        found.pop("anchor", None)
        return found


class S3Store(ObjectStore):
    def __init__(self, client: Any, bucket: str) -> None:
        super().__init__(f"s3://{bucket}")
        self.client = client
        self.bucket = bucket
        client.create_bucket(Bucket=bucket)

    def put(self, name: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=name, Body=content)

    def all(self) -> dict[str, bytes]:
        listed = self.client.list_objects_v2(Bucket=self.bucket).get("Contents", [])
        return {
            each["Key"]: self.client.get_object(Bucket=self.bucket, Key=each["Key"])["Body"].read()
            for each in listed
        }


@contextmanager
def s3_server() -> Iterator[str]:
    """A server of S3 in this process; yields its address."""
    server = pytest.importorskip("moto.server", reason="needs moto[s3] and flask")
    pytest.importorskip("s3fs", reason="needs rnnconvert[stores]")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        host, port = running.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        running.stop()
