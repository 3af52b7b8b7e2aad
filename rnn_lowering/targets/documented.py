"""What public documents and sources name of runtimes that were not run: data only, for table.py.

An operator is in a list only where its source names it as supported.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Documented:
    """The operators that a public document or source names.

    Attributes:
        source: A URL, or a repository on GitHub and a path in it.
        date: Of the source.
        named: The operators of the default domain that it names as supported, separated by white space.
        left_out: Those of them that count as not supported, because of the limit that it names.
        unchecked: Limits that it names and that a lowering does not check.
    """

    source: str
    date: str
    named: str
    left_out: tuple[tuple[str, str], ...] = ()
    unchecked: str = ""

    @property
    def operators(self) -> frozenset[str]:
        """The operators that may be emitted."""
        return frozenset(self.named.split()) - {operator for operator, _ in self.left_out}


CANDLE = Documented(
    "huggingface/candle: candle-onnx/src/eval.rs",
    "2026-08-14",
    """
    Abs Add And ArgMax ArgMin AveragePool BatchNormalization Cast Ceil Clip Concat Constant ConstantOfShape Conv
    Cos CumSum Div Dropout Equal Erf Exp Expand Flatten Floor Gather GatherElements Gelu Gemm Greater
    GreaterOrEqual HardSwish Identity If LSTM LeakyRelu Less LessOrEqual Log LogSoftmax MatMul MaxPool Min Mul Neg
    Not OneHot Or PRelu Pad Pow RNN Range ReduceL2 ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Resize
    ScatterND Selu Shape Sigmoid Sign Sin Size Slice Softmax Split Sqrt Squeeze Sub Tanh Tile Transpose Trilu
    Unsqueeze Where Xor
    """,
)

RTEN = Documented(
    "robertknight/rten: src/op_registry/onnx_registry.rs, src/model/onnx_loader.rs",
    "2026-08-08",
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization Cast
    CastLike Ceil Clip Concat ConcatFromSequence Constant ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh
    CumSum DFT DepthToSpace DequantizeLinear Div Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand
    EyeLike Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater
    GreaterOrEqual GridSample HardSigmoid HardSwish Identity If InstanceNormalization IsInf IsNaN LSTM
    LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Loop LpNormalization MatMul MatMulInteger Max
    MaxPool Mean Min Mod Mul Multinomial Neg NonMaxSuppression NonZero Not OneHot Or PRelu Pad Pow QuantizeLinear
    RMSNormalization RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range Reciprocal ReduceL1
    ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu
    Reshape Resize ReverseSequence RotaryEmbedding Round STFT Scatter ScatterElements ScatterND SequenceAt
    SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength Shape Sigmoid Sign Sin Sinh Size
    Slice Softmax Softplus Split SplitToSequence Sqrt Squeeze Sub Sum Swish Tan Tanh Tile TopK Transpose Trilu
    Unsqueeze Upsample Where Xor
    """,
)

