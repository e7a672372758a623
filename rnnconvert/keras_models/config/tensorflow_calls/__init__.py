"""TensorFlow calls in a functional model of Keras 2, as operations of Keras 3.

Keras 2 saves `y * 2 + 1`, `y[:, -1]` or `tf.concat([a, b], -1)` as layers of classes that Keras 3
does not have. Here such a call is read (`reading`, `node_defs`), looked up in a table (`functions`,
`slices`), written as operations that Keras 3 itself saves (`writer`), and put into the call's place
(`rewiring`). For the proof the calls are kept instead, and TensorFlow itself is asked (`kept`).
Operations pass no mask on, as Keras 2's calls do not.
"""

from rnnconvert.keras_models.config.tensorflow_calls.kept import keep_calls
from rnnconvert.keras_models.config.tensorflow_calls.reading import CALL_CLASSES, function_name
from rnnconvert.keras_models.config.tensorflow_calls.rewiring import translate_calls
from rnnconvert.keras_models.config.tensorflow_calls.writer import OPERATIONS
from rnnconvert.keras_models.config.tree import Config, root, walk


def called_functions(config: Config) -> list[str]:
    """What a model config calls of TensorFlow, each once."""
    called = [node for node in walk(root(config)) if node.class_name in CALL_CLASSES]
    return list(dict.fromkeys(function_name(node.entry) for node in called))


__all__ = [
    "CALL_CLASSES",
    "OPERATIONS",
    "called_functions",
    "function_name",
    "keep_calls",
    "translate_calls",
]
