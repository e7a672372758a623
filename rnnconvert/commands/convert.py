"""Conversion: open, plan, copy, patch, verify the copy, publish. One module for each way of it.

report = run(Path("model.h5"), Path("out.h5"), Options())
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rnnconvert.commands.targets import target_of
from rnnconvert.containers.budget import max_bytes
from rnnconvert.containers.checkpoint import find_checkpoint
from rnnconvert.containers.sniff import is_hdf5
from rnnconvert.errors import ConversionError, UsageError, errors_of, last_resort
from rnnconvert.kinds import KERAS_FILES, Kind, kind_of
from rnnconvert.options import Options
from rnnconvert.outputs import Footprint
from rnnconvert.report import Report
from rnnconvert.verification.devices import require_gpu


def convert_path(source: Path, output: Path | None, options: Options) -> Report:
    """Convert one model. A ConversionError carries a partial report, if there is one.

    Args:
        source: of any kind, see `kinds.Kind`.
        output: file, directory or prefix; None for the default beside the source.

    Raises:
        ConversionError: a subclass for each exit code; see `errors`.
    """
    with max_bytes(options.max_bytes), errors_of(source), last_resort():
        kind = kind_of(source)
        if source.name in ("", ".."):  # the output's name is made of the input's
            source = source.resolve()
        if options.device == "gpu" and options.verify == "model":
            require_gpu()
        return _run(source, output, kind, options)


def footprint(source: Path, output: Path | None, options: Options) -> Footprint:
    """What `run` would read and write, as each kind decides it itself.

    Raises:
        ConversionError: as `run` would.
    """
    with max_bytes(options.max_bytes), errors_of(source), last_resort():
        kind = kind_of(source)
        if source.name in ("", ".."):
            source = source.resolve()
        if kind is Kind.KERAS_H5:
            from rnnconvert.keras_models import convert as keras_h5

            return keras_h5.keras_footprint(source, output, options)
        options = replace(options, to=target_of(kind, output, options))
        if options.to in ("savedmodel", "graph"):
            from rnnconvert.graphs import convert as graphs

            return graphs.graph_footprint(source, output, kind)
        if kind in (Kind.CHECKPOINT, Kind.META_GRAPH):
            from rnnconvert.checkpoints import convert as checkpoints

            return checkpoints.checkpoint_footprint(source, output, options)
        from rnnconvert.keras_models import rebuilt

        return Footprint((source,), (rebuilt.rebuilt_output(source, output, kind, options),))


def possible_outputs(source: Path, output: Path | None, options: Options) -> set[Path]:
    """What `convert_path` may write, as far as the name and the beginning of a file tell.

    Of a model that lies elsewhere no more is there. What HDF5 file it is, is not known then.
    """
    found: set[Path] = set()
    with suppress(ConversionError), last_resort():
        if source.is_file() and is_hdf5(source):
            from rnnconvert.keras_models import convert as keras_h5
            from rnnconvert.keras_models import rebuilt

            to = options.to if options.to in KERAS_FILES else "h5"
            found.add(keras_h5.output_path(source, output, to, options))
            for kind in (Kind.KERAS_1, Kind.KERAS_WEIGHTS):
                found.add(rebuilt.rebuilt_output(source, output, kind, options))
            return found
        kind = kind_of(source)
        if kind not in (Kind.CHECKPOINT, Kind.META_GRAPH):
            return set(footprint(source, output, options).writes)
        checkpoint = find_checkpoint(source)
        name = source.stem if checkpoint is None else checkpoint.prefix.name
        folder = source.parent if output is None else output
        extension = {"h5": ".h5", "keras": ".keras", "npz": ".npz"}.get(options.to or "", ".index")
        found.add(folder / f"{name}{options.suffix}{extension}")
    return found


def _run(source: Path, output: Path | None, kind: Kind, options: Options) -> Report:
    # What is imported here brings code that only such inputs need.
    if kind is Kind.KERAS_H5:
        from rnnconvert.keras_models import convert as keras_h5

        return keras_h5.convert_keras_h5(source, output, options)
    options = replace(options, to=target_of(kind, output, options))
    if options.in_place:
        raise UsageError(f"--in-place is for Keras .h5 files; this is {kind.title}")
    if options.to in ("savedmodel", "graph"):
        from rnnconvert.graphs import convert as graphs

        return graphs.convert_graph(source, output, kind, options)
    if kind in (Kind.CHECKPOINT, Kind.META_GRAPH):
        from rnnconvert.checkpoints import convert as checkpoints

        return checkpoints.convert_checkpoint(source, output, options)
    from rnnconvert.keras_models import rebuilt

    assert options.to in KERAS_FILES
    return rebuilt.convert_rebuilt(source, output, kind, options)
