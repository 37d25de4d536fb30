"""Fingerprints: equal levels have equal ones, and no others do."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from samplr.compiling import jit
from samplr.teachers import buffer as buffer_module

# Compiled rather than run operation by operation, because that takes several times as long.
fingerprint = jit(buffer_module.fingerprint, runs_once=True)
prints = jit(jax.vmap(buffer_module.fingerprint), runs_once=True)


def as_64_bits(pairs: jax.Array) -> np.ndarray:
    pairs = np.asarray(pairs)
    return pairs[:, 0].astype(np.uint64) << np.uint64(32) | pairs[:, 1].astype(np.uint64)


DTYPES = [bool, jnp.int8, jnp.uint8, jnp.int16, jnp.int32, jnp.uint32, jnp.float16, jnp.bfloat16, jnp.float32]


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_fractions_have_prints_of_their_own(dtype: type) -> None:
    assert jnp.any(fingerprint(jnp.array([0.25], dtype)) != fingerprint(jnp.array([0.75], dtype)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_levels_of_any_dtype_equal_levels_have_equal_prints_and_others_do_not(dtype: type) -> None:
    level = jnp.array([0, 1, 1, 0], dtype)
    assert jnp.array_equal(fingerprint(level), fingerprint(jnp.array([0, 1, 1, 0], dtype)))
    assert jnp.any(fingerprint(level) != fingerprint(jnp.array([0, 1, 1, 1], dtype)))
    # Levels are made of the same words here, in another order.
    assert jnp.any(fingerprint(level) != fingerprint(jnp.array([1, 0, 0, 1], dtype)))


def test_a_print_covers_every_leaf_of_a_level() -> None:
    def level(track: float, ice: bool) -> dict[str, jax.Array]:
        return {"track": jnp.array([1.5, track]), "ice": jnp.array([True, ice]), "fruit": jnp.int8(3)}

    same, other_track, other_ice = level(2.5, True), level(2.75, True), level(2.5, False)
    assert jnp.array_equal(fingerprint(level(2.5, True)), fingerprint(same))
    assert jnp.any(fingerprint(same) != fingerprint(other_track))
    assert jnp.any(fingerprint(same) != fingerprint(other_ice))


def test_numbers_that_differ_in_one_bit_have_different_prints() -> None:
    number = jnp.float32(0.1)
    assert jnp.any(fingerprint(number) != fingerprint(jnp.nextafter(number, jnp.float32(1))))


def test_a_hundred_thousand_random_levels_do_not_collide() -> None:
    # 64 bits: one collision is expected in 2⁶⁵ / 10¹⁰ ≈ 3·10⁹ such samples.
    patterns = np.random.default_rng(0).random((100_000, 64)) < 0.5
    assert len(np.unique(np.packbits(patterns, axis=1), axis=0)) == 100_000
    pairs = prints(patterns)
    assert len(np.unique(as_64_bits(pairs))) == 100_000
    # Each of the two words is a good hash by itself: 10¹⁰ / 2³³ ≈ 1.2 collisions expected, a Poisson count.
    for word in np.asarray(pairs).T:
        assert 100_000 - len(np.unique(word)) <= stats.poisson.isf(1e-6, 1.2)


def test_nearly_dry_levels_do_not_collide() -> None:
    # What a buffer really meets: hundreds of tiles of which none, one or two are icy.
    tiles = 150
    pairs = list(itertools.combinations(range(tiles), 2))
    patterns = np.zeros((1 + tiles + len(pairs), tiles), bool)
    patterns[1 : 1 + tiles] = np.eye(tiles, dtype=bool)
    patterns[np.arange(len(pairs))[:, None] + 1 + tiles, pairs] = True
    assert len(np.unique(as_64_bits(prints(patterns)))) == len(patterns)


def test_all_roads_of_sixteen_segments_have_different_prints() -> None:
    patterns = (np.arange(2**16)[:, None] >> np.arange(16)) & 1 == 1
    assert len(np.unique(as_64_bits(prints(patterns)))) == 2**16
