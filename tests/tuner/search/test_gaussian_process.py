from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from tuner.search.gaussian_process import GaussianProcess, _alone, expected_improvement


def sample(count: int, features: int = 3) -> tuple[np.ndarray, np.ndarray]:
    points = np.random.default_rng(0).random((count, features))
    values = np.sin(4 * points[:, 0]) + points[:, 1] ** 2  # the last feature does not matter
    return points, (values - values.mean()) / values.std()


def test_the_gradient_is_that_of_the_loss() -> None:
    points, values = sample(12)
    process = GaussianProcess(3)
    squares = (points.T[:, :, None] - points.T[:, None, :]) ** 2
    alone = _alone(points, points)
    theta = np.array([0.1, -0.4, 0.7, 0.2, 0.5, -3.0])
    _, gradient = process._loss(theta, squares, alone, values)
    for i, step in enumerate(1e-6 * np.eye(6)):
        above, below = (process._loss(theta + s, squares, alone, values)[0] for s in (step, -step))
        assert gradient[i] == pytest.approx((above - below) / 2e-6, rel=1e-4)


def test_it_predicts_what_it_has_not_seen_and_knows_where_it_does_not() -> None:
    points, values = sample(60)
    process = GaussianProcess(3)
    process.fit(points[:40], values[:40])
    process.condition(points[:40], values[:40])
    mean, deviation = process.predict(points)
    assert np.abs(mean[:40] - values[:40]).max() < 0.1
    assert np.abs(mean[40:] - values[40:]).max() < 0.4
    assert deviation[40:].min() > deviation[:40].min()
    _, far = process.predict(np.full((1, 3), 50.0))
    assert far[0] > 5 * deviation.max()


def test_a_feature_that_does_not_matter_gets_the_longest_scale() -> None:
    points, _ = sample(60)
    values = np.sin(4 * points[:, 0] * (1 + points[:, 1]))  # of both together
    process = GaussianProcess(3)
    process.fit(points, (values - values.mean()) / values.std())
    assert np.argmax(process._theta[:3]) == 2


def test_what_each_feature_is_worth_is_learned_one_by_one() -> None:
    worth = np.array([1.0, -0.6, 0.3, 0.8, -0.2, 0.0])
    beside = np.vstack([np.zeros(6), np.eye(6)])  # one point, and those that differ in one feature
    everywhere = np.array(list(product((0.0, 1.0), repeat=6)))
    process = GaussianProcess(6)
    process.fit(beside, beside @ worth)
    process.condition(beside, beside @ worth)
    mean, _ = process.predict(everywhere)
    assert everywhere[np.argmin(mean)].tolist() == [0, 1, 0, 0, 1, 0]
    assert np.corrcoef(mean, everywhere @ worth)[0, 1] > 0.95


def test_without_features_all_points_are_one() -> None:
    nowhere, process = np.empty((30, 0)), GaussianProcess(0)
    process.condition(nowhere, np.ones(30))
    mean, deviation = process.predict(nowhere[:1])
    assert mean[0] == pytest.approx(1.0, abs=0.01)
    assert deviation[0] < 0.05


def test_equal_points_are_no_singularity() -> None:
    points = np.zeros((5, 2))
    process = GaussianProcess(2)
    process.fit(points, np.arange(5.0))
    process.condition(points, np.arange(5.0))
    mean, deviation = process.predict(points)
    assert np.isfinite([mean, deviation]).all()


@pytest.mark.parametrize(("mean", "deviation"), [(0.3, 1.0), (-2.0, 0.5), (4.0, 2.0)])
def test_expected_improvement_is_the_integral(mean: float, deviation: float) -> None:
    best = 0.1
    integral, _ = quad(
        lambda y: (best - y) * norm.pdf(y, mean, deviation), mean - 12 * deviation, best
    )
    found = expected_improvement(np.array([mean]), np.array([deviation]), best)
    assert found[0] == pytest.approx(integral, rel=1e-6)
