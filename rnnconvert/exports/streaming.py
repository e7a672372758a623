"""States of recurrent layers as inputs and outputs of a model, and one time step at a time.

The model is built once more, from the same layers, call by call; only recurrent layers are new
ones, which take and give their states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rnnconvert.errors import NotConvertibleError
from rnnconvert.exports.options import ExportOptions
from rnnconvert.exports.sources import Source, State

PER_STEP = frozenset(
    "Dense EinsumDense Activation Dropout SpatialDropout1D GaussianNoise GaussianDropout "
    "AlphaDropout ActivityRegularization Embedding Masking TimeDistributed Identity Rescaling "
    "Normalization ReLU LeakyReLU ELU UnitNormalization "
    "Add Subtract Multiply Average Maximum Minimum".split()
)
"""Layers and operations that make each step of their output of that step of their input alone."""
_BY_AXIS = frozenset(
    "Concatenate LayerNormalization BatchNormalization Softmax Any ExpandDims".split()
)
"""They do so where their axis is the last one; of the last two Keras makes masks."""
_ELEMENTWISE = frozenset(
    "Add Subtract Multiply Divide TrueDivide Maximum Minimum Negative Absolute Square Sqrt Exp Log "
    "Tanh Sigmoid Relu Softplus Softsign Silu Gelu Elu Selu HardSigmoid HardTanh Cast Power Clip "
    "NotEqual Equal LogicalAnd LogicalOr LogicalNot ZerosLike OnesLike".split()
)
"""Operations of `keras.ops` that do so."""


def with_states(source: Source, options: ExportOptions) -> Source:
    """The model whose states are inputs and outputs, where it is stateful or streams.

    Raises:
        NotConvertibleError: `--stateful-step`, and a layer can't be run step by step; it is named.
    """
    if source.is_graph:
        return source
    if options.stateful_step:
        return _StepModel(source.model).build(source)
    if any(getattr(layer, "stateful", False) is True for layer in source.model._flatten_layers()):
        return _WithStates(source.model).build(source)
    return source


def _functional(model: Any) -> Any:
    functional = getattr(model, "_functional", None) or model
    if not getattr(functional, "_nodes_by_depth", None):
        raise NotConvertibleError(
            f"{model.name} is a subclassed model, whose layers can't be told one by one"
        )
    return functional


def _is_rnn(layer: Any) -> bool:
    import keras

    return isinstance(layer, keras.layers.RNN)


@dataclass
class _WithStates:
    """A model built anew; `states` are those that it takes and gives."""

    model: Any
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    def build(self, source: Source) -> Source:
        import keras

        given = [self.new_input(tensor) for tensor in self.model.inputs]
        results = self.replay(self.model, given)
        self.require_streams()
        built = keras.Model([*given, *self.inputs], [*results, *self.outputs])
        return replace(source, model=built, states=tuple(self.states))

    def require_streams(self) -> None:
        pass

    def new_input(self, tensor: Any) -> Any:
        """An input like that of the model; its batch is open."""
        import keras

        return keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=_input_name(tensor))

    def replay(self, model: Any, tensors: list[Any]) -> list[Any]:
        """Call what a model calls, in its order, on other tensors."""
        import keras

        functional = _functional(model)
        made = {id(old): new for old, new in zip(functional.inputs, tensors, strict=True)}
        for node in _calls(functional):
            args, kwargs = node.arguments.fill_in(made)
            outputs = keras.tree.flatten(self.call(node.operation, args, dict(kwargs)))
            for old, new in zip(node.output_tensors, outputs, strict=True):
                made[id(old)] = new
        return [made[id(tensor)] for tensor in functional.outputs]

    def call(self, operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        import keras

        if isinstance(operation, keras.Model) and _holds_rnn(operation):
            return self.replay(operation, keras.tree.flatten(args))
        if getattr(operation, "stateful", False) is True:
            return self.stateful(operation, args, kwargs)
        return operation(*args, **kwargs)

    def stateful(self, layer: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A recurrent layer, or a Bidirectional, with its states as inputs and outputs."""
        config = layer.get_config()
        for part in (config, *(config[key]["config"] for key in ("layer", "backward_layer")
                               if config.get(key))):  # fmt: skip
            if "return_state" in part:
                part.update(stateful=False, return_state=True)
        new = type(layer).from_config(config)
        x = args[0]
        initial = kwargs.pop("initial_state", None)
        if initial is not None or len(args) > 1:
            raise NotConvertibleError(
                f"{layer.name} is stateful, and its initial state is computed by the model"
            )
        states = self.take_states(layer)
        result, *last = new(x, initial_state=states, mask=_mask(x, kwargs))
        new.set_weights(_plain_weights(layer))
        self.give_states(layer, last)
        return (result, *last) if layer.return_state else result

    def take_states(self, layer: Any) -> list[Any]:
        """New inputs for the states of a layer."""
        import keras

        found = []
        for name, size, dtype in _state_names(layer):
            taken = f"{layer.name}_{name}"
            again = sum(state.layer == layer.name and state.input.startswith(taken)
                        for state in self.states)  # fmt: skip
            taken = f"{taken}_{again + 1}" if again else taken
            found.append(keras.Input((size,), dtype=dtype, name=taken))
            self.inputs.append(found[-1])
            self.states.append(State(layer.name, taken, f"{taken}_out", (size,), dtype))
        return found

    def give_states(self, layer: Any, tensors: list[Any]) -> None:
        """States of the layer that came last, as outputs."""
        import keras

        for state, tensor in zip(self.states[-len(tensors) :], tensors, strict=True):
            self.outputs.append(keras.layers.Identity(name=state.output)(tensor))


