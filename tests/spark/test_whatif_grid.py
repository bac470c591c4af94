"""Which settings `--grid` asks for."""

from __future__ import annotations

import pytest

from garlicfarm.errors import ConfigError
from garlicfarm.publishing.policy import Pinned, Policy
from garlicfarm.publishing.scoring import WEIGHTS
from garlicfarm_plugin_spark.grid import MAX_SETTINGS, Setting, parse_grid, settings_of


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("R=3,6,10", "R", (3, 6, 10)),
        ("R=10,3,3", "R", (3, 10)),
        ("margin=0:100000:50000", "margin", (0, 50_000, 100_000)),
        ("margin=0:99999:50000", "margin", (0, 50_000)),
        ("margin=7:7:1", "margin", (7,)),
        ("weight.job_lag=0,100", "weight.job_lag", (0, 100)),
    ],
)
def test_grid_names_a_parameter_and_its_values(text: str, name: str, values: tuple[int, ...]) -> None:
    assert parse_grid(text) == (name, values)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it must be NAME=VALUES"),
        ("margin", "it must be NAME=VALUES"),
        ("margins=1", "did you mean 'margin'"),
        ("interval=1000", "it must be NAME=VALUES"),
        ("weight.luck=1", "it must be NAME=VALUES"),
        ("R=", "values are numbers"),
        ("R=3,", "values are numbers"),
        ("R=-3", "values are numbers"),
        ("R=3:10", "values are numbers"),
        ("R=3:10:0", "STEP 1 or more"),
        ("R=10:3:1", "ascending"),
        ("R=2,3", "R must be 3 to 1000"),
        ("R=3:1001:1", "R must be 3 to 1000"),
        ("margin=1000001", "margin must be 0 to 1000000"),
        ("weight.job_lag=101", "weight.job_lag must be 0 to 100"),
    ],
)
def test_grid_that_is_none_is_refused_with_what_it_may_be(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_grid(text)


def test_settings_are_all_combinations() -> None:
    grids = [("margin", (0, 1)), ("R", (3, 4, 5)), ("weight.job_lag", (10,))]
    settings = settings_of(grids)
    assert len({*settings}) == len(settings) == 6
    assert Setting(margin=1, R=4, weights=(("job_lag", 10),)) in settings


@pytest.mark.parametrize(
    ("grids", "told"),
    [
        ([("R", (3,)), ("R", (4,))], "given twice"),
        ([("margin", tuple(range(101))), ("R", tuple(range(3, 103)))], f"more than {MAX_SETTINGS}"),
        ([("weight.job_lag", (60,)), ("weight.router_uptime", (40, 50))], "and these add up to 110"),
        ([(f"weight.{part}", (10,)) for part in WEIGHTS], "and these add up to 60"),
    ],
)
def test_settings_that_cannot_be_are_refused(grids: list[tuple[str, tuple[int, ...]]], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        settings_of(grids)


def test_setting_without_parameters_pins_nothing() -> None:
    assert Setting().pinned(Policy()) == Pinned()


@pytest.mark.parametrize("percent", range(101))
def test_other_weights_share_what_is_left_in_proportion(percent: int) -> None:
    policy = Policy()
    weights = Setting(weights=(("tunnel_health", percent),)).pinned(policy).weights
    assert weights is not None
    assert [*weights] == [*WEIGHTS]
    assert sum(weights.values()) == 100
    assert weights["tunnel_health"] == percent
    for part, weight in WEIGHTS.items():
        if part != "tunnel_health":
            assert abs(weights[part] - weight * (100 - percent) / 85) < 1


def test_weights_in_force_that_are_asked_for_stay() -> None:
    weights = Setting(weights=(("bandwidth_headroom", 25),)).pinned(Policy()).weights
    assert weights == WEIGHTS


def test_other_weights_that_are_all_zero_cannot_share() -> None:
    policy = Policy(weights=dict.fromkeys(WEIGHTS, 0) | {"job_lag": 100})
    with pytest.raises(ConfigError, match="the other weights are 0, and 40 are missing"):
        Setting(weights=(("job_lag", 60),)).pinned(policy)
    assert Setting(weights=(("job_lag", 100),)).pinned(policy).weights == policy.weights
