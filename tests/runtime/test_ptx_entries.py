from __future__ import annotations

from mlirstitch.runtime.ptx_entries import entry_points


def test_entries_and_their_arity():
    text = """
.visible .entry one(
	.param .u64 .ptr .align 1 one_param_0
)
{ ld.param.u64 %rd1, [one_param_0]; ret; }
.entry none() { ret; }
.visible .entry bare
.maxntid 256
{ ret; }
// .entry commented(.param .u64 a)
/* .entry also(.param .u64 a) */
.func helper(.param .b32 x) { ret; }
.visible .entry with_$dollar( .param .u64 a, .param .f32 b // .param .u64 not
, .param .u64 c) { ret; }
"""
    assert entry_points(text) == {"one": 1, "none": 0, "bare": 0, "with_$dollar": 3}


def test_text_without_entries():
    assert entry_points("") == {}
