"""Library calls on numpy against einsum and direct loops in float64."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np
import pytest
from sample_bundles import buffer, library_call

from mlirstitch.runtime.dtypes import aligned_copy, numpy_dtype
from mlirstitch.runtime.library import NumpyLibrary
from mlirstitch.runtime.program import LibraryCall

LIBRARY = NumpyLibrary()


def call_of(routine: str, shapes: Sequence[Sequence[int]], dtypes: Sequence[str], **attributes) -> LibraryCall:
    buffers = [
        buffer(k, "input", "", shape, dtype) for k, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    return library_call(routine, list(zip(buffers, ("read", "read", "write"), strict=True)), **attributes)


def compute(call: LibraryCall, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    assert LIBRARY.refuses(call) is None
    result = aligned_copy(np.full(call.operands[2].shape, 77).astype(numpy_dtype(call.operands[2].dtype)))
    raw = [aligned_copy(a).reshape(-1).view(np.uint8) for a in (left, right)]
    LIBRARY.run(call, [*raw, result.reshape(-1).view(np.uint8)])
    return result


def random(shape: Sequence[int], dtype: str, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).integers(-4, 5, shape)
    return values.astype(numpy_dtype(dtype))


CONTRACTIONS = {
    "matmul": "mk,kn->mn",
    "matmul_transpose_a": "km,kn->mn",
    "matmul_transpose_b": "mk,nk->mn",
    "batch_matmul": "bmk,bkn->bmn",
    "batch_matmul_transpose_a": "bkm,bkn->bmn",
    "batch_matmul_transpose_b": "bmk,bnk->bmn",
    "batch_reduce_matmul": "bmk,bkn->mn",
    "matvec": "mk,k->m",
    "vecmat": "k,kn->n",
    "batch_matvec": "bmk,bk->bm",
    "batch_vecmat": "bk,bkn->bn",
    "dot": "k,k->",
}
EXTENTS = {"b": 2, "m": 3, "n": 5, "k": 4}


@pytest.mark.parametrize("routine", CONTRACTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "int64", "int8"])
def test_contractions(routine, dtype):
    parts = CONTRACTIONS[routine].replace("->", ",").split(",")
    shapes = [[EXTENTS[d] for d in part] for part in parts]
    left, right = random(shapes[0], dtype, 1), random(shapes[1], dtype, 2)
    result = compute(call_of(routine, shapes, [dtype] * 3), left, right)
    wide = np.einsum(CONTRACTIONS[routine], left.astype(np.float64), right.astype(np.float64))
    expected = wide.astype(np.int64).astype(dtype) if dtype.startswith("int") else wide.astype(numpy_dtype(dtype))
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("empty", "bmnk")
def test_a_batched_product_with_an_empty_dim(empty):
    extents = EXTENTS | {empty: 0}
    shapes = [[extents[d] for d in part] for part in ("bmk", "bkn", "bmn")]
    call = call_of("batch_matmul", shapes, ["float32"] * 3)
    result = compute(call, np.ones(shapes[0], np.float32), np.ones(shapes[1], np.float32))
    assert not result.any()


@pytest.mark.parametrize(
    ("spec", "maps"),
    [
        ("mk,nk->mn", [[0, 2], [1, 2], [0, 1]]),
        ("mk,kn->nm", [[0, 2], [2, 1], [1, 0]]),
        ("bmhk,bnhk->bhmn", [[0, 2, 1, 4], [0, 3, 1, 4], [0, 1, 2, 3]]),
        ("mk,n->mn", [[0, 2], [1], [0, 1]]),
        ("k,nl->n", [[0], [1, 2], [1]]),
    ],
)
def test_indexing_maps_say_which_dims_are_summed(spec, maps):
    extents = {"b": 2, "h": 3, "m": 4, "n": 5, "k": 2, "l": 3}
    shapes = [[extents[d] for d in part] for part in spec.replace("->", ",").split(",")]
    left, right = random(shapes[0], "float64", 1), random(shapes[1], "float64", 2)
    result = compute(call_of("contract", shapes, ["float64"] * 3, indexing_maps=maps), left, right)
    np.testing.assert_allclose(result, np.einsum(spec, left, right), rtol=1e-12)


def test_narrow_floats_accumulate_in_f32_and_are_rounded_once():
    ones = np.ones((1, 4096)).astype(numpy_dtype("bfloat16"))
    result = compute(call_of("matmul_transpose_b", [[1, 4096]] * 2 + [[1, 1]], ["bfloat16"] * 3), ones, ones)
    assert result.astype(np.float32)[0, 0] == 4096
    large = np.full((1, 8), 200, np.float16)
    result = compute(
        call_of("matmul_transpose_b", [[1, 8]] * 2 + [[1, 1]], ["float16", "float16", "float32"]), large, large
    )
    assert result[0, 0] == 320_000


def test_operands_are_not_rounded_to_a_narrower_result():
    left, right = np.array([[1 + 2**-10, -1]], np.float16), np.ones((1, 2), np.float16)
    call = call_of("matmul_transpose_b", [[1, 2]] * 2 + [[1, 1]], ["float16", "float16", "bfloat16"])
    assert compute(call, left, right)[0, 0] == 2**-10


@pytest.mark.filterwarnings("error")
def test_overflow_and_nan_are_results_without_warnings():
    huge = np.array([[60000, 60000], [np.nan, np.inf]], np.float16)
    result = compute(call_of("matmul", [[2, 2]] * 3, ["float16"] * 3), huge, np.ones((2, 2), np.float16))
    assert np.isinf(result[0]).all()
    assert np.isnan(result[1]).all()


def test_integers_accumulate_and_wrap_in_the_type_of_the_result():
    big = np.full((1, 4), 100, np.int8)
    wide = compute(call_of("matmul_transpose_b", [[1, 4]] * 2 + [[1, 1]], ["int8", "int8", "int32"]), big, big)
    assert wide[0, 0] == 40_000
    narrow = compute(call_of("matmul_transpose_b", [[1, 4]] * 2 + [[1, 1]], ["int8"] * 3), big, big)
    assert narrow[0, 0] == np.array(40_000).astype(np.int8)


def direct_convolution(image, kernel, layout, strides, dilations, shape) -> np.ndarray:
    """Sum of products, one multiplication after the other; letters as in the routine's name."""
    image_dims, kernel_dims, result_dims = layout
    result = np.zeros(shape)
    space = [d for d in image_dims if d in "dhw"]
    inner = [d for d in kernel_dims if d not in result_dims or d in space]
    for at in itertools.product(*map(range, shape)):
        where = dict(zip(result_dims, at, strict=True))
        for window in itertools.product(*(range(kernel.shape[kernel_dims.index(d)]) for d in inner)):
            step = dict(zip(inner, window, strict=True))
            position = [
                where[d] * strides[space.index(d)] + step[d] * dilations[space.index(d)]
                if d in space
                else step.get(d, where.get(d))
                for d in image_dims
            ]
            weight = [step[d] if d in step else where[d] for d in kernel_dims]
            result[at] += image[tuple(position)] * kernel[tuple(weight)]
    return result


