"""RNN stacks of checkpoints on the command line: their options, and the table that shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rnnconvert.inspection.checkpoints import StackLayer
    from rnnconvert.tf1.stack import Found

Command = Callable[..., Any]
ACTIVATIONS = ["tanh", "relu", "sigmoid", "elu", "selu", "softplus", "softsign", "linear"]
CELLS = ["lstm", "gru", "rnn_tanh", "rnn_relu"]


def stack_options(command: Command) -> Command:
    """What a TensorFlow checkpoint does not tell of its RNN stacks."""
    for option in (
        click.option("--activation", type=click.Choice(ACTIVATIONS),
                     help="Checkpoints: of TF1's cells, where no graph (.meta) beside tells it. "
                          "Default: tanh. A BasicRNNCell takes tanh or relu."),
        click.option("--forget-bias", type=float,
                     help="Checkpoints: what an LSTM cell adds, where no graph (.meta) beside "
                          "tells it. Default: its class'."),
        click.option("--direction", type=click.Choice(["unidirectional", "bidirectional"]),
                     help="Checkpoints: of a buffer without a graph."),
        click.option("--input-size", type=click.IntRange(1), help="Checkpoints: the same."),
        click.option("--units", "num_units", type=click.IntRange(1), help="Checkpoints: the same."),
        click.option("--layers", "num_layers", type=click.IntRange(1),
                     help="Checkpoints: the same."),
        click.option("--cell", type=click.Choice(CELLS), help="Checkpoints: the same."),
        click.option("--scope", help="Checkpoints: only the RNN stack in this scope."),
    ):  # fmt: skip
        command = option(command)
    return command


def rows(layers: Sequence[StackLayer]) -> list[list[str]]:
    """A row for each direction of each layer: layer, from, to, units, inputs, weights, after."""
    found = []
    for layer in layers:
        facts = layer.to_dict()
        found.append(
            [
                facts["path"], facts["cell"], facts["from"], facts["to"], str(facts["units"]),
                str(facts["input_dim"]), str(facts["params"]["from"]), "->",
                str(facts["params"]["to"]),
            ]
        )  # fmt: skip
    return found


def variable_lines(found: Found) -> list[str]:
    """Each stack and the variables that belong to it."""
    lines = []
    for stack in found.stacks:
        both = "" if stack.direction == "unidirectional" else ", bidirectional"
        sizes = f"{stack.num_layers} x {stack.num_units} units on {stack.input_size} inputs"
        lines.append(f"{stack.scope}: {stack.cell}, {sizes}{both}, {stack.dtype}")
        if stack.told is not None:
            added = "" if stack.cell != "lstm" else f"forget_bias {stack.forget_bias}, "
            lines.append(f"  {added}activation {stack.function} (of the graph beside it, .meta)")
        if stack.opaque is not None:
            lines.append(f"  {stack.opaque}: opaque buffer of {stack.shape.size:,} values")
        lines += [f"  {name}" for place in stack.places for name in place.tensors.values()]
        lines += [f"  {slot.variable}: slot {slot.name}" for slot in stack.slots]
    return lines
