"""Suites of black ice: their conditions, and the levels that each draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from samplr.compiling import jit
from samplr.envs.black_ice import BlackIce
from samplr.envs.black_ice.circuits import CIRCUIT_PLAYFIELD, CIRCUITS
from samplr.envs.black_ice.tracks import PLAYFIELD

from .conftest import ENV, KEY, one

LIMITS = {
    **dict.fromkeys(("Belgium", "Australia", "Austria", "Monaco", "Italy"), 1500),
    **dict.fromkeys(("Brazil", "Netherlands", "Spain", "France", "Hungary", "Russia", "Singapore"), 2000),
    **dict.fromkeys(("USA", "UK", "Germany"), 2000),
    **dict.fromkeys(("Portugal", "Malaysia", "Bahrain", "China"), 2500),
    "Mexico": 3000,
}


class TestSuites:
    def test_names_and_numbers_of_conditions(self, suites):
        assert {name: len(suite) for name, suite in suites.items()} == {
            "ground_truth": 1,
            "fixed_rates": 7,
            "validation": 3,
            "f1": 120,
        }
        assert list(suites["validation"]) == ["Italy", "Singapore", "Germany"]
        rates = ("", " q=0", " q=0.2", " q=0.4", " q=0.6", " q=0.8")
        assert set(suites["f1"]) == {name + rate for name in LIMITS for rate in rates}

    def test_the_prior_is_the_papers(self):
        # A thousand draws cannot tell Beta(1, 15) from Beta(1, 16).
        assert (BlackIce().alpha, BlackIce().beta) == (1, 15)

    def test_the_ground_truth_is_new_random_tracks_with_one_icy_tile_in_sixteen(self, ground_truth):
        ENV.validate(one(ground_truth))
        assert len(np.unique(ground_truth.layout.points[:, 0, 0])) > 990
        share = ground_truth.aleatoric.bits.mean(axis=1)
        assert share.mean() == pytest.approx(1 / 16, abs=4 * share.std() / 1000**0.5)
        assert stats.kstest(ground_truth.aleatoric.rate, stats.beta(1, 15).cdf).pvalue > 0.001
        assert float(ENV.summaries(one(ground_truth).aleatoric)["ice"]) == pytest.approx(share[0])

    @pytest.mark.parametrize("rate", [0.0, 0.2, 0.4, 0.6, 0.8])
    def test_fixed_rates(self, rate, suites):
        level = suites["f1"][f"Monaco q={rate:g}"](jax.random.key(3))
        assert level.aleatoric.bits.shape == (4999,)
        assert level.aleatoric.rate == pytest.approx(rate)
        # Five standard deviations; none at rate 0.
        assert float(jnp.mean(level.aleatoric.bits)) == pytest.approx(rate, abs=5 * (rate * (1 - rate) / 4999) ** 0.5)

    def test_validation_is_at_one_rate(self, suites):
        for sample in suites["validation"].values():
            assert float(jnp.mean(sample(KEY).aleatoric.bits)) == pytest.approx(0.2, abs=0.03)

    def test_without_a_rate_the_ice_is_as_the_ground_truth_has_it(self, suites):
        ice = jit(jax.vmap(lambda key: suites["f1"]["Italy"](key).aleatoric), runs_once=True)(
            jax.random.split(KEY, 100)
        )
        assert stats.kstest(np.asarray(ice.rate), stats.beta(1, 15).cdf).pvalue > 0.001
        np.testing.assert_allclose(np.asarray(ice.bits).mean(axis=1), ice.rate, atol=0.03)

    def test_circuits_have_limits_of_their_own(self, suites):
        found = {name: int(suites["f1"][f"{name} q=0"](KEY).layout.frame_limit) for name in CIRCUITS}
        assert found == LIMITS

    @pytest.mark.slow  # for what it compiles, a circuit's world being another program
    def test_a_world_knows_the_limits_of_its_layout(self, suites, worlds):
        layout = suites["f1"]["Mexico"](KEY).layout

        # The rest of the world is not asked for, so that it need not be compiled.
        def limits(layout):
            road = ENV.build(layout).road
            return road.frame_limit, road.playfield

        found = jit(limits, runs_once=True)(layout)
        assert [float(limit) for limit in found] == [3000, CIRCUIT_PLAYFIELD]
        assert (worlds.road.frame_limit == ENV.rules.frame_limit).all()
        np.testing.assert_allclose(worlds.road.playfield, PLAYFIELD)

    def test_tiles_of_one_draw_are_fewer_draws(self):
        env = BlackIce(tiles_per_draw=5)
        for rate in (None, 0.2):
            level = jax.eval_shape(env.on_circuit(CIRCUITS["Monaco"], rate=rate), KEY)
            assert level.aleatoric.bits.shape == (1000,)
