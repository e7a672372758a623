"""The `training_config` of a whole-model file (loss, metrics, optimizer) as Keras 3 reads it.

What Keras 3 can't express is left out and named: a metric or a setting of the optimizer by itself;
without its loss or optimizer a model can't be compiled, so then the whole training config goes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rnnconvert.keras_models.config.accepted import accepted_keys
from rnnconvert.keras_models.config.training_optimizer import Untranslatable, translate_optimizer
from rnnconvert.keras_models.config.tree import Config, layer_name, members, parse_version

_NAMES = {
    "bce": "binary_crossentropy",
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_logarithmic_error",
    "kld": "kl_divergence",
    "kullback_leibler_divergence": "kl_divergence",
    "logcosh": "log_cosh",
    "huber_loss": "huber",
    "cosine": "cosine_similarity",
    "cosine_proximity": "cosine_similarity",
}
_LOSSES = frozenset(
    """
    mean_squared_error mean_absolute_error mean_absolute_percentage_error
    mean_squared_logarithmic_error squared_hinge hinge categorical_hinge log_cosh huber
    categorical_crossentropy sparse_categorical_crossentropy binary_crossentropy
    kl_divergence poisson cosine_similarity
    """.split()
)
_ONLY_AS_CLASS = {
    "binary_focal_crossentropy": "BinaryFocalCrossentropy",
    "categorical_focal_crossentropy": "CategoricalFocalCrossentropy",
}
"""Functions that Keras 3 does not find by their names."""
_METRICS = frozenset(
    """
    mean_squared_error mean_absolute_error mean_absolute_percentage_error
    mean_squared_logarithmic_error squared_hinge hinge categorical_hinge
    categorical_crossentropy sparse_categorical_crossentropy binary_crossentropy
    kl_divergence poisson cosine_similarity
    accuracy acc categorical_accuracy binary_accuracy sparse_categorical_accuracy
    top_k_categorical_accuracy sparse_top_k_categorical_accuracy
    """.split()
)
"""Metrics that Keras 3 knows by the name of a function."""
_BY_LOSS = {
    "acc": {"binary_crossentropy": "binary_accuracy"},
    "accuracy": {"binary_crossentropy": "binary_accuracy"},
    "ce": {}, "crossentropy": {},
}  # fmt: skip
"""Metrics that Keras 2 chose by the loss; a crossentropy is that of the loss' own name."""
_NOT_IN_KERAS3 = frozenset({"fn", "_fn", "dtype", "registered_name"})


@dataclass(frozen=True)
class _Model:
    """What a translation has to know of the model: who wrote it, and its outputs' names."""

    keras_version: str | None
    outputs: Sequence[str] | None

    @property
    def cosine_loss_is_positive(self) -> bool:
        """TF 1.15 forgot the minus: its cosine loss grows with the similarity."""
        return self.keras_version == "2.2.4-tf"

    @property
    def cosine_metric_is_negative(self) -> bool:
        """Up to Keras 2.2 the metric was the loss."""
        version = parse_version(self.keras_version)
        is_tf = "tf" in (self.keras_version or "")
        return version is not None and version < (2, 3) and not is_tf


def translate(
    training: Config,
    target: str = "keras3",
    *,
    keras_version: str | None = None,
    outputs: Sequence[str] | None = None,
) -> tuple[Config, tuple[str, ...]]:
    """The training config in a form that the target reads.

    Args:
        training: the file's; not changed.
        target: with "keras2" it stays as it is: each Keras 2 reads the forms of those before it.
        keras_version: of the writer; it decides what "cosine" means.
        outputs: names of the model's outputs, where they are known.

    Returns:
        The config, and sentences on what was left out of it.

    Raises:
        Untranslatable: when a loss or the optimizer has no Keras 3 name.
    """
    result = copy.deepcopy(training)
    version = parse_version(keras_version)
    if version is not None and version[0] >= 3:
        return _with_full_names(result), ()
    if not result.get("optimizer_config"):
        raise Untranslatable("it has no optimizer_config")
    if target == "keras2":
        for key in ("loss_weights", "sample_weight_mode"):
            result.setdefault(key, None)  # TF 1.15 asks for it
        return result, ()
    model, left = _Model(keras_version, outputs), list[str]()
    losses = _per_output(result.get("loss"), outputs)
    if "loss" in result:
        result["loss"] = _map(losses, lambda value, _: _loss(value, model), None)
    for key in ("metrics", "weighted_metrics"):
        if result.get(key) is not None:
            given = _per_output(_spread(result[key], outputs), outputs)
            result[key] = _map(given, _metric_of(model, left), losses)
    weights = _per_output(result.get("loss_weights"), outputs)
    result["loss_weights"] = [weights] if isinstance(weights, int | float) else weights
    if result.pop("sample_weight_mode", None) is not None:
        left.append("sample_weight_mode, which Keras 3 does not have")
    result["optimizer_config"], lost = translate_optimizer(result["optimizer_config"])
    return result, (*left, *lost)


