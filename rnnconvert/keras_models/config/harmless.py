"""Which classes and functions a config may name: data, by module, and nothing else.

Keras makes whatever class a config names, and what it makes runs. So only what stands here is let
near it: what computes on the numbers it is given, takes no function, and opens no file. How a
config is held against these tables is in `trust`.

To add a class, put its name into the row of the module under which Keras writes it, as
`keras.saving.serialize_keras_object` shows; an operation of Keras 3 (`keras.ops`) goes into
`OPERATIONS` under its private module. Leave out what takes a function (`Map`, `Cond`, `Lambda`) or
a path, or loads code (`TFSMLayer`, `TorchModuleWrapper`): that is what `--allow-code` is for.
"""

from __future__ import annotations

from rnnconvert.keras_models.config.builtin import KERAS_LAYERS


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


LAYERS = (KERAS_LAYERS - {"Lambda"}) | _names(
    """
        AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D
        AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D AugMix AutoContrast
        ContrastLimitedAdaptiveHistogramEqualization Convolution1DTranspose
        Convolution2DTranspose Convolution3DTranspose CutMix Equalization
        MaxNumBoundingBoxes MixUp Pipeline RandAugment RandomColorDegeneration RandomColorJitter
        RandomElasticTransform RandomErasing RandomGaussianBlur RandomGrayscale RandomHeight
        RandomHue RandomInvert RandomPerspective RandomPosterization RandomSaturation
        RandomSharpness RandomShear RandomWidth ReversibleEmbedding STFTSpectrogram Solarization
        ThresholdedReLU
    """
)
_MODELS = _names("Functional Model Sequential")
_INITIALIZERS = _names(
    """
        Constant GlorotNormal GlorotUniform HeNormal HeUniform Identity IdentityInitializer
        Initializer LecunNormal LecunUniform Ones Orthogonal OrthogonalInitializer RandomNormal
        RandomUniform STFT STFTInitializer TruncatedNormal VarianceScaling Zeros constant
        glorot_normal glorot_uniform he_normal he_uniform identity lecun_normal lecun_uniform
        ones orthogonal random_normal random_uniform stft truncated_normal variance_scaling
        zeros
    """
)
_REGULARIZERS = _names(
    """
        L1 L1L2 L2 OrthogonalRegularizer Regularizer l1 l1_l2 l2 orthogonal_regularizer
    """
)
_CONSTRAINTS = _names(
    """
        Constraint MaxNorm MinMaxNorm NonNeg RadialConstraint UnitNorm max_norm min_max_norm
        non_neg unit_norm
    """
)
_LOSSES = _names(
    """
        BinaryCrossentropy BinaryFocalCrossentropy CTC CategoricalCrossentropy
        CategoricalFocalCrossentropy CategoricalGeneralizedCrossEntropy CategoricalHinge Circle
        CosineSimilarity Dice Hinge Huber KLDivergence LogCosh Loss LossFunctionWrapper
        MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredError
        MeanSquaredLogarithmicError Poisson SparseCategoricalCrossentropy SquaredHinge Tversky
    """
)
_METRICS = _names(
    """
        AUC Accuracy BinaryAccuracy BinaryCrossentropy BinaryIoU CategoricalAccuracy
        CategoricalCrossentropy CategoricalHinge ConcordanceCorrelation CosineSimilarity F1Score
        FBetaScore FalseNegatives FalsePositives Hinge IoU KLDivergence LogCoshError Mean
        MeanAbsoluteError MeanAbsolutePercentageError MeanIoU MeanMetricWrapper MeanSquaredError
        MeanSquaredLogarithmicError Metric OneHotIoU OneHotMeanIoU PearsonCorrelation Poisson
        Precision PrecisionAtRecall R2Score Recall RecallAtPrecision RootMeanSquaredError
        SensitivityAtSpecificity SparseCategoricalAccuracy SparseCategoricalCrossentropy
        SparseTopKCategoricalAccuracy SpecificityAtSensitivity SquaredHinge Sum
        TopKCategoricalAccuracy TrueNegatives TruePositives
    """
)
_OPTIMIZERS = _names(
    """
        Adadelta Adafactor Adagrad Adam AdamW Adamax Ftrl Lamb Lion LossScaleOptimizer
        MultiOptimizer Muon Nadam Optimizer OptimizerMap RMSprop SGD ScheduleFreeAdamW
    """
)
_SCHEDULES = _names(
    """
        CosineDecay CosineDecayRestarts ExponentialDecay InverseTimeDecay LearningRateSchedule
        PiecewiseConstantDecay PolynomialDecay
    """
)
_POLICIES = _names(
    """
        DTypePolicy DTypePolicyMap FloatDTypePolicy Int4DTypePolicy Policy PolicyV1
        QuantizedDTypePolicy QuantizedFloat8DTypePolicy
    """
)
_QUANTIZERS = _names(
    """
        AbsMaxQuantizer Float8QuantizationConfig Int4QuantizationConfig Int8QuantizationConfig
    """
)

