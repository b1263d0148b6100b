"""Seconds that thousands of ops take from linalg to PTX; `make test-full` prints them with ``-s``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest

import mlirstitch

MOST_SECONDS = 20.0
MOST_GROWTH = 2.5

_GENERIC = """  %v{number} = linalg.generic {{indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}}
      ins(%{source} : tensor<64x64xf32>) outs(%empty : tensor<64x64xf32>) {{
  ^bb0(%i: f32, %o: f32):
    {op} : f32
    linalg.yield %r : f32
  }} -> tensor<64x64xf32>"""


def _module(arguments: int, sources: list[str], results: list[str], op: str = "%r = math.exp %i") -> str:
    lines = [
        _GENERIC.format(number=number, source=source, op=op.format(number=number))
        for number, source in enumerate(sources)
    ]
    tensor = "tensor<64x64xf32>"
    listed = ", ".join(f"%x{number}: {tensor}" for number in range(arguments))
    types = ", ".join([tensor] * len(results))
    return "\n".join(
        [
            "#id = affine_map<(d0, d1) -> (d0, d1)>",
            f"func.func @main({listed}) -> ({types}) {{",
            f"  %empty = tensor.empty() : {tensor}",
            *lines,
            f"  return {', '.join(results)} : {types}",
            "}",
        ]
    )


def chain(count: int) -> str:
    return _module(1, ["x0", *(f"v{number}" for number in range(count - 1))], [f"%v{count - 1}"])


def independent(count: int) -> str:
    return _module(count, [f"x{number}" for number in range(count)], [f"%v{number}" for number in range(count)])


def of_one_tensor(count: int) -> str:
    """Different ops that read one argument."""
    scaled = "%c = arith.constant {number}.5 : f32\n    %r = arith.mulf %i, %c"
    return _module(1, ["x0"] * count, [f"%v{number}" for number in range(count)], scaled)


def _seconds(text: str) -> float:
    start = time.process_time()
    mlirstitch.compile(text)
    return time.process_time() - start


@pytest.mark.slow
@pytest.mark.parametrize(("make", "ops"), [(chain, 5000), (independent, 5000), (of_one_tensor, 2500)])
def test_thousands_of_ops_compile_in_seconds_and_time_grows_with_their_number(
    make: Callable[[int], str], ops: int
) -> None:
    _seconds(make(10))  # what is loaded once
    half, whole = _seconds(make(ops // 2)), _seconds(make(ops))
    sys.stdout.write(f"{make.__name__}: {ops // 2} ops {half:.1f} s, {ops} ops {whole:.1f} s\n")
    assert whole < MOST_SECONDS
    assert whole < MOST_GROWTH * half
