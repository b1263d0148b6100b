"""Cluster functions to kernels, host function to launch plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mlir import ir

from mlirstitch.dialects import invariants, parse_module
from mlirstitch.dialects.locations import refusal
from mlirstitch.errors import PassError
from mlirstitch.lowering import stitch_to_gpu
from mlirstitch.lowering.buffers import annotate, host_function, read_plan
from mlirstitch.lowering.canonical import CANONICAL_NAME
from mlirstitch.lowering.host_program import Json, host_program
from mlirstitch.passes.pipeline import run_pipeline
from mlirstitch.passes.stitching.template import Cluster

HEAD = 'module attributes {stitch.target = "sm_90", stitch.numerics = "default", stitch.library = "none"} {'


def cluster(name: str, shape: str = "4x8", op: str = "negf", attributes: str = "") -> str:
    rank = shape.count("x") + 1
    dims = ", ".join(f"d{i}" for i in range(rank))
    iterators = ", ".join(['"parallel"'] * rank)
    kind = f"tensor<{shape}xf32>"
    return f"""
      func.func private @{name}(%a: {kind}) -> {kind} attributes {{no_inline, stitch.cluster{attributes}}} {{
        %e = tensor.empty() : {kind} loc("model.py":20:0)
        %r = linalg.generic {{indexing_maps = [affine_map<({dims}) -> ({dims})>, affine_map<({dims}) -> ({dims})>],
                              iterator_types = [{iterators}]}}
            ins(%a : {kind}) outs(%e : {kind}) attrs = {{stitch.kind = "light"}} {{
        ^bb0(%in: f32, %out: f32):
          %n = arith.{op} %in : f32 loc("model.py":21:0)
          linalg.yield %n : f32
        }} -> {kind} loc("model.py":22:0)
        return %r : {kind}
      }}"""


def converted(body: str, *, scheduled: bool = True) -> tuple[ir.Module, Json]:
    module = parse_module(HEAD + body + "}")
    passes = ["stitch-schedule"] if scheduled else []
    run_pipeline(module, f"builtin.module({','.join([*passes, 'plan-buffers', 'convert-stitch-to-gpu'])})")
    invariants.check(module, "gpu")
    return module, host_program(module.operation)


def test_a_shared_cluster_is_one_kernel_launched_twice() -> None:
    module, program = converted(
        """
        func.func @main(%x: tensor<4x8xf32> {stitch.name = "x"}, %unused: tensor<3xf32>) -> tensor<4x8xf32> {
          %a = call @c(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32> loc(fused["model.py":3:0, "model.py":4:0])
          %b = call @c(%a) : (tensor<4x8xf32>) -> tensor<4x8xf32> loc("model.py":5:0)
          return %b : tensor<4x8xf32>
        }"""
        + cluster("c")
    )
    assert str(module).count("gpu.func @c") == 1
    first, second = program["steps"]
    assert [argument["buffer"] for argument in first["arguments"]] == [0, 3]
    assert [argument["buffer"] for argument in second["arguments"]] == [3, 2]
    assert first["source"] == ["model.py:3", "model.py:4"]
    assert second["source"] == ["model.py:5"]
    assert [argument["access"] for argument in first["arguments"]] == ["read", "write"]
    assert [argument["traffic"] for argument in first["arguments"]] == [128, 128]
    assert program["arena_bytes"] == 256
    assert [value["name"] for value in program["signature"]["inputs"]] == ["x", "arg1"]


def test_the_kernels_promise_that_nothing_aliases() -> None:
    module, _ = converted(
        """
        func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
          %a = call @c(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
          return %a : tensor<4x8xf32>
        }"""
        + cluster("c")
    )
    assert str(module).count("llvm.noalias") == 2


def test_no_buffer_is_read_and_written_by_the_same_launch() -> None:
    _, program = converted(
        """
        func.func @main(%x: tensor<4x8xf32> {stitch.name = "x"}) -> (tensor<4x8xf32> {stitch.mutates = "x"}) {
          %a = call @c(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
          %b = call @c(%a) : (tensor<4x8xf32>) -> tensor<4x8xf32>
          return %b : tensor<4x8xf32>
        }"""
        + cluster("c")
    )
    for step in program["steps"]:
        read = {a["buffer"] for a in step["arguments"] if a["access"] == "read"}
        written = {a["buffer"] for a in step["arguments"] if a["access"] == "write"}
        assert not read & written
    assert program["steps"][-1]["arguments"][-1]["buffer"] == 0, "nobody reads x any more: written in place"


@pytest.mark.parametrize(("offset", "apart"), [(0, False), (255, False), (256, True)])
def test_a_plan_that_lets_arguments_of_a_launch_overlap_is_refused(offset: int, apart: bool) -> None:
    module = parse_module(
        HEAD
        + """
        func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
          %a = call @c(%x) : (tensor<64xf32>) -> tensor<64xf32>
          %b = call @c(%a) : (tensor<64xf32>) -> tensor<64xf32>
          %d = call @c(%b) : (tensor<64xf32>) -> tensor<64xf32>
          return %d : tensor<64xf32>
        }"""
        + cluster("c", "64")
        + "}"
    )
    run_pipeline(module, "builtin.module(stitch-schedule,plan-buffers)")
    main = host_function(module.operation)
    plan = read_plan(main)
    assert [buffer.offset for buffer in plan.buffers] == [None, None, 0, 256]
    moved = tuple(replace(b, offset=offset) if b.name == "t1" else b for b in plan.buffers)
    with module.context:
        annotate(main, replace(plan, buffers=moved))
    if apart:
        run_pipeline(module, "builtin.module(convert-stitch-to-gpu)")
    else:
        with pytest.raises(PassError, match=r"arguments 0 \(t0\) and 1 \(t1\) of kernel c overlap"):
            run_pipeline(module, "builtin.module(convert-stitch-to-gpu)")


def test_empty_tensors_are_not_computed() -> None:
    module, program = converted(
        """
        func.func @main(%x: tensor<0x8xf32>, %y: tensor<4x8xf32>) -> (tensor<0x8xf32>, tensor<4x8xf32>) {
          %a = call @empty(%x) : (tensor<0x8xf32>) -> tensor<0x8xf32>
          %b = call @c(%y) : (tensor<4x8xf32>) -> tensor<4x8xf32>
          return %a, %b : tensor<0x8xf32>, tensor<4x8xf32>
        }"""
        + cluster("empty", "0x8")
        + cluster("c"),
    )
    assert [step["kernel"] for step in program["steps"]] == ["c"]
    assert "gpu.func @empty" not in str(module)
    assert [buffer["bytes"] for buffer in program["buffers"]] == [0, 128, 0, 128]


def test_a_program_without_clusters_has_no_gpu_module() -> None:
    module, program = converted(
        "func.func @main(%x: tensor<0xf32>, %y: tensor<2xi1>) -> (tensor<0xf32>, tensor<2xi1>) {"
        "return %x, %y : tensor<0xf32>, tensor<2xi1> }"
    )
    assert "gpu.module" not in str(module)
    (copy,) = program["steps"]
    assert (copy["from"], copy["to"], copy["bytes"]) == (1, 3, 2)


def test_a_library_cluster_becomes_a_call_with_shapes() -> None:
    module, program = converted("""
      func.func @main(%x: tensor<16x8xf32>, %w: tensor<8x4xf32>) -> tensor<16x4xf32> {
        %r = call @mm(%w, %x) : (tensor<8x4xf32>, tensor<16x8xf32>) -> tensor<16x4xf32> loc("model.py":9:0)
        return %r : tensor<16x4xf32>
      }
      func.func private @mm(%w: tensor<8x4xf32>, %x: tensor<16x8xf32>) -> tensor<16x4xf32>
          attributes {no_inline, stitch.cluster, stitch.library = "matmul"} {
        %z = arith.constant 0.0 : f32
        %e = tensor.empty() : tensor<16x4xf32>
        %i = linalg.fill {stitch.kind = "light"} ins(%z : f32) outs(%e : tensor<16x4xf32>) -> tensor<16x4xf32>
        %r = linalg.matmul {stitch.kind = "compute"} ins(%x, %w : tensor<16x8xf32>, tensor<8x4xf32>)
            outs(%i : tensor<16x4xf32>) -> tensor<16x4xf32>
        return %r : tensor<16x4xf32>
      }""")
    assert "gpu.module" not in str(module)
    (step,) = program["steps"]
    assert (step["op"], step["routine"], step["source"]) == ("library", "matmul", ["model.py:9"])
    assert [(o["buffer"], o["shape"]) for o in step["operands"]] == [(0, [16, 8]), (1, [8, 4]), (2, [16, 4])]


MAIN = """
  func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %a = call @c(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32> loc("model.py":3:0)
    return %a : tensor<4x8xf32>
  }"""
SHARED_OF_NO_USE = (
    ', stitch.schedule = {template = "elementwise", grid = array<i64: 1, 1, 1>, block = array<i64: 32, 1, 1>, '
    "shared_bytes = 999999 : i64}"
)


@pytest.mark.parametrize(
    ("body", "scheduled", "message", "source"),
    [
        (MAIN + cluster("c"), False, "stitch.schedule is missing", ""),
        (MAIN + "func.func private @c(tensor<4x8xf32>) -> tensor<4x8xf32>", False, "@c has no body", "model.py:3"),
        (
            MAIN.replace("@c(", '@"c.1"(') + cluster('"c.1"'),
            True,
            "cannot be the name of a kernel",
            "",
        ),
        (MAIN + cluster("c", attributes=SHARED_OF_NO_USE), False, "shared_bytes is 999999, not 0", ""),
        (
            MAIN + cluster("c", attributes=SHARED_OF_NO_USE.replace("elementwise", "magic")),
            False,
            "no kernel template is named 'magic'",
            "",
        ),
    ],
)
def test_what_cannot_be_launched_is_refused_at_the_users_line(
    body: str, scheduled: bool, message: str, source: str
) -> None:
    with pytest.raises(PassError, match=message) as caught:
        converted(body, scheduled=scheduled)
    if source:
        assert caught.value.source == source


def test_more_arguments_than_a_kernel_can_take_are_refused_with_the_numbers() -> None:
    count = 600
    names = [f"%x{i}" for i in range(count)]
    kind = "tensor<4xf32>"
    maps = ", ".join(["affine_map<(d0) -> (d0)>"] * (count + 1))
    operands = ", ".join([kind] * count)
    arguments = ", ".join(f"{name}: {kind}" for name in names)
    scalars = ", ".join(f"%s{i}: f32" for i in range(count))
    body = f"""
      func.func @main({arguments}) -> {kind} {{
        %a = call @c({", ".join(names)}) : ({operands}) -> {kind} loc("model.py":3:0)
        return %a : {kind}
      }}
      func.func private @c({arguments}) -> {kind} attributes {{no_inline, stitch.cluster, stitch.schedule =
          {{template = "elementwise", grid = array<i64: 1, 1, 1>, block = array<i64: 32, 1, 1>}}}} {{
        %e = tensor.empty() : {kind}
        %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
            ins({", ".join(names)} : {operands}) outs(%e : {kind}) attrs = {{stitch.kind = "light"}} {{
        ^bb0({scalars}, %out: f32):
          %n = arith.addf %s0, %s{count - 1} : f32
          linalg.yield %n : f32
        }} -> {kind}
        return %r : {kind}
      }}"""
    with pytest.raises(PassError, match="bytes of arguments is 4808, the limit is 4096"):
        converted(body, scheduled=False)


def test_what_a_template_refuses_is_shown_at_the_users_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(cluster: Cluster, *_: object) -> ir.Operation:
        inner = cluster.ops[1].regions[0].blocks[0].operations[0].operation
        assert inner.location.filename == CANONICAL_NAME
        raise refusal(inner, "too hard")

    monkeypatch.setattr(stitch_to_gpu, "emit_kernel", refuse)
    with pytest.raises(PassError, match=r"kernel of @c, template \w+: .*negf.* too hard") as caught:
        converted(MAIN + cluster("c"))
    assert caught.value.source == "model.py:21"


def test_a_template_that_does_not_apply_is_refused_with_the_cluster() -> None:
    body = MAIN + cluster("c", attributes=SHARED_OF_NO_USE.replace("elementwise", "row"))
    with pytest.raises(PassError, match="kernel of @c"):
        converted(body, scheduled=False)
