"""Keras 2's CuDNNLSTM and CuDNNGRU as Keras 3 layers that run on any device and backend.

They hold the weights as Keras 2 stored them: `kernel` (inputs, gates*units), `recurrent_kernel`
(units, gates*units) and `bias` (2*gates*units,), and compute from them what cuDNN computes:

    LSTM  i = sigmoid(x Wi' + bWi + h Ri' + bRi)     f, o alike     g = tanh(... of g)
          c = f*c + i*g                              h = o * tanh(c)
    GRU   z = sigmoid(x Wz' + bWz + h Rz' + bRz)     r alike
          n = tanh(x Wn' + bWn + r * (h Rn' + bRn))  h = (1-z)*n + z*h

The stored order of the gates is i, f, g, o and z, r, n. The matrices W and R of a gate are not its
stored block: Keras 2 handed the block over as it lay in memory, and cuDNN read that buffer as a
matrix of (units, inputs).

Nothing is shared with `rnnconvert.layouts`, so that a model of these layers is independent
evidence against a converted one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
from keras import ops

_ON_CUDNN: ContextVar[bool] = ContextVar("on_cudnn", default=False)


@contextmanager
def on_cudnn() -> Iterator[None]:
    """Inside, the layers run on cuDNN's own kernels: TensorFlow or torch with a GPU only."""
    token = _ON_CUDNN.set(True)
    try:
        yield
    finally:
        _ON_CUDNN.reset(token)


_NO_MASKS = "Masking is not supported for CuDNN RNNs."
_ONLY = {
    "activation": "tanh",
    "recurrent_activation": "sigmoid",
    "use_bias": True,
    "reset_after": True,
    "dropout": 0.0,
    "recurrent_dropout": 0.0,
    "time_major": False,
}
_WITHOUT_EFFECT = ("implementation", "unroll", "input_length", "zero_output_for_mask")

Shape = tuple[int | None, ...]


