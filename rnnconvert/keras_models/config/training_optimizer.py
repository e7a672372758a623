"""Optimizers of Keras 2, and their learning rates' schedules, in the form that Keras 3 reads."""

from __future__ import annotations

from typing import Any

from rnnconvert.keras_models.config.accepted import accepted_keys
from rnnconvert.keras_models.config.tree import Config

_OPTIMIZERS = frozenset(
    "SGD RMSprop Adam AdamW Adagrad Adadelta Adamax Nadam Ftrl Lion Adafactor".split()
)
_CLIPS = ("global_clipnorm", "clipnorm", "clipvalue")
"""Keras 3 takes one of them; Keras 2 applied all that were given."""
_EMA = ("use_ema", "ema_momentum", "ema_overwrite_frequency")
_NOT_SETTINGS = frozenset({"is_legacy_optimizer", "jit_compile", *_EMA})
_SCHEDULES = "keras.optimizers.schedules"


class Untranslatable(Exception):
    """A part of the training config has no name in Keras 3; the text says which."""


def translate_optimizer(value: Config) -> tuple[Config, tuple[str, ...]]:
    """An optimizer's config for Keras 3, and sentences on what was left out of it.

    Raises:
        Untranslatable: it is no optimizer of Keras 3.
    """
    name = str(value.get("class_name", "")).removeprefix("Custom>")
    old = dict(value.get("config") or {})
    inner = old.get("inner_optimizer", old.get("optimizer"))
    if name == "LossScaleOptimizer" and isinstance(inner, dict):
        return translate_optimizer(inner)  # Keras 3 scales the loss of a float16 model by itself
    if name not in _OPTIMIZERS:
        raise Untranslatable(f"optimizer {name!r} is no optimizer of Keras 3")
    if "lr" in old:
        old["learning_rate"] = old.pop("lr")
    left: list[str] = []
    _translate_rate(name, old, left)
    _choose_clip(name, old, left)
    if name == "Adagrad" and "initial_accumulator_value" not in old:
        old["initial_accumulator_value"] = 0.0  # before there was such a setting it was 0
    if old.get("epsilon", 0.0) is None:
        old["epsilon"] = 1e-7  # Keras' own meaning of None
    keys = set(accepted_keys("optimizers", name) or ())
    if not old.get("use_ema"):
        keys -= set(_EMA)
    # What is off is left out: an old Keras that reads the file does not know all of these keys.
    config = {key: item for key, item in old.items() if key in keys and item is not None}
    lost = set(old) - keys - _NOT_SETTINGS
    left += [f"{key}={old[key]!r} of {name}" for key in sorted(lost) if old[key] not in (None, 0)]
    return {"class_name": name, "config": config}, tuple(left)


def _translate_rate(name: str, old: Config, left: list[str]) -> None:
    """`decay` and schedules as Keras 3's schedules. In Nadam `decay` is that of the momentum."""
    decay = old.pop("decay", 0.0) or 0.0
    if name == "Nadam":
        decay = old.pop("schedule_decay", decay)
        left.append(f"schedule_decay={decay:g} of Nadam: Keras 3's has its own schedule")
        return
    rate = old.get("learning_rate")
    if isinstance(rate, dict):
        old["learning_rate"] = _schedule(rate, left)
        if decay:
            left.append(f"decay={decay:g} of {name}, beside another schedule")
    elif decay:
        # Keras 2 divided by 1 + decay * iteration: InverseTimeDecay with decay_steps 1.
        settings = {
            "initial_learning_rate": rate, "decay_steps": 1, "decay_rate": decay,
            "staircase": False,
        }  # fmt: skip
        old["learning_rate"] = _named("InverseTimeDecay", settings)


def _schedule(value: Config, left: list[str]) -> Any:
    """A schedule; one that Keras 3 does not have becomes the rate that it starts with."""
    name = str(value.get("class_name")).removeprefix("Custom>")
    settings = dict(value.get("config") or {})
    keys = accepted_keys("optimizers.schedules", name)
    if keys is None:
        left.append(f"the schedule {name} of the learning rate")
        return settings.get("initial_learning_rate")
    return _named(name, {key: item for key, item in settings.items() if key in keys})


def _named(name: str, settings: Config) -> Config:
    """A schedule as Keras 3 finds it: with its module, and a name that is a string."""
    return {
        "module": _SCHEDULES, "class_name": name, "registered_name": None,
        "config": {**settings, "name": settings.get("name") or name},
    }  # fmt: skip


def _choose_clip(name: str, old: Config, left: list[str]) -> None:
    given = {key: old.pop(key) for key in _CLIPS if key in old}
    given = {key: item for key, item in given.items() if item}  # 0 was off
    for key in list(given)[:1]:
        old[key] = given.pop(key)
    for key, item in given.items():
        left.append(f"{key}={item:g} of {name}, which takes one kind of clipping in Keras 3")
