import math

import pytest
import torch

from mlirstitch.driver.bench.accuracy import Errors, output_error, worst_output


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


def test_the_output_closest_to_its_bound_counts():
    one = torch.ones(1, dtype=torch.float64)
    reference = {"a": one, "b": (one, one)}
    eager = {"a": one.float() + 0.5, "b": (one.float(), one.float())}
    results = {"a": one.float() + 0.25, "b": (one.float(), one.float() + 2**-10)}
    worst = worst_output(results, eager, reference)
    assert worst == Errors(compiled=2**-10, eager=0.0)
    assert not worst.allowed


def test_an_output_that_is_zero_but_for_rounding_hides_no_other():
    noise, one = torch.full((1,), 1e-17, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    eager = (torch.full((1,), 1e-8), one.float())
    assert worst_output((torch.full((1,), 2e-8), one.float()), eager, (noise, one)).allowed
    assert not worst_output((torch.full((1,), 2e-8), one.float() + 1e-3), eager, (noise, one)).allowed


def test_a_missing_output_is_not_allowed():
    one = torch.ones(1)
    assert not worst_output((one,), (one, one), (one.double(), one.double())).allowed


def test_nan_where_eager_overflows_too_is_not_allowed():
    assert not Errors(math.inf, math.inf).allowed


def test_bound_is_four_times_eager_plus_slack():
    assert Errors(4e-3 + 9e-7, 1e-3).allowed
    assert not Errors(4e-3 + 2e-6, 1e-3).allowed