class _CuDNNRNN(keras.layers.Layer):
    """What both layers share; a subclass says how many gates and states, and computes a step."""

    cell: str
    gates: int
    state_count: int

    def __init__(
        self,
        units: int,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**_without_old_keys(kwargs))
        self.units = int(units)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.recurrent_initializer = keras.initializers.get(recurrent_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.recurrent_regularizer = keras.regularizers.get(recurrent_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.recurrent_constraint = keras.constraints.get(recurrent_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.go_backwards = go_backwards
        self.stateful = stateful
        self.input_spec = keras.layers.InputSpec(ndim=3)
        self.supports_masking = True  # so that `compute_mask` is asked, and can refuse
        self._set_states(None)
        if keras.backend.backend() == "tensorflow":
            self.supports_jit = False  # as Keras' own LSTM: compiling costs more than it gains

    # --- weights and states -----------------------------------------------------------------

    def build(self, sequences_shape: Shape, initial_state_shape: Any = None) -> None:
        columns = self.gates * self.units
        self.kernel = self._add("kernel", (sequences_shape[-1], columns), self.kernel_initializer)
        self.recurrent_kernel = self._add(
            "recurrent_kernel", (self.units, columns), self.recurrent_initializer
        )
        self.bias = self._add("bias", (2 * columns,), self._initial_bias)
        if self.stateful and self.states is None:
            self._make_states(sequences_shape[0])

    def _add(self, name: str, shape: Shape, initializer: Any) -> Any:
        kind = name.removesuffix("_kernel")

        def initial(shape: Shape, dtype: Any = None) -> Any:
            half = dtype in ("float16", "bfloat16")  # for which not every initializer works
            return ops.cast(initializer(shape, dtype="float32" if half else dtype), dtype)

        return self.add_weight(
            name=name,
            shape=shape,
            initializer=initial,
            regularizer=getattr(self, f"{kind}_regularizer"),
            constraint=getattr(self, f"{kind}_constraint"),
        )

    def _initial_bias(self, shape: Shape, dtype: Any = None) -> Any:
        return self.bias_initializer(shape, dtype=dtype)

    def _make_states(self, batch: int | None) -> None:
        if batch is None:
            raise ValueError(f"{self.name}: a stateful layer needs a fixed batch size")
        self._set_states(
            [
                keras.Variable(
                    ops.zeros((batch, self.units), dtype=self.variable_dtype),
                    trainable=False,
                    name=f"state_{index}",
                )
                for index in range(self.state_count)
            ]
        )

    def _set_states(self, states: list[Any] | None) -> None:
        # Past Keras' tracking: states are variables, but no weights, and are never saved.
        object.__setattr__(self, "states", states)

    @property
    def variables(self) -> list[Any]:
        """Weights and, of a stateful layer, states: JAX keeps only what is listed here."""
        return [*super().variables, *(self.states or [])]

    def reset_state(self) -> None:
        """Set the states of a stateful layer to zero."""
        for state in self.states or []:
            state.assign(ops.zeros(state.shape, dtype=state.dtype))

    def reset_states(self) -> None:
        """Keras 2's name of `reset_state`."""
        self.reset_state()

    # --- the function -----------------------------------------------------------------------

    def __call__(self, sequences: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the layer; Keras 2's form `layer([x, h, c])` means `initial_state=[h, c]`."""
        if isinstance(sequences, list | tuple) and len(sequences) > 1:
            kwargs["initial_state"] = list(sequences[1:])
            sequences = sequences[0]
        return super().__call__(sequences, *args, **kwargs)

    def call(self, sequences: Any, initial_state: Any = None, mask: Any = None) -> Any:
        """Run the layer.

        Args:
            sequences: (batch, time, inputs).
            initial_state: list of (batch, units): h for a GRU, h and c for an LSTM.
            mask: refused.

        Returns:
            Outputs (batch, time, units), or the last one, (batch, units); with `return_state`
            followed by the last states, each (batch, units). With `go_backwards` the outputs are
            in the order in which they were computed, last time step first.

        Raises:
            ValueError: there is a mask, or not the right number of states.
        """
        self._refuse_mask(mask)
        history, states = self._run(sequences, self._first_states(sequences, initial_state))
        if self.stateful:
            for variable, state in zip(self.states, states, strict=True):
                variable.assign(ops.cast(state, variable.dtype))
        output = history if self.return_sequences else states[0]
        return (output, *states) if self.return_state else output

    def _first_states(self, sequences: Any, initial_state: Any) -> list[Any]:
        states = self.states if initial_state is None and self.stateful else initial_state
        if states is None:
            shape = (ops.shape(sequences)[0], self.units)
            return [ops.zeros(shape, dtype=self.compute_dtype) for _ in range(self.state_count)]
        states = list(states) if isinstance(states, list | tuple) else [states]
        if len(states) != self.state_count:
            raise ValueError(
                f"{self.name}: expected {self.state_count} initial states, got {len(states)}"
            )
        return [ops.cast(ops.convert_to_tensor(state), self.compute_dtype) for state in states]

    def _run(self, sequences: Any, states: list[Any]) -> tuple[Any, list[Any]]:
        """All outputs (batch, time, units) and the last states."""
        if _ON_CUDNN.get():
            return self._run_on_cudnn(sequences, states)
        # Keras' matmul computes float64 in float32 on torch; its einsum does not.
        weights = self._as_cudnn_reads(self.kernel)
        recurrent = self._as_cudnn_reads(self.recurrent_kernel)
        bias, recurrent_bias = ops.split(ops.convert_to_tensor(self.bias), 2)
        from_input = ops.einsum("bti,gi->tbg", sequences, weights) + bias
        if self.go_backwards:
            from_input = ops.flip(from_input, axis=0)

        def step(states: list[Any], here: Any) -> tuple[list[Any], list[Any]]:
            from_state = ops.einsum("bu,gu->bg", states[0], recurrent) + recurrent_bias
            states = self.step(here, from_state, states)
            return states, states

        states, history = ops.scan(step, states, from_input, length=sequences.shape[1])
        return ops.swapaxes(history[0], 0, 1), states

    def _run_on_cudnn(self, sequences: Any, states: list[Any]) -> tuple[Any, list[Any]]:
        from rnnconvert.keras import cudnn

        run = {"tensorflow": cudnn.run_on_tensorflow, "torch": cudnn.run_on_torch}
        if self.go_backwards:
            sequences = ops.flip(sequences, axis=1)
        stored = (self.kernel, self.recurrent_kernel, self.bias)
        weights = tuple(ops.cast(ops.convert_to_tensor(w), self.compute_dtype) for w in stored)
        return run[keras.backend.backend()](self.cell, weights, sequences, states)

    def _as_cudnn_reads(self, stored: Any) -> Any:
        """A stored matrix (inputs, gates*units) as cuDNN's of all gates, (gates*units, inputs)."""
        blocks = ops.split(ops.convert_to_tensor(stored), self.gates, axis=1)
        inputs = stored.shape[0]
        return ops.concatenate([ops.reshape(block, (self.units, inputs)) for block in blocks])

    def step(self, from_input: Any, from_state: Any, states: list[Any]) -> list[Any]:
        """One time step: the two summands of each gate, (batch, gates*units), and the states."""
        raise NotImplementedError

    # --- what Keras asks --------------------------------------------------------------------

    def _refuse_mask(self, mask: Any) -> None:
        if any(part is not None for part in keras.tree.flatten(mask)):
            raise ValueError(_NO_MASKS)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        self._refuse_mask(previous_mask)

    def compute_output_shape(self, sequences_shape: Shape, initial_state_shape: Any = None) -> Any:
        state = (sequences_shape[0], self.units)
        output = (*sequences_shape[:2], self.units) if self.return_sequences else state
        return (output, *[state] * self.state_count) if self.return_state else output

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = {"units": self.units}
        for kind in ("kernel", "recurrent", "bias"):
            for what in ("initializer", "regularizer", "constraint"):
                serialize = getattr(keras, f"{what}s").serialize
                config[f"{kind}_{what}"] = serialize(getattr(self, f"{kind}_{what}"))
        for flag in ("return_sequences", "return_state", "go_backwards", "stateful"):
            config[flag] = getattr(self, flag)
        return {**super().get_config(), **config}


@keras.saving.register_keras_serializable(package="rnnconvert")
class CuDNNLSTM(_CuDNNRNN):
    """Keras 2's CuDNNLSTM: kernel (inputs, 4*units), recurrent_kernel (units, 4*units), bias
    (8*units,), each with the gates i, f, g, o; the input's bias lies before the recurrent one.

    Args:
        units: size of output and states.
        unit_forget_bias: start training with a forget gate's bias of 1.
        **kwargs: those of Keras 2's layer. Keys of old configs that ask for nothing else than what
            cuDNN computes are accepted, such as `recurrent_activation="sigmoid"`.

    Raises:
        ValueError: a key asks for something that cuDNN does not compute.
    """

    cell = "lstm"
    gates = 4
    state_count = 2

    def __init__(self, units: int, *, unit_forget_bias: bool = True, **kwargs: Any) -> None:
        super().__init__(units, **kwargs)
        self.unit_forget_bias = unit_forget_bias

    def _initial_bias(self, shape: Shape, dtype: Any = None) -> Any:
        """Keras 2 set the forget gate of the recurrent bias, the second half, to one."""
        if not self.unit_forget_bias:
            return super()._initial_bias(shape, dtype)
        return ops.concatenate(
            [
                self.bias_initializer((5 * self.units,), dtype=dtype),
                ops.ones((self.units,), dtype=dtype),
                self.bias_initializer((2 * self.units,), dtype=dtype),
            ]
        )

    def step(self, from_input: Any, from_state: Any, states: list[Any]) -> list[Any]:
        i, f, g, o = ops.split(from_input + from_state, 4, axis=-1)
        c = ops.sigmoid(f) * states[1] + ops.sigmoid(i) * _tanh(g)
        return [ops.sigmoid(o) * _tanh(c), c]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "unit_forget_bias": self.unit_forget_bias}


@keras.saving.register_keras_serializable(package="rnnconvert")
class CuDNNGRU(_CuDNNRNN):
    """Keras 2's CuDNNGRU: kernel (inputs, 3*units), recurrent_kernel (units, 3*units), bias
    (6*units,), each with the gates z, r, n; the input's bias lies before the recurrent one.

    Args:
        units: size of output and state.
        **kwargs: as of CuDNNLSTM.

    Raises:
        ValueError: a key asks for something that cuDNN does not compute.
    """

    cell = "gru"
    gates = 3
    state_count = 1

    def step(self, from_input: Any, from_state: Any, states: list[Any]) -> list[Any]:
        xz, xr, xn = ops.split(from_input, 3, axis=-1)
        hz, hr, hn = ops.split(from_state, 3, axis=-1)
        z = ops.sigmoid(xz + hz)
        n = _tanh(xn + ops.sigmoid(xr + hr) * hn)
        return [(1.0 - z) * n + z * states[0]]


@keras.saving.register_keras_serializable(package="rnnconvert")
def hard_sigmoid_keras2(x: Any) -> Any:
    """Keras 2's hard_sigmoid, clip(0.2x + 0.5, 0, 1); Keras 3's has the slope 1/6."""
    return ops.clip(0.2 * x + 0.5, 0.0, 1.0)


def custom_objects() -> dict[str, Any]:
    """What Keras needs to load a repaired config: name to layer or function."""
    from rnnconvert.keras.tensorflow_calls import TensorFlowCall

    return {
        "CuDNNLSTM": CuDNNLSTM,
        "CuDNNGRU": CuDNNGRU,
        "TensorFlowCall": TensorFlowCall,
        "hard_sigmoid_keras2": hard_sigmoid_keras2,
    }


def _tanh(x: Any) -> Any:
    """On JAX, Keras' tanh computes float64 in float32; its sigmoid does not."""
    if keras.backend.standardize_dtype(x.dtype) == "float64":
        return 2.0 * ops.sigmoid(2.0 * x) - 1.0
    return ops.tanh(x)


def _without_old_keys(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a Keras 3 layer: what old configs say besides is checked and left out."""
    for key, only in _ONLY.items():
        if kwargs.get(key, only) != only:
            raise ValueError(f"cuDNN computes with {key}={only!r} only, not {kwargs[key]!r}")
    old = {*_ONLY, *_WITHOUT_EFFECT}
    return {key: value for key, value in kwargs.items() if key not in old}
