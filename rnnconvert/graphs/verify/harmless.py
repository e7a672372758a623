"""The ops that a graph may run without being asked for: a list of what is allowed.

An op that is not here is unknown, and a graph that holds one is not run. Whether TensorFlow calls
an op stateful says nothing: to it ReadFile, MatchingFiles, ImmutableConst and PyFuncStateless are
stateless. Left out on purpose is whatever touches files (readers, writers of summaries, data sets
of files, ops with the name of a vocabulary file or of a proto's descriptors in an attribute),
other processes and machines (RPC, Send, collective and TPU ops, debugging ops with URLs), Python
(PyFunc), the process itself (Abort, Sleep), and other compilers (XLA, TensorRT, MLIR).
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STRUCTURE = _names("""
    Assert CheckNumerics CheckNumericsV2 Const ControlTrigger DeviceIndex DisableCopyOnRead
    EmptyTensorList EnsureShape Enter Exit FakeParam GuaranteeConst Identity IdentityN LoopCond
    Merge NextIteration NoOp OptionalFromValue OptionalGetValue OptionalHasValue OptionalNone
    Placeholder PlaceholderV2 PlaceholderWithDefault PreventGradient Print RefEnter RefExit
    RefIdentity RefMerge RefNextIteration RefSelect RefSwitch Snapshot StopGradient Switch
    Timestamp
""")
"""How a graph is held together. Assert and Print write to the error stream only."""

_CALLS = _names("""
    Case For If MapDefun PartitionedCall StatefulPartitionedCall StatelessCase StatelessIf
    StatelessWhile SymbolicGradient While
""")
"""They call functions of the graph's own library, which is checked as a whole."""

_ARITHMETIC = _names("""
    Abs AccumulateNV2 Acos Acosh Add AddN AddV2 All Angle Any ApproximateEqual ArgMax ArgMin Asin
    Asinh Atan Atan2 Atanh BatchMatMul BatchMatMulV2 BatchMatMulV3 BesselI0 BesselI0e BesselI1
    BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Betainc
    Bincount Bitcast BitwiseAnd BitwiseOr BitwiseXor Bucketize Cast Ceil ClipByValue Complex
    ComplexAbs Conj Cos Cosh Cross Cumprod Cumsum CumulativeLogsumexp Dawsn DenseBincount Digamma
    Div DivNoNan Einsum Equal Erf Erfc Erfinv EuclideanNorm Exp Expint Expm1 Floor FloorDiv
    FloorMod FresnelCos FresnelSin Greater GreaterEqual HistogramFixedWidth Igamma IgammaGradA
    Igammac Imag InTopK InTopKV2 Inv InvGrad Invert IsFinite IsInf IsNan IsotonicRegression L2Loss
    LeftShift Less LessEqual Lgamma LinSpace Log Log1p LogicalAnd LogicalNot LogicalOr LowerBound
    MatMul Max Maximum Mean Min Minimum Mod Mul MulNoNan Ndtri Neg NextAfter NotEqual NthElement
    Polygamma PopulationCount Pow Prod RaggedBincount Range Real RealDiv Reciprocal ReciprocalGrad
    RightShift Rint Round Rsqrt RsqrtGrad SegmentMax SegmentMaxV2 SegmentMean SegmentMin
    SegmentMinV2 SegmentProd SegmentProdV2 SegmentSum SegmentSumV2 Sigmoid SigmoidGrad Sign Sin
    Sinh Spence Sqrt SqrtGrad Square SquaredDifference Sub Sum Tan Tanh TanhGrad ToBool
    TruncateDiv TruncateMod UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd
    UnsortedSegmentSum UpperBound Xdivy Xlog1py Xlogy Zeta
""")
"""Numbers to numbers."""

_SHAPES = _names("""
    BatchMatrixBandPart BatchMatrixDiag BatchMatrixDiagPart BatchMatrixSetDiag BatchToSpace
    BatchToSpaceND BroadcastArgs BroadcastGradientArgs BroadcastTo Concat ConcatOffset ConcatV2
    ConjugateTranspose DepthToSpace Diag DiagPart DynamicPartition DynamicStitch Empty ExpandDims
    Fill Gather GatherNd GatherV2 InplaceAdd InplaceSub InplaceUpdate InvertPermutation ListDiff
    MatrixBandPart MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2
    MatrixDiagV3 MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 MirrorPad MirrorPadGrad OneHot
    OnesLike Pack Pad PadV2 ParallelConcat ParallelDynamicStitch Rank Reshape Reverse
    ReverseSequence ReverseV2 Roll ScatterNd ScatterNdNonAliasingAdd Select SelectV2 Shape ShapeN
    Size Slice SpaceToBatch SpaceToBatchND SpaceToDepth Split SplitV Squeeze StridedSlice
    StridedSliceGrad TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub
    TensorScatterUpdate TensorStridedSliceUpdate Tile TileGrad TopK TopKV2 Transpose Unique
    UniqueV2 UniqueWithCounts UniqueWithCountsV2 Unpack UnravelIndex Where ZerosLike
""")
"""Tensors taken apart and put together."""

