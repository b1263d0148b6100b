"""The PTX parser reads what LLVM prints and names the line of what it cannot read."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx_text import kernel, line_of, run

from mlirstitch.errors import LaunchError
from mlirstitch.runtime import emulator
from mlirstitch.runtime.emulator.ptx.parser import parse
from mlirstitch.runtime.emulator.ptx.syntax import Label, Register, Statement

_STORE = "cvt.u64.u32 %d0, %r0; shl.b64 %d0, %d0, 2; add.u64 %d0, %a0, %d0; st.global.b32 [%d0], %r1;"


def test_labels_before_and_on_the_line_of_an_instruction() -> None:
    text = kernel("bra.uni $L1;\n$L1: mov.b32 %r1, 7;\n$L2:\n" + _STORE, pointers=1)
    body = parse(text).functions["k"].body or []
    assert [item.name for item in body if isinstance(item, Label)] == ["$L1", "$L2"]
    out = np.zeros(32, np.int32)
    run(text, [out])
    assert (out == 7).all()


def test_scoped_register_hides_nothing_and_is_renamed() -> None:
    body = (
        "mov.b32 %r5, 0x11223344; mov.b32 %r6, 0x55667788; mov.b64 %d1, {%r5, %r6};\n"
        "{ .reg .b32 tmp; mov.b64 {tmp, %r1}, %d1; }\n{ .reg .b32 tmp; mov.b64 {%r2, tmp}, %d1; }\n"
        "xor.b32 %r1, %r1, %r2;\n" + _STORE
    )
    text = kernel(body, pointers=1)
    statements = [s for s in parse(text).functions["k"].body or [] if isinstance(s, Statement)]
    names = {
        r.name for s in statements for o in s.operands for r in getattr(o, "elements", ()) if isinstance(r, Register)
    }
    assert {"tmp$1", "tmp$2"} <= names
    out = np.zeros(32, np.uint32)
    run(text, [out])
    assert (out == 0x55667788 ^ 0x11223344).all()


def test_module_tables_with_initial_values_of_several_types() -> None:
    before = (
        ".global .align 4 .b8 bytes[8] = {1, 2, 3, 4, 255, 255, 255, 255};\n"
        ".const .align 4 .f32 floats[2] = {0f3F800000, 0f40000000};\n.global .u32 zeroed[3];\n"
    )
    body = (
        "mov.u64 %d1, bytes; ld.global.b32 %r1, [%d1+4]; ld.const.b32 %r2, [floats+4]; add.s32 %r1, %r1, %r2;\n"
        "ld.global.b32 %r3, [zeroed+8]; add.s32 %r1, %r1, %r3;\n" + _STORE
    )
    out = np.zeros(32, np.uint32)
    run(kernel(body, pointers=1, before=before), [out])
    assert (out == (0xFFFFFFFF + 0x40000000) % 2**32).all()


def test_module_variables_keep_their_value_between_launches() -> None:
    body = "mov.u64 %d1, counter; atom.global.add.u32 %r1, [%d1], 1;\n" + _STORE
    module = emulator.load(kernel(body, pointers=1, before=".global .align 4 .u32 counter;\n"))
    out = np.zeros(32, np.uint32)
    module.launch("k", 1, 32, [out])
    module.launch("k", 1, 32, [out])
    assert out.tolist() == list(range(32, 64))


def test_branch_table_inside_the_text() -> None:
    body = (
        "and.b32 %r2, %r0, 3;\n$T: .branchtargets $A, $B,\n $C, $D;\nbrx.idx %r2, $T;\n"
        "$A: mov.b32 %r1, 10; bra $E;\n$B: mov.b32 %r1, 11; bra $E;\n$C: mov.b32 %r1, 12; bra $E;\n"
        "$D: mov.b32 %r1, 13;\n$E:\n" + _STORE
    )
    out = np.zeros(32, np.uint32)
    counters = run(kernel(body, pointers=1), [out])
    assert out.tolist() == [10, 11, 12, 13] * 8
    assert counters.divergent_branches == 1


def test_line_information_sections_and_file_table_are_read() -> None:
    before = '.file 1 "model.mlir"\n.section .debug_str\n{\n.b8 1,2,3\n}\n'
    body = ".loc 1 12 5\nmov.b32 %r1, 1;\n.loc 1 13 7, function_name $L__info, inlined_at 1 2 3\n" + _STORE
    statements = [
        s for s in parse(kernel(body, 1, before=before)).functions["k"].body or [] if isinstance(s, Statement)
    ]
    assert {s.location for s in statements} == {"", "model.mlir:12", "model.mlir:13"}


def test_implicit_definition_is_no_uninitialised_read() -> None:
    text = kernel("// implicit-def: %r1\n" + _STORE, pointers=1)
    run(text, [np.zeros(32, np.uint32)])
    with pytest.raises(LaunchError, match="reads register %r1"):
        run(text.replace("// implicit-def: %r1", ""), [np.zeros(32, np.uint32)])


def test_call_is_inlined_with_its_local_array_and_two_results() -> None:
    before = """.func (.param .align 16 .b8 result[16]) pair(.param .b64 first, .param .b32 second)
{
.local .align 8 .b8 depot[16];
.reg .b64 %rd<6>; .reg .b32 %r<4>; .reg .pred %p<2>;
ld.param.b64 %rd1, [first]; ld.param.b32 %r1, [second];
mov.u64 %rd2, depot; st.local.b64 [%rd2+8], %rd1; ld.local.b64 %rd3, [%rd2+8];
setp.gt.u32 %p1, %r1, 15; @%p1 bra $big; st.param.b64 [result], %rd3; st.param.b32 [result+8], %r1; ret;
$big: st.param.b64 [result], 5; st.param.b32 [result+8], 0; ret;
}
"""
    call = (
        "{ .param .b64 param0; st.param.b64 [param0], %d9; .param .b32 param1; st.param.b32 [param1], %r0;\n"
        ".param .align 16 .b8 retval0[16]; call.uni (retval0), pair, (param0, param1);\n"
        "ld.param.b64 %d2, [retval0]; ld.param.b32 %r3, [retval0+8]; }\n"
    )
    body = "mov.b64 %d9, 100;\n" + call + "cvt.u32.u64 %r1, %d2; add.u32 %r1, %r1, %r3;\n" + call + _STORE
    out = np.zeros(32, np.uint32)
    run(kernel(body, pointers=1, before=before), [out])
    assert out.tolist() == [100 + t if t <= 15 else 5 for t in range(32)]


@pytest.mark.parametrize(
    ("body", "marker", "reason"),
    [
        ("frobnicate.b32 %r1, %r2; // HERE", "HERE", "unknown instruction 'frobnicate'"),
        ("add.sideways.s32 %r1, %r0, %r0; // HERE", "HERE", "unknown modifier '.sideways'"),
        ("add.f16x2.s32 %r1, %r0, %r0; // HERE", "HERE", "needs 1 types"),
        ("add.s32 %r1, %r0; // HERE", "HERE", "has 1 source operands"),
        ("add.s8 %h1, %h0, %h0; // HERE", "HERE", "type 's8' is not supported"),
        ("bra $nowhere; // HERE", "HERE", "unknown label"),
        ("mov.b32 %r1, %q7; // HERE", "HERE", "unknown register '%q7'"),
        ("mov.b32 %r1, %r99; // HERE", "HERE", "unknown register '%r99'"),
        ("ld.global.b32 %r1, [missing]; // HERE", "HERE", "unknown variable 'missing'"),
        ("call.uni nobody, (); // HERE", "HERE", "has no body"),
        ("add.s32 %r1, %r0, #; // HERE", "HERE", "unexpected"),
        ("add.s32 %r1, %r0, %r0 // HERE\nmov.b32 %r1, 0;", "mov.b32 %r1, 0", "expected ';'"),
        (".nonsense 3; // HERE", "HERE", "unknown directive"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(body: str, marker: str, reason: str) -> None:
    text = kernel(body)
    with pytest.raises(LaunchError, match=f"line {line_of(text, marker)}") as caught:
        emulator.load(text)
    assert reason in str(caught.value)


@pytest.mark.parametrize("text", ["", "hello", ".version 7.8\n.visible .entry k(\n", kernel("").rsplit("}", 1)[0]])
def test_text_that_is_no_module_is_refused(text: str) -> None:
    with pytest.raises(LaunchError, match=r"malformed PTX, line \d+"):
        emulator.load(text)


def test_unknown_instruction_names_the_kernel_and_the_source_line() -> None:
    text = kernel(".loc 1 40 3\nwgmma.fence.sync.aligned;", before='.file 1 "net.mlir"\n')
    with pytest.raises(LaunchError, match=r"net\.mlir:40: kernel 'k', PTX line \d+: 'wgmma\.fence\.sync\.aligned'"):
        emulator.load(text)


_SAMPLE = kernel(
    "setp.lt.u32 %p1, %r0, 9; @%p1 bra $a;\nmov.b32 %r1, {%h1, %h2};\n$a: ld.shared.v2.b32 {%r2, %r3}, [tile+8];\n"
    "shfl.sync.bfly.b32 %r4|%p2, %r2, 1, 31, -1; bar.sync 0; cvt.rn.f16x2.f32 %r5, %r2, %r3;\n$T: .branchtargets $a;\n"
    "atom.global.add.f32 %r6, [%a0], 0f3F800000; brx.idx %r0, $T;",
    pointers=1,
    before=".shared .align 16 .b8 tile[64];\n",
)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_text_is_refused_or_read_but_never_crashes(data: st.DataObject) -> None:
    pieces = re.split(r"(\s+|[,;{}\[\]()])", _SAMPLE)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(pieces) - 1))
        action = data.draw(st.sampled_from(["drop", "double", "swap", "replace"]))
        other = data.draw(st.integers(0, len(pieces) - 1))
        if action == "drop":
            pieces[at] = ""
        elif action == "double":
            pieces[at] *= 2
        elif action == "swap":
            pieces[at], pieces[other] = pieces[other], pieces[at]
        else:
            pieces[at] = data.draw(
                st.sampled_from(["0", "-1", "%r0", "%p1", "%tid.x", "_", "{", "]", ".b64", "f32", "tile"])
            )
    try:
        module = emulator.load("".join(pieces))
        for entry in module.entries:
            module.engine(entry)
    except LaunchError:
        pass


@pytest.mark.parametrize(
    "directive", ['.file 1 "net.mlir"', '.file 1 "net.mlir", 0, 12', '.file 1 "folder" "net.mlir"']
)
def test_file_names_may_stand_behind_the_code(directive: str) -> None:
    text = kernel(".loc 1 77 0\nld.global.b32 %r1, [%a0];", pointers=1) + directive + "\n"
    with pytest.raises(LaunchError) as caught:
        emulator.load(text).launch("k", 1, 1, [np.zeros(0, np.int32)])
    assert caught.value.source == ("folder/net.mlir:77" if "folder" in directive else "net.mlir:77")
