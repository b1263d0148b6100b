import math

import pytest
import torch

from mlirstitch.driver.bench.accuracy import output_error, within_bound, worst_error


def test_error_is_relative_to_the_largest_reference_value():
    reference = torch.tensor([0.0, -8.0], dtype=torch.float64)
    assert output_error(torch.tensor([0.5, -8.0]), reference) == 0.5 / 8.0


def test_error_is_absolute_where_the_reference_is_zero():
    assert output_error(torch.tensor([0.25]), torch.zeros(1, dtype=torch.float64)) == 0.25


@pytest.mark.parametrize(
    "result",
    [
        torch.tensor([1.0, 2.0]),
        torch.tensor([math.nan, math.inf]),
        torch.tensor([-math.inf, math.nan]),
        torch.tensor([[math.inf, math.nan]]),
    ],
    ids=["finite", "places swapped", "other sign", "other shape"],
)
def test_nan_and_infinity_must_stand_where_eager_has_them(result):
    reference = torch.tensor([math.inf, math.nan], dtype=torch.float64)
    assert output_error(result, reference) == math.inf


def test_nan_and_infinity_in_the_same_places_are_no_error():
    reference = torch.tensor([math.inf, math.nan, -math.inf, 2.0], dtype=torch.float64)
    assert output_error(reference.float(), reference) == 0.0


def test_integers_must_be_equal_and_of_the_same_type():
    reference = torch.tensor([1, 2, 3])
    assert output_error(torch.tensor([1, 2, 3]), reference) == 0.0
    assert output_error(torch.tensor([1, 2, 4]), reference) == math.inf
    assert output_error(torch.tensor([1, 2, 3], dtype=torch.int32), reference) == math.inf


def test_the_worst_output_of_a_nest_counts():
    reference = {"a": torch.ones(2, dtype=torch.float64), "b": (torch.ones(1, dtype=torch.float64),)}
    results = {"a": torch.ones(2), "b": (torch.full((1,), 1.5),)}
    assert worst_error(results, reference) == 0.5


def test_a_missing_output_is_an_error():
    one = torch.ones(1)
    assert worst_error((one,), (one.double(), one.double())) == math.inf


def test_bound_is_four_times_eager_plus_slack():
    assert within_bound(4e-3 + 9e-7, 1e-3)
    assert not within_bound(4e-3 + 2e-6, 1e-3)
    assert not within_bound(math.inf, math.inf)
