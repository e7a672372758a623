"""TensorFlow's TFLite converter, and what its errors mean."""

from __future__ import annotations

import re
from pathlib import Path

from rnnconvert.errors import NotConvertibleError
from rnnconvert.exports.options import ExportOptions
from rnnconvert.verification.frameworks import native_stderr_closed


def converted_saved_model(
    saved: Path, options: ExportOptions, signature: str = "serving_default"
) -> bytes:
    """One signature of a SavedModel by TensorFlow's converter.

    Raises:
        NotConvertibleError: TFLite has no operator for something in it.
    """
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_saved_model(str(saved), signature_keys=[signature])
    if options.allow_select_ops:
        kinds = tf.lite.OpsSet
        converter.target_spec.supported_ops = [kinds.TFLITE_BUILTINS, kinds.SELECT_TF_OPS]
    if options.quantize == "dynamic":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    try:
        with native_stderr_closed():
            content: bytes = converter.convert()
    except Exception as error:  # the converter's own class, and others
        raise NotConvertibleError(_reason(str(error), options)) from error
    return content


def _reason(text: str, options: ExportOptions) -> str:
    """What the converter's error, of many lines, says."""
    nowhere = re.search(r"^Custom ops: (.+)$", text, re.MULTILINE)
    if nowhere:
        return f"TFLite has no operator for {nowhere[1]}"
    select = re.search(r"^TF Select ops: (.+)$", text, re.MULTILINE)
    if select and not options.allow_select_ops:
        return (
            f"TFLite has no builtin operator for {select[1]}; --allow-select-ops takes "
            "TensorFlow's own, which the app then has to link (the Flex delegate)"
        )
    lines = [line.strip() for line in text.splitlines() if "error:" in line] or text.splitlines()
    return f"TensorFlow's TFLite converter fails: {(lines or ['no reason given'])[0][:300]}"
