"""The optimizer variables of a Keras HDF5 file: which slot of which weight each one is.

Three ways of naming were in use (positions; `Adam/<variable>/m`; `Adam/m/<variable>`), and the
order differs with them. Keras reads by position, so the order matters on writing too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnconvert.keras_models.plan import Tensor

SLOTS = {
    "m": 1, "v": 2, "vhat": 2, "momentum": 1, "rms": 2, "velocity": 2, "accumulator": 2, "mg": 1,
    "velocity_hat": 2, "average_gradient": 1,
}  # fmt: skip
"""Known slots, and the power of the gradient that each holds: it decides how a slot scales when
its weight is scaled. RMSprop's momentum is a step, see `slot_power`."""

_POSITIONAL = {
    "Adam": ("m", "v", "vhat"),
    "RMSprop": ("rms",),
    "SGD": ("momentum",),
    "Adagrad": ("accumulator",),
}
_INTERLEAVED = ("m", "v")
_SCALARS = ("iter", "iteration", "iterations", "learning_rate", "decay", "beta_1", "beta_2")


@dataclass(frozen=True)
class OptimizerSlot:
    """One slot variable: its kind, the weight that it belongs to, and where it lies."""

    kind: str
    weight: Tensor
    tensor: Tensor


@dataclass(frozen=True)
class OptimizerState:
    """The state as the file holds it.

    Attributes:
        iteration: the step counter, None where the optimizer kept none (Keras 2.2's RMSprop).
        slots: in the file's order.
    """

    iteration: Tensor | None
    slots: tuple[OptimizerSlot, ...]

    def of(self, weight: Tensor) -> list[OptimizerSlot]:
        return [slot for slot in self.slots if slot.weight.path == weight.path]


class Unresolved(Exception):
    """The optimizer's variables can't be told apart; the text says why."""


def resolve_slots(tensors: list[Tensor], trainable: list[Tensor], optimizer: str) -> OptimizerState:
    """Tell which slot of which weight each optimizer variable is.

    Args:
        tensors: the optimizer's variables, in the file's order.
        trainable: the model's trainable weights, in the order of the model.
        optimizer: class name, e.g. "Adam".

    Raises:
        Unresolved: names and shapes do not tell.
    """
    scalars = [t for t in tensors if t.name.split("/")[-1] in _SCALARS and t.shape == ()]
    rest = [t for t in tensors if t not in scalars]
    iteration = next((t for t in scalars if t.name.split("/")[-1].startswith("iter")), None)
    weights = {weight.name: weight for weight in trainable}
    named = [_named_slot(t, weights) for t in rest]
    slots = [slot for slot in named if slot is not None]
    if len(slots) < len(rest):
        slots = _positional(rest, trainable, optimizer)
    for slot in slots:
        if slot.tensor.shape != slot.weight.shape:
            raise Unresolved(
                f"{slot.tensor.path} has shape {slot.tensor.shape}, its weight "
                f"{slot.weight.name} {slot.weight.shape}"
            )
    return OptimizerState(iteration, tuple(slots))


def in_order(state: OptimizerState, trainable: list[Tensor], *, interleaved: bool) -> list[Tensor]:
    """The state's variables in the order in which Keras reads them, the step counter first.

    Args:
        interleaved: Adam's m and v of each weight in turn, as the optimizers of Keras 2.11 and
            later hold them; the legacy ones hold one slot for all weights, then the next.
    """
    kinds = list(dict.fromkeys(slot.kind for slot in state.slots))
    place = {weight.path: index for index, weight in enumerate(trainable)}

    def key(slot: OptimizerSlot) -> tuple[int, int, int]:
        kind = kinds.index(slot.kind)
        index = place[slot.weight.path]
        return (
            (0, index, kind) if interleaved and slot.kind in _INTERLEAVED else (1 + kind, index, 0)
        )

    counter = [] if state.iteration is None else [state.iteration]
    return counter + [slot.tensor for slot in sorted(state.slots, key=key)]


def slot_power(kind: str, optimizer: str) -> int:
    """Power of the gradient in a slot: 1 for a mean, 2 for a mean of squares, 0 for a step."""
    if optimizer == "RMSprop" and kind == "momentum":
        return 0
    return SLOTS[kind]


def _named_slot(tensor: Tensor, weights: dict[str, Tensor]) -> OptimizerSlot | None:
    """A slot whose name holds both its weight's name and its kind."""
    parts = tensor.name.split("/")
    if parts[-1] in SLOTS:
        for start in range(len(parts) - 1):
            weight = weights.get("/".join(parts[start:-1]))
            if weight is not None:
                return OptimizerSlot(parts[-1], weight, tensor)
    for place, part in enumerate(parts):
        if part in SLOTS and "/".join(parts[place + 1 :]) in weights:
            return OptimizerSlot(part, weights["/".join(parts[place + 1 :])], tensor)
    return None


def _positional(rest: list[Tensor], trainable: list[Tensor], optimizer: str) -> list[OptimizerSlot]:
    """Slots known by their place alone: all of one kind, then all of the next."""
    kinds = _POSITIONAL.get(optimizer)
    count = len(trainable)
    if kinds is None or not count or len(rest) % count:
        raise Unresolved(
            f"{len(rest)} variables of {optimizer or 'an unknown optimizer'} for {count} weights"
        )
    blocks = [rest[i : i + count] for i in range(0, len(rest), count)]
    if len(blocks) > len(kinds):
        raise Unresolved(f"{len(blocks)} slots for each weight, {optimizer} has {len(kinds)}")
    slots = []
    for kind, block in zip(kinds, blocks, strict=False):
        if all(tensor.shape == (1,) for tensor in block):
            continue  # placeholders: Keras 2.2 writes them for the vhat of a plain Adam
        slots += [OptimizerSlot(kind, w, t) for w, t in zip(trainable, block, strict=True)]
    return slots


def merged_slots_agree(slot: np.ndarray[Any, Any]) -> bool:
    """Whether the slots of input and recurrent bias are the same, as their gradients are."""
    halves = slot.reshape(2, -1)
    return bool(np.array_equal(halves[0], halves[1]))
