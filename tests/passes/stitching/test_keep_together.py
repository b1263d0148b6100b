"""Ops kept together in random graphs: one kernel each, exactly as asked for, or a refusal that says why."""

from __future__ import annotations

import random

import mlir.ir as ir
import pytest

import mlirstitch.lowering  # noqa: F401  (registers the templates that clustering asks)
from mlirstitch.dialects import new_context, stitch
from mlirstitch.dialects.walk import walk
from mlirstitch.errors import PassError
from mlirstitch.passes.pipeline import run_pipeline

ADD = """%v{n} = linalg.generic {{indexing_maps = [#m, #m, #m], iterator_types = ["parallel"]}}
      ins(%v{a}, %v{b} : tensor<16xf32>, tensor<16xf32>) outs(%e : tensor<16xf32>) attrs = {{{keep}}} {{
    ^bb0(%i: f32, %j: f32, %o: f32):
      %r = arith.addf %i, %j : f32
      linalg.yield %r : f32
    }} -> tensor<16xf32>"""


def random_graph(rng: random.Random) -> tuple[str, dict[int, list[int]], dict[int, set[int]]]:
    """A module of additions, which of them are kept together by number, and what each reads."""
    count = rng.randint(4, 14)
    kept: dict[int, list[int]] = {}
    ops: list[str] = []
    unread: set[int] = set()
    reads: dict[int, set[int]] = {}
    for node in range(1, count + 1):
        keep = "test.place = 0 : i64".replace("0", str(node), 1)
        if rng.random() < 0.5:
            number = rng.choice((3, 8, 40))
            kept.setdefault(number, []).append(node)
            keep += f", stitch.cluster = array<i64: {number}>"
        near = range(max(0, node - 4), node)
        a, b = rng.choice(near), rng.choice(near)
        reads[node] = {a, b} - {0}
        unread = (unread | {node}) - {a, b}
        ops.append(ADD.format(n=node, a=a, b=b, keep=keep))
    results = ", ".join(f"%v{node}" for node in sorted(unread))
    types = ", ".join(["tensor<16xf32>"] * len(unread))
    body = "\n    ".join(ops)
    return (
        f"""#m = affine_map<(d0) -> (d0)>
module attributes {{stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"}} {{
  func.func @main(%v0: tensor<16xf32>) -> ({types}) {{
    %e = tensor.empty() : tensor<16xf32>
    {body}
    return {results} : {types}
  }}
}}""",
        kept,
        reads,
    )


def can_run(kept: dict[int, list[int]], reads: dict[int, set[int]]) -> bool:
    """Whether kernels can run one after the other if every kept set is one and every other op another."""
    home = {node: node for node in reads} | {node: -number for number, nodes in kept.items() for node in nodes}
    before = {name: {home[a] for n in reads if home[n] == name for a in reads[n]} - {name} for name in home.values()}
    while before:
        ready = [name for name, needed in before.items() if not needed & before.keys()]
        if not ready:
            return False
        for name in ready:
            del before[name]
    return True


def clustered(text: str) -> dict[int, tuple[int, ...]]:
    """The clusters of every op after stitch-cluster; outlining and scheduling must accept them."""
    with new_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        run_pipeline(module, "builtin.module(stitch-cluster)")
        found: dict[int, tuple[int, ...]] = {}
        for op in walk(module.operation):
            if "test.place" in op.attributes:
                found[ir.IntegerAttr(op.attributes["test.place"]).value] = stitch.MEMBER.require(op)
        run_pipeline(module, "builtin.module(stitch-outline,stitch-schedule)")
        return found


@pytest.mark.parametrize("seed", range(40))
def test_kept_ops_are_one_cluster_or_are_refused(seed: int) -> None:
    text, kept, reads = random_graph(random.Random(seed))
    if not can_run(kept, reads):
        with pytest.raises(PassError, match=r"stitch.cluster keeps .* (feeds another|each other's results)"):
            clustered(text)
        return
    found = clustered(text)
    for nodes in kept.values():
        numbers = {found[node] for node in nodes}
        assert len(numbers) == 1
        assert [node for node, places in found.items() if {places} & numbers] == nodes
