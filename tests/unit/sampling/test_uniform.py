import numpy as np
import pytest

from soup_engine.sampling.uniform import uniform


def test_it_depends_on_its_arguments_alone() -> None:
    drawn = [uniform(7, position) for position in range(5)]
    assert drawn == [uniform(7, position) for position in range(5)]
    assert drawn == list(reversed([uniform(7, position) for position in (4, 3, 2, 1, 0)]))
    assert len({*drawn, *(uniform(7, position, 1) for position in range(5))}) == 10


def test_numbers_are_fixed_for_good() -> None:
    """A seed must give the same text after an upgrade."""
    assert [uniform(0, 0), uniform(42, 3), uniform(-1, 1, 2)] == PINNED


@pytest.mark.parametrize("stream", [0, 1])
@pytest.mark.parametrize("seed", [0, 1, -(2**63), 2**63 - 1])
def test_positions_of_one_seed_are_uniform(seed: int, stream: int) -> None:
    values = np.array([uniform(seed, position, stream) for position in range(20_000)])
    assert values.min() >= 0.0 and values.max() < 1.0
    assert _chi_square(values) < CHI_SQUARE_99_AT_1E6
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03


def test_the_first_numbers_of_neighbouring_seeds_are_uniform() -> None:
    """Answer i of a request uses seed + i, and people count their seeds up."""
    values = np.array([uniform(seed, 0) for seed in range(20_000)])
    assert _chi_square(values) < CHI_SQUARE_99_AT_1E6
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03


def test_neighbouring_seeds_do_not_share_numbers() -> None:
    values = {uniform(seed, position) for seed in range(100) for position in range(100)}
    assert len(values) == 100 * 100


PINNED = [0.2558852031320078, 0.0004539927749119821, 0.57835953990089]
CHI_SQUARE_99_AT_1E6 = 175.0
"""Above the chi-square distribution with 99 degrees of freedom at a probability of 1e-6."""


def _chi_square(values: np.ndarray) -> float:
    counts = np.bincount((values * 100).astype(int), minlength=100)
    expected = len(values) / 100
    return float(((counts - expected) ** 2 / expected).sum())
