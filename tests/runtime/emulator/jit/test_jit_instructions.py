"""Every instruction form gives the same bits in both engines, on vectors of threads and on values of a whole warp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from engine_pairs import expand, run_both, without_nan_payloads
from ptx_text import kernel

_WIDTH = {
    "b8": 8, "s8": 8, "u8": 8, "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16, "b32": 32, "u32": 32, "s32": 32,
    "f32": 32, "f16x2": 32, "bf16x2": 32, "tf32": 32, "b64": 64, "u64": 64, "s64": 64, "f64": 64, "pred": 1,
}  # fmt: skip
_COUNT = 512


@dataclass(frozen=True)
class Group:
    """Instructions with the same operand types, tested in one kernel. ``tail`` follows the operands."""

    patterns: str
    operands: tuple[str, ...]
    result: str
    tail: str = ""

    @property
    def mnemonics(self) -> list[str]:
        return [m for pattern in self.patterns.split() for m in expand(pattern)]


def _g(patterns: str, operands: str, result: str, tail: str = "") -> Group:
    return Group(patterns, tuple(operands.split()), result, tail)


def _integer_groups() -> list[Group]:
    groups: list[Group] = []
    for bits in ("16", "32", "64"):
        for sign in "us":
            t = sign + bits
            plain = f"{{add,sub,mul.lo,mul.hi,div,rem,min,max}}.{t}"
            groups.append(_g(plain, f"{t} {t}", t))
            groups.append(_g(f"{{mad.lo,mad.hi,sad}}.{t}".replace("sad", "sad"), f"{t} {t} {t}", t))
            groups.append(_g(f"setp.{{eq,ne,lt,le,gt,ge}}.{t}", f"{t} {t}", "pred"))
            groups.append(_g(f"set.{{eq,lt,ge}}.u32.{t}", f"{t} {t}", "u32"))
            groups.append(_g(f"shr.{t}", f"{t} u32", t))
            if bits != "64":
                wide = sign + str(2 * int(bits))
                groups.append(_g(f"mul.wide.{t}", f"{t} {t}", wide))
                groups.append(_g(f"mad.wide.{t}", f"{t} {t} {wide}", wide))
            if bits != "16":
                groups.append(_g(f"bfe.{t}", f"{t} u32 u32", t))
                groups.append(_g(f"bfind{{,.shiftamt}}.{t}", t, "u32"))
        groups.append(_g(f"{{abs,neg}}.s{bits}", f"s{bits}", f"s{bits}"))
        groups.append(_g(f"setp.{{lo,ls,hi,hs}}.u{bits}", f"u{bits} u{bits}", "pred"))
        groups.append(_g(f"{{and,or,xor}}.b{bits}", f"b{bits} b{bits}", f"b{bits}"))
        groups.append(_g(f"{{not,cnot}}.b{bits}", f"b{bits}", f"b{bits}"))
        groups.append(_g(f"shl.b{bits}", f"b{bits} u32", f"b{bits}"))
        groups.append(_g(f"selp.b{bits}", f"b{bits} b{bits} pred", f"b{bits}"))
        groups.append(_g(f"slct.b{bits}.{{s32,f32}}", f"b{bits} b{bits} b32", f"b{bits}"))
        if bits != "16":
            groups.append(_g(f"{{popc,clz}}.b{bits}", f"b{bits}", "u32"))
            groups.append(_g(f"brev.b{bits}", f"b{bits}", f"b{bits}"))
            groups.append(_g(f"bfi.b{bits}", f"b{bits} b{bits} u32 u32", f"b{bits}"))
    groups.append(_g("{add,sub}.sat.s32", "s32 s32", "s32"))
    groups.append(_g("mad.hi.sat.s32", "s32 s32 s32", "s32"))
    groups.append(_g("lop3.b32", "b32 b32 b32", "b32", ", 0xD4"))
    groups.append(_g("lop3.b32", "b32 b32 b32", "b32", ", 0x96"))
    groups.append(_g("shf.{l,r}.{wrap,clamp}.b32", "b32 b32 u32", "b32"))
    groups.append(_g("prmt.b32{,.f4e,.b4e,.rc8,.ecl,.ecr,.rc16}", "b32 b32 b32", "b32"))
    groups.append(_g("{and,or,xor}.pred", "pred pred", "pred"))
    groups.append(_g("not.pred", "pred", "pred"))
    groups.append(_g("setp.{lt.and,ge.or,eq.xor}.s32", "s32 s32 pred", "pred"))
    return groups


def _float_groups() -> list[Group]:
    groups = [
        _g("{add,sub,mul}{.rn,.rz,.rm,.rp}.f32", "f32 f32", "f32"),
        _g("{add,sub,mul}.rn{.ftz,.sat,.ftz.sat}.f32", "f32 f32", "f32"),
        _g("fma.{rn,rz,rm,rp}.f32 fma.rn{.ftz,.sat,.ftz.sat}.f32 mad.rn.f32", "f32 f32 f32", "f32"),
        _g("div.{rn,rz,rm,rp,approx,full,full.ftz}.f32", "f32 f32", "f32"),
        _g("{rcp,sqrt}.{rn,rz,rm,rp,approx,approx.ftz}.f32", "f32", "f32"),
        _g("{rsqrt,ex2,lg2}.approx{,.ftz}.f32", "f32", "f32"),
        _g("{add,sub,mul,div}.rn.f64", "f64 f64", "f64"),
        _g("fma.rn.f64", "f64 f64 f64", "f64"),
        _g("{rcp,sqrt}.rn.f64 rsqrt.approx.f64 {rcp,rsqrt}.approx.ftz.f64", "f64", "f64"),
        _g("ex2.approx.f16", "f16", "f16"),
        _g("ex2.approx.ftz.bf16", "bf16", "bf16"),
        _g("ex2.approx.f16x2", "f16x2", "f16x2"),
        _g("testp.{finite,infinite,number,notanumber,normal,subnormal}.f32", "f32", "pred"),
        _g("testp.{finite,infinite,number,notanumber,normal,subnormal}.f64", "f64", "pred"),
    ]
    for t in ("f32", "f64"):
        groups.append(_g(f"copysign.{t}", f"{t} {t}", t))
    for t in ("f16", "bf16", "f16x2", "bf16x2"):
        groups.append(_g(f"{{add,sub,mul}}.rn.{t}", f"{t} {t}", t))
        groups.append(_g(f"fma.rn{{,.relu}}.{t}", f"{t} {t} {t}", t))
    groups.append(_g("{add,sub,mul}.rn.sat.f16", "f16 f16", "f16"))
    for t in ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64"):
        groups.append(_g(f"{{abs,neg}}.{t}", t, t))
        groups.append(_g(f"{{min,max}}{{,.NaN}}.{t}" if t != "f64" else "{min,max}.f64", f"{t} {t}", t))
        if not t.endswith("x2"):
            words = "eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan"
            groups.append(_g(f"setp.{{{words}}}.{t}", f"{t} {t}", "pred"))
    groups.append(_g("setp.{lt,geu}.ftz.f32", "f32 f32", "pred"))
    groups.append(_g("{abs,neg}.ftz.f32", "f32", "f32"))
    return groups


def _conversion_groups() -> list[Group]:
    integers = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
    groups: list[Group] = []
    for source in integers:
        for target in integers:
            groups.append(_g(f"cvt{{,.sat}}.{target}.{source}", source, target))
        for target in ("f16", "f32", "f64"):
            groups.append(_g(f"cvt.{{rn,rz,rm,rp}}.{target}.{source}", source, target))
        groups.append(_g(f"cvt.{{rn,rz,rm,rp}}.bf16.{source}", source, "bf16"))
    for source in ("f16", "bf16", "f32", "f64"):
        for target in integers:
            groups.append(_g(f"cvt.{{rni,rzi,rmi,rpi}}.{target}.{source}", source, target))
    narrow = (("f64", "f32"), ("f64", "f16"), ("f32", "f16"), ("f32", "bf16"), ("f64", "bf16"))
    for source, target in narrow:
        groups.append(_g(f"cvt.{{rn,rz,rm,rp}}.{target}.{source}", source, target))
    for source, target in (("f16", "f32"), ("bf16", "f32"), ("f16", "f64"), ("f32", "f64"), ("bf16", "f64")):
        groups.append(_g(f"cvt.{target}.{source}", source, target))
    for t in ("f16", "f32", "f64"):
        groups.append(_g(f"cvt.{{rni,rzi,rmi,rpi}}.{t}.{t} cvt.sat.{t}.{t}", t, t))
    groups.append(_g("cvt.rn{,.relu}.f16x2.f32", "f32 f32", "f16x2"))
    groups.append(_g("cvt.{rn,rz}{,.relu}.bf16x2.f32", "f32 f32", "bf16x2"))
    groups.append(_g("cvt.rn{.sat,.relu}.f16.f32", "f32", "f16"))
    groups.append(_g("cvt.rna.tf32.f32 cvt.rn.tf32.f32", "f32", "tf32"))
    groups.append(_g("cvt.rn.ftz.f32.f64", "f64", "f32"))
    return groups


def _merged(groups: Sequence[Group]) -> list[tuple[str, list[Group]]]:
    """Groups with the same operands share a kernel, to compile less."""
    by_operands: dict[str, list[Group]] = {}
    for group in groups:
        by_operands.setdefault(" ".join(group.operands), []).append(group)
    return list(by_operands.items())


GROUPS = _merged([*_integer_groups(), *_float_groups(), *_conversion_groups()])


def _samples(kind: str, rng: np.random.Generator, position: int) -> Any:
    """Random bits, small numbers, and the edges of the type; elements as wide as the type."""
    bits = max(_WIDTH[kind], 8)
    dtype = np.dtype(f"u{bits // 8}")
    if kind == "pred":
        return rng.integers(0, 2, _COUNT).astype(np.uint8)
    top = 1 << bits
    values = rng.integers(0, top, _COUNT, dtype=np.uint64, endpoint=False) if bits < 64 else _random64(rng)
    values = values.astype(dtype)
    near = rng.permutation(_COUNT)
    values[near[:128]] = rng.integers(0, 70, 128).astype(dtype)
    edges = [0, 1, top - 1, top // 2, top // 2 - 1, top // 2 + 1, bits, bits - 1]
    values[near[128:136]] = np.array(edges, dtype=np.uint64).astype(dtype)
    formats = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}
    if kind.removesuffix("x2") in formats:
        exponent, mantissa = formats[kind.removesuffix("x2")]
        bias = (1 << (exponent - 1)) - 1
        usual = near[136:400]
        # Ordinary magnitudes, so that sums cancel and roundings happen; both signs.
        e = rng.integers(bias - 6, bias + 7, usual.size).astype(np.uint64) << np.uint64(mantissa)
        m = rng.integers(0, 1 << mantissa, usual.size, dtype=np.uint64)
        sign = rng.integers(0, 2, usual.size).astype(np.uint64) << np.uint64(exponent + mantissa)
        values[usual] = (e | m | sign).astype(dtype)
        infinity = ((1 << exponent) - 1) << mantissa
        special = [infinity, infinity | 1 << (exponent + mantissa), infinity | 1 << (mantissa - 1), bias << mantissa]
        special += [1 << mantissa, (1 << mantissa) - 1, infinity - 1]
        values[near[400:407]] = np.array(special, np.uint64).astype(dtype)
    return np.roll(values, 37 * position)


def _random64(rng: np.random.Generator) -> Any:
    return rng.integers(0, 1 << 32, _COUNT, dtype=np.uint64) << np.uint64(32) | rng.integers(
        0, 1 << 32, _COUNT, dtype=np.uint64
    )


def _text(groups: Sequence[Group], uniform: bool) -> tuple[str, list[str]]:
    """Kernel that applies all instructions to element ``tid``, or to one element per block; the result types."""
    operands = groups[0].operands
    lines = ["mov.u32 %r60, %ctaid.x; mov.u32 %r61, %ntid.x; mad.lo.u32 %r62, %r60, %r61, %r0;"]
    if uniform:
        lines = ["mov.u32 %r62, %ctaid.x;"]
    lines.append("cvt.u64.u32 %d50, %r62;")
    registers: list[str] = []
    for position, kind in enumerate(operands):
        width = max(_WIDTH[kind], 8) // 8
        register = f"%{'hhrd'[(width > 1) + (width > 2) + (width > 4)]}{position + 10}"
        load = {1: "u8" if kind != "s8" else "s8"}.get(width, f"b{8 * width}")
        lines.append(f"mad.lo.u64 %d51, %d50, {width}, %a{position}; ld.global.{load} {register}, [%d51];")
        if kind == "pred":
            lines.append(f"setp.ne.b16 %p{position}, {register}, 0;")
            register = f"%p{position}"
        registers.append(register)
    lines.append(f"mad.lo.u64 %d52, %d50, 8, %a{len(operands)};")
    results: list[str] = []
    for group in groups:
        for mnemonic in group.mnemonics:
            width = _WIDTH[group.result]
            target = {1: "%p9", 8: "%h1", 16: "%h1", 32: "%r1", 64: "%d1"}[width]
            lines.append(f"{mnemonic} {', '.join([target, *registers])}{group.tail};")
            wide = {1: "selp.b64 %d2, 1, 0, %p9;", 8: "cvt.u64.u8 %d2, %h1;", 16: "cvt.u64.u16 %d2, %h1;"}
            wide |= {32: "cvt.u64.u32 %d2, %r1;", 64: "mov.b64 %d2, %d1;"}
            lines.append(f"{wide[width]} st.global.b64 [%d52+{8 * _COUNT * len(results)}], %d2;")
            results.append(group.result)
    return kernel("\n".join(lines), pointers=len(operands) + 1), results


@pytest.mark.parametrize("uniform", [False, True], ids=["threads", "warp"])
@pytest.mark.parametrize(("operands", "groups"), GROUPS, ids=[name for name, _ in GROUPS])
def test_instruction_gives_the_same_bits_in_both_engines(operands: str, groups: list[Group], uniform: bool) -> None:
    rng = np.random.default_rng(7)
    text, results = _text(groups, uniform)
    inputs = [_samples(kind, rng, position) for position, kind in enumerate(operands.split())]
    out = np.zeros((len(results), _COUNT), np.uint64)
    grid, block = (_COUNT, 32) if uniform else (2, _COUNT // 2)
    one, other = run_both(text, [*inputs, out], grid=grid, block=block)
    names = [(m, g) for g in groups for m in g.mnemonics]
    for (mnemonic, group), a, b in zip(names, one[-1], other[-1], strict=True):
        a, b = without_nan_payloads(a, group.result), without_nan_payloads(b, group.result)
        bad = np.nonzero(a != b)[0]
        shown = [f"{int(x[bad[0]]):#x}" for x in inputs] if bad.size else []
        assert not bad.size, f"{mnemonic}({', '.join(shown)}) = {int(a[bad[0]]):#x}, reference {int(b[bad[0]]):#x}"
