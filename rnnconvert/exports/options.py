"""The options of `export`: those of a conversion, which goes before, and its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rnnconvert.errors import UsageError
from rnnconvert.options import Options, VerifyKeywords

QUANTIZE = ("none", "dynamic")
OPSETS = range(13, 19)
"""Of ONNX: from the first that has all that tf2onnx makes of a mask, to the last that it knows."""
_OF_TARGET = {"opset": "onnx", "quantize": "tflite", "allow_select_ops": "tflite"}
_OWN = ("to", "opset", "quantize", "stateful_step", "allow_select_ops")


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export, as the command line names them.

    Attributes:
        to: a key of `targets.TARGETS`; None follows the output's extension.
        opset: of ONNX's operators; None for the writer's default.
        quantize: "none", or "dynamic" for int8 weights (TFLite).
        stateful_step: one time step in; outputs and states out, states as further inputs.
        allow_select_ops: TFLite may need TensorFlow's own kernels (the Flex delegate).
        settings: which of these come from settings, and so are for the targets that have them.
        general: the options that every command has: verify, inputs (seed, batch, timesteps and
            tolerances; `inputs.timesteps` is also the number of steps of an unrolled model), force,
            dry_run, device, strict, permissions, stack, hashes, max_bytes.
    """

    to: str | None = None
    opset: int | None = None
    quantize: str = "none"
    stateful_step: bool = False
    allow_select_ops: bool = False
    settings: frozenset[str] = frozenset()
    general: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        if self.quantize not in QUANTIZE:
            raise UsageError(f"quantize={self.quantize!r}: expected one of {', '.join(QUANTIZE)}")

    @classmethod
    def of(cls, **named: Any) -> ExportOptions:
        """Options from one flat list of keywords, as the command line and the API take them.

        Raises:
            UsageError: an unknown keyword, or a value that is not allowed.
        """
        own = {name: named.pop(name) for name in _OWN if name in named}
        return cls(**own, general=Options.of(**named))

    def for_target(self, target: str) -> ExportOptions:
        """What this target has of them: a flag that is given is never left out quietly.

        Raises:
            UsageError: a flag of another target, or an opset that is not written.
        """
        left_out = {}
        for name, only in _OF_TARGET.items():
            default = getattr(ExportOptions, name)
            if target == only or getattr(self, name) == default:
                continue
            if name not in self.settings:
                raise UsageError(f"--{name.replace('_', '-')} is for --to {only}")
            left_out[name] = default
        kept = replace(self, **left_out)
        if kept.opset is not None and kept.opset not in OPSETS:
            raise UsageError(f"--opset {kept.opset}: expected {OPSETS[0]} to {OPSETS[-1]}")
        return kept

    @property
    def before(self) -> Options:
        """Of the conversion that goes before: what is written is run after the export only."""
        verify = "layers" if self.general.verify == "model" else self.general.verify
        return replace(self.general, verify=verify, force=True, dry_run=False, strict=False)


class ExportKeywords(VerifyKeywords, total=False):
    """The keywords of `rnnconvert.export`, named as on the command line."""

    to: Literal["onnx", "tflite", "torch", "keras"] | None
    opset: int | None
    quantize: Literal["none", "dynamic"]
    stateful_step: bool
    allow_select_ops: bool
    force: bool
    dry_run: bool