def _with_full_names(training: Config) -> Config:
    """Keras 3 writes "mse" into an .h5 file as it was given, and does not read it there."""

    def full(value: Any, _: Any) -> Any:
        return _NAMES.get(value.lower(), value) if isinstance(value, str) else value

    for key in ("loss", "metrics", "weighted_metrics"):
        if training.get(key) is not None:
            training[key] = _map(training[key], full, None)
    return training


def names_in(training: Config) -> list[str]:
    """Every loss and metric that a training config names."""
    found: list[str] = []

    def note(value: Any, _: Any) -> Any:
        if isinstance(value, dict) and value["class_name"] == "function":
            value = value["config"]
        found.append(str(value if isinstance(value, str) else value["class_name"]))
        return value

    for key in ("loss", "metrics", "weighted_metrics"):
        _map(training.get(key), note, None)
    return found


def optimizer_class(training: Config) -> str:
    """Class of the optimizer, without the prefix that Keras 2.11 to 2.15 wrote."""
    config = training.get("optimizer_config") or {}
    return str(config.get("class_name", "")).removeprefix("Custom>")


def is_new_generation(training: Config) -> bool:
    """Whether the optimizer is of the generation that came with Keras 2.11."""
    config = (training.get("optimizer_config") or {}).get("config") or {}
    return config.get("is_legacy_optimizer") is False


def output_names(model: Config) -> tuple[str, ...] | None:
    """Names of a model's outputs as Keras calls them, by its config; None where it does not say."""
    config = model.get("config")
    if model.get("class_name") == "Sequential":
        layers = members(model)
        return (layer_name(layers[-1]),) if layers else None
    found = config.get("output_layers") if isinstance(config, dict) else None
    if not isinstance(found, list) or not found:
        return None
    listed = found if isinstance(found[0], list) else [found]
    return tuple(str(place[0]) for place in listed)


# --- outputs --------------------------------------------------------------------------------


def _per_output(value: Any, outputs: Sequence[str] | None) -> Any:
    """Of a model with one output what is given for it, not a dict or list of one."""
    if outputs is None or len(outputs) != 1:
        return value
    if isinstance(value, dict) and set(value) == set(outputs):
        return value[outputs[0]]
    return value[0] if isinstance(value, list) and _is_one_loss(value) else value


def _is_one_loss(value: list[Any]) -> bool:
    """A list of one entry that is a list itself, a number or nothing; else it is of metrics."""
    return len(value) == 1 and (value[0] is None or isinstance(value[0], list | int | float))


def _spread(value: Any, outputs: Sequence[str] | None) -> Any:
    """Metrics in one flat list: in Keras 2 they were for every output, in Keras 3 one for each."""
    several = outputs is not None and len(outputs) > 1
    if not several or not isinstance(value, list) or not value:
        return value
    assert outputs is not None
    if all(isinstance(item, list) or item is None for item in value):
        return value
    return [list(value) for _ in outputs]


def _is_single(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and "class_name" in value)


_Translation = Callable[[Any, Any], Any]


def _map(value: Any, translate_one: _Translation, losses: Any) -> Any:
    """Apply to each single loss or metric in a list or dict of them; None is left out of lists.

    Args:
        translate_one: gets it, and the loss of the same output if there is one.
    """
    if value is None:
        return None
    if _is_single(value):
        return translate_one(value, losses if _is_single(losses) else None)
    if isinstance(value, dict):
        of = losses if isinstance(losses, dict) and not _is_single(losses) else {}
        mapped = {
            key: _map(item, translate_one, of.get(key, losses if _is_single(losses) else None))
            for key, item in value.items()
        }
        return {key: item for key, item in mapped.items() if item is not None}
    if isinstance(value, list):
        each = isinstance(losses, list) and len(losses) == len(value)
        found = [
            (item, _map(item, translate_one, losses[place] if each else losses))
            for place, item in enumerate(value)
        ]
        return [new for old, new in found if new is not None or not _is_single(old)]
    raise Untranslatable(f"{value!r} is no loss or metric")


# --- losses ---------------------------------------------------------------------------------


def _loss(value: Any, model: _Model) -> Any:
    if isinstance(value, dict) and value["class_name"] == "function":
        value = value["config"]
    text = value if isinstance(value, str) else str(value["class_name"])
    config = {} if isinstance(value, str) else dict(value.get("config") or {})
    if text == "LossFunctionWrapper" and isinstance(config.get("fn"), str):
        text = config["fn"]
    name = _NAMES.get(text.lower(), text)
    if "cosine" in name.lower() and model.cosine_loss_is_positive:
        raise Untranslatable(
            f"loss {text!r} of TensorFlow 1.15 grows with the similarity, Keras 3's falls"
        )
    if name in _LOSSES:
        return name
    if name in _ONLY_AS_CLASS and isinstance(value, str):
        value, name = {}, _ONLY_AS_CLASS[name]
    keys = accepted_keys("losses", name)
    if isinstance(value, str) or keys is None:
        raise Untranslatable(f"loss {text!r} is no loss of Keras 3")
    if config.get("reduction") == "auto":
        config["reduction"] = "sum_over_batch_size"
    kept = {key: item for key, item in config.items() if key in keys}
    lost = {key for key in set(config) - set(kept) - _NOT_IN_KERAS3 if config[key] is not None}
    if lost:
        raise Untranslatable(f"loss {text!r} with {', '.join(sorted(lost))} is not in Keras 3")
    return {"class_name": name, **_module("losses"), "config": kept}


