"""`check_simulator` passes what keeps the laws, and names the law that is broken."""

import pytest

from gym_icy_road import FaultyIcyRoad, HostIcyRoad, NoCopyIcyRoad
from samplr.host.testing import check_simulator
from samplr.testing import ContractError


def test_a_simulator_that_keeps_the_laws_passes() -> None:
    check_simulator(HostIcyRoad())
    check_simulator(NoCopyIcyRoad())


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        ("random", "the same level, seed and actions give another episode"),
        ("forgets", "law 1: copying the state or substituting θ′ changes what was revealed"),
        ("overwrites", "law 1: copying the state or substituting θ′ changes what was revealed"),
        ("stubborn", "law 2: the fictitious transition depends on the real, unrevealed θ′, so it leaks"),
        ("shares", "taking copies of the state disturbs the episode"),
    ],
)
def test_a_broken_law_is_named(fault: str, broken: str) -> None:
    with pytest.raises(ContractError) as caught:
        check_simulator(FaultyIcyRoad(fault=fault, alpha=1.0, beta=1.0), episodes=8)
    assert str(caught.value) == broken
