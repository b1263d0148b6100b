"""The template ``packed``: independent parts of a cluster in one launch, each with its own range of blocks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from kernel_harness import Built, build, moved_bytes, random_array, reason, reference
from packed_programs import Piece, biased, mapped, reduced, rows_and_columns, softmax_rows, together

from mlirstitch.errors import PassError
from mlirstitch.passes.stitching.template import Schedule


def inputs_of(pieces: Sequence[Piece], seed: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    kinds = dict.fromkeys(
        (name if name.startswith("%shared_") else f"{number}{name}", kind)
        for number, piece in enumerate(pieces)
        for name, kind in piece.arguments
    )
    return [
        random_array(rng, [int(extent) for extent in re.findall(r"(\d+)x", kind)], kind.rstrip(">").split("x")[-1])
        if "x" in kind
        else random_array(rng, (), kind[7:-1])
        for _, kind in kinds
    ]


def check(pieces: Sequence[Piece], tolerance: float = 2e-6, seeds: Sequence[int] = (3,)) -> Built:
    """Build the pieces as one kernel, run it in random orders under the sanitizer, compare with float64."""
    text = together(pieces)
    built = build(text, "packed")
    inputs = inputs_of(pieces)
    expected = reference(text, inputs)
    for seed in seeds:
        for found, wanted in zip(built.run(inputs, seed=seed, sanitize=True), expected, strict=True):
            assert found.shape == wanted.shape
            scale = np.abs(wanted).max(initial=1e-30)
            assert np.abs(found - wanted).max(initial=0) <= tolerance * scale
        if built.schedule.grid[0]:
            assert moved_bytes(built) == built.traffic
    return built


def templates_of(built: Built) -> list[str]:
    return [part.template for part in built.schedule.parts]


def test_full_reductions_of_different_shapes_share_a_launch() -> None:
    built = check([reduced((64, 500), (0, 1)), reduced((3, 5, 7), (0, 1, 2), op="arith.maximumf", initial="-1.0e30")])
    assert templates_of(built) == ["row", "row"]


def test_row_column_elementwise_and_transposed_parts_share_a_launch() -> None:
    pieces = [softmax_rows(40, 96), reduced((300, 64), (0,)), biased(20, 36), mapped((70, 50), permutation=(1, 0))]
    built = check(pieces)
    assert templates_of(built)[:3] == ["row", "column", "elementwise"]
    assert built.schedule.grid[0] == sum(part.grid[0] for part in built.schedule.parts)


def test_parts_with_scratch_and_tickets_keep_theirs_apart() -> None:
    pieces = [
        reduced((700, 300), (0, 1)),
        rows_and_columns(96, 64),
        reduced((1 << 15,), (0,)),
        rows_and_columns(60, 40),
    ]
    built = check(pieces, 1e-5, seeds=(0, 1, 2))
    schedule = built.schedule
    assert sum(part.tickets > 0 for part in schedule.parts) >= 3
    assert schedule.tickets == sum(part.tickets for part in schedule.parts)
    assert schedule.scratch == tuple(buffer for part in schedule.parts for buffer in part.scratch)


def test_a_part_without_elements_takes_no_blocks() -> None:
    built = check([mapped((0, 5)), biased(9, 8), mapped((3, 0))])
    assert [part.grid[0] > 0 for part in built.schedule.parts] == [False, True, False]


def test_only_parts_without_elements_are_no_launch() -> None:
    assert check([mapped((0, 5)), mapped((3, 0))]).schedule.grid[0] == 0


def test_results_without_dims() -> None:
    check([mapped(()), reduced((33,), (0,)), mapped(()), reduced((2, 2), (0, 1))])


def test_types_differ_from_part_to_part() -> None:
    pieces = [
        reduced((50, 30), (1,), "i32", "arith.addi", "0"),
        reduced((40, 64), (0,), "f64"),
        mapped((10, 10)),
    ]
    check(pieces, 1e-6)


def test_an_input_of_several_parts_is_one_argument() -> None:
    built = check([biased(20, 64, "%shared_bias"), biased(7, 64, "%shared_bias")])
    kernel = re.search(r"\.entry kernel\((.*?)\)", built.ptx, re.DOTALL)
    assert kernel is not None
    assert kernel[1].count(".param") == 5


def test_parts_that_one_pass_over_their_input_serves_are_no_parts() -> None:
    both = [
        reduced((64, 256), (1,), source="%shared_a"),
        reduced((64, 256), (1,), op="arith.maximumf", source="%shared_a"),
    ]
    assert "independent" in str(reason(together(both), "packed"))
    built = check([*both, mapped((8, 8))])
    assert len(built.schedule.parts) == 2


def test_ops_that_depend_on_each_other_are_no_parts() -> None:
    assert "independent" in str(reason(together([softmax_rows(8, 64)]), "packed"))


def test_static_shared_memory_is_that_of_the_greediest_part() -> None:
    alone = [build(together([piece])) for piece in (softmax_rows(8, 4096), rows_and_columns(300, 256))]
    packed = build(together([softmax_rows(8, 4096), rows_and_columns(300, 256)]), "packed")

    def shared(built: Built) -> int:
        return max((int(size) for size in re.findall(r"\.shared \.align 16 \.b8 \w+\[(\d+)\]", built.ptx)), default=0)

    assert shared(packed) == max(shared(built) for built in alone)


def test_parts_of_fewer_threads_wait_for_their_own() -> None:
    """Barriers of a part must not wait for warps that have left it."""
    small = Schedule("row", (4, 1, 1), (128, 1, 1), 4, 0, (("lanes", 128), ("mode", "loop"), ("rows_per_block", 1)))
    wide = Schedule(
        "row", (4, 1, 1), (256, 1, 1), 4, 0, (("lanes", 256), ("mode", "loop"), ("rows_per_block", 1), ("unroll", 4))
    )
    pieces = [reduced((4, 8192), (1,)), reduced((4, 8192), (1,))]
    text = together(pieces)
    schedule = Schedule("packed", (8, 1, 1), (256, 1, 1), 4, parts=(small, wide))
    built = build(text, "packed", schedule=schedule)
    assert re.search(r"bar(?:rier)?(?:\.cta)?\.sync\s+0, 128;", built.ptx)
    inputs = inputs_of(pieces)
    expected = reference(text, inputs)
    for seed in range(3):
        for found, wanted in zip(built.run(inputs, seed=seed, sanitize=True), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


def test_tables_of_different_parts_are_different_tables() -> None:
    def table(values: str) -> Piece:
        body = f"""  %t = arith.constant dense<[{values}]> : tensor<4xf32>
  %e = tensor.empty() : tensor<4xf32>
  %r = linalg.generic {{indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>,
      affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}}
      ins(%a, %t : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {{
  ^bb0(%x: f32, %y: f32, %out: f32):
    %s = arith.mulf %x, %y : f32
    linalg.yield %s : f32
  }} -> tensor<4xf32>
"""
        return Piece((("%a", "tensor<4xf32>"),), body, (("%r", "tensor<4xf32>"),))

    check([table("1.0, 2.0, 3.0, 4.0"), table("-5.0, 6.0, 7.0, 8.0")])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": (4, 1, 1)}, "grid is"),
        ({"block": (32, 1, 1)}, "block x of part"),
        ({"parts": ()}, "parts is 0, not 2"),
        ({"shared_bytes": 16}, "shared_bytes is 16"),
        ({"tickets": 1}, "tickets is 1"),
        ({"scratch": (("f32", 8),)}, "scratch is"),
        ({"vector": 8}, "vector is 8"),
        ({"parameters": (("unroll", 2),)}, "parameters is"),
        ({"thread_block_cluster": (2, 1, 1)}, "thread_block_cluster is"),
        ({"cooperative": True}, "cooperative is"),
    ],
)
def test_a_schedule_that_is_not_that_of_its_parts_is_refused(change: dict, message: str) -> None:
    text = together([biased(64, 64), softmax_rows(64, 256)])
    best = build(text, "packed").schedule
    with pytest.raises(PassError, match=message):
        build(text, "packed", schedule=replace(best, **change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"template": "nothing"}, "no template of parts is named 'nothing'"),
        ({"template": "packed"}, "no template of parts is named 'packed'"),
        ({"cooperative": True}, "wait for each other"),
        ({"thread_block_cluster": (2, 1, 1)}, "wait for each other"),
        ({"block": (48, 1, 1)}, "fewer whole warps"),
    ],
)
def test_a_part_that_cannot_be_one_is_refused(change: dict, message: str) -> None:
    text = together([biased(64, 64), softmax_rows(64, 256)])
    best = build(text, "packed").schedule
    parts = (replace(best.parts[0], **change), best.parts[1])
    with pytest.raises(PassError, match=message):
        build(text, "packed", schedule=replace(best, parts=parts))


def test_more_parts_than_code_size_allows_are_refused() -> None:
    assert "at most 32" in str(reason(together([mapped((4,))] * 33), "packed"))