_LINEAR_ALGEBRA = _names("""
    BandedTriangularSolve BatchCholesky BatchFFT BatchFFT2D BatchFFT3D BatchIFFT BatchIFFT2D
    BatchIFFT3D BatchMatrixDeterminant BatchMatrixInverse BatchMatrixSolve BatchMatrixSolveLs
    BatchMatrixTriangularSolve BatchSelfAdjointEig BatchSelfAdjointEigV2 BatchSvd Cholesky
    CholeskyGrad Eig FFT FFT2D FFT3D FFTND IFFT IFFT2D IFFT3D IFFTND IRFFT IRFFT2D IRFFT3D IRFFTND
    LogMatrixDeterminant Lu MatrixDeterminant MatrixExponential MatrixInverse MatrixLogarithm
    MatrixSolve MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve Qr RFFT RFFT2D RFFT3D RFFTND
    SelfAdjointEig SelfAdjointEigV2 Svd TridiagonalMatMul TridiagonalSolve
""")
"""Decompositions, solvers and Fourier transforms."""

_LAYERS = _names("""
    AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad BatchNormWithGlobalNormalization
    BatchNormWithGlobalNormalizationGrad BiasAdd BiasAddGrad BiasAddV1 CTCBeamSearchDecoder
    CTCGreedyDecoder CTCLoss CTCLossV2 Conv Conv2D Conv2DBackpropFilter Conv2DBackpropFilterV2
    Conv2DBackpropInput Conv2DBackpropInputV2 Conv3D Conv3DBackpropFilter Conv3DBackpropFilterV2
    Conv3DBackpropInput Conv3DBackpropInputV2 DataFormatDimMap DataFormatVecPermute
    DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput
    Dilation2D Dilation2DBackpropFilter Dilation2DBackpropInput EditDistance Elu EluGrad
    FractionalAvgPool FractionalAvgPoolGrad FractionalMaxPool FractionalMaxPoolGrad FusedBatchNorm
    FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3 FusedBatchNormV2 FusedBatchNormV3
    FusedPadConv2D FusedResizeAndPadConv2D LRN LRNGrad LeakyRelu LeakyReluGrad LogSoftmax MaxPool
    MaxPool3D MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad MaxPoolGradGradV2
    MaxPoolGradGradWithArgmax MaxPoolGradV2 MaxPoolGradWithArgmax MaxPoolV2 MaxPoolWithArgmax Relu
    Relu6 Relu6Grad ReluGrad Selu SeluGrad Softmax SoftmaxCrossEntropyWithLogits Softplus
    SoftplusGrad Softsign SoftsignGrad SparseSoftmaxCrossEntropyWithLogits
""")
"""What layers and losses are made of."""

_RECURRENT = _names("""
    BlockLSTM BlockLSTMGrad BlockLSTMGradV2 BlockLSTMV2 CudnnRNN CudnnRNNBackprop
    CudnnRNNBackpropV2 CudnnRNNBackpropV3 CudnnRNNCanonicalToParams CudnnRNNCanonicalToParamsV2
    CudnnRNNParamsSize CudnnRNNParamsToCanonical CudnnRNNParamsToCanonicalV2 CudnnRNNV2 CudnnRNNV3
    GRUBlockCell GRUBlockCellGrad LSTMBlockCell LSTMBlockCellGrad
""")
"""Recurrent cells, cuDNN's and others."""