CLASSES: dict[str, frozenset[str]] = {
    "keras": _MODELS | _POLICIES | {"InputSpec"},
    "keras.layers": LAYERS | _MODELS,
    "keras.models": _MODELS,
    "keras.engine.functional": _MODELS,
    "keras.engine.sequential": _MODELS,
    "keras.src.engine.functional": _MODELS,
    "keras.src.engine.sequential": _MODELS,
    "keras.src.models.functional": _MODELS,
    "keras.src.models.sequential": _MODELS,
    "keras.initializers": _INITIALIZERS,
    "keras.regularizers": _REGULARIZERS,
    "keras.constraints": _CONSTRAINTS,
    "keras.losses": _LOSSES,
    "keras.metrics": _METRICS,
    "keras.optimizers": _OPTIMIZERS | _SCHEDULES,
    "keras.optimizers.schedules": _SCHEDULES,
    "keras.dtype_policies": _POLICIES,
    "keras.mixed_precision": _POLICIES,
    "keras.quantizers": _QUANTIZERS,
    "keras.random": _names("SeedGenerator"),
}
"""Module, as a config writes it: classes of it that only compute."""

OPERATIONS: dict[str, frozenset[str]] = {
    "keras.src.ops.core": _names(
        """
            Cast ConvertToTensor SaturateCast Scatter ScatterUpdate Slice SliceUpdate
            StopGradient Unstack
        """
    ),
    "keras.src.ops.einops": _names(
        """
            Rearrange
        """
    ),
    "keras.src.ops.image": _names(
        """
            AffineTransform CropImages ElasticTransform ExtractPatches GaussianBlur HSVToRGB
            MapCoordinates PadImages PerspectiveTransform RGBToGrayscale RGBToHSV Resize SSIM
            ScaleAndTranslate SobelEdges
        """
    ),
    "keras.src.ops.linalg": _names(
        """
            Cholesky CholeskyInverse Det Eig Eigh Inv Lstsq LuFactor MatrixRank Norm Pinv Qr SVD
            Solve SolveTriangular
        """
    ),
    "keras.src.ops.math": _names(
        """
            CDist Erf Erfc Erfinv ExtractSequences FFT FFT2 IFFT2 IRFFT ISTFT InTopK Logdet
            Logsumexp RFFT Rsqrt STFT SegmentMax SegmentMin SegmentProd SegmentSum TopK
            ViewAsComplex ViewAsReal
        """
    ),
    "keras.src.ops.nn": _names(
        """
            AdaptiveAveragePool AdaptiveMaxPool AveragePool BatchNorm BinaryCrossentropy
            CTCDecode CTCLoss CategoricalCrossentropy Celu Conv ConvTranspose DepthToSpace
            DepthwiseConv DotProductAttention Elu Fold Gelu Glu HardShrink HardSigmoid HardSilu
            HardTanh LayerNorm LeakyRelu LogSigmoid LogSoftmax MaxPool Moments MultiHot
            Normalize OneHot PSNR Polar RMSNorm Relu Relu6 Selu SeparableConv Sigmoid Silu
            SoftShrink Softmax Softplus Softsign SpaceToDepth SparseCategoricalCrossentropy
            SparsePlus SparseSigmoid Sparsemax Squareplus TanhShrink Threshold Unfold
        """
    ),
    "keras.src.ops.numpy": _names(
        """
            Abs Absolute Add All AllClose Amax Amin Angle Any Append Arange Arccos Arccosh
            Arcsin Arcsinh Arctan Arctan2 Arctanh Argmax Argmin Argpartition Argsort Array
            ArraySplit Average Bartlett Bincount BitwiseAnd BitwiseInvert BitwiseLeftShift
            BitwiseNot BitwiseOr BitwiseRightShift BitwiseXor Blackman BroadcastTo Cbrt Ceil
            Clip Concatenate Conj Conjugate Copy Corrcoef Correlate Cos Cosh CountNonzero Cross
            Cumprod Cumsum Deg2rad Diag Diagflat Diagonal Diff Digitize Divide DivideNoNan Dot
            Dsplit Dstack Einsum Empty EmptyLike Equal Exp Exp2 ExpandDims Expm1 Eye Fabs Flip
            Fliplr Flipud Floor FloorDivide Fmax Fmin Fmod Full FullLike Gcd Geomspace GetItem
            Greater GreaterEqual Hamming Heaviside Histogram Hsplit Hstack Hypot I0 Identity
            Imag Inner IsIn Isclose Isfinite Isinf Isnan Isneginf Isposinf Isreal Kron Lcm Ldexp
            LeftShift Less LessEqual Linspace Log Log10 Log1p Log2 Logaddexp Logaddexp2
            LogicalAnd LogicalNot LogicalOr LogicalXor Logspace Matmul Max Maximum Mean Median
            Meshgrid Min Minimum Mod Moveaxis Multiply NanToNum Nanargmax Nanargmin Nancumprod
            Nancumsum Nanmax Nanmean Nanmedian Nanmin Nanpercentile Nanprod Nanquantile Nanstd
            Nansum Nanvar Ndim Negative Nextafter Nonzero NotEqual Ones OnesLike Outer Pad
            Percentile Power Prod Ptp Quantile Rad2deg Ravel Real Reciprocal Repeat Reshape
            RightShift Roll Rot90 Round SearchSorted Select Sign Signbit Sin Sinc Sinh Size
            Slogdet Sort Split Sqrt Square Squeeze Stack Std Subtract Sum Swapaxes Take
            TakeAlongAxis Tan Tanh Tensordot Tile Trace Transpose Trapezoid Tri Tril Triu
            TrueDivide Trunc Unique UnravelIndex Vander Var Vdot View Vsplit Vstack Where Zeros
            ZerosLike
        """
    ),
}
"""Operations of a functional model of Keras 3, by the private modules that it writes them under."""

