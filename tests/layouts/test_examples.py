"""The docstring examples of `rnnconvert.layouts`: each public name has one, and each runs."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest

from rnnconvert import layouts

MODULES = ("cells", "interpret", "opaque", "opaque_arrays", "table", "tf1_cells", "weights")
DATA = ("CELLS", "LAYOUTS", "NAMES")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"rnnconvert.layouts.{name}")
    globs = {**vars(importlib.import_module("rnnconvert.layouts.opaque")), **vars(module)}
    found = doctest.testmod(module, globs=globs)
    assert found.attempted
    assert not found.failed


@pytest.mark.parametrize("name", [name for name in layouts.__all__ if name not in DATA])
def test_every_public_name_has_one(name):
    assert ">>>" in (inspect.getdoc(getattr(layouts, name)) or "")