BURN = Documented(
    "tracel-ai/burn-onnx: SUPPORTED-ONNX-OPS.md",
    "2026-02-21",
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization Bernoulli
    BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil Celu Clip Col2Im Concat Constant ConstantOfShape
    Conv ConvTranspose Cos Cosh CumSum DeformConv DepthToSpace Div Dropout Elu Equal Erf Exp Expand EyeLike
    Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool Greater GreaterOrEqual GridSample
    GroupNormalization HardSigmoid HardSwish Hardmax Identity If InstanceNormalization IsInf IsNaN LSTM
    LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Loop MatMul MatMulInteger Max MaxPool Mean Min
    Mish Mod Mul Neg NonZero Not OneHot Or PRelu Pad Pow RNN RandomNormal RandomNormalLike RandomUniform
    RandomUniformLike Range Reciprocal ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare Relu Reshape Resize Round Scan ScatterElements ScatterND Selu Shape Sigmoid Sign Sin
    Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tan Tanh
    ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Where Xor
    """,
)

ONNX2C = Documented(
    "kraiskil/onnx2c: src/graph.cc",
    "2026-04-15",
    """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh AveragePool BatchNormalization BitShift Cast Ceil Celu Clip
    Concat Constant ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh DequantizeLinear Div Dropout
    DynamicQuantizeLinear Elu Equal Erf Exp Expand Flatten Floor Gather Gemm GlobalAveragePool GlobalMaxPool
    Greater GreaterOrEqual HardSigmoid HardSwish Identity InstanceNormalization LRN LSTM LayerNormalization
    LeakyRelu Less LessOrEqual Log LogSoftmax MatMul MatMulInteger Max MaxPool Mean Min Mod Mul Neg Not Or PRelu
    Pad Pow QLinearConv QLinearMatMul QuantizeLinear RandomUniform Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum
    ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize Round
    ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Slice Softmax Softplus Softsign Split Sqrt Squeeze Sub Sum
    Tan Tanh ThresholdedRelu Transpose Unsqueeze Upsample Where Xor
    """,
)

QNN = Documented(
    "onnxruntime/onnxruntime-qnn: docs/execution_providers/QNN-ExecutionProvider.md",
    "2026-03-10",
    """
    Abs Add And ArgMax ArgMin Asin Atan AveragePool BatchNormalization Cast Ceil Clip Concat Conv ConvTranspose
    Cos CumSum DepthToSpace DequantizeLinear Div Einsum Elu Equal Exp Expand Flatten Floor Gather GatherElements
    GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GridSample HardSigmoid HardSwish
    InstanceNormalization LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization
    MatMul Max MaxPool Mean Min Mod Mul Neg Not Or PRelu Pad Pow QuantizeLinear RandomUniformLike Reciprocal
    ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu Resize Round STFT ScatterElements ScatterND
    Sigmoid Sign Sin Slice Softmax SpaceToDepth Split Sqrt Squeeze Sub Sum Tanh ThresholdedRelu Tile TopK
    Transpose Unsqueeze Upsample Where
    """,
    unchecked="types by backend; in HTP MatMul of integers only",
)

WEBNN = Documented(
    "https://www.npmjs.com/package/onnxruntime-web: docs/webnn-operators.md",
    "2026-09-14",
    """
    Abs Add And ArgMax ArgMin AveragePool BatchNormalization Cast Ceil Clip Concat Conv ConvInteger ConvTranspose
    Cos CumSum DepthToSpace DequantizeLinear Div Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand
    Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool
    Greater GreaterOrEqual HardSigmoid HardSwish Identity InstanceNormalization IsInf IsNaN LRN LSTM
    LayerNormalization LeakyRelu Less LessOrEqual Log LpNormalization LpPool MatMul MatMulInteger Max MaxPool Min
    Mul Neg Not Or PRelu Pad Pow QuantizeLinear Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
    ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize RotaryEmbedding Round
    ScatterElements ScatterND Shape Sigmoid Sign Sin Slice Softmax Softplus Softsign Split Sqrt Squeeze Sub Tan
    Tanh Tile Transpose Trilu Unsqueeze Where Xor
    """,
    unchecked="what each browser and device supports",
)

TENSORRT = Documented(
    "onnx/onnx-tensorrt: docs/operators.md",
    "2024-06-17",
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast CastLike Ceil
    Celu Clip Concat Constant ConstantOfShape Conv ConvTranspose Cos Cosh CumSum DeformConv DepthToSpace
    DequantizeLinear Div Dropout Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather GatherElements
    GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample
    GroupNormalization HardSigmoid HardSwish Hardmax Identity If InstanceNormalization IsInf IsNaN LRN LSTM
    LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Loop LpNormalization LpPool MatMul Max MaxPool
    Mean MeanVarianceNormalization Min Mish Mod Mul Neg NonMaxSuppression NonZero Not OneHot Or PRelu Pad Pow
    QuantizeLinear RNN RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range Reciprocal ReduceL1
    ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu
    Reshape Resize ReverseSequence RoiAlign Round Scan Scatter ScatterElements ScatterND Selu Shape Shrink Sigmoid
    Sign Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh
    ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Upsample Where Xor
    """,
    unchecked="DequantizeLinear: zero point 0; Loop: its stacked outputs have a known length",
)

TIDL = Documented(
    "TexasInstruments/edgeai-tidl-tools: docs/supported_ops_rts_versions.md",
    "2025-05-21",
    """
    Abs Acos Add ArgMax Asin Asinh Atan AveragePool BatchNormalization Cast Clip Concat Conv ConvTranspose Cos
    Cosh DeformConv DepthToSpace DequantizeLinear Div Dropout Elu Erf Exp Flatten Floor Gather Gemm
    GlobalAveragePool GridSample HardSigmoid HardSwish Identity InstanceNormalization LayerNormalization LeakyRelu
    Log MatMul Max MaxPool Mish Mul Neg PRelu Pad Pow QuantizeLinear ReduceMax ReduceMean ReduceMin Relu Reshape
    Resize ScatterElements ScatterND Sigmoid Sin Sinh Slice Softmax SpaceToDepth Split Sqrt Squeeze Sub Sum Tan
    Tanh TopK Transpose Unsqueeze Upsample
    """,
    left_out=(
        ("Cast", "only at inputs and outputs of the network"),
        ("Gather", "1-D indices, and a single number behind each"),
        ("Identity", "not on its own"),
        ("Sub", "one operand must be constant"),
    ),
    unchecked="Concat not of the batch axis; Slice and Split of at most 4 dimensions; ReduceMax along the height",
)

STEDGEAI = Documented(
    "https://stedgeai-dc.st.com/assets/embedded-docs/supported_ops_onnx.html (2.2)",
    "2025-08-05",
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization BitShift Cast Ceil
    Clip Concat Constant ConstantOfShape Conv ConvTranspose Cos Cosh DepthToSpace DequantizeLinear Div Dropout
    Einsum Elu Equal Erf Exp Expand Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool
    GlobalMaxPool Greater GreaterOrEqual HardSigmoid HardSwish Hardmax Identity InstanceNormalization LRN LSTM
    LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization MatMul Max MaxPool Mean Min Mod Mul Neg Not Or PRelu
    Pad Pow QLinearConv QLinearMatMul QuantizeLinear Range Reciprocal ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax
    ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize Round ScatterND Selu Shape
    Sigmoid Sign Sin Sinh Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh
    ThresholdedRelu Tile TopK Transpose Unsqueeze Upsample Where Xor
    """,
    left_out=(
        ("Gather", "not along axis 0"),
        ("HardSigmoid", "1-D tensors only"),
        ("Split", "only into parts of size 1"),
    ),
    unchecked="Concat, Transpose and Flatten not of the batch axis; MatMul of at most 3 dimensions",
)