CONVOLUTIONS = [
    ("conv_1d_ncw_fcw", "ncw", "fcw", "nfw"),
    ("conv_1d_nwc_wcf", "nwc", "wcf", "nwf"),
    ("conv_2d_nchw_fchw", "nchw", "fchw", "nfhw"),
    ("conv_2d_nhwc_hwcf", "nhwc", "hwcf", "nhwf"),
    ("conv_2d_nhwc_fhwc", "nhwc", "fhwc", "nhwf"),
    ("conv_2d_ngchw_fgchw", "ngchw", "fgchw", "ngfhw"),
    ("conv_2d_ngchw_gfchw", "ngchw", "gfchw", "ngfhw"),
    ("conv_2d_nhwgc_gfhwc", "nhwgc", "gfhwc", "nhwgf"),
    ("conv_3d_ncdhw_fcdhw", "ncdhw", "fcdhw", "nfdhw"),
    ("depthwise_conv_1d_ncw_cw", "ncw", "cw", "ncw"),
    ("depthwise_conv_2d_nchw_chw", "nchw", "chw", "nchw"),
    ("depthwise_conv_2d_nhwc_hwc", "nhwc", "hwc", "nhwc"),
    ("depthwise_conv_2d_nhwc_hwcm", "nhwc", "hwcm", "nhwcm"),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda case: case[0])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2), (3, 2)])
