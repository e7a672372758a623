"""Two graphs compared: SavedModels, frozen graphs or MetaGraphs, lowered or not."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rnnconvert.containers.checkpoint import Checkpoint, find_checkpoint, open_checkpoint
from rnnconvert.errors import errors_of
from rnnconvert.graphs import convert as graphs
from rnnconvert.graphs import inspect as inspection
from rnnconvert.graphs import lowering
from rnnconvert.graphs.inspect import require_tensorflow
from rnnconvert.kinds import Kind
from rnnconvert.options import Options
from rnnconvert.report import FileInfo, LevelResult, Report


def compare_graphs(
    original: Path,
    converted: Path,
    kind: Kind,
    options: Options,
    check: Callable[[FileInfo, FileInfo], None],
) -> Report:
    """Compare the variables and constants of two graphs, and what their signatures compute.

    A second graph with cuDNN ops is lowered for that, in a temporary copy: without a GPU it would
    not run. The ops of the first one are computed by the reference.

    Args:
        check: called before anything is compared.

    Returns:
        The report, whatever its levels say.
    """
    require_tensorflow()
    graphs.require_tensorflow_gpu(kind, options)
    found = []
    for path in (original, converted):
        with errors_of(path):
            found.append(inspection.inspect_graph(path, kind, options))
    check(found[0].input, found[1].input)
    report = Report(
        "verify",
        found[0].input,
        found[1].input,
        layers=tuple(inspection.LoweredOp(op) for op in found[0].ops),
        verdict="equivalent",
        weights_level=_check_weights(original, converted, kind),
        layers_level=LevelResult.nothing_to_run("graphs are compared by their signatures"),
        model_level=(LevelResult.not_asked(options.verify),),
    )
    if options.verify != "model":
        return report
    with tempfile.TemporaryDirectory(prefix=".rnnconvert-") as folder:
        if found[1].verdict == "convertible":
            lowered = Path(folder) / converted.name
            graphs.lower(converted, lowered, kind, options)
            converted = lowered
        models = graphs.run_signatures(original, converted, kind, options)
    return replace(report, model_level=models)


def _check_weights(original: Path, converted: Path, kind: Kind) -> LevelResult:
    """Variables of the same names, and constants of the same names, hold the same bits."""
    first, second = (_variables(path, kind) for path in (original, converted))
    names = [list(side.variables) if side else [] for side in (first, second)]
    missing = sorted(set(names[0]) ^ set(names[1]))
    if missing:
        detail = f"the variable {missing[0]} is in one model only"
        return LevelResult("failed", detail=detail, worst=missing[0])
    for name in names[0]:
        if not _same(first, second, name):
            return LevelResult("failed", detail=f"the variable {name} differs", worst=name)
    same, changed = lowering.changed_constants(original, converted)
    if changed:
        detail = f"the constant {changed[0]} differs"
        return LevelResult("failed", detail=detail, worst=changed[0])
    detail = f"{len(names[0])} variables and {same} constants the same to the last bit"
    return LevelResult("passed", detail=detail)


def _same(first: Checkpoint | None, second: Checkpoint | None, name: str) -> bool:
    assert first is not None
    assert second is not None
    one, other = first.read(name), second.read(name)
    if one.dtype.kind == "O" and name != _OBJECTS:
        return bool((one == other).all())
    return name == _OBJECTS or (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())


_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""What TensorFlow 2 saves beside the variables: a description of the program, not of the model."""


def _variables(path: Path, kind: Kind) -> Any:
    if kind is Kind.GRAPH:
        return None
    prefix = path / "variables" / "variables" if kind is Kind.SAVED_MODEL else path.with_suffix("")
    found = find_checkpoint(prefix)
    return open_checkpoint(found) if found else None
