"""Functions and classes that a written `model.py` takes over as they are; see `source.py`.

This file is read as text, never imported by rnnconvert: each definition stands for itself, with
`torch`, `nn` and `F` in scope. What one of them uses of the others is taken over with it.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # never imported, see above; a written model.py has these lines
    import torch
    import torch.nn.functional as F
    from torch import nn


class LSTMLoop(nn.Module):
    """A one-layer nn.LSTM whose activations are others than sigmoid and tanh; gates i, f, g, o."""

    states = 2

    def __init__(self, inputs, units, gate, activation, bias=True):
        super().__init__()
        self.gate, self.activation = gate, activation
        self.weight_ih_l0 = nn.Parameter(torch.zeros(4 * units, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.zeros(4 * units, units))
        self.bias_ih_l0 = nn.Parameter(torch.zeros(4 * units)) if bias else None
        self.bias_hh_l0 = nn.Parameter(torch.zeros(4 * units)) if bias else None

    def step(self, x, states):
        h, c = states
        gates = F.linear(x, self.weight_ih_l0, self.bias_ih_l0)
        gates = gates + F.linear(h, self.weight_hh_l0, self.bias_hh_l0)
        i, f, g, o = gates.chunk(4, 1)
        c = self.gate(f) * c + self.gate(i) * self.activation(g)
        h = self.gate(o) * self.activation(c)
        return h, [h, c]


class GRULoop(nn.Module):
    """A one-layer nn.GRU, gates r, z, n, with what nn.GRU can't do.

    That is other activations than sigmoid and tanh, and `reset_after=False`: the reset gate is
    applied before the matrix product, as in the first papers.
    """

    states = 1

    def __init__(self, inputs, units, gate, activation, reset_after, bias=True):
        super().__init__()
        self.units, self.gate, self.activation = units, gate, activation
        self.reset_after = reset_after
        self.weight_ih_l0 = nn.Parameter(torch.zeros(3 * units, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.zeros(3 * units, units))
        self.bias_ih_l0 = nn.Parameter(torch.zeros(3 * units)) if bias else None
        self.bias_hh_l0 = nn.Parameter(torch.zeros(3 * units)) if bias else None

    def step(self, x, states):
        [h] = states
        r, z, n = F.linear(x, self.weight_ih_l0, self.bias_ih_l0).chunk(3, 1)
        if self.reset_after:
            of_h = F.linear(h, self.weight_hh_l0, self.bias_hh_l0).chunk(3, 1)
            r, z = self.gate(r + of_h[0]), self.gate(z + of_h[1])
            n = self.activation(n + r * of_h[2])
        else:
            weights = self.weight_hh_l0.chunk(3)
            biases = [None] * 3 if self.bias_hh_l0 is None else self.bias_hh_l0.chunk(3)
            r = self.gate(r + F.linear(h, weights[0], biases[0]))
            z = self.gate(z + F.linear(h, weights[1], biases[1]))
            n = self.activation(n + F.linear(r * h, weights[2], biases[2]))
        h = z * h + (1 - z) * n
        return h, [h]


class RNNLoop(nn.Module):
    """A one-layer nn.RNN whose activation is another than tanh and relu."""

    states = 1

    def __init__(self, inputs, units, activation, bias=True):
        super().__init__()
        self.activation = activation
        self.weight_ih_l0 = nn.Parameter(torch.zeros(units, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.zeros(units, units))
        self.bias_ih_l0 = nn.Parameter(torch.zeros(units)) if bias else None
        self.bias_hh_l0 = nn.Parameter(torch.zeros(units)) if bias else None

    def step(self, x, states):
        h = F.linear(x, self.weight_ih_l0, self.bias_ih_l0)
        h = self.activation(h + F.linear(states[0], self.weight_hh_l0, self.bias_hh_l0))
        return h, [h]


def run_steps(module, x, states, lengths=None):
    """All outputs and the last states of one of the loops above, or of an nn.LSTM, GRU or RNN.

    Args:
        module: of one layer; `nn` ones may be bidirectional.
        x: (batch, time, features).
        states: list of (directions, batch, units), or None for zeros.
        lengths: (batch,), how many steps of each sequence count; at least 1. None: all.
    """
    if not isinstance(module, nn.RNNBase):
        return run_loop(module, x, states, lengths)
    if states is not None:
        states = tuple(states) if isinstance(module, nn.LSTM) else states[0]
    if lengths is None:
        y, last = module(x, states)
    else:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), True, enforce_sorted=False)
        y, last = module(packed, states)
        y = nn.utils.rnn.pad_packed_sequence(y, True, total_length=x.shape[1])[0]
    return y, list(last) if isinstance(last, tuple) else [last]


def run_loop(module, x, states, lengths=None):
    """As `run_steps`, step by step in Python."""
    units = module.weight_hh_l0.shape[1]
    if states is None:
        states = [x.new_zeros(1, len(x), units) for _ in range(module.states)]
    states = [state[0] for state in states]
    outputs = []
    for place in range(x.shape[1]):
        y, new = module.step(x[:, place], states)
        outputs.append(y)
        if lengths is not None:
            counts = (place < lengths)[:, None]
            new = [torch.where(counts, a, b) for a, b in zip(new, states, strict=True)]
        states = new
    return torch.stack(outputs, 1), [state[None] for state in states]


def recurrent(module, x, states=None, mask=None, backwards=False, zeros=False):
    """A recurrent layer of one direction as Keras runs it.

    Args:
        module: an nn.LSTM, GRU or RNN with batch_first, or one of the loops.
        x: (batch, time, features).
        states: list of (batch, units), or None for zeros.
        mask: (batch, time); steps where it is False keep the states.
        backwards: the sequence is read from its end; outputs come in the order of reading.
        zeros: the output of a masked step is zero, not the output before it.

    Returns:
        All outputs (batch, time, units), and the last states.
    """
    if backwards:
        x = x.flip(1)
        mask = None if mask is None else mask.flip(1)
    first = None if states is None else [state[None] for state in states]
    if mask is None:
        y, last = run_steps(module, x, first)
        return y, [state[0] for state in last]
    y, last = run_steps(module, valid_first(x, mask), first, mask.sum(1).clamp(min=1))
    place = mask.cumsum(1) - 1  # of the last valid step up to here
    y = pick(y, place, mask if zeros else place >= 0)
    empty = ~mask.any(1)[:, None]
    before = [torch.zeros_like(state[0]) for state in last] if states is None else states
    return y, [torch.where(empty, old, new[0]) for new, old in zip(last, before, strict=True)]


def bidirectional(module, x, states=None, mask=None, zeros=False):
    """A bidirectional nn.LSTM, GRU or RNN as Keras runs its two layers.

    Args:
        states: first those of the forward direction, then those of the backward one.
        others: as of `recurrent`.

    Returns:
        Outputs of the forward and of the backward direction, both in the order of time, and the
        last states of both.
    """
    count = 2 if isinstance(module, nn.LSTM) else 1
    first = None
    if states is not None:
        first = [torch.stack([states[i], states[count + i]]) for i in range(count)]
    if mask is None:
        y, last = run_steps(module, x, first)
        ahead, back = y.chunk(2, 2)
        return ahead, back, [state[d] for d in (0, 1) for state in last]
    y, last = run_steps(module, valid_first(x, mask), first, mask.sum(1).clamp(min=1))
    ahead, back = y.chunk(2, 2)
    place = mask.cumsum(1) - 1  # of the last valid step up to here
    coming = place + 1 - mask.long()  # of the first valid step from here on
    ahead = pick(ahead, place, mask if zeros else place >= 0)
    back = pick(back, coming, mask if zeros else coming < mask.sum(1, keepdim=True))
    empty = ~mask.any(1)[:, None]
    last = [state[d] for d in (0, 1) for state in last]
    before = [torch.zeros_like(state) for state in last] if states is None else states
    return (
        ahead,
        back,
        [torch.where(empty, old, new) for new, old in zip(last, before, strict=True)],
    )


def valid_first(x, mask):
    """The sequences with their masked steps moved to the end, the others in order."""
    order = (~mask).int().argsort(dim=1, stable=True)
    return x.gather(1, order[..., None].expand_as(x))


def pick(y, place, known):
    """Of each step, the output at `place`; zeros where it is not known."""
    place = place.clamp(0, y.shape[1] - 1)[..., None].expand_as(y)
    return torch.where(known[..., None], y.gather(1, place), torch.zeros_like(y))


def pad_same(x, kernel, stride, dilation, value=0.0):
    """Padding "same" as TensorFlow has it: the odd cell at the end. x is (batch, channels, ...)."""
    sides = []
    sizes = list(zip(x.shape[2:], kernel, stride, dilation, strict=True))
    for size, k, s, d in reversed(sizes):
        total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
        sides += [total // 2, total - total // 2]
    return F.pad(x, sides, value=value)


def average_pool(x, kernel, stride, same):
    """Average pooling over 1 to 3 axes; padding does not count. x is (batch, channels, ...)."""
    pool = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d][len(kernel) - 1]
    if not same:
        return pool(x, kernel, stride)
    ones = torch.ones_like(x[:1, :1])
    dilation = (1,) * len(kernel)
    padded, counted = (pad_same(each, kernel, stride, dilation) for each in (x, ones))
    return pool(padded, kernel, stride) / pool(counted, kernel, stride)


def max_pool(x, kernel, stride, same):
    """Max pooling over 1 to 3 axes. x is (batch, channels, ...)."""
    pool = [F.max_pool1d, F.max_pool2d, F.max_pool3d][len(kernel) - 1]
    if same:
        x = pad_same(x, kernel, stride, (1,) * len(kernel), float("-inf"))
    return pool(x, kernel, stride)


def masked_mean(x, mask):
    """The mean over time of the steps whose mask is True."""
    weights = mask[..., None].to(x.dtype)
    return (x * weights).sum(1) / weights.sum(1)


def merge_dot(x, y, axes, normalize):
    """Keras' Dot: the sum over one axis of each, batch by batch."""
    if normalize:
        x, y = F.normalize(x, dim=axes[0]), F.normalize(y, dim=axes[1])
    x, y = x.movedim(axes[0], -1), y.movedim(axes[1], -1)
    flat = x.flatten(1, -2) if x.dim() > 2 else x[:, None]
    other = y.flatten(1, -2) if y.dim() > 2 else y[:, None]
    product = flat @ other.transpose(1, 2)
    shape = (len(x), *x.shape[1:-1], *y.shape[1:-1])
    return product.reshape(shape if len(shape) > 1 else (len(x), 1))