_ACTIVATIONS = _names(
    """
        celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh
        leaky_relu linear log_sigmoid log_softmax mish relu relu6 selu sigmoid silu soft_shrink
        softmax softplus softsign sparse_plus sparse_sigmoid sparsemax squareplus swish tanh
        tanh_shrink threshold
    """
)
_LOSS_FUNCTIONS = _names(
    """
        binary_crossentropy binary_focal_crossentropy categorical_crossentropy
        categorical_focal_crossentropy categorical_generalized_cross_entropy categorical_hinge
        circle cosine_similarity ctc dice hinge huber kl_divergence log_cosh mean_absolute_error
        mean_absolute_percentage_error mean_squared_error mean_squared_logarithmic_error poisson
        sparse_categorical_crossentropy squared_hinge tversky
    """
)
_METRIC_FUNCTIONS = _names(
    """
        binary_accuracy binary_crossentropy binary_focal_crossentropy categorical_accuracy
        categorical_crossentropy categorical_focal_crossentropy categorical_hinge
        concordance_correlation hinge huber kl_divergence log_cosh mean_absolute_error
        mean_absolute_percentage_error mean_squared_error mean_squared_logarithmic_error
        pearson_correlation poisson sparse_categorical_accuracy sparse_categorical_crossentropy
        sparse_top_k_categorical_accuracy squared_hinge top_k_categorical_accuracy
    """
)

FUNCTIONS: dict[str, frozenset[str]] = {
    "builtins": _ACTIVATIONS | _LOSS_FUNCTIONS | _METRIC_FUNCTIONS,  # so Keras calls its own
    "keras.activations": _ACTIVATIONS,
    "keras.losses": _LOSS_FUNCTIONS,
    "keras.metrics": _METRIC_FUNCTIONS,
}
"""Module, as a config writes it: functions of it that only compute."""

VALUES = _names(
    "__bytes__ __ellipsis__ __keras_tensor__ __numpy__ __slice__ __tensor__ __tuple__ TensorShape"
)
"""What Keras writes as an object where JSON has no form for a value."""
