"""Checks common to all templates, before any of them runs dry."""

from __future__ import annotations

import weakref

from mlirstitch.dialects.locations import refusal
from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.tensor_program import (
    WAY_OUT,
    Choice,
    Computed,
    Node,
    Refused,
    TensorProgram,
    View,
    element_problem,
)
from mlirstitch.passes.stitching.template import Cluster
from mlirstitch.target import MAX_KERNEL_ARGUMENT_BYTES

MAX_DEPTH = 150
"""Longest chain of values a kernel may hold; evaluation recurses along it."""

_POINTER_BYTES = 8


class _LastProgram:
    """The program of the cluster asked about last: templates are asked about one cluster one after the other."""

    def __init__(self) -> None:
        self._cluster: weakref.ref[Cluster] | None = None
        self._program: TensorProgram | None = None

    def of(self, cluster: Cluster) -> TensorProgram:
        if self._program is None or self._cluster is None or self._cluster() is not cluster:
            self._program = TensorProgram.of(cluster, cluster.facts)
            self._cluster = weakref.ref(cluster)
        return self._program


_last = _LastProgram()


def build_program(cluster: Cluster) -> TensorProgram:
    """The cluster as a graph of values. The ops of one :class:`Cluster` object must not change between questions."""
    return _last.of(cluster)


def check_program(program: TensorProgram) -> None:
    """Refuse what no template can emit: refused values, chains too deep, too many arguments."""
    for node in program.arguments:
        problem = "its shape is dynamic" if min(node.shape, default=0) < 0 else element_problem(node.element)
        if problem:
            raise PassError(f"argument {node.position} of shape {list(node.shape)}: {problem}", hint=WAY_OUT)
    for node in program.nodes.values():
        if isinstance(node, Refused):
            raise node.error
    count = len(program.arguments) + len(program.outputs)
    if count * _POINTER_BYTES > MAX_KERNEL_ARGUMENT_BYTES:
        raise PassError(f"{count} arguments exceed the {MAX_KERNEL_ARGUMENT_BYTES} bytes a kernel may take")
    depth: dict[int, int] = {}
    for node in program.nodes.values():
        depth[node.uid] = 1 + max((depth.get(source.uid, 0) for source in sources(node)), default=0)
        if depth[node.uid] > MAX_DEPTH and node.op is not None:
            raise refusal(node.op, f"ends a chain of more than {MAX_DEPTH} ops", "it is cut into several kernels")


def sources(node: Node) -> tuple[Node, ...]:
    """The values a value is computed from."""
    if isinstance(node, Computed):
        return (*node.operands, *node.tensors.values())
    if isinstance(node, View):
        return (node.source,)
    if isinstance(node, Choice):
        return (node.inside,) if node.outside is None else (node.inside, node.outside)
    return ()