_QUANTIZED = _names("""
    Dequantize FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars
    FakeQuantWithMinMaxVarsGradient FakeQuantWithMinMaxVarsPerChannel
    FakeQuantWithMinMaxVarsPerChannelGradient QuantizeAndDequantize QuantizeAndDequantizeV2
    QuantizeAndDequantizeV3 QuantizeAndDequantizeV4 QuantizeAndDequantizeV4Grad
    QuantizeDownAndShrinkRange QuantizeV2 QuantizedAdd QuantizedAvgPool QuantizedBiasAdd
    QuantizedConcat QuantizedConcatV2 QuantizedConv2D QuantizedMatMul QuantizedMatMulWithBias
    QuantizedMaxPool QuantizedMul QuantizedRelu QuantizedRelu6 QuantizedReluX QuantizedReshape
    QuantizedResizeBilinear RequantizationRange Requantize
""")
"""Numbers of few bits."""

_SPARSE = _names("""
    AddManySparseToTensorsMap AddSparseToTensorsMap DenseCountSparseOutput
    DenseToDenseSetOperation DenseToSparseSetOperation DeserializeManySparse DeserializeSparse
    RaggedCountSparseOutput RaggedCross RaggedFillEmptyRows RaggedFillEmptyRowsGrad RaggedGather
    RaggedRange RaggedTensorFromVariant RaggedTensorToSparse RaggedTensorToTensor
    RaggedTensorToVariant RaggedTensorToVariantGradient SerializeManySparse SerializeSparse
    SetSize SparseAdd SparseAddGrad SparseBincount SparseConcat SparseCountSparseOutput
    SparseCross SparseCrossHashed SparseCrossV2 SparseDenseCwiseAdd SparseDenseCwiseDiv
    SparseDenseCwiseMul SparseFillEmptyRows SparseFillEmptyRowsGrad SparseMatMul SparseReduceMax
    SparseReduceMaxSparse SparseReduceSum SparseReduceSumSparse SparseReorder SparseReshape
    SparseSegmentMean SparseSegmentMeanGrad SparseSegmentMeanWithNumSegments SparseSegmentSqrtN
    SparseSegmentSqrtNGrad SparseSegmentSqrtNWithNumSegments SparseSegmentSum SparseSegmentSumGrad
    SparseSegmentSumWithNumSegments SparseSlice SparseSliceGrad SparseSoftmax SparseSparseMaximum
    SparseSparseMinimum SparseSplit SparseTensorDenseAdd SparseTensorDenseMatMul SparseToDense
    SparseToSparseSetOperation TakeManySparseFromTensorsMap
""")
"""Sparse and ragged tensors, and sets."""

_TEXT = _names("""
    AsString DecodeBase64 DecodeCSV DecodeCompressed DecodeJSONExample DecodePaddedRaw DecodeRaw
    EncodeBase64 Fingerprint ParseExample ParseExampleV2 ParseSequenceExample
    ParseSequenceExampleV2 ParseSingleExample ParseSingleSequenceExample ParseTensor ReduceJoin
    RegexFullMatch RegexReplace SerializeTensor ShardedFilename ShardedFilespec
    StaticRegexFullMatch StaticRegexReplace StringFormat StringJoin StringLength StringLower
    StringNGrams StringSplit StringSplitV2 StringStrip StringToHashBucket StringToHashBucketFast
    StringToHashBucketStrong StringToNumber StringUpper Substr UnicodeDecode
    UnicodeDecodeWithOffsets UnicodeEncode UnicodeScript UnicodeTranscode UnsortedSegmentJoin
""")
"""Strings to strings and numbers. ShardedFilename and ShardedFilespec only put strings together."""

_MEDIA = _names("""
    AdjustContrast AdjustContrastv2 AdjustHue AdjustSaturation AudioSpectrogram
    CombinedNonMaxSuppression CropAndResize CropAndResizeGradBoxes CropAndResizeGradImage
    DecodeAndCropJpeg DecodeBmp DecodeGif DecodeImage DecodeJpeg DecodePng DecodeWav DecodeWebP
    DrawBoundingBoxes DrawBoundingBoxesV2 EncodeJpeg EncodeJpegVariableQuality EncodePng EncodeWav
    ExtractGlimpse ExtractGlimpseV2 ExtractImagePatches ExtractJpegShape ExtractVolumePatches
    GenerateBoundingBoxProposals HSVToRGB ImageProjectiveTransformV2 ImageProjectiveTransformV3
    Mfcc NonMaxSuppression NonMaxSuppressionV2 NonMaxSuppressionV3 NonMaxSuppressionV4
    NonMaxSuppressionV5 NonMaxSuppressionWithOverlaps RGBToHSV ResizeArea ResizeBicubic
    ResizeBicubicGrad ResizeBilinear ResizeBilinearGrad ResizeNearestNeighbor
    ResizeNearestNeighborGrad SampleDistortedBoundingBox SampleDistortedBoundingBoxV2
    ScaleAndTranslate ScaleAndTranslateGrad StatelessSampleDistortedBoundingBox
""")
"""Images and sound, from strings and numbers in memory."""

