"""The oldest, a middle and the newest Keras 3 load what is written, and give the right numbers:
every converted fixture, and models of one time step.

The wheels are installed into a temporary folder; where pip can't do that the test fails.
"""

from __future__ import annotations

import importlib.metadata

import numpy as np
import pytest
from compatibility import Job, chosen, convert_all, load_in_keras3, newest_of_each
from export_models import predict, saved, streams

import rnnconvert

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
    "many_layers": (3, 1),  # of one step: joined masks, by an operation without a dtype in 3.0
}
"""The first version that loads a case; those before it refuse it, and the report says so."""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    return [*newest_of_each(convert_all(chosen(), folder)), *steps(folder)]


def steps(folder):
    """Models of one step, proved by the export, and what this Keras gives for random states."""
    import keras

    generator = np.random.default_rng(5)
    found = []
    for name, original in streams():
        path, data = folder / f"step-{name}.keras", folder / f"step-{name}.npz"
        source = saved(original, folder / f"{name}.keras")
        assert rnnconvert.export(source, path, stateful_step=True).proved == "model"
        model = keras.models.load_model(path)
        inputs = [
            generator.integers(0, 11, (3, 1)).astype("int32")
            if each.dtype == "int32"
            else generator.normal(size=(3, *each.shape[1:])).astype("float32")
            for each in model.inputs
        ]
        given = {f"x{number}": array for number, array in enumerate(inputs)}
        outputs = {f"y{number}": array for number, array in enumerate(predict(model, inputs))}
        np.savez(data, **given, **outputs)
        found.append(Job(f"step-{name}", str(path), str(data), False, 1e-5))
    return found


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
