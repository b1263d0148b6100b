"""Requests on random graphs: honoured by both clusterers, packs included, or refused because they contradict."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import mlir.ir as ir
import pytest

import mlirstitch.lowering  # noqa: F401  (registers the templates that clustering asks)
from mlirstitch.dialects import new_context, stitch
from mlirstitch.dialects.walk import walk
from mlirstitch.errors import PassError
from mlirstitch.passes.pipeline import run_pipeline

ADD = """%v{n} = linalg.generic {{indexing_maps = [#m, #m, #m], iterator_types = ["parallel"]}}
      ins(%v{a}, %v{b} : tensor<16xf32>, tensor<16xf32>) outs(%e : tensor<16xf32>) attrs = {{test.place = {n} : i64}} {{
    ^bb0(%i: f32, %j: f32, %o: f32):
      %r = arith.addf %i, %j : f32
      linalg.yield %r : f32
    }} -> tensor<16xf32>"""


@dataclass
class Case:
    """A module of additions: what each reads, and the requests on them."""

    text: str
    reads: dict[int, set[int]]
    together: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)
    right: set[int] = field(default_factory=set)
    alone: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)

    def forbids(self, nodes: set[int]) -> bool:
        """A request keeps two of the ops apart."""
        return len(nodes) > 1 and bool(nodes & (self.alone | self.kept) or (nodes & self.left and nodes & self.right))

    def with_between(self) -> set[int]:
        """The ops to keep together with all on paths between them."""
        below: set[int] = set()
        for node in sorted(self.reads):
            if self.reads[node] & (self.together | below):
                below.add(node)
        above: set[int] = set()
        for node in sorted(self.reads, reverse=True):
            if any(node in self.reads[reader] and reader in self.together | above for reader in self.reads):
                above.add(node)
        return self.together | (below & above)


def random_case(seed: int) -> Case:
    """Up to 16 additions of two independent inputs, so that packs are worth asking for too."""
    rng = random.Random(seed)
    count = rng.randint(4, 16)
    reads: dict[int, set[int]] = {}
    ops: list[str] = []
    for node in range(1, count + 1):
        # Inputs are -1 (even places) and 0; an op reads ops of its own half, now and then of the other.
        near = [other for other in range(max(1, node - 5), node) if (other - node) % 2 == 0 or rng.random() < 0.15] or [
            0
        ]
        a, b = rng.choice(near), rng.choice(near)
        reads[node] = {a, b} - {0}
        ops.append(ADD.format(n=node, a=a, b=b))
    unread = sorted(set(reads) - set().union(*reads.values()))
    case = Case("", reads)
    if rng.random() < 0.6:
        case.together = set(rng.sample(sorted(reads), rng.randint(2, 3)))
    if rng.random() < 0.6:
        sides = rng.sample(sorted(reads), min(4, count))
        case.left, case.right = set(sides[:2]), set(sides[2:])
    if rng.random() < 0.5:
        case.alone = set(rng.sample(sorted(reads), 1))
    if rng.random() < 0.7:
        case.kept = set(rng.sample(sorted(reads), 2))
    results, types = ", ".join(f"%v{node}" for node in unread), ", ".join(["tensor<16xf32>"] * len(unread))
    body = "\n    ".join(ops)
    case.text = f"""#m = affine_map<(d0) -> (d0)>
module attributes {{stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"}} {{
  func.func @main(%v0: tensor<16xf32>) -> ({types}) {{
    %e = tensor.empty() : tensor<16xf32>
    {body}
    return {results} : {types}
  }}
}}"""
    return case


def clustered(case: Case, explorer: str) -> list[set[int]]:
    """The ops of every kernel; outlining and scheduling must accept them."""
    with new_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(case.text)
        for op in walk(module.operation):
            if "test.place" in op.attributes:
                node = ir.IntegerAttr(op.attributes["test.place"]).value
                if node in case.together:
                    stitch.KEEP_TOGETHER.set(op, ("set #0",))
                if node in case.kept:
                    stitch.MEMBER.set(op, (node,))
                both = (("left of q", case.left), ("right of q", case.right))
                sides = [text for text, nodes in both if node in nodes]
                if sides:
                    stitch.KEEP_APART.set(op, tuple(sides))
                if node in case.alone:
                    stitch.NEVER_FUSE.set(op, "q")
        run_pipeline(module, f"builtin.module(stitch-cluster{{explorer={explorer}}})")
        found: dict[int, set[int]] = {}
        for op in walk(module.operation):
            if "test.place" in op.attributes:
                for number in stitch.MEMBER.require(op):
                    found.setdefault(number, set()).add(ir.IntegerAttr(op.attributes["test.place"]).value)
                for attribute in (stitch.KEEP_TOGETHER, stitch.KEEP_APART, stitch.NEVER_FUSE):
                    assert attribute.get(op) is None
        run_pipeline(module, "builtin.module(stitch-outline,stitch-schedule)")
        return [found[number] for number in sorted(found)]


@pytest.mark.parametrize("explorer", ["greedy", "beam"])
@pytest.mark.parametrize("seed", range(40))
def test_requests_are_honoured_or_refused(seed: int, explorer: str) -> None:
    case = random_case(seed)
    if case.together and case.forbids(case.with_between()):
        with pytest.raises(PassError, match=r"keep together set .*: .*(q is asked for too|as it is)"):
            clustered(case, explorer)
        return
    kernels = clustered(case, explorer)
    assert sorted(node for kernel in kernels for node in kernel) == sorted(case.reads)
    assert not [kernel for kernel in kernels if case.forbids(kernel)]
    assert not case.together or any(case.with_between() <= kernel for kernel in kernels)


def test_cases_ask_for_everything_and_contradict_now_and_then() -> None:
    cases = [random_case(seed) for seed in range(40)]
    refused = sum(bool(case.together) and case.forbids(case.with_between()) for case in cases)
    granted = sum(bool(case.together) and not case.forbids(case.with_between()) for case in cases)
    assert min(refused, granted, sum(bool(case.left) for case in cases), sum(bool(case.alone) for case in cases)) >= 5