_RANDOM = _names("""
    AllCandidateSampler AnonymousRandomSeedGenerator AnonymousSeedGenerator ComputeAccidentalHits
    DeleteRandomSeedGenerator DeleteSeedGenerator DummySeedGenerator
    LearnedUnigramCandidateSampler LogUniformCandidateSampler Multinomial NonDeterministicInts
    ParameterizedTruncatedNormal RandomCrop RandomGamma RandomGammaGrad RandomIndexShuffle
    RandomPoisson RandomPoissonV2 RandomShuffle RandomStandardNormal RandomUniform
    RandomUniformInt RngReadAndSkip RngSkip StatefulRandomBinomial StatefulStandardNormal
    StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform StatefulUniformFullInt
    StatefulUniformInt StatelessMultinomial StatelessParameterizedTruncatedNormal
    StatelessRandomBinomial StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomGetAlg
    StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg StatelessRandomNormal
    StatelessRandomNormalV2 StatelessRandomPoisson StatelessRandomUniform
    StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomUniformInt
    StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessShuffle StatelessTruncatedNormal
    StatelessTruncatedNormalV2 ThreadUnsafeUnigramCandidateSampler TruncatedNormal
    UniformCandidateSampler
""")
"""Random numbers. FixedUnigramCandidateSampler is not here: an attribute names a file to read."""

_VARIABLES = _names("""
    Assign AssignAdd AssignAddVariableOp AssignSub AssignSubVariableOp AssignVariableOp CountUpTo
    DestroyResourceOp DestroyTemporaryVariable IsVariableInitialized ReadVariableOp
    ResourceCountUpTo ResourceGather ResourceGatherNd ResourceScatterAdd ResourceScatterDiv
    ResourceScatterMax ResourceScatterMin ResourceScatterMul ResourceScatterNdAdd
    ResourceScatterNdMax ResourceScatterNdMin ResourceScatterNdSub ResourceScatterNdUpdate
    ResourceScatterSub ResourceScatterUpdate ResourceStridedSliceAssign ScatterAdd ScatterDiv
    ScatterMax ScatterMin ScatterMul ScatterNdAdd ScatterNdMax ScatterNdMin ScatterNdSub
    ScatterNdUpdate ScatterSub ScatterUpdate StridedSliceAssign TemporaryVariable VarHandleOp
    VarIsInitializedOp Variable VariableShape VariableV2
""")
"""Variables, in the memory of the session that runs the graph."""

_OPTIMIZERS = frozenset(
    prefix + name
    for prefix in ("Apply", "ResourceApply", "SparseApply", "ResourceSparseApply")
    for name in _names("""
        AdaMax Adadelta Adagrad AdagradDA AdagradV2 Adam AdamWithAmsgrad AddSign CenteredRMSProp
        Ftrl FtrlV2 GradientDescent KerasMomentum Momentum PowerSign ProximalAdagrad
        ProximalGradientDescent RMSProp
    """)
)
"""Steps of optimizers, which change variables."""

_CONTAINERS = _names("""
    EmptyTensorMap FIFOQueue FIFOQueueV2 PaddingFIFOQueue PaddingFIFOQueueV2 PriorityQueue
    PriorityQueueV2 QueueClose QueueCloseV2 QueueDequeue QueueDequeueMany QueueDequeueManyV2
    QueueDequeueUpTo QueueDequeueUpToV2 QueueDequeueV2 QueueEnqueue QueueEnqueueMany
    QueueEnqueueManyV2 QueueEnqueueV2 QueueIsClosed QueueIsClosedV2 QueueSize QueueSizeV2
    RandomShuffleQueue RandomShuffleQueueV2 Stack StackClose StackCloseV2 StackPop StackPopV2
    StackPush StackPushV2 StackV2 TensorArray TensorArrayClose TensorArrayCloseV2
    TensorArrayCloseV3 TensorArrayConcat TensorArrayConcatV2 TensorArrayConcatV3 TensorArrayGather
    TensorArrayGatherV2 TensorArrayGatherV3 TensorArrayGrad TensorArrayGradV2 TensorArrayGradV3
    TensorArrayGradWithShape TensorArrayPack TensorArrayRead TensorArrayReadV2 TensorArrayReadV3
    TensorArrayScatter TensorArrayScatterV2 TensorArrayScatterV3 TensorArraySize TensorArraySizeV2
    TensorArraySizeV3 TensorArraySplit TensorArraySplitV2 TensorArraySplitV3 TensorArrayUnpack
    TensorArrayV2 TensorArrayV3 TensorArrayWrite TensorArrayWriteV2 TensorArrayWriteV3
    TensorListConcat TensorListConcatLists TensorListConcatV2 TensorListElementShape
    TensorListFromTensor TensorListGather TensorListGetItem TensorListLength TensorListPopBack
    TensorListPushBack TensorListPushBackBatch TensorListReserve TensorListResize
    TensorListScatter TensorListScatterIntoExistingList TensorListScatterV2 TensorListSetItem
    TensorListSplit TensorListStack TensorMapErase TensorMapHasKey TensorMapInsert TensorMapLookup
    TensorMapSize TensorMapStackKeys
""")
"""Lists, arrays, stacks and queues of tensors, in memory."""

