"""What a model can be exported to: one table."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rnnconvert.errors import UsageError


@dataclass(frozen=True)
class Target:
    """One row of TARGETS.

    Attributes:
        name: of `--to`.
        title: for sentences.
        extension: of the main file.
        extra: of rnnconvert, that installs what is needed.
        packages: that must be importable.
        module: with `write(source, path, options) -> Written`, which writes the model to `path`
            and what goes with it beside it; and `runner(path, written) -> Run`, a function from
            the inputs' arrays to the outputs' arrays in the target's own runtime.
        takes_graphs: TensorFlow graphs too, not Keras models and stacks only.
        steps_only: it is written with `--stateful-step` only.
    """

    name: str
    title: str
    extension: str
    extra: str
    packages: tuple[str, ...]
    module: str
    takes_graphs: bool = False
    steps_only: bool = False

    def load(self) -> Any:
        """The target's module.

        Raises:
            UsageError: a package that it needs is not installed.
        """
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            raise UsageError(
                f"export to {self.title} needs {', '.join(missing)}: "
                f"pip install 'rnnconvert[{self.extra}]'"
            )
        return importlib.import_module(self.module)


_KERAS = ("tensorflow", "keras")

TARGETS = {
    target.name: target
    for target in (
        Target("onnx", "ONNX", ".onnx", "onnx", (*_KERAS, "onnx", "tf2onnx", "onnxruntime"),
               "rnnconvert.exports.onnx", takes_graphs=True),
        Target("tflite", "TFLite", ".tflite", "tflite", (*_KERAS, "ai_edge_litert"),
               "rnnconvert.exports.tflite", takes_graphs=True),
        Target("torch", "torch", ".safetensors", "torch", (*_KERAS, "torch", "safetensors"),
               "rnnconvert.exports.torch_module"),
        Target("keras", "Keras, one step", ".keras", "tensorflow", _KERAS,
               "rnnconvert.exports.keras_step", steps_only=True),
    )
}  # fmt: skip


def export_target(output: Path, to: str | None, *, stateful_step: bool) -> Target:
    """The target that `--to` or the output's extension names.

    Raises:
        UsageError: none of them, or they contradict each other.
    """
    known = ", ".join(TARGETS)
    by_name = {target.extension: target for target in TARGETS.values()}.get(output.suffix)
    if to is not None and to not in TARGETS:
        raise UsageError(f"to={to!r}: expected one of {known}")
    if to is None and by_name is None:
        raise UsageError(
            f"--to is missing ({known}), and the output's extension {output.suffix or '(none)'} "
            f"is none of {', '.join(target.extension for target in TARGETS.values())}",
            path=str(output),
        )
    target = by_name if to is None else TARGETS[to]
    assert target is not None
    if output.suffix and not output.is_dir() and by_name is not target:
        raise UsageError(
            f"--to {target.name} writes {target.extension}, and the output is named "
            f"{output.suffix}",
            path=str(output),
        )
    if target.steps_only and not stateful_step:
        raise UsageError(
            f"--to {target.name} is for --stateful-step; cudnn-to-keras writes the whole model"
        )
    return target
