"""The written `.tflite` file itself: its operators counted, its LSTM states made to start as zeros.

TFLite's LSTM operator keeps its states in variables of the interpreter, which outlive a call: a
second sequence would begin where the first one ended, without an error. So an operator `FILL`
before each LSTM sets them to zero.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

IDENTIFIER = b"TFL3"
LSTM = "UNIDIRECTIONAL_SEQUENCE_LSTM"


def operators_of(content: bytes) -> dict[str, int]:
    """Type to count, over all subgraphs; TensorFlow's own ones as e.g. "FlexErf"."""
    schema = _schema()
    model = schema.Model.GetRootAsModel(content, 0)
    names = _names(schema, model)
    count = Counter(
        names[subgraph.Operators(place).OpcodeIndex()]
        for subgraph in _subgraphs(model)
        for place in range(subgraph.OperatorsLength())
    )
    return dict(sorted(count.items()))


def int8_values(content: bytes) -> int:
    """How many weights are stored as int8."""
    schema = _schema()
    model = schema.Model.GetRootAsModel(content, 0)
    tensors = (
        subgraph.Tensors(place)
        for subgraph in _subgraphs(model)
        for place in range(subgraph.TensorsLength())
    )
    return sum(
        int(model.Buffers(tensor.Buffer()).DataLength())
        for tensor in tensors
        if tensor.Type() == schema.TensorType.INT8
    )


def start_with_zeros(content: bytes) -> bytes:
    """The file with a `FILL` before each LSTM operator, for both of its states."""
    import flatbuffers

    schema = _schema()
    root = schema.Model.GetRootAsModel(content, 0)
    names = _names(schema, root)
    if LSTM not in names:
        return content
    model = schema.ModelT.InitFromObj(root)
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.FILL
    code.version = 1
    model.operatorCodes.append(code)
    for subgraph in model.subgraphs:
        operators = []
        for operator in subgraph.operators or []:
            if names[operator.opcodeIndex] == LSTM:
                operators += _fills(schema, model, subgraph, operator)
            operators.append(operator)
        subgraph.operators = operators
    builder = flatbuffers.Builder(len(content) + 1024)
    builder.Finish(model.Pack(builder), IDENTIFIER)
    return bytes(builder.Output())


def _fills(schema: Any, model: Any, subgraph: Any, lstm: Any) -> list[Any]:
    made = []
    for place in lstm.inputs:
        if place < 0 or not subgraph.tensors[place].isVariable:
            continue
        shape = np.array(subgraph.tensors[place].shape, np.int32)
        operator = schema.OperatorT()
        operator.opcodeIndex = len(model.operatorCodes) - 1
        operator.inputs = [
            _constant(schema, model, subgraph, shape, schema.TensorType.INT32),
            _constant(schema, model, subgraph, np.float32(0), schema.TensorType.FLOAT32),
        ]
        operator.outputs = [int(place)]
        operator.builtinOptionsType = schema.BuiltinOptions.FillOptions
        operator.builtinOptions = schema.FillOptionsT()
        made.append(operator)
    return made


def _constant(schema: Any, model: Any, subgraph: Any, value: Any, dtype: int) -> int:
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(value.tobytes(), np.uint8)
    model.buffers.append(buffer)
    tensor = schema.TensorT()
    tensor.shape = list(value.shape)
    tensor.type = dtype
    tensor.buffer = len(model.buffers) - 1
    tensor.name = f"zeros/{len(subgraph.tensors)}".encode()
    subgraph.tensors.append(tensor)
    return len(subgraph.tensors) - 1


def _subgraphs(model: Any) -> list[Any]:
    return [model.Subgraphs(place) for place in range(model.SubgraphsLength())]


def _names(schema: Any, model: Any) -> list[str]:
    """Of each operator code of the model."""
    by_number = {
        number: name
        for name, number in vars(schema.BuiltinOperator).items()
        if isinstance(number, int)
    }
    codes = [model.OperatorCodes(place) for place in range(model.OperatorCodesLength())]
    return [
        code.CustomCode().decode() if code.CustomCode() else by_number[_number(code)]
        for code in codes
    ]


def _number(code: Any) -> int:
    """Old files have the small numbers in a field of their own."""
    return max(int(code.BuiltinCode()), int(code.DeprecatedBuiltinCode()))


def _schema() -> Any:
    from ai_edge_litert import schema_py_generated

    return schema_py_generated
