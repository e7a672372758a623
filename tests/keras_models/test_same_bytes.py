"""The same input gives the same bytes: no dates, no random numbers in what is written."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest
from helpers import make_model_h5

import rnnconvert

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def test_a_keras_file(tmp_path):
    pytest.importorskip("keras", reason="Keras 3 is not installed")
    model = make_model_h5(tmp_path / "m.h5")
    for name in ("one.keras", "two.keras"):
        rnnconvert.convert(model, tmp_path / name, verify="none")
    with zipfile.ZipFile(tmp_path / "one.keras") as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert list(json.loads(archive.read("metadata.json"))) == ["keras_version"]
    assert (tmp_path / "one.keras").read_bytes() == (tmp_path / "two.keras").read_bytes()


def test_a_saved_model_and_its_fingerprint(tmp_path):
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    from tensorflow.core.protobuf.fingerprint_pb2 import FingerprintDef

    source = ROOT / "fixtures" / "savedmodels" / "tf215" / "ops_v3" / "model"
    found = []
    for name in ("one", "two"):
        shutil.copytree(source, tmp_path / f"{name}_in")
        rnnconvert.convert(tmp_path / f"{name}_in", tmp_path / name, verify="none")
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        found.append({path.relative_to(tmp_path / name): path.read_bytes() for path in files})
    assert found[0] == found[1]
    old, new = (
        FingerprintDef.FromString((folder / "fingerprint.pb").read_bytes())
        for folder in (source, tmp_path / "one")
    )
    assert new.uuid.isdigit()
    assert new.uuid != old.uuid
    assert new.saved_model_checksum != old.saved_model_checksum
    assert new.checkpoint_hash == old.checkpoint_hash
