"""The recurrent layers of a Keras config: what each computes and how its weights are laid out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rnnconvert.keras_models.config.tree import Config, Node, children, layer_name, root, show_path

CUDNN_CLASSES = {"CuDNNLSTM": "lstm", "CuDNNGRU": "gru"}
PORTABLE_CLASSES = {"CuDNNLSTM": "LSTM", "CuDNNGRU": "GRU"}
LSTM_CLASSES = ("LSTM", "LSTMCell", "CuDNNLSTM")
GRU_CLASSES = ("GRU", "GRUCell", "CuDNNGRU")
SIMPLE_CLASSES = ("SimpleRNN", "SimpleRNNCell")
CONV_CLASSES = ("ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D", "ConvLSTM2DCell")
RECURRENT_CLASSES = LSTM_CLASSES + GRU_CLASSES + SIMPLE_CLASSES + CONV_CLASSES
EXPLICIT_RECURRENT_ACTIVATION = (2, 3, 0)
"""Since this version Keras' default is sigmoid; before it was hard_sigmoid."""
GATE_COUNTS = (
    dict.fromkeys(LSTM_CLASSES + CONV_CLASSES, 4)
    | dict.fromkeys(GRU_CLASSES, 3)
    | dict.fromkeys(SIMPLE_CLASSES, 1)
)
FLAGS = ("return_sequences", "return_state", "go_backwards", "stateful", "unroll", "time_major")


def names_cudnn_layers(config: Any) -> bool:
    """Whether a class of CuDNN layers is named anywhere in a config of any form."""
    if isinstance(config, dict):
        named = config.get("class_name") in tuple(CUDNN_CLASSES)
        return named or any(map(names_cudnn_layers, config.values()))
    return isinstance(config, list) and any(map(names_cudnn_layers, config))


@dataclass(frozen=True)
class RecurrentLayer:
    """One direction of one recurrent layer, as the config describes it.

    Attributes:
        path: e.g. "model/bidirectional_1/forward_cu_dnnlstm_1".
        group: name of the top-level layer, which is the name of its group of weights.
        name: the name its variables carry, e.g. "forward_cu_dnnlstm_1".
        class_name: "CuDNNLSTM", "GRU", "LSTMCell", ...
        units: None where the config does not say.
        use_bias: None where the config does not say.
        reset_after: for a GRU; None where the config does not say (the bias' shape decides).
        activation, recurrent_activation: names; None where the config does not say.
        direction: "forward" or "backward" (the second layer of a Bidirectional).
        flags: those of FLAGS that are true.
    """

    path: str
    group: str
    name: str
    class_name: str
    units: int | None
    use_bias: bool | None
    reset_after: bool | None
    activation: str | None
    recurrent_activation: str | None
    direction: str = "forward"
    flags: tuple[str, ...] = ()
    config: Config = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_cudnn(self) -> bool:
        return self.class_name in CUDNN_CLASSES

    @property
    def gates(self) -> int:
        return GATE_COUNTS[self.class_name]


def recurrent_layers(model_config: Config) -> list[RecurrentLayer]:
    """All recurrent layers of a model, in the order in which Keras saves their weights.

    Keras writes, for each top-level layer, first the trainable and then the frozen weights; a
    frozen layer inside a nested model thus comes after the others of its group.
    """
    found: list[RecurrentLayer] = []
    for top in children(root(model_config)):
        trainable, frozen = _by_trainable(top, top.path[0])
        found += trainable + frozen
    return found


def default_recurrent_activation(class_name: str, version: tuple[int, ...] | None) -> str | None:
    """What a config that names no recurrent activation meant to the Keras that wrote it.

    Args:
        class_name: of a recurrent layer; None is returned for those without gates.
        version: of the writer; None, if unknown, counts as old.
    """
    if class_name in CONV_CLASSES:
        return "hard_sigmoid"
    if class_name not in (*LSTM_CLASSES, *GRU_CLASSES):
        return None
    old = version is None or version < EXPLICIT_RECURRENT_ACTIVATION
    return "hard_sigmoid" if old else "sigmoid"


def activation_name(value: Any) -> str | None:
    """Name of an activation, given as a string or as a serialized object."""
    if isinstance(value, dict):
        config = value.get("config")
        value = config if isinstance(config, str) else value.get("class_name")
    return str(value) if value is not None else None


def _by_trainable(node: Node, group: str) -> tuple[list[RecurrentLayer], list[RecurrentLayer]]:
    """Recurrent layers below `node`: those that train, and those that don't."""
    trainable: list[RecurrentLayer] = []
    frozen: list[RecurrentLayer] = []
    if node.class_name in RECURRENT_CLASSES:
        trainable = [_describe(node, group)]
    elif node.class_name == "Bidirectional":
        trainable = _both_directions(node, group)
    else:
        for child in children(node):
            child_trainable, child_frozen = _by_trainable(child, group)
            trainable += child_trainable
            frozen += child_frozen
    if node.config.get("trainable") is False:
        return [], trainable + frozen
    return trainable, frozen


def _both_directions(node: Node, group: str) -> list[RecurrentLayer]:
    below = {child.key: child for child in children(node)}
    if "layer" not in below:
        return []
    forward = below["layer"]
    backward = below.get("backward_layer", forward)
    found = []
    for child, direction in ((forward, "forward"), (backward, "backward")):
        own_name = layer_name(child.entry)
        prefix = f"{direction}_"
        name = own_name if own_name.startswith(prefix) else prefix + own_name
        for leaf in _leaves(child):
            found.append(_describe(leaf, group, name=name, direction=direction))
    return found


def _leaves(node: Node) -> list[Node]:
    """`node` itself, or the cells inside an `RNN` layer."""
    if node.class_name in RECURRENT_CLASSES:
        return [node]
    return [leaf for child in children(node) for leaf in _leaves(child)]


def _describe(
    node: Node, group: str, name: str | None = None, direction: str = "forward"
) -> RecurrentLayer:
    config = node.config
    cudnn = node.class_name in CUDNN_CLASSES
    units = config.get("units", config.get("filters"))
    use_bias = True if cudnn else config.get("use_bias")
    path = node.path if name is None else (*_above(node), name)
    flagged: Config = config
    if node.class_name.endswith("Cell") and node.parent is not None:
        flagged = _rnn_above(node)
    return RecurrentLayer(
        path=show_path(path),
        group=group,
        name=name or layer_name(node.entry),
        class_name=node.class_name,
        units=units if isinstance(units, int) else None,
        use_bias=use_bias if isinstance(use_bias, bool) else None,
        reset_after=True if node.class_name == "CuDNNGRU" else config.get("reset_after"),
        activation="tanh" if cudnn else activation_name(config.get("activation")),
        recurrent_activation=(
            "sigmoid" if cudnn else activation_name(config.get("recurrent_activation"))
        ),
        direction=direction,
        flags=tuple(flag for flag in FLAGS if flagged.get(flag)),
        config=config,
    )


def _above(node: Node) -> tuple[str, ...]:
    """Path down to the Bidirectional that holds `node`."""
    while node.parent is not None and node.parent.class_name != "Bidirectional":
        node = node.parent
    return node.path[:-1]


def _rnn_above(node: Node) -> Config:
    """Config of the `RNN` layer around a cell: the flags are there."""
    while node.parent is not None and (
        node.class_name.endswith("Cell") or node.class_name == "StackedRNNCells"
    ):
        node = node.parent
    return node.config