_TABLES = _names("""
    AnonymousHashTable AnonymousMutableDenseHashTable AnonymousMutableHashTable
    AnonymousMutableHashTableOfTensors HashTable HashTableV2 InitializeTable InitializeTableV2
    LookupTableExport LookupTableExportV2 LookupTableFind LookupTableFindV2 LookupTableImport
    LookupTableImportV2 LookupTableInsert LookupTableInsertV2 LookupTableRemoveV2 LookupTableSize
    LookupTableSizeV2 MutableDenseHashTable MutableDenseHashTableV2 MutableHashTable
    MutableHashTableOfTensors MutableHashTableOfTensorsV2 MutableHashTableV2
""")
"""Tables of words, in memory. Those that are filled from a file are in ASSET_READERS."""

_DATA_SETS = _names("""
    AnonymousIterator AnonymousIteratorV2 AnonymousIteratorV3 BatchDataset BatchDatasetV2
    ConcatenateDataset DeleteIterator FilterDataset FlatMapDataset GeneratorDataset
    InterleaveDataset Iterator IteratorFromStringHandle IteratorFromStringHandleV2 IteratorGetNext
    IteratorGetNextAsOptional IteratorGetNextSync IteratorToStringHandle IteratorV2 MakeIterator
    MapAndBatchDataset MapDataset ModelDataset OneShotIterator OptimizeDataset OptimizeDatasetV2
    OptionsDataset PaddedBatchDataset PaddedBatchDatasetV2 ParallelMapDataset ParallelMapDatasetV2
    ParseExampleDataset ParseExampleDatasetV2 PrefetchDataset RangeDataset ReduceDataset
    RepeatDataset ShuffleAndRepeatDataset ShuffleAndRepeatDatasetV2 ShuffleDataset
    ShuffleDatasetV2 ShuffleDatasetV3 SkipDataset SparseTensorSliceDataset TakeDataset
    TensorDataset TensorSliceDataset UnbatchDataset WindowDataset ZipDataset
""")
"""Data sets from tensors in memory; what they map is a function of the graph's own library."""

_SUMMARIES = _names("""
    AudioSummary AudioSummaryV2 HistogramSummary ImageSummary MergeSummary ScalarSummary
    TensorSummary TensorSummaryV2
""")
"""They make a string of a tensor, and write it nowhere."""

HARMLESS = frozenset().union(
    _STRUCTURE, _CALLS, _ARITHMETIC, _SHAPES, _LINEAR_ALGEBRA, _LAYERS, _RECURRENT, _QUANTIZED,
    _SPARSE, _TEXT, _MEDIA, _RANDOM, _VARIABLES, _OPTIMIZERS, _CONTAINERS, _TABLES, _DATA_SETS,
    _SUMMARIES,
)  # fmt: skip
"""Ops that may run wherever they stand."""

ASSET_READERS = frozenset({"InitializeTableFromTextFile", "InitializeTableFromTextFileV2"})
"""They may read an asset of the SavedModel that they stand in."""

CHECKPOINT_READERS = frozenset({"Restore", "RestoreSlice", "RestoreV2"})
"""They may read the checkpoint whose name is fed to the graph."""

CHECKPOINT_WRITERS = frozenset({"MergeV2Checkpoints", "Save", "SaveSlices", "SaveV2"})
"""They may stand in a graph, as every saved one has them, where nothing that is run needs them."""
