"""Every memory-bound kernel of the micro workloads can run in at least eight different ways."""

from __future__ import annotations

import mlir.ir as ir
import pytest
import torch

from mlirstitch.dialects import new_context, stitch
from mlirstitch.driver.bench.workloads import get, names
from mlirstitch.driver.compile import compile
from mlirstitch.passes.stitching.template import Cluster, find_candidates
from mlirstitch.passes.structured import functions
from mlirstitch.target import Target

MICRO = names()[: names().index("bert_layer")]
WANTED = 8


@pytest.mark.slow
@pytest.mark.parametrize("name", MICRO)
def test_kernels_of_micro_workloads_can_run_in_eight_ways(name: str) -> None:
    compiled = compile(get(name).export("small", torch.float32))
    with new_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(compiled.text("stitched"))
        clusters = [f for f in functions(module.operation) if stitch.CLUSTER.name in f.attributes]
        assert clusters
        for function in clusters:
            found = find_candidates(Cluster.of_function(function), Target.parse("sm_90"), limit=WANTED)
            assert len(set(found)) == WANTED
            assert found[0] == stitch.SCHEDULE.get(function)
