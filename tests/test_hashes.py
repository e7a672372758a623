"""The hashes of a report are those of the files, though they are computed while others work."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest
from helpers import make_model_h5, read_config, write_config

import rnnconvert
from rnnconvert.errors import NotConvertibleError
from rnnconvert.hashes import sha256_meanwhile


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("to", ["h5", "weights"])
def test_input_and_output(tmp_path, to):
    model = make_model_h5(tmp_path / "m.h5")
    before = digest(model)
    report = rnnconvert.convert(model, tmp_path / "out.h5", to=to, verify="weights")
    assert (report.input.sha256, report.output.sha256) == (before, digest(tmp_path / "out.h5"))
    assert threading.active_count() == 1 or not any(
        thread.name.startswith("ThreadPool") for thread in threading.enumerate()
    )


def test_in_place(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    before = digest(model)
    report = rnnconvert.convert(model, in_place=True, verify="weights")
    assert (report.input.sha256, report.output.sha256) == (before, digest(model))


def test_an_input_that_is_refused(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    config = read_config(model)
    config["config"]["layers"][0]["class_name"] = "MyCuDNNLSTM"
    write_config(model, config)
    with pytest.raises(NotConvertibleError) as caught:
        rnnconvert.convert(model, verify="weights")
    assert caught.value.report.input.sha256 == digest(model)


def test_nobody_asked(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    report = rnnconvert.convert(model, tmp_path / "out.h5", verify="weights", hashes=False)
    assert (report.input.sha256, report.output.sha256) == (None, None)


def test_a_file_that_is_gone_is_an_error_when_the_hash_is_asked_for(tmp_path):
    missing = sha256_meanwhile(tmp_path / "missing", wanted=True)
    with missing as found, pytest.raises(FileNotFoundError):
        found()
