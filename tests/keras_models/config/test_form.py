"""A config that is no model's is refused as it is read; odd but sound ones are not."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rnnconvert.errors import UnreadableInputError
from rnnconvert.keras_models.config.form import require_form

LSTM = {"class_name": "CuDNNLSTM", "config": {"name": "a", "units": 6}}
WRAPPED = {"class_name": "Bidirectional", "config": {"name": "b", "layer": LSTM}}
STACKED = {"class_name": "StackedRNNCells", "config": {"cells": [LSTM]}}
MODEL = {
    "class_name": "Model",
    "config": {
        "name": "m",
        "layers": [{**LSTM, "inbound_nodes": []}, WRAPPED, STACKED],
        "input_layers": [["a", 0, 0]],
        "output_layers": [["b", 0, 0]],
    },
}


def changed(path: list[Any], value: Any) -> dict[str, Any]:
    config = copy.deepcopy(MODEL)
    place: Any = config
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return config


LAYERS = ["config", "layers"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["class_name"], 3),
        (["config"], "/etc/passwd"),
        (["config"], None),
        (LAYERS, "xx"),
        ([*LAYERS, 0], 7),
        ([*LAYERS, 0, "config"], 3.5),
        ([*LAYERS, 0, "class_name"], ["CuDNNLSTM"]),
        ([*LAYERS, 0, "inbound_nodes"], "a"),
        ([*LAYERS, 1, "config", "layer", "config"], "CuDNNLSTM"),
        ([*LAYERS, 2, "config", "cells"], [0]),
        (["config", "output_layers"], 1),
    ],
    ids=str,
)
def test_configs_that_are_none_are_refused(path, value):
    with pytest.raises(UnreadableInputError, match=r"expected .*, found .*; the file is damaged"):
        require_form(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["config", "name"], None),
        ([*LAYERS, 0, "inbound_nodes"], [[["a", 0, 0, {}]]]),
        ([*LAYERS, 1, "config", "layer"], None),
        ([*LAYERS, 2, "config", "cells"], 4),
        (["config", "output_layers"], {"x": ["a", 0, 0]}),
        ([*LAYERS, 0], {"class_name": "Mine", "config": {"layers": [64, 64], "name": ["n"]}}),
    ],
    ids=str,
)
def test_odd_but_sound_configs_are_not(path, value):
    require_form(changed(path, value))


def test_a_bare_list_of_layers_is_a_sequential():
    require_form({"class_name": "Sequential", "config": [LSTM, WRAPPED]})
    with pytest.raises(UnreadableInputError):
        require_form({"class_name": "Sequential", "config": [LSTM, "WRAPPED"]})
