"""Matrix instructions against numpy, fragments laid out element by element as the tables of the PTX ISA say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx_text import kernel, run

_SEEDS = st.integers(0, 2**16)
Place = Callable[[int, int], tuple[int, int]]
"""Row and column of element ``i`` of a lane's fragment, from the tables of the ISA."""


def _a16(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + (0 if i in (0, 1, 4, 5) else 8), (lane & 3) * 2 + (i & 1) + (8 if i >= 4 else 0)


def _b16(lane: int, i: int) -> tuple[int, int]:
    return (lane & 3) * 2 + (i & 1) + (8 if i >= 2 else 0), lane >> 2


def _a_tf32(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + (8 if i in (1, 3) else 0), (lane & 3) + (4 if i >= 2 else 0)


def _b_tf32(lane: int, i: int) -> tuple[int, int]:
    return (lane & 3) + 4 * i, lane >> 2


def _a8_k32(lane: int, i: int) -> tuple[int, int]:
    row = (lane >> 2) + (0 if i < 4 or 8 <= i < 12 else 8)
    return row, (lane & 3) * 4 + (i & 3) + (16 if i >= 8 else 0)


def _b8_k32(lane: int, i: int) -> tuple[int, int]:
    return (lane & 3) * 4 + (i & 3) + (16 if i >= 4 else 0), lane >> 2


def _a8_k16(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + (8 if i >= 4 else 0), (lane & 3) * 4 + (i & 3)


def _c(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + (8 if i >= 2 else 0), (lane & 3) * 2 + (i & 1)


def _a_f64(lane: int, i: int) -> tuple[int, int]:
    return lane >> 2, lane & 3


def _b_f64(lane: int, i: int) -> tuple[int, int]:
    return lane & 3, lane >> 2


def _fragment(matrix: Any, place: Place, elements: int) -> Any:
    """What every lane holds, [32, elements]."""
    held = [[matrix[place(lane, i)] for i in range(elements)] for lane in range(32)]
    return np.array(held, matrix.dtype)


def _words(fragment: Any) -> Any:
    return np.ascontiguousarray(fragment).view(np.uint32)


def _multiply(mnemonic: str, fragments: list[Any], results: int) -> Any:
    """Run the instruction; its result registers, [32, results] words."""
    names: list[list[str]] = []
    lines: list[str] = []
    number = 10
    for position, fragment in enumerate(fragments):
        count = fragment.shape[1]
        names.append([f"%r{number + n}" for n in range(count)])
        number += count
        lines.append(f"mul.wide.u32 %d0, %r0, {4 * count}; add.u64 %d1, %a{position}, %d0;")
        lines += [f"ld.global.b32 {name}, [%d1+{4 * n}];" for n, name in enumerate(names[-1])]
    out = [f"%r{number + n}" for n in range(results)]
    groups = ", ".join("{" + ", ".join(group) + "}" for group in (out, *names))
    lines.append(f"{mnemonic} {groups};\nmul.wide.u32 %d0, %r0, {4 * results}; add.u64 %d1, %a3, %d0;")
    lines += [f"st.global.b32 [%d1+{4 * n}], {name};" for n, name in enumerate(out)]
    result = np.zeros((32, results), np.uint32)
    run(kernel("\n".join(lines), pointers=4), [*fragments, result])
    return result


_FLOATS = {
    "m16n8k16.row.col.f32.f16.f16.f32": (16, np.float16, np.float32, _a16, _b16),
    "m16n8k8.row.col.f32.f16.f16.f32": (8, np.float16, np.float32, _a16, _b16),
    "m16n8k16.row.col.f32.bf16.bf16.f32": (16, ml_dtypes.bfloat16, np.float32, _a16, _b16),
    "m16n8k8.row.col.f32.bf16.bf16.f32": (8, ml_dtypes.bfloat16, np.float32, _a16, _b16),
    "m16n8k16.row.col.f16.f16.f16.f16": (16, np.float16, np.float16, _a16, _b16),
    "m16n8k8.row.col.f16.f16.f16.f16": (8, np.float16, np.float16, _a16, _b16),
    "m16n8k8.row.col.f32.tf32.tf32.f32": (8, np.float32, np.float32, _a_tf32, _b_tf32),
    "m16n8k4.row.col.f32.tf32.tf32.f32": (4, np.float32, np.float32, _a_tf32, _b_tf32),
}


@pytest.mark.parametrize("form", _FLOATS)
@settings(max_examples=3, deadline=None)
@given(seed=_SEEDS)
def test_product_of_floats(form: str, seed: int) -> None:
    k, dtype, accumulator, a_place, b_place = _FLOATS[form]
    random = np.random.default_rng(seed)
    a, b = (random.standard_normal(shape).astype(dtype) for shape in ((16, k), (k, 8)))
    c = random.standard_normal((16, 8)).astype(accumulator)
    size = np.dtype(dtype).itemsize
    fragments = [
        _words(_fragment(a, a_place, 16 * k // 32)),
        _words(_fragment(b, b_place, k * 8 // 32)),
        _words(_fragment(c, _c, 4)),
    ]
    found = _multiply(f"mma.sync.aligned.{form}", fragments, np.dtype(accumulator).itemsize)
    if size == 4:  # The low 13 bits of a tf32 operand do not count.
        a, b = ((_words(x) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
    expected = (a.astype(np.float64) @ b.astype(np.float64) + c).astype(accumulator)
    got = found.view(accumulator)
    tolerance = 2e-6 if accumulator == np.float32 else 2e-3
    np.testing.assert_allclose(got, _fragment(expected, _c, 4), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kinds", [("s8", "s8"), ("u8", "s8"), ("s8", "u8"), ("u8", "u8")])
@pytest.mark.parametrize("k", [16, 32])
@pytest.mark.parametrize("saturate", ["", ".satfinite"])
def test_product_of_bytes(kinds: tuple[str, str], k: int, saturate: str) -> None:
    random = np.random.default_rng(k)
    types = [np.int8 if kind == "s8" else np.uint8 for kind in kinds]
    a, b = (random.integers(-128, 256, shape).astype(t) for shape, t in zip(((16, k), (k, 8)), types, strict=True))
    c = random.integers(-(2**31), 2**31, (16, 8)).astype(np.int32)
    c[0, 0] = 2**31 - 1
    a_place, b_place = (_a8_k32, _b8_k32) if k == 32 else (_a8_k16, lambda lane, i: ((lane & 3) * 4 + i, lane >> 2))
    fragments = [_fragment(a, a_place, k // 2), _fragment(b, b_place, k // 4), _fragment(c, _c, 4)]
    mnemonic = f"mma.sync.aligned.m16n8k{k}.row.col{saturate}.s32.{kinds[0]}.{kinds[1]}.s32"
    found = _multiply(mnemonic, [_words(f) for f in fragments], 4)
    exact = a.astype(np.int64) @ b.astype(np.int64) + c
    expected = np.clip(exact, -(2**31), 2**31 - 1) if saturate else exact
    assert (found.view(np.int32) == _fragment(expected.astype(np.int32), _c, 4)).all()


def test_product_of_doubles() -> None:
    random = np.random.default_rng(3)
    a, b, c = (random.integers(-9, 9, shape).astype(np.float64) for shape in ((8, 4), (4, 8), (8, 8)))
    lines = "mul.wide.u32 %d0, %r0, 8; add.u64 %d1, %a0, %d0; ld.global.b64 %d10, [%d1]; add.u64 %d1, %a1, %d0;\n"
    lines += "ld.global.b64 %d11, [%d1]; shl.b64 %d0, %d0, 1; add.u64 %d1, %a2, %d0;\n"
    lines += "ld.global.v2.b64 {%d12, %d13}, [%d1];\n"
    lines += "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d14, %d15}, {%d10}, {%d11}, {%d12, %d13};\n"
    lines += "add.u64 %d1, %a3, %d0; st.global.v2.b64 [%d1], {%d14, %d15};"
    out = np.zeros((32, 2))
    fragments = [_fragment(a, _a_f64, 1), _fragment(b, _b_f64, 1), _fragment(c, _c, 2)]
    run(kernel(lines, pointers=4), [*fragments, out])
    assert (out == _fragment(a @ b + c, _c, 2)).all()


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_matrices_loaded_and_stored(count: int, trans: str) -> None:
    """``ldmatrix``: lane l has elements 2 (l % 4) and the next of row l / 4; ``stmatrix`` is the inverse."""
    registers = ", ".join(f"%r{10 + n}" for n in range(count))
    body = f"""shl.b32 %r1, %r0, 4; mov.u32 %r2, tile; add.u32 %r1, %r1, %r2;
mul.wide.u32 %d0, %r0, 16; add.u64 %d1, %a0, %d0;
ld.global.v4.b32 {{%r20, %r21, %r22, %r23}}, [%d1]; st.shared.v4.b32 [%r1], {{%r20, %r21, %r22, %r23}}; bar.sync 0;
ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [%r1];
add.u64 %d2, %a1, %d0; bar.sync 0; mov.b32 %r30, 0; st.shared.v4.b32 [%r1], {{%r30, %r30, %r30, %r30}}; bar.sync 0;
stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r1], {{{registers}}}; bar.sync 0;
ld.shared.v4.b32 {{%r20, %r21, %r22, %r23}}, [%r1]; add.u64 %d3, %a2, %d0;
st.global.v4.b32 [%d3], {{%r20, %r21, %r22, %r23}};
""" + "\n".join(f"st.global.b32 [%d2+{4 * n}], %r{10 + n};" for n in range(count))
    rows = np.random.default_rng(count).integers(0, 2**16, (32, 8)).astype(np.uint16)
    out, back = np.zeros((32, 8), np.uint16), np.zeros((32, 8), np.uint16)
    run(kernel(body, pointers=3, before=".shared .align 16 .b8 tile[512];\n"), [rows, out, back])
    for number in range(count):
        matrix = rows[8 * number : 8 * number + 8]
        matrix = matrix.T if trans else matrix
        for lane in range(32):
            expected = matrix[lane >> 2, 2 * (lane & 3) : 2 * (lane & 3) + 2]
            assert out[lane, 2 * number : 2 * number + 2].tolist() == expected.tolist()
    assert (back[: 8 * count] == rows[: 8 * count]).all()
    assert not back[8 * count :].any()


def test_matrix_transposed_in_registers() -> None:
    body = "mul.wide.u32 %d0, %r0, 4; add.u64 %d1, %a0, %d0; ld.global.b32 %r1, [%d1];\n"
    body += "movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r1; add.u64 %d1, %a1, %d0; st.global.b32 [%d1], %r2;"
    matrix = np.arange(64, dtype=np.uint16).reshape(8, 8)
    out = np.zeros((8, 8), np.uint16)
    run(kernel(body, pointers=2), [matrix, out])
    assert (out == matrix.T).all()
