"""cuDNN RNN ops in TensorFlow graphs, rewritten into ordinary ops that run on any machine.

    >>> from rnnconvert.graphs import lowering
    >>> result = lowering.lower_graph_def(graph_def)                    # doctest: +SKIP
    >>> [op.name for op in result.lowered]                              # doctest: +SKIP
    ['cudnn_lstm/CudnnRNN']

Importing this does not import TensorFlow; the first use of a function does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rnnconvert.graphs.ops import CudnnOp, LoweredGraph, LoweringOptions

if TYPE_CHECKING:
    from rnnconvert.graphs.files import (
        LoweredFiles,
        lower_frozen_graph,
        lower_meta_graph_file,
        lower_saved_model_dir,
        plan_model,
    )
    from rnnconvert.graphs.find.search import find_ops
    from rnnconvert.graphs.lower.meta import (
        find_ops_in_meta_graph,
        lower_meta_graph,
        lower_saved_model_proto,
    )
    from rnnconvert.graphs.lower.rewrite import lower_graph_def
    from rnnconvert.graphs.opening import (
        OpenedGraph,
        checkpoint_files,
        open_graph,
        read_graph_def,
        read_meta_graph,
        read_saved_model,
    )
    from rnnconvert.graphs.verify.constants import changed_constants
    from rnnconvert.graphs.verify.layers_level import verify_layers
    from rnnconvert.graphs.verify.permission import why_not_run
    from rnnconvert.graphs.verify.signature_inputs import Choices
    from rnnconvert.graphs.verify.verify import verify_frozen_graph, verify_saved_model
    from rnnconvert.graphs.verify.verify_ops import verify_meta_graph

_PLACES = {
    "Choices": "verify.signature_inputs",
    "LoweredFiles": "files",
    "OpenedGraph": "opening",
    "changed_constants": "verify.constants",
    "checkpoint_files": "opening",
    "find_ops": "find.search",
    "find_ops_in_meta_graph": "lower.meta",
    "lower_frozen_graph": "files",
    "lower_graph_def": "lower.rewrite",
    "lower_meta_graph": "lower.meta",
    "lower_meta_graph_file": "files",
    "lower_saved_model_dir": "files",
    "lower_saved_model_proto": "lower.meta",
    "open_graph": "opening",
    "plan_model": "files",
    "read_graph_def": "opening",
    "read_meta_graph": "opening",
    "read_saved_model": "opening",
    "verify_frozen_graph": "verify.verify",
    "verify_layers": "verify.layers_level",
    "verify_meta_graph": "verify.verify_ops",
    "verify_saved_model": "verify.verify",
    "why_not_run": "verify.permission",
}

__all__ = [
    "Choices",
    "CudnnOp",
    "LoweredFiles",
    "LoweredGraph",
    "LoweringOptions",
    "OpenedGraph",
    "changed_constants",
    "checkpoint_files",
    "find_ops",
    "find_ops_in_meta_graph",
    "lower_frozen_graph",
    "lower_graph_def",
    "lower_meta_graph",
    "lower_meta_graph_file",
    "lower_saved_model_dir",
    "lower_saved_model_proto",
    "open_graph",
    "plan_model",
    "read_graph_def",
    "read_meta_graph",
    "read_saved_model",
    "verify_frozen_graph",
    "verify_layers",
    "verify_meta_graph",
    "verify_saved_model",
    "why_not_run",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"rnnconvert.graphs.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
