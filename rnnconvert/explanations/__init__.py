"""What `rnnconvert explain` prints: words are written here, facts are asked of the layouts.

Gate orders, shapes, counts, offsets and worked numbers come from the tables and functions that
convert, so that text and code can't disagree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rnnconvert.explanations import cells, opaque, programs, weights


@dataclass(frozen=True)
class Topic:
    """A topic: one line for the list, and the text, made when it is asked for."""

    summary: str
    text: Callable[[], str]


TOPICS: dict[str, Topic] = {
    "lstm": Topic("the LSTM's equations, and its weights in every program", cells.lstm),
    "gru": Topic("the two GRUs: reset_after, and why reset_after=False is another", cells.gru),
    "split": Topic("CuDNNLSTM and CuDNNGRU in Keras 2 files, and the trap in them", programs.split),
    "opaque": Topic("cuDNN's flat parameter buffer: order, offsets, size", opaque.explain_opaque),
    "keras": Topic("LSTM, GRU and SimpleRNN in Keras 2 and 3", programs.keras),
    "torch": Topic("nn.LSTM, nn.GRU and nn.RNN", programs.torch),
    "onnx": Topic("the ONNX operators LSTM, GRU and RNN", programs.onnx),
    "tf1": Topic("the cells of TensorFlow 1 and their names in checkpoints", programs.tf1),
    "biases": Topic("two biases or one: merging, and splitting in halves", weights.biases),
    "counts": Topic("number of weights: formula, examples, reading it backwards", weights.counts),
    "hard-sigmoid": Topic("hard_sigmoid: one name, two functions", cells.hard_sigmoid),
}
