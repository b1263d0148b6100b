"""What each level promises is checked."""

from __future__ import annotations

import pytest

from mlirstitch.dialects import invariants, parse_module
from mlirstitch.errors import MlirstitchError, PassError
from mlirstitch.options import LEVELS

MODULE = 'module attributes {stitch.library = "none", stitch.numerics = "default", stitch.target = "sm_90"} {'
GENERIC = """
    %0 = tensor.empty() : tensor<8xf32>
    %1 = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
        iterator_types = ["parallel"]} ins(%x : tensor<8xf32>) outs(%0 : tensor<8xf32>)
        attrs = {stitch.kind = "expensive"} {
      ^bb0(%a: f32, %b: f32):
        %2 = math.exp %a : f32
        linalg.yield %2 : f32
    } -> tensor<8xf32>
    return %1 : tensor<8xf32>
"""
MAIN = """
  func.func @main(%x: tensor<8xf32> {stitch.dtype = "float32", stitch.name = "x", stitch.role = "input"})
      -> (tensor<8xf32> {stitch.dtype = "float32", stitch.name = "y"}) {"""
LINALG = MODULE + MAIN + GENERIC + "  }\n}\n"
STITCHED = (
    MODULE
    + """
  func.func private @k(%x: tensor<8xf32>) -> tensor<8xf32> attributes {no_inline, stitch.cluster, stitch.schedule =
      {template = "elementwise", grid = array<i64: 1, 1, 1>, block = array<i64: 32, 1, 1>}} {"""
    + GENERIC
    + "  }"
    + MAIN
    + "\n    %0 = call @k(%x) : (tensor<8xf32>) -> tensor<8xf32>\n    return %0 : tensor<8xf32>\n  }\n}\n"
)
HOST = """
  func.func @main(%x: memref<8xf32>, %y: memref<8xf32>) {
    %one = arith.constant 1 : index
    %arena = memref.alloc() {stitch.arena} : memref<256xi8>
    gpu.launch_func @kernels::@k blocks in (%one, %one, %one) threads in (%one, %one, %one)
        args(%x : memref<8xf32>, %y : memref<8xf32>) {stitch.access = ["read", "write"], stitch.cluster = "k"}
    call @library_m(%x, %y) {stitch.access = ["read", "write"], stitch.library = "matmul"}
        : (memref<8xf32>, memref<8xf32>) -> ()
    memref.copy %x, %y : memref<8xf32> to memref<8xf32>
    return
  }
  func.func private @library_m(memref<8xf32>, memref<8xf32>) attributes {stitch.library = "matmul"}
}
"""
OPENING = MODULE.replace("attributes {", "attributes {gpu.container_module, ")
GPU = (
    OPENING
    + """
  gpu.module @kernels {
    gpu.func @k(%x: memref<8xf32>, %y: memref<8xf32>) kernel {
      gpu.return
    }
  }"""
    + HOST
)
NVVM = (
    OPENING
    + """
  gpu.module @kernels {
    llvm.func @k(%x: !llvm.ptr, %y: !llvm.ptr) attributes {gpu.kernel, nvvm.kernel} {
      %0 = nvvm.read.ptx.sreg.tid.x : i32
      llvm.return
    }
  }"""
    + HOST
)
PTX = OPENING + '\n  gpu.binary @kernels [#gpu.object<#nvvm.target, assembly = "x">]' + HOST
TEXTS = {"linalg": LINALG, "partitioned": LINALG, "stitched": STITCHED, "gpu": GPU, "nvvm": NVVM, "ptx": PTX}


@pytest.mark.parametrize("level", LEVELS)
def test_ir_of_a_level_keeps_its_promises(level: str) -> None:
    invariants.check(parse_module(TEXTS[level]), level)


def test_every_level_has_a_sample_here() -> None:
    assert tuple(TEXTS) == LEVELS


@pytest.mark.parametrize(
    ("level", "other"), [(a, b) for a in LEVELS for b in LEVELS if a != b and {a, b} != {"linalg", "partitioned"}]
)
def test_ir_of_one_level_is_not_taken_for_another(level: str, other: str) -> None:
    with pytest.raises(PassError):
        invariants.check(parse_module(TEXTS[other]), level)


