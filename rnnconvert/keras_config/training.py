"""The `training_config` of a whole-model file (loss, metrics, optimizer) as Keras 3 reads it.

What has no Keras 3 name is not guessed at: then the whole training config is left out, so that
`load_model(path)` works, and the caller warns.
"""

from __future__ import annotations

import copy
from typing import Any

from rnnconvert.keras_config.tree import Config

_NAMES = {
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_logarithmic_error",
    "kld": "kl_divergence",
    "kullback_leibler_divergence": "kl_divergence",
    "logcosh": "log_cosh",
}
_LOSSES = frozenset(
    """
    mean_squared_error mean_absolute_error mean_absolute_percentage_error
    mean_squared_logarithmic_error squared_hinge hinge categorical_hinge log_cosh huber
    categorical_crossentropy sparse_categorical_crossentropy binary_crossentropy
    kl_divergence poisson cosine_similarity
    """.split()
)
_METRICS = _LOSSES | frozenset(
    """
    accuracy acc categorical_accuracy binary_accuracy sparse_categorical_accuracy
    top_k_categorical_accuracy sparse_top_k_categorical_accuracy crossentropy ce
    """.split()
)
_LOSS_CLASSES = frozenset(
    """
    MeanSquaredError MeanAbsoluteError MeanAbsolutePercentageError
    MeanSquaredLogarithmicError SquaredHinge Hinge CategoricalHinge LogCosh Huber
    CategoricalCrossentropy SparseCategoricalCrossentropy BinaryCrossentropy KLDivergence
    Poisson CosineSimilarity
    """.split()
)
_OPTIMIZER_KEYS = {
    "SGD": ("momentum", "nesterov"),
    "RMSprop": ("rho", "momentum", "epsilon", "centered"),
    "Adam": ("beta_1", "beta_2", "epsilon", "amsgrad"),
    "Adagrad": ("initial_accumulator_value", "epsilon"),
    "Adadelta": ("rho", "epsilon"),
    "Adamax": ("beta_1", "beta_2", "epsilon"),
    "Nadam": ("beta_1", "beta_2", "epsilon"),
}
_COMMON_KEYS = (
    "name",
    "learning_rate",
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
)


class Untranslatable(Exception):
    """A part of the training config has no name in Keras 3; the text says which."""


def translate(training: Config, target: str = "keras3") -> Config:
    """The training config in a form that Keras 3 and Keras 2 both read.

    Args:
        training: the file's; not changed.
        target: for "keras2" the mark that tells Keras' two generations of optimizers apart is
            kept; Keras 3 refuses it, and without it Keras 2 takes the older generation.

    Raises:
        Untranslatable: when a loss, metric or optimizer has no Keras 3 name.
    """
    result = copy.deepcopy(training)
    if "loss" in result:
        result["loss"] = _nested(result["loss"], _loss)
    for key in ("metrics", "weighted_metrics"):
        if result.get(key) is not None:
            result[key] = _of_one_output(_nested(result[key], _metric))
    for key in ("metrics", "loss_weights", "sample_weight_mode"):  # Keras < 2.4 insists on them
        result.setdefault(key, None)
    if result.get("optimizer_config") is not None:
        old = result["optimizer_config"]
        result["optimizer_config"] = _optimizer(old)
        if target == "keras2" and is_new_generation(training):
            result["optimizer_config"]["config"]["is_legacy_optimizer"] = False
    else:
        raise Untranslatable("it has no optimizer_config")
    return result


def optimizer_class(training: Config) -> str:
    """Class of the optimizer, without the prefix that Keras 2.11 to 2.15 wrote."""
    config = training.get("optimizer_config") or {}
    return str(config.get("class_name", "")).removeprefix("Custom>")


def is_new_generation(training: Config) -> bool:
    """Whether the optimizer is of the generation that came with Keras 2.11."""
    config = (training.get("optimizer_config") or {}).get("config") or {}
    return config.get("is_legacy_optimizer") is False


def _nested(value: Any, translate_one: Any) -> Any:
    """Apply to each single loss or metric in a list or dict of them."""
    if value is None or isinstance(value, str):
        return value if value is None else translate_one(value)
    if isinstance(value, dict) and "class_name" in value:
        return translate_one(value)
    if isinstance(value, dict):
        return {key: _nested(item, translate_one) for key, item in value.items()}
    if isinstance(value, list):
        return [_nested(item, translate_one) for item in value]
    raise Untranslatable(f"{value!r} is no loss or metric")


def _of_one_output(metrics: Any) -> Any:
    """The metrics of a model's only output as a plain list: Keras 3.0 refuses a list in a list."""
    is_nested = isinstance(metrics, list) and len(metrics) == 1 and isinstance(metrics[0], list)
    return metrics[0] if is_nested else metrics


def _loss(value: Any) -> Any:
    if isinstance(value, str):
        name = _NAMES.get(value, value)
        if name not in _LOSSES:
            raise Untranslatable(f"loss {value!r} is no loss of Keras 3")
        return name
    name = str(value["class_name"])
    if name not in _LOSS_CLASSES:
        raise Untranslatable(f"loss {name!r} is no loss of Keras 3")
    config = dict(value.get("config") or {})
    if config.get("reduction") == "auto":
        config["reduction"] = "sum_over_batch_size"
    config.pop("fn", None)
    return {"class_name": name, "config": config}


def _metric(value: Any) -> Any:
    """A metric by its name: a wrapped function is written as that function."""
    if isinstance(value, dict):
        config = value.get("config")
        wrapped = config.get("fn") if isinstance(config, dict) else None
        if value["class_name"] == "MeanMetricWrapper" and isinstance(wrapped, str):
            value = wrapped
        else:
            raise Untranslatable(f"metric {value['class_name']!r} is no metric of Keras 3")
    name = _NAMES.get(value, value)
    if name not in _METRICS:
        raise Untranslatable(f"metric {value!r} is no metric of Keras 3")
    return name


def _optimizer(value: Config) -> Config:
    name = optimizer_class({"optimizer_config": value})
    if name not in _OPTIMIZER_KEYS:
        raise Untranslatable(f"optimizer {name!r} is no optimizer of Keras 3")
    old = dict(value.get("config") or {})
    if "lr" in old:
        old["learning_rate"] = old.pop("lr")
    decay = old.pop("decay", 0.0)
    if decay:
        # Keras 2 divided by 1 + decay * iteration: InverseTimeDecay with decay_steps 1.
        old["learning_rate"] = {
            "class_name": "InverseTimeDecay",
            "config": {
                "initial_learning_rate": old.get("learning_rate"),
                "decay_steps": 1,
                "decay_rate": decay,
                "staircase": False,
                "name": None,
            },
        }
    if not old.get("use_ema"):
        for key in ("use_ema", "ema_momentum", "ema_overwrite_frequency"):
            old.pop(key, None)
    if old.get("epsilon", 0.0) is None:
        old["epsilon"] = 1e-7  # Keras' own meaning of None
    keys = _COMMON_KEYS + _OPTIMIZER_KEYS[name]
    # What is off is left out: Keras 2 reads this as an optimizer of its older generation, which
    # does not know all of these keys.
    config = {key: old[key] for key in keys if old.get(key) is not None}
    return {"class_name": name, "config": config}
