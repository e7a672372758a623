"""What a config would run on loading is found, and Keras' own operations are not taken for it."""

import copy

import pytest

from rnnconvert.keras_models.config.trust import refusals


def config_with(entry):
    first = {"class_name": "InputLayer", "config": {"name": "x"}, "name": "x", "inbound_nodes": []}
    return {"class_name": "Functional", "config": {"name": "model", "layers": [first, entry]}}


TRANSPOSE = {
    "module": "keras.src.ops.numpy",
    "class_name": "Transpose",
    "config": {"name": "transpose", "axes": [1, 0, 2]},
    "registered_name": "Transpose",
    "name": "transpose",
    "inbound_nodes": [],
}


def test_an_operation_of_keras_is_no_foreign_code():
    assert refusals(config_with(copy.deepcopy(TRANSPOSE))) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"module": "os"},
        {"module": "keras.src.ops.core", "class_name": "Map"},
        {"module": "keras.src.ops.numpy.sub"},
        {"class_name": "np.load"},
        {"class_name": "vectorize"},
        {"class_name": "Lambda"},
        {"config": {"name": "t", "f": {"class_name": "function", "config": "system"}}},
        {"config": {"name": "t", "f": {"class_name": "__lambda__", "config": {"value": "x"}}}},
    ],
    ids=str,
)
def test_what_only_looks_like_one_is_named(changed):
    assert refusals(config_with(copy.deepcopy(TRANSPOSE) | changed))
