"""Argument and result trees: what a model takes and returns survives the flat program."""

import json
from collections import namedtuple

import pytest

from mlirstitch.driver.calling import CallingConvention, positional
from mlirstitch.errors import LaunchError

NESTED = CallingConvention(
    arguments={
        "tuple": [
            {"tuple": [{"leaf": 0}, {"dict": [["q", {"leaf": 1}], ["k", {"list": [{"leaf": 2}, {"constant": 3}]}]]}]},
            {"dict": [["mask", {"leaf": 3}]]},
        ]
    },
    results={"dict": [["a", {"leaf": 1}], ["b", {"tuple": [{"leaf": 0}, {"constant": None}]}]]},
    names=("x", "q", "k", "mask"),
    parameter_names=("x", "d"),
)


def test_nested_arguments_flatten_in_leaf_order_whatever_the_key_order():
    assert NESTED.flatten_arguments(("x", {"k": ["k", 3], "q": "q"}), {"mask": "m"}) == ["x", "q", "k", "m"]


def test_positional_parameters_may_be_given_by_name():
    assert NESTED.flatten_arguments((), {"d": {"q": 1, "k": [2, 3]}, "x": 0, "mask": 4}) == [0, 1, 2, 4]


def test_results_are_rebuilt_with_constants():
    assert NESTED.build_results(["first", "second"]) == {"a": "second", "b": ("first", None)}


def test_convention_survives_json():
    assert CallingConvention.from_json(json.loads(json.dumps(NESTED.to_json()))) == NESTED


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((1,), {"mask": 0}, "call: expected 2 positional arguments, got 1"),
        ((1, {"q": 1}), {"mask": 0}, "expected the keys"),
        ((1, {"q": 1, "k": [2, 4]}), {"mask": 0}, "compiled for 3"),
        ((1, {"q": 1, "k": [2, True]}), {"mask": 0}, "compiled for 3"),
        ((1, {"q": 1, "k": [2, 3]}), {}, "expected the keys"),
        ((1, {"q": 1, "k": 2}), {"mask": 0}, "expected 2 values"),
    ],
)
def test_wrong_structure_is_refused_naming_the_argument(args, kwargs, message):
    with pytest.raises(LaunchError, match=message):
        NESTED.flatten_arguments(args, kwargs)


@pytest.mark.parametrize(("count", "expected"), [(0, None), (1, 10), (2, (10, 11))])
def test_ir_programs_return_nothing_one_value_or_a_tuple(count, expected):
    convention = positional(1, count, ["x"])
    assert convention.build_results([10, 11][:count]) == expected
    assert convention.flatten_arguments((5,), {}) == [5]
    assert convention.flatten_arguments((), {"x": 5}) == [5]


def test_named_tuples_come_back_as_named_tuples():
    convention = CallingConvention({"tuple": []}, {"namedtuple": ["Out", ["y", "z"], [{"leaf": 0}, {"leaf": 1}]]})
    result = convention.build_results([1, 2])
    assert (result.y, result.z) == (1, 2)
    assert result == namedtuple("Out", "y z")(1, 2)
