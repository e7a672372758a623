"""Which of Keras' layers have a torch form: one table."""

from __future__ import annotations

from collections.abc import Callable

from rnnconvert.exports.torch_module.calls import LayerCall, or_masks
from rnnconvert.exports.torch_module.emitter import Value
from rnnconvert.exports.torch_module.merging import (
    write_attention,
    write_average,
    write_concatenate,
    write_dot,
    write_folded,
    write_joined,
)
from rnnconvert.exports.torch_module.simple import (
    write_activation,
    write_cropping,
    write_dense,
    write_dropout,
    write_elu,
    write_embedding,
    write_flatten,
    write_leaky_relu,
    write_masking,
    write_permute,
    write_prelu,
    write_relu,
    write_repeat,
    write_reshape,
    write_same,
    write_softmax,
    write_up_sampling,
    write_zero_padding,
)
from rnnconvert.exports.torch_module.spatial import (
    write_batch_normalization,
    write_convolution,
    write_depthwise,
    write_global_pool,
    write_layer_normalization,
    write_pool,
    write_rescaling,
    write_separable,
    write_unit_normalization,
)

_LAYERS: dict[str, Callable[[LayerCall], str | list[Value]]] = {
    "Dense": write_dense,
    "Embedding": write_embedding,
    "Masking": write_masking,
    "Activation": write_activation,
    "ReLU": write_relu,
    "LeakyReLU": write_leaky_relu,
    "ELU": write_elu,
    "PReLU": write_prelu,
    "Softmax": write_softmax,
    "Dropout": write_dropout,
    "SpatialDropout1D": write_same,
    "SpatialDropout2D": write_same,
    "SpatialDropout3D": write_same,
    "GaussianNoise": write_same,
    "GaussianDropout": write_same,
    "AlphaDropout": write_same,
    "ActivityRegularization": write_same,
    "Identity": write_same,
    "Flatten": write_flatten,
    "Reshape": write_reshape,
    "Permute": write_permute,
    "RepeatVector": write_repeat,
    "ZeroPadding1D": write_zero_padding,
    "ZeroPadding2D": write_zero_padding,
    "Cropping1D": write_cropping,
    "Cropping2D": write_cropping,
    "UpSampling1D": write_up_sampling,
    "UpSampling2D": write_up_sampling,
    "Add": write_joined("+"),
    "Subtract": write_joined("-"),
    "Multiply": write_joined("*"),
    "Average": write_average,
    "Maximum": write_folded("torch.maximum"),
    "Minimum": write_folded("torch.minimum"),
    "Concatenate": write_concatenate,
    "Dot": write_dot,
    "Attention": write_attention,
    "AdditiveAttention": write_attention,
    "Conv1D": write_convolution,
    "Conv2D": write_convolution,
    "Conv3D": write_convolution,
    "DepthwiseConv1D": write_depthwise,
    "DepthwiseConv2D": write_depthwise,
    "SeparableConv1D": write_separable,
    "SeparableConv2D": write_separable,
    "MaxPooling1D": write_pool("max_pool"),
    "MaxPooling2D": write_pool("max_pool"),
    "MaxPooling3D": write_pool("max_pool"),
    "AveragePooling1D": write_pool("average_pool"),
    "AveragePooling2D": write_pool("average_pool"),
    "AveragePooling3D": write_pool("average_pool"),
    "GlobalAveragePooling1D": write_global_pool("mean"),
    "GlobalAveragePooling2D": write_global_pool("mean"),
    "GlobalAveragePooling3D": write_global_pool("mean"),
    "GlobalMaxPooling1D": write_global_pool("amax"),
    "GlobalMaxPooling2D": write_global_pool("amax"),
    "GlobalMaxPooling3D": write_global_pool("amax"),
    "BatchNormalization": write_batch_normalization,
    "LayerNormalization": write_layer_normalization,
    "UnitNormalization": write_unit_normalization,
    "Rescaling": write_rescaling,
}
"""Name of a class of keras.layers to what writes it."""


def emit_layer(call: LayerCall) -> list[Value]:
    """A call of a layer that is neither recurrent nor a model."""
    import keras

    name = type(call.layer).__name__
    write = _LAYERS.get(name)
    if write is None or getattr(keras.layers, name, None) is not type(call.layer):
        call.refuse("")
        return [Value(call.x, shape) for shape in call.shapes]
    if getattr(call.layer, "quantization_mode", None) or getattr(call.layer, "lora_enabled", False):
        call.refuse("quantized, or with LoRA weights")
    found = write(call)
    if isinstance(found, list):
        return found
    mask = or_masks(call) if call.layer.supports_masking else None
    return [Value(found, call.shapes[0], mask)]
