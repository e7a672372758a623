"""Names of the layers that Keras itself defines; any other class is the user's own code."""

from __future__ import annotations

KERAS_LAYERS = frozenset(
    """
    Activation ActivityRegularization Add AdditiveAttention AlphaDropout Attention Average
    AveragePooling1D AveragePooling2D AveragePooling3D AvgPool1D AvgPool2D AvgPool3D
    BatchNormalization BatchNormalizationV1 Bidirectional CategoryEncoding CenterCrop
    Concatenate Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose
    ConvLSTM1D ConvLSTM2D ConvLSTM2DCell ConvLSTM3D Convolution1D Convolution2D
    Convolution3D Cropping1D Cropping2D Cropping3D Dense DepthwiseConv1D DepthwiseConv2D
    Discretization Dot Dropout ELU EinsumDense Embedding Flatten Functional GRU GRUCell
    GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D
    GlobalAveragePooling3D GlobalAvgPool1D GlobalAvgPool2D GlobalAvgPool3D GlobalMaxPool1D
    GlobalMaxPool2D GlobalMaxPool3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D
    GroupNormalization GroupQueryAttention Hashing HashedCrossing Identity InputLayer
    IntegerLookup LSTM LSTMCell Lambda LayerNormalization LeakyReLU Masking MaxPool1D
    MaxPool2D MaxPool3D MaxPooling1D MaxPooling2D MaxPooling3D Maximum MelSpectrogram
    Minimum Model MultiHeadAttention Multiply Normalization PReLU Permute RMSNormalization
    RNN RandomBrightness RandomContrast RandomCrop RandomFlip RandomRotation
    RandomTranslation RandomZoom ReLU RepeatVector Rescaling Reshape Resizing
    SeparableConv1D SeparableConv2D SeparableConvolution1D SeparableConvolution2D Sequential
    SimpleRNN SimpleRNNCell Softmax SpatialDropout1D SpatialDropout2D SpatialDropout3D
    SpectralNormalization StackedRNNCells StringLookup Subtract TextVectorization
    SyncBatchNormalization
    TimeDistributed UnitNormalization UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D
    ZeroPadding2D ZeroPadding3D CuDNNGRU CuDNNLSTM
    """.split()
)

GONE_IN_KERAS_3 = frozenset(
    """
    AtrousConvolution1D AtrousConvolution2D DenseFeatures Highway LocallyConnected1D
    LocallyConnected2D MaxoutDense Merge RandomHeight RandomWidth ThresholdedReLU
    """.split()
)

_CONV_KERNEL_KEYS = ("kernel_initializer", "kernel_regularizer", "kernel_constraint", "groups")

UNKNOWN_IN_KERAS_3: dict[str, tuple[str, ...]] = {
    "BatchNormalization": (
        "renorm", "renorm_clipping", "renorm_momentum", "fused", "virtual_batch_size",
    ),
    "Conv1DTranspose": ("groups",),
    "Conv2DTranspose": ("groups",),
    "Conv3DTranspose": ("groups",),
    "DepthwiseConv1D": ("groups", "filters"),
    "DepthwiseConv2D": ("groups", "filters"),
    "Discretization": ("trainable", "bins"),
    "Embedding": ("input_length",),
    "MultiHeadAttention": ("query_shape", "key_shape", "value_shape", "softmax_robust_masking"),
    "RandomBrightness": ("rng_type",),
    "RandomContrast": ("rng_type",),
    "RandomCrop": ("rng_type",),
    "RandomFlip": ("rng_type",),
    "RandomRotation": ("rng_type",),
    "RandomTranslation": ("rng_type",),
    "RandomZoom": ("rng_type",),
    "SeparableConv1D": _CONV_KERNEL_KEYS,
    "SeparableConv2D": _CONV_KERNEL_KEYS,
    "SpatialDropout1D": ("noise_shape", "seed", "trainable"),
    "SpatialDropout2D": ("noise_shape", "seed", "trainable"),
    "SpatialDropout3D": ("noise_shape", "seed", "trainable"),
}  # fmt: skip
"""Keys that Keras 2 wrote and Keras 3 refuses; at prediction time none of them means anything."""
