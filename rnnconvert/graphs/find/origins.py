"""Following a tensor back to those that it is handed on from, unchanged in shape and meaning.

Across calls of functions, around loops, and through the stacks and lists on which loops keep values
for their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator

from rnnconvert.graphs.find.scopes import Library, Producer, Scope
from rnnconvert.graphs.framework import data_inputs

Place = tuple[Scope, str]
"""A tensor: the scope, and the reference to it there."""

_PASS_ON = frozenset(
    "Identity StopGradient Merge RefMerge Enter RefEnter Exit RefExit NextIteration "
    "RefNextIteration Switch RefSwitch ReadVariableOp".split()
)
"""Ops that hand their first input on. A variable's handle counts as its value here."""

_LOOPS = ("While", "StatelessWhile")
_STACK_POPS = ("StackPop", "StackPopV2")
_STACK_PUSHES = ("StackPush", "StackPushV2")
_DEEP = 200  # nodes in a row that hand a tensor on


def origins(library: Library, scope: Scope, reference: str) -> list[Place]:
    """The tensors that a tensor is handed on from: none if it is computed, many after a merge."""
    producer = library.producer(scope, reference)
    if producer is None:
        return []
    if producer.node is None:
        return library.arguments_given(scope, producer.index)
    node, inputs = producer.node, data_inputs(producer.node)
    if node.op in ("Merge", "RefMerge"):
        return [(scope, each) for each in inputs]
    if node.op in _PASS_ON:
        return [(scope, each) for each in inputs[:1]]
    if node.op in _STACK_POPS:
        return [(scope, each) for each in _pushed_on_stack(library, scope, inputs)]
    if node.op == "TensorListPopBack" and producer.index == 1:
        return [found for each in inputs[:1] for found in _pushed_on_list(library, scope, each)]
    if node.op in _LOOPS:  # a loop's variables keep their shape
        return [(scope, each) for each in inputs[producer.index :][:1]]
    return list(_results(library, producer))


def turned(library: Library, scope: Scope, reference: str) -> list[Place]:
    """What a loop's body makes of a loop's variable; none for other tensors.

    `origins` has what the variable was before the loop: the same shape, not the same value.
    """
    producer = library.producer(scope, reference)
    if producer is None:
        return []
    if producer.node is not None:
        loops = [(producer.node, producer.index)] if producer.node.op in _LOOPS else []
    else:
        calls = library.callers[scope.name]
        loops = [(call.node, producer.index) for call in calls if call.node.op in _LOOPS]
    found = []
    for node, index in loops:
        name = node.attr["body"].func.name
        outputs = library.signatures[name].output_arg if name in library.functions else ()
        if 0 <= index < len(outputs):
            found.append((library.scopes[name], library.functions[name].ret[outputs[index].name]))
    return found


def _results(library: Library, producer: Producer) -> Iterator[Place]:
    """What the functions that a node calls return as its output."""
    for name in library.called(producer.node):
        outputs = library.signatures[name].output_arg
        if 0 <= producer.index < len(outputs):
            result = library.functions[name].ret[outputs[producer.index].name]
            yield library.scopes[name], result


def _pushed_on_stack(library: Library, scope: Scope, pop: list[str]) -> list[str]:
    """What a TensorFlow 1 loop pushes on the stack that a node pops."""
    stack = _stack(library, scope, pop)
    pushes = [data_inputs(node) for node in scope.nodes if node.op in _STACK_PUSHES]
    return [
        push[1]
        for push in pushes
        if len(push) > 1 and stack is not None and _stack(library, scope, push) == stack
    ]


def _stack(library: Library, scope: Scope, inputs: list[str]) -> str | None:
    """Name of the stack that is a node's first input, perhaps by way of Enter nodes."""
    for _ in range(_DEEP):
        producer = library.producer(scope, inputs[0]) if inputs else None
        if producer is None or producer.node is None:
            return None
        if producer.node.op not in _PASS_ON:
            return str(producer.node.name)
        inputs = data_inputs(producer.node)
    return None


def _pushed_on_list(library: Library, scope: Scope, reference: str) -> list[Place]:
    """What a TensorFlow 2 loop pushes on a list, which reaches its gradient through the loop."""
    todo, visited, pushed = [(scope, reference)], set[tuple[str, str]](), []
    while todo and len(visited) < _DEEP:
        scope, reference = todo.pop()
        if (scope.name, reference) in visited:
            continue
        visited.add((scope.name, reference))
        producer = library.producer(scope, reference)
        node = producer.node if producer else None
        if producer is None or node is None:
            todo += origins(library, scope, reference)
            continue
        inputs = data_inputs(node)
        if node.op == "TensorListPushBack" and len(inputs) > 1:
            pushed.append((scope, inputs[1]))
        elif node.op == "TensorListPopBack":
            todo += [(scope, each) for each in inputs[:1]]
        elif node.op in _LOOPS:  # pushed in the body, not ahead of the loop
            todo += _results(library, producer)
        else:
            todo += origins(library, scope, reference)
    return pushed