def test_convolutions(case, stride, dilation):
    routine, *layout = case
    extents = {"n": 2, "c": 2, "f": 3, "g": 2, "m": 2}
    held, reach = {"d": 6, "h": 7, "w": 8}, {"d": 2, "h": 3, "w": 2}
    moved = {d: (held[d] - (reach[d] - 1) * dilation - 1) // stride + 1 for d in "dhw"}
    shapes = [[(extents | space)[d] for d in dims] for dims, space in zip(layout, (held, reach, moved), strict=True)]
    rank = sum(d in "dhw" for d in layout[0])
    image, kernel = random(shapes[0], "float32", 1), random(shapes[1], "float32", 2)
    call = call_of(routine, shapes, ["float32"] * 3, strides=[stride] * rank, dilations=[dilation] * rank)
    expected = direct_convolution(image, kernel, layout, [stride] * rank, [dilation] * rank, shapes[2])
    np.testing.assert_array_equal(compute(call, image, kernel), expected)


F32 = ["float32"] * 3


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (call_of("fft", [[2, 2]] * 3, F32), "unknown routine 'fft' .known: matmul"),
        (call_of("contract", [[2, 2]] * 3, F32), "unknown routine 'contract'"),
        (call_of("matmul", [[2, 3], [2, 3], [2, 3]], F32), "shapes .* disagree"),
        (call_of("matmul", [[2, 3, 1], [3, 2], [2, 2]], F32), "has rank 3, expected 2"),
        (call_of("matmul", [[2, 2]] * 3, ["bool"] * 3), "bool"),
        (call_of("contract", [[2]] * 3, F32, indexing_maps=[[0], [1]]), "three lists"),
        (call_of("contract", [[2]] * 3, F32, indexing_maps=[[0], [1], ["x"]]), "three lists"),
        (call_of("contract", [[2, 2], [2], [2]], F32, indexing_maps=[[0, 0], [1], [1]]), "twice"),
        (call_of("contract", [[2], [2], [2]], F32, indexing_maps=[[0], [1], [2]]), "no operand has"),
        (call_of("conv_2d_nchw_fcw", [[1]] * 3, F32), "layout"),
        (call_of("depthwise_conv_1d_ncw_fcw", [[1]] * 3, F32), "layout"),
        (call_of("conv_1d_ncw_cw", [[1]] * 3, F32), "layout"),
        (call_of("conv_1d_ncw_fcw", [[1, 1, 4], [1, 1, 2], [1, 1, 4]], F32), "dim w of the result should be 3"),
        (call_of("conv_1d_ncw_fcw", [[1, 1, 4], [1, 1, 2], [1, 1, 3]], F32, strides=[0]), "positive integers"),
        (call_of("conv_1d_ncw_fcw", [[1, 1, 4], [1, 1, 2], [1, 1, 3]], F32, strides=3), "positive integers"),
        (library_call("matmul", [(buffer(0, "input", "", [2]), "read")]), "two operands to read"),
    ],
)
def test_calls_that_cannot_be_computed_are_refused_with_the_reason(call, reason):
    answer = LIBRARY.refuses(call)
    assert answer is not None
    assert re.search(reason, answer)
