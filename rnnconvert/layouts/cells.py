"""The recurrent cells and their gates, in the order of their equations.

Equations (cuDNN developer guide; x, h row vectors, W of shape (units, input_dim)):

    lstm  i=s(xWi'+hRi'+bWi+bRi)  f=s(..)  c=tanh(..)  o=s(..)   c' = f*c0 + i*c     h' = o*tanh(c')
    gru   r=s(..)  z=s(..)  n=tanh(xWn'+bWn + r*(hRn'+bRn))      h' = (1-z)*n + z*h
    rnn   h' = act(xW'+hR'+bW+bR)

`gru_reset_before` is the other GRU, n=tanh(xWn'+bn + (r*h)Rn'): the paper's form, TF1's cells and
Keras' `reset_after=False`. No weights make it equal to `gru`.
"""

from __future__ import annotations

from dataclasses import dataclass

from rnnconvert.errors import NotConvertibleError


@dataclass(frozen=True)
class Cell:
    """A recurrent cell: its name, its gates in equation order, and those behind a sigmoid.

    Example:
        >>> CELLS["gru"].gates
        ('r', 'z', 'n')
    """

    name: str
    gates: tuple[str, ...]
    sigmoid_gates: tuple[str, ...]
    merges_biases: bool
    """True where only the sum of input and recurrent bias enters the equations."""


LSTM = Cell("lstm", ("i", "f", "c", "o"), ("i", "f", "o"), merges_biases=True)
GRU = Cell("gru", ("r", "z", "n"), ("r", "z"), merges_biases=False)
GRU_RESET_BEFORE = Cell("gru_reset_before", ("r", "z", "n"), ("r", "z"), merges_biases=True)
RNN_TANH = Cell("rnn_tanh", ("h",), (), merges_biases=True)
RNN_RELU = Cell("rnn_relu", ("h",), (), merges_biases=True)

CELLS = {cell.name: cell for cell in (LSTM, GRU, GRU_RESET_BEFORE, RNN_TANH, RNN_RELU)}


def parameter_count(cell: Cell, input_dim: int, units: int, biases: int) -> int:
    """Number of weights of one direction of one layer, with 0, 1 or 2 bias vectors per gate.

    gates * units * (input_dim + units + biases); e.g. GRU(5) on 4 inputs: 150 with one bias
    (`reset_after=False`), 165 with two (`reset_after=True`, CuDNNGRU).

    Example:
        >>> parameter_count(CELLS["gru"], input_dim=4, units=5, biases=2)
        165
    """
    return len(cell.gates) * units * (input_dim + units + biases)


def require_same_function(source: str, target: str) -> None:
    """Raise NotConvertibleError where no weights of `target` compute the cell `source`.

    Args:
        source, target: cell names.

    Example:
        >>> require_same_function("lstm", "lstm")
        >>> require_same_function("gru", "lstm")
        Traceback (most recent call last):
        ...
        rnnconvert.errors.NotConvertibleError: a gru cell cannot be written as a lstm cell
    """
    if source == target:
        return
    if {source, target} == {"gru", "gru_reset_before"}:
        raise NotConvertibleError(
            "a GRU that resets after the matmul (cuDNN, reset_after=True) and one that resets "
            "before it (reset_after=False) are different functions: r*(hR+b) is not (r*h)R+b, "
            "and no weights make them equal; use reset_after=True, or retrain"
        )
    raise NotConvertibleError(f"a {source} cell cannot be written as a {target} cell")