def test_hand_written_input_needs_no_attributes() -> None:
    text = "func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }"
    invariants.check(parse_module(text), "input")
    with pytest.raises(PassError, match=r"stitch\.target is missing"):
        invariants.check(parse_module(text), "linalg")


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(MlirstitchError, match="unknown level 'torch'"):
        invariants.check(parse_module("module {}"), "torch")


@pytest.mark.parametrize(
    ("level", "old", "new", "message"),
    [
        ("linalg", "@main", "@forward", "no func.func @main"),
        ("linalg", "func.func @main", "func.func private @main", "@main is private"),
        ("linalg", 'attrs = {stitch.kind = "expensive"}', "", "stitch.kind is missing"),
        ("linalg", "return %1", "return %x", "nothing uses the op's results"),
        ("linalg", "%0 = tensor.empty()", "%0 = bufferization.alloc_tensor()", "does not belong on the linalg level"),
        ("linalg", ', stitch.role = "input"', "", "argument 0 has no stitch.role"),
        ("linalg", 'stitch.numerics = "default", ', "", "stitch.numerics is missing"),
        ("linalg", 'stitch.dtype = "float32", stitch.name = "y"', 'stitch.name = "y"', "result 0 has no stitch.dtype"),
        ("stitched", "no_inline, ", "", "must be private and no_inline"),
        ("stitched", "func.func private @k", "func.func @k", "must be private and no_inline"),
        ("stitched", "stitch.cluster, ", "", "the function is no cluster"),
        ("stitched", "no_inline, stitch.cluster, stitch.schedule =", "no_inline, stitch.cluster, s =", "neither"),
        ("stitched", "%0 = call @k(%x) : (tensor<8xf32>) -> ", "%0 = tensor.empty() : ", "holds calls of clusters"),
        ("stitched", "call @k(", "call @main(", "@main is not a cluster function"),
        ("gpu", "memref.alloc() {stitch.arena}", "memref.alloc()", "allocates one arena"),
        ("gpu", ', stitch.cluster = "k"', "", "stitch.cluster is missing"),
        ("gpu", 'args(%x : memref<8xf32>, %y : memref<8xf32>) {stitch.access = ["read", "write"]',
         'args(%x : memref<8xf32>, %y : memref<8xf32>) {stitch.access = ["read"]', "has 1 entries for 2 arguments"),
        ("gpu", 'stitch.library = "matmul"}\n        :', 'stitch.template = "x"}\n        :', "may not stand"),
        ("gpu", "memref<8xf32>", "memref<8xi1>", "bools are i8 in memory"),
        ("gpu", "func.func @main(%x: memref<8xf32>, %y: memref<8xf32>) {",
         "func.func @main(%x: memref<8xf32>, %y: memref<8xf32>, %z: memref<2x4xf32>) {", "argument 2 is memref<2x4x"),
        ("gpu", "memref.copy %x, %y : memref<8xf32> to memref<8xf32>", "gpu.barrier", "does not belong into a launch"),
        ("nvvm", "%0 = nvvm.read.ptx.sreg.tid.x : i32", "%0 = arith.constant 1 : i32", "llvm and nvvm ops only"),
    ],
)  # fmt: skip
def test_a_broken_promise_is_refused_at_the_op(level: str, old: str, new: str, message: str) -> None:
    text = TEXTS[level]
    assert old in text
    changed = text.replace(old, new, 1) if old == "call @k(" else text.replace(old, new)
    with pytest.raises(PassError) as caught:
        invariants.check(parse_module(changed, "m.mlir"), level)
    assert message in caught.value.message
    assert caught.value.source.startswith("m.mlir:")


@pytest.mark.parametrize("kind", ["tensor<?xf32>", "tensor<*xf32>", "f32", "memref<8xf32>"])
def test_arguments_must_be_ranked_static_tensors(kind: str) -> None:
    text = f"func.func @main(%x: {kind}) -> {kind} {{ return %x : {kind} }}"
    with pytest.raises(PassError, match="not a ranked tensor of static shape"):
        invariants.check(parse_module(text), "input")
