"""RNN stacks of checkpoints on the command line: their options, and the table that shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rnnconvert.cli.groups import option_group

if TYPE_CHECKING:
    from rnnconvert.checkpoints.inspect import StackLayer
    from rnnconvert.checkpoints.stack import FoundStacks

ACTIVATIONS = ["tanh", "relu", "sigmoid", "elu", "selu", "softplus", "softsign", "linear"]
CELLS = ["lstm", "gru", "rnn_tanh", "rnn_relu"]


_HEADING = "TensorFlow 1 checkpoints and buffers: what the file does not tell"


stack_options = option_group(
    _HEADING,
    click.option("--scope", help="Convert only the RNN stack in this scope."),
    click.option("--cell", type=click.Choice(CELLS),
                 help="Cell of cuDNN's buffer. Needed where no graph (.meta) tells it."),
    click.option("--layers", "num_layers", type=click.IntRange(1),
                 help="Number of layers in cuDNN's buffer."),
    click.option("--units", "num_units", type=click.IntRange(1),
                 help="Units of each layer in cuDNN's buffer."),
    click.option("--input-size", type=click.IntRange(1),
                 help="Features of one time step of the first layer's input."),
    click.option("--direction", type=click.Choice(["unidirectional", "bidirectional"]),
                 help="Whether cuDNN's buffer holds one direction or two."),
    click.option("--forget-bias", type=float,
                 help="What an LSTM cell adds to its forget gate. "
                 "Default: as the graph says, else 1."),
    click.option("--activation", type=click.Choice(ACTIVATIONS),
                 help="Activation of a cell that has a choice (of a BasicRNNCell tanh or relu). "
                 "Default: as the graph says, else tanh."),
)  # fmt: skip


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


def variable_lines(found: FoundStacks) -> list[str]:
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