def _function(name: str) -> Config:
    """A loss function that Keras 3 has, but finds only with its module."""
    return {
        "class_name": "function", "config": name, "module": "keras.losses",
        "registered_name": name,
    }  # fmt: skip


def _module(kind: str) -> Config:
    return {"module": f"keras.{kind}", "registered_name": None}


# --- metrics --------------------------------------------------------------------------------


def _metric_of(model: _Model, left: list[str]) -> _Translation:
    """A translation of one metric that puts into `left` what has no form, and gives None."""

    def translate_one(value: Any, loss: Any) -> Any:
        try:
            return _metric(value, loss, model)
        except Untranslatable as error:
            left.append(str(error))
            return None

    return translate_one


def _metric(value: Any, loss: Any, model: _Model) -> Any:
    """A metric by its name, or by its class where it has a name or settings of its own."""
    if isinstance(value, dict) and value["class_name"] == "function":
        value = value["config"]
    if isinstance(value, str):
        return _named_metric(value, value, loss, model)
    name, config = str(value["class_name"]), dict(value.get("config") or {})
    wrapped = config.get("fn")
    if name == "MeanMetricWrapper" and isinstance(wrapped, str):
        settings = set(config) - {"fn", "name", "dtype"}
        if not settings:
            return _named_metric(wrapped, str(config.get("name", wrapped)), loss, model)
        raise Untranslatable(f"metric {wrapped!r} with {', '.join(sorted(settings))}")
    keys = accepted_keys("metrics", name)
    if keys is None:
        raise Untranslatable(f"metric {name!r}, which Keras 3 does not have")
    kept = {key: item for key, item in config.items() if key in keys}
    lost = {key for key in set(config) - set(kept) - _NOT_IN_KERAS3 if config[key] is not None}
    if lost:
        raise Untranslatable(f"metric {name!r} with {', '.join(sorted(lost))}")
    return {"class_name": name, **_module("metrics"), "config": kept}


def _named_metric(text: str, called: str, loss: Any, model: _Model) -> Any:
    """A function as a metric; `called` is the name that its values go by."""
    name = _NAMES.get(text.lower(), text)
    if text in _BY_LOSS:
        name = _chosen_by_loss(text, loss)
    if name == "cosine_similarity" and model.cosine_metric_is_negative:
        return _wrapped(name, called)
    if name in _METRICS:
        class_name = _CLASSES.get(name)
        if called in (text, name) or class_name is None:
            return name
        return {"class_name": class_name, **_module("metrics"), "config": {"name": called}}
    if name in _LOSSES:
        return _wrapped(name, called)
    raise Untranslatable(f"metric {text!r}, which Keras 3 does not have")


def _chosen_by_loss(text: str, loss: Any) -> str:
    """What Keras 2 made of "accuracy" and "crossentropy", which it decided by the loss."""
    told = loss if isinstance(loss, str) else (loss or {}).get("class_name", "")
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in str(told)).lstrip("_")
    loss_name = _NAMES.get(snake, snake)
    if text in ("acc", "accuracy"):
        return _BY_LOSS[text].get(loss_name, text)
    if loss_name.endswith("crossentropy") and loss_name in _METRICS:
        return loss_name
    return text


def _wrapped(name: str, called: str) -> Config:
    """A loss function as a metric."""
    config = {"name": called, "fn": _function(name)}
    return {"class_name": "MeanMetricWrapper", **_module("metrics"), "config": config}


_CLASSES = {
    "mean_squared_error": "MeanSquaredError",
    "mean_absolute_error": "MeanAbsoluteError",
    "mean_absolute_percentage_error": "MeanAbsolutePercentageError",
    "mean_squared_logarithmic_error": "MeanSquaredLogarithmicError",
    "squared_hinge": "SquaredHinge",
    "hinge": "Hinge",
    "categorical_hinge": "CategoricalHinge",
    "categorical_crossentropy": "CategoricalCrossentropy",
    "sparse_categorical_crossentropy": "SparseCategoricalCrossentropy",
    "binary_crossentropy": "BinaryCrossentropy",
    "kl_divergence": "KLDivergence",
    "poisson": "Poisson",
    "cosine_similarity": "CosineSimilarity",
    "categorical_accuracy": "CategoricalAccuracy",
    "binary_accuracy": "BinaryAccuracy",
    "sparse_categorical_accuracy": "SparseCategoricalAccuracy",
    "top_k_categorical_accuracy": "TopKCategoricalAccuracy",
    "sparse_top_k_categorical_accuracy": "SparseTopKCategoricalAccuracy",
}
"""The class of each of `_METRICS`, whose values can go by another name."""