class Factor(nn.Module):
    """A learned factor, as in PReLU."""

    def __init__(self, shape):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))

    def forward(self, x):
        return self.weight * x


class Attention(nn.Module):
    """Keras' Attention and AdditiveAttention over (batch, steps, features).

    `mode` is how a query and a key are compared: "dot", "concat" or "additive".
    """

    def __init__(self, mode, scale=None, concat_score_weight=None):
        super().__init__()
        self.mode = mode
        self.scale = None if scale is None else nn.Parameter(torch.zeros(scale))
        if concat_score_weight is not None:
            self.concat_score_weight = nn.Parameter(torch.zeros(concat_score_weight))

    def forward(self, query, value, key, query_mask=None, value_mask=None):
        scale = 1.0 if self.scale is None else self.scale
        if self.mode == "dot":
            scores = scale * (query @ key.transpose(1, 2))
        else:
            both = query[:, :, None] + key[:, None]
            if self.mode == "concat":
                scores = self.concat_score_weight * torch.tanh(scale * both).sum(-1)
            else:
                scores = (scale * torch.tanh(both)).sum(-1)
        if value_mask is not None:
            scores = torch.where(value_mask[:, None], scores, scores - 1e9)
        y = torch.softmax(scores, -1) @ value
        return y if query_mask is None else y.masked_fill(~query_mask[..., None], 0)
