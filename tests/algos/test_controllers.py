import pytest

from rlvlm.algos.registries import CONTROLLERS
from rlvlm.errors import ConfigError


def test_the_adaptive_controller_moves_towards_the_target_and_no_faster_than_its_bounds() -> None:
    part = CONTROLLERS.build({"name": "adaptive", "target": 0.1, "horizon": 1000})

    def after(measured: float) -> float:
        return part({"weight": 0.5, "measured": measured, "num_samples": 100})

    assert after(0.1) == 0.5
    assert after(0.11) == pytest.approx(0.5 * 1.01)
    assert after(9.0) == pytest.approx(0.5 * 1.02)
    assert after(-9.0) == pytest.approx(0.5 * 0.98)


def test_a_measurement_of_nan_moves_nothing() -> None:
    part = CONTROLLERS.build("adaptive")
    assert part({"weight": 0.2, "measured": float("nan"), "num_samples": 64}) == 0.2


def test_the_fixed_controller_reads_only_the_weight() -> None:
    part = CONTROLLERS.build("fixed")
    assert part.needs == ("weight",)
    assert part({"weight": 0.25}) == 0.25


def test_a_target_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="option 'target' of 'adaptive' is above 0"):
        CONTROLLERS.build({"name": "adaptive", "target": 0.0})({"weight": 1.0, "measured": 0.0, "num_samples": 1})