@dataclass
class _StepModel(_WithStates):
    """A model of one time step.

    Attributes:
        timed: tensors of the new model whose axis 1 is the one step; by id, with the tensor.
        stepped: inputs of the original that recurrent layers get to see as steps; by id.
    """

    timed: dict[int, Any] = field(default_factory=dict)
    stepped: set[int] = field(default_factory=set)

    def build(self, source: Source) -> Source:
        self.stepped = _stepped_inputs(self.model)
        found = super().build(source)
        stepped = tuple(id(tensor) in self.stepped for tensor in self.model.inputs)
        return replace(found, is_step=True, stepped=stepped)

    def require_streams(self) -> None:
        if not self.states:
            raise NotConvertibleError("--stateful-step: the model has no recurrent layer")

    def new_input(self, tensor: Any) -> Any:
        import keras

        if id(tensor) not in self.stepped:
            return super().new_input(tensor)
        shape = (1, *tensor.shape[2:])
        made = keras.Input(shape, dtype=tensor.dtype, name=_input_name(tensor))
        self.timed[id(made)] = made
        return made

    def call(self, operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        import keras

        tensors = [t for t in keras.tree.flatten((args, kwargs)) if hasattr(t, "shape")]
        if not any(id(tensor) in self.timed for tensor in tensors):
            return operation(*args, **kwargs)
        if isinstance(operation, keras.Model):
            return self.replay(operation, keras.tree.flatten(args))
        if _is_rnn(operation):
            return self.step(operation, args, kwargs)
        _require_per_step(operation)
        result = operation(*args, **kwargs)
        for output in keras.tree.flatten(result):
            self.timed[id(output)] = output
        return result

    def step(self, layer: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A recurrent layer on one step: what it gives is its state h.

        So it is also where a mask leaves the step out, and Keras repeats the output before.
        """
        import keras

        if layer.go_backwards:
            raise _refusal(layer, "begins with the last step (go_backwards)")
        if type(layer.cell).__name__ not in ("LSTMCell", "GRUCell", "SimpleRNNCell"):
            raise _refusal(layer, f"has a {type(layer.cell).__name__}")
        if len(args) > 1 or kwargs.get("initial_state") is not None:
            raise _refusal(layer, "gets an initial state that the model computes")
        if layer.zero_output_for_mask:
            raise _refusal(layer, "gives zeros where a mask leaves a step out")
        config = {**layer.get_config(), "stateful": False, "return_state": True, "unroll": False}
        new = type(layer).from_config({**config, "return_sequences": False})
        states = self.take_states(layer)
        mask = _mask(args[0], kwargs)
        _, *last = new(args[0], initial_state=states, mask=mask)
        new.set_weights(_plain_weights(layer))
        self.give_states(layer, last)
        if not layer.return_sequences:
            return (last[0], *last) if layer.return_state else last[0]
        steps = keras.layers.Reshape((1, last[0].shape[-1]), name=f"{layer.name}_step")(last[0])
        self.timed[id(steps)] = steps
        if mask is not None:
            _set_mask(steps, mask)
        return (steps, *last) if layer.return_state else steps


def _require_per_step(operation: Any) -> None:
    """Raise unless an operation makes each step of that step alone."""
    name = type(operation).__name__
    is_layer = hasattr(operation, "get_weights")
    if name == "Bidirectional":
        raise _refusal(operation, "needs the whole sequence (Bidirectional)")
    if name in _BY_AXIS:
        axis = getattr(operation, "axis", -1)
        axes = list(axis) if isinstance(axis, list | tuple) else [axis]
        rank = _rank(operation)
        if len(axes) == 1 and axes[0] in (-1, None if rank is None else rank - 1):
            return
    elif name in (PER_STEP if is_layer else _ELEMENTWISE):
        return
    raise _refusal(operation, f"may mix time steps ({name})")


def _rank(layer: Any) -> int | None:
    specs = getattr(layer, "input_spec", None)
    specs = specs if isinstance(specs, list | tuple) else [specs]
    ranks = {getattr(spec, "ndim", None) for spec in specs}
    return next(iter(ranks)) if len(ranks) == 1 else None


def _refusal(layer: Any, reason: str) -> NotConvertibleError:
    return NotConvertibleError(f"--stateful-step: {layer.name} {reason}")


# --- looking at models ----------------------------------------------------------------------


def _calls(functional: Any) -> Iterator[Any]:
    """The nodes of a functional model in the order of execution, inputs left out."""
    by_depth = functional._nodes_by_depth
    for depth in sorted(by_depth, reverse=True):
        for node in by_depth[depth]:
            if not node.is_input:
                yield node


def _holds_rnn(model: Any) -> bool:
    return any(_is_rnn(layer) for layer in model._flatten_layers())


def _stepped_inputs(model: Any) -> set[int]:
    """Ids of the inputs that recurrent layers see as sequences: through what works step by step.

    Looked for from the recurrent layers back; in inner models too.
    """
    found: set[int] = set()
    functional = _functional(model)
    wanted: set[int] = set()
    for node in reversed(list(_calls(functional))):
        operation, inputs = node.operation, list(node.input_tensors)
        hits = any(id(tensor) in wanted for tensor in node.output_tensors)
        if _is_rnn(operation) or type(operation).__name__ == "Bidirectional":
            wanted.add(id(inputs[0]))
        elif hasattr(operation, "_flatten_layers") and getattr(operation, "inputs", None):
            inner = _stepped_inputs(operation)
            names = [id(tensor) in inner for tensor in _functional(operation).inputs]
            wanted |= {id(t) for t, is_step in zip(inputs, names, strict=True) if is_step or hits}
        elif hits and _collapses(operation):
            continue
        elif hits:
            wanted |= {id(tensor) for tensor in inputs if len(tensor.shape) > 1}
    for tensor in functional.inputs:
        if id(tensor) in wanted:
            found.add(id(tensor))
    return found


def _collapses(operation: Any) -> bool:
    """Whether what comes out as a sequence was made of something that is none."""
    return type(operation).__name__ == "RepeatVector"


def _state_names(layer: Any) -> list[tuple[str, int, str]]:
    """(name, size, dtype) of each state; of a Bidirectional those of both directions."""
    directions = {"": layer}
    if hasattr(layer, "forward_layer"):
        directions = {"forward_": layer.forward_layer, "backward_": layer.backward_layer}
    found = []
    for prefix, own in directions.items():
        sizes = list(own.state_size)
        if any(not isinstance(size, int) for size in sizes):
            raise NotConvertibleError(f"{layer.name} has stacked cells, and is stateful")
        names = ("h", "c") if len(sizes) < 3 else [str(place) for place in range(len(sizes))]
        found += [
            (f"{prefix}{name}", size, str(own.compute_dtype))
            for name, size in zip(names, sizes, strict=False)
        ]
    return found


def _plain_weights(layer: Any) -> list[Any]:
    """The weights of a layer without the states that it keeps."""
    import numpy as np

    kept = {id(v) for own in _with_directions(layer) for v in (getattr(own, "states", None) or [])}
    return [np.asarray(weight) for weight in layer.weights if id(weight) not in kept]


def _with_directions(layer: Any) -> list[Any]:
    return [layer, *(getattr(layer, name) for name in ("forward_layer", "backward_layer")
                     if hasattr(layer, name))]  # fmt: skip


def _mask(tensor: Any, kwargs: dict[str, Any]) -> Any:
    given = kwargs.get("mask")
    return getattr(tensor, "_keras_mask", None) if given is None else given


def _set_mask(tensor: Any, mask: Any) -> None:
    """So that the layers which follow hand it on, as they would that of a recurrent layer."""
    tensor._keras_mask = mask


def _input_name(tensor: Any) -> str:
    return str(tensor.name).split("/")[-1].split(":")[0]
