"""The launch plan read off a host function."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import mlirstitch.runtime
from mlirstitch.dialects import parse_module
from mlirstitch.errors import PassError
from mlirstitch.lowering.host_program import host_program

HOST = """
module attributes {gpu.container_module} {
  func.func @main(
      %x: memref<32xf32> {stitch.buffer = {role = "input", name = "x", shape = array<i64: 4, 8>, dtype = "float32"}},
      %w: memref<32xi8> {stitch.buffer = {role = "weight", name = "w", shape = array<i64: 32>, dtype = "bool",
                                          mutated}},
      %y: memref<1xf32> {stitch.buffer = {role = "output", name = "y", shape = array<i64>, dtype = "float32"}})
      attributes {stitch.results = array<i64: 1, 2>} {
    %c2 = arith.constant 2 : index
    %c3 = arith.constant 3 : index
    %c64 = arith.constant 64 : index
    %c512 = arith.constant 512 : index
    %bytes = arith.constant 1024 : i32
    %arena = memref.alloc() {stitch.arena} : memref<768xi8>
    %t = memref.view %arena[%c512][]
        {stitch.buffer = {role = "temporary", name = "t0", shape = array<i64: 32>, dtype = "float32"}} :
        memref<768xi8> to memref<32xf32>
    gpu.launch_func @kernels::@k blocks in (%c3, %c2, %c2) threads in (%c64, %c2, %c3) dynamic_shared_memory_size %bytes
        args(%x : memref<32xf32>, %t : memref<32xf32>)
        {stitch.access = ["read", "write"], stitch.cluster = "k", stitch.kind = "memory_bound", stitch.template = "row",
         stitch.traffic = array<i64: 256, 128>} loc(fused["model.py":3:0, "model.py":4:0])
    call @library_c(%t, %x, %y) {
        stitch.access = ["read", "read", "write"], stitch.cluster = "c", stitch.library = "matmul",
        stitch.attributes = {indexing_maps = [array<i64: 0, 2>, array<i64: 2, 1>, array<i64: 0, 1>]},
        stitch.dtypes = ["float32", "float32", "float32"],
        stitch.shapes = [array<i64: 1, 32>, array<i64: 32, 1>, array<i64: 1, 1>]}
        : (memref<32xf32>, memref<32xf32>, memref<1xf32>) -> () loc("model.py":5:0)
    memref.copy %t, %x : memref<32xf32> to memref<32xf32> loc("model.py":6:0)
    return
  }
  func.func private @library_c(memref<32xf32>, memref<32xf32>, memref<1xf32>) attributes {stitch.library = "matmul"}
  gpu.module @kernels {
    gpu.func @k(%a: memref<32xf32>, %b: memref<32xf32>) kernel { gpu.return }
  }
}
"""


def test_every_field_of_the_plan_comes_from_the_host_function() -> None:
    program = host_program(parse_module(HOST).operation)
    schema = json.loads((Path(mlirstitch.runtime.__file__).parent / "manifest.schema.json").read_text())
    jsonschema.Draft202012Validator({"$ref": "#/$defs/program", "$defs": schema["$defs"]}).validate(program)
    assert program["arena_bytes"] == 768
    assert program["temporary_bytes"] == 128
    assert program["signature"] == {
        "inputs": [{"name": "x", "shape": [4, 8], "dtype": "float32", "buffer": 0}],
        "outputs": [{"name": "y", "shape": [], "dtype": "float32", "buffer": 2}],
        "mutated": [{"name": "w", "buffer": 1}],
    }
    assert program["buffers"][1:] == [
        {"id": 1, "role": "weight", "name": "w", "shape": [32], "dtype": "bool", "bytes": 32},
        {"id": 2, "role": "output", "name": "y", "shape": [], "dtype": "float32", "bytes": 4},
        {
            "id": 3,
            "role": "temporary",
            "name": "t0",
            "shape": [32],
            "dtype": "float32",
            "bytes": 128,
            "arena_offset": 512,
        },
    ]
    launch, library, copy = program["steps"]
    assert launch == {
        "op": "launch",
        "module": "kernels",
        "kernel": "k",
        "grid": [3, 2, 2],
        "block": [64, 2, 3],
        "shared_bytes": 1024,
        "cooperative": False,
        "thread_block_cluster": [1, 1, 1],
        "arguments": [
            {"buffer": 0, "access": "read", "bytes": 128, "touched": 128, "traffic": 256},
            {"buffer": 3, "access": "write", "bytes": 128, "touched": 128, "traffic": 128},
        ],
        "stitch_cluster": "k",
        "template": "row",
        "kind": "memory_bound",
        "source": ["model.py:3", "model.py:4"],
    }
    assert library["routine"] == "matmul"
    assert library["attributes"] == {"indexing_maps": [[0, 2], [2, 1], [0, 1]]}
    assert [(o["buffer"], o["access"], o["shape"]) for o in library["operands"]] == [
        (3, "read", [1, 32]),
        (0, "read", [32, 1]),
        (2, "write", [1, 1]),
    ]
    assert copy == {"op": "copy", "from": 3, "to": 0, "bytes": 128, "source": ["model.py:6"]}


def test_clusters_and_cooperative_launches_are_in_the_plan() -> None:
    text = HOST.replace("blocks in (%c3,", "clusters in (%c3, %c2, %c2) blocks in (%c3,")
    text = text.replace("{stitch.access", "{stitch.cooperative, stitch.access", 1)
    launch = host_program(parse_module(text).operation)["steps"][0]
    assert (launch["thread_block_cluster"], launch["cooperative"]) == ([3, 2, 2], True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("return\n", "gpu.barrier\n return\n", "a launch plan cannot hold"),
        ("{stitch.arena} : memref<768xi8>", ": memref<768xi8>\n %z = memref.alloc() : memref<32xf32>", "memref.alloc"),
        ("stitch.traffic = array<i64: 256, 128>", "stitch.traffic = array<i64: 256>", "one entry an argument"),
        ('stitch.template = "row",', "", "stitch.template"),
        ('dtype = "bool"', 'dtype = "int4"', "unknown dtype 'int4'"),
        ('dtype = "bool"', "dtype = 3 : i32", "a field of a buffer has another type"),
        ('dtype = "bool"', 'dtype = "float32"', "is described as float32"),
        ("shape = array<i64: 4, 8>", "shape = array<i64: 4, 9>", r"described as float32 \[4, 9\], but it lies in"),
        ("stitch.results = array<i64: ", "stitch.results = array<i64: 77, ", "names buffer 77"),
        ("stitch.results = array<i64: ", "stitch.results = array<i64: -1, ", "names buffer -1"),
        (
            ' {stitch.buffer = {role = "input", name = "x", shape = array<i64: 4, 8>, dtype = "float32"}}',
            "",
            "argument 0",
        ),
        ("%c3 = arith.constant 3 : index", "%q = arith.constant 3 : index\n %c3 = arith.addi %q, %q : index", "addi"),
    ],
)
def test_what_is_no_launch_plan_is_refused(old: str, new: str, message: str) -> None:
    assert old in HOST
    with pytest.raises(PassError, match=message):
        host_program(parse_module(HOST.replace(old, new)).operation)
