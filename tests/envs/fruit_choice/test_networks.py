"""Encoders of what NetHack shows."""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from programs import equations
from samplr.compiling import jit
from samplr.envs.api import Level
from samplr.envs.fruit_choice import networks
from samplr.envs.fruit_choice.glyphs import WALLS, Glyph
from samplr.envs.fruit_choice.networks import CompactEncoder, NetHackEncoder, describe, encoders
from samplr.envs.fruit_choice.world import FruitChoice
from samplr.student.networks import LSTM

HIDDEN = (32, 16)
Observation = dict[str, Any]


def observation(seed: int = 0, hero: tuple[int, int] = (10, 40)) -> Observation:
    """A map of random glyphs around the hero, and bottom lines as at the start of a game."""
    rng = np.random.default_rng(seed)
    glyphs = rng.choice([g for g in Glyph if g not in (Glyph.HERO, Glyph.APPLE, Glyph.BANANA)], (21, 79))
    glyphs[hero] = Glyph.HERO
    blstats = np.zeros(27, np.int32)
    blstats[[0, 1]] = hero[1], hero[0]
    blstats[2:9] = 14, 14, 18, 12, 10, 9, 8
    blstats[[10, 11, 12, 14, 15, 16, 18, 20, 21, 24, 26]] = 12, 12, 1, 2, 2, 7, 1, 1, 1, 1, -1
    return {"glyphs": jnp.asarray(glyphs, jnp.int16), "blstats": jnp.asarray(blstats)}


def with_glyph(seen: Observation, cell: tuple[int, int], glyph: Glyph) -> Observation:
    return {**seen, "glyphs": seen["glyphs"].at[cell].set(int(glyph))}


@functools.cache
def encoder(name: str) -> Any:
    return encoders()[name](hidden=HIDDEN, key=jax.random.key(0))


@functools.cache
def encode(name: str) -> Any:
    return eqx.filter_jit(encoder(name))


def parameters(module: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(module))


# ---- both


@pytest.mark.parametrize(("name", "size"), [("nethack", 512), ("compact", HIDDEN[-1])])
def test_features_have_the_right_size_and_differ_between_observations(name: str, size: int) -> None:
    features = encode(name)(observation())
    assert features.shape == (size,)
    assert features.dtype == jnp.float32
    assert np.all(np.isfinite(features))
    assert not np.allclose(features, encode(name)(observation(seed=1)), atol=1e-3)


def test_every_run_of_a_batch_has_parameters_of_its_own() -> None:
    keys = jax.random.split(jax.random.key(0), 2)
    runs = eqx.filter_vmap(lambda key: CompactEncoder(HIDDEN, key=key))(keys)
    seen = jax.tree.map(lambda *leaves: jnp.stack(leaves), observation(0), observation(1), observation(2))
    features = eqx.filter_jit(eqx.filter_vmap(lambda run: jax.vmap(run)(seen)))(runs)
    assert features.shape == (2, 3, HIDDEN[-1])
    for run, key in enumerate(keys):
        alone = CompactEncoder(HIDDEN, key=key)(observation(1))
        np.testing.assert_allclose(features[run, 1], alone, rtol=1e-4, atol=1e-4)


def test_convolutions_of_a_batch_of_runs_are_those_of_each_run() -> None:
    keys = jax.random.split(jax.random.key(0), 2)
    runs = eqx.filter_vmap(lambda key: networks.Convolution(3, 2, key=key))(keys)
    maps = jax.random.normal(jax.random.key(1), (2, 4, 5, 3))
    seen = eqx.filter_vmap(lambda run: jax.vmap(run)(maps))(runs)
    np.testing.assert_allclose(seen[1, 0], networks.Convolution(3, 2, key=keys[1])(maps[0]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["nethack", "compact"])
@pytest.mark.parametrize("fruit", [Glyph.APPLE, Glyph.BANANA])
@pytest.mark.parametrize("cell", [(0, 0), (20, 78), (1, 70), (9, 40), (10, 47), (20, 3)])
def test_a_fruit_is_seen_wherever_it_is(name: str, fruit: Glyph, cell: tuple[int, int]) -> None:
    base = with_glyph(observation(), cell, Glyph.FLOOR)
    features = encode(name)(with_glyph(base, cell, fruit))
    assert np.max(np.abs(features - encode(name)(base))) > 1e-6
    other = Glyph.APPLE if fruit == Glyph.BANANA else Glyph.BANANA
    assert np.max(np.abs(features - encode(name)(with_glyph(base, cell, other)))) > 1e-6


# ---- the paper's


def test_the_number_of_parameters_is_that_of_nethacknet_less_the_embeddings_of_absent_glyphs() -> None:
    convolutions = 9 * (32 * 16 + 3 * 16 * 16 + 16 * 8) + 4 * 16 + 8
    numbers = 27 * 32 + 32 + 32 * 32 + 32
    dense = (21 * 79 * 8 + 9 * 9 * 8 + 32) * 512 + 512 + 512 * 512 + 512
    count = parameters(encoder("nethack"))
    assert count == 23 * 32 + 2 * convolutions + numbers + dense == 7_434_768
    # With NLE's embedding, the LSTM with both of PyTorch's biases, and the heads: the published network.
    assert count + (5976 - 23) * 32 + 2_101_248 + 5_643 == 9_732_155


@pytest.mark.parametrize("hero", [(0, 0), (20, 78), (0, 78), (20, 0), (2, 77), (10, 40), (17, 3)])
def test_the_crop_is_numpys_also_at_the_borders_of_the_map(hero: tuple[int, int]) -> None:
    cells = np.arange(21 * 79).reshape(21, 79) % 100 + 1
    expected = np.pad(cells, 4)[hero[0] : hero[0] + 9, hero[1] : hero[1] + 9]
    cropped = networks._window(jnp.asarray(cells, jnp.int8), observation(hero=hero)["blstats"], 4, 4, networks.PAD)
    np.testing.assert_array_equal(cropped, expected)
    assert cropped[4, 4] == cells[hero]


def straightforward(net: NetHackEncoder, seen: Observation) -> jax.Array:
    """NetHackNet as it is written elsewhere: look the embeddings up, convolve them, channels first."""
    index = {int(glyph): 2 + i for i, glyph in enumerate(Glyph)}
    whole = np.vectorize(lambda g: index.get(g, 1))(np.asarray(seen["glyphs"]))
    column, row = np.asarray(seen["blstats"])[:2]
    crop = np.pad(whole, 4)[row : row + 9, column : column + 9]

    def convolved(cells: np.ndarray, stack: Any) -> jax.Array:
        x = jnp.moveaxis(net.embedding[cells], -1, 0)
        for layer in stack:
            kernel = jnp.transpose(layer.weight, (3, 2, 0, 1))
            x = jax.lax.conv(x[None], kernel, (1, 1), "SAME")[0] + layer.bias[:, None, None]
            x = jax.nn.elu(x)
        return jnp.moveaxis(x, 0, -1).ravel()

    x = seen["blstats"].astype(jnp.float32)
    for layer in net.numbers:
        x = jax.nn.relu(x @ layer.weight + layer.bias)
    x = jnp.concatenate([x, convolved(crop, net.crop), convolved(whole, net.whole)])
    for layer in net.dense:
        x = jax.nn.relu(x @ layer.weight + layer.bias)
    return x


@pytest.mark.parametrize("hero", [(10, 40), (0, 77)])
def test_folding_the_embedding_into_the_first_convolution_changes_nothing(hero: tuple[int, int]) -> None:
    seen = with_glyph(observation(hero=hero), (3, 3), 1234)
    net = encoder("nethack")
    np.testing.assert_allclose(encode("nethack")(seen), straightforward(net, seen), rtol=1e-3, atol=1e-4)


def test_the_embeddings_of_glyphs_that_are_seen_learn_and_the_others_do_not() -> None:
    seen = observation(hero=(0, 40))
    seen = {**seen, "glyphs": jnp.where(seen["glyphs"] == Glyph.CROSS_WALL, Glyph.FLOOR, seen["glyphs"])}
    gradient = eqx.filter_jit(eqx.filter_grad(lambda net: jnp.sum(net(seen) ** 2)))(encoder("nethack"))
    learns = np.any(np.asarray(gradient.embedding) != 0, axis=1)
    glyphs = list(Glyph)
    absent = {2 + glyphs.index(g) for g in (Glyph.CROSS_WALL, Glyph.APPLE, Glyph.BANANA)} | {networks.OTHER}
    assert set(np.flatnonzero(~learns)) == absent


def test_unknown_glyphs_are_one_class_and_no_glyph_is_the_outside() -> None:
    classes = networks._read(networks._CLASS_OF, jnp.array([[0, 1, 2383, 5975, -1, Glyph.STAIRS]]))
    assert classes.tolist() == [[networks.PAD] + 4 * [networks.OTHER] + [networks.CLASSES - 1]]
    every = networks._read(networks._CLASS_OF, jnp.array([list(Glyph)]))
    assert sorted(every[0].tolist()) == list(range(2, networks.CLASSES))


# ---- ours


def split(seen: Observation) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The inputs of the compact encoder: around the hero, in patches, landmarks, bottom lines."""
    inputs = np.asarray(describe(seen))
    ends = np.cumsum([13 * 13 * 9, 7 * 23 * 9, 4 * 11])
    fovea, patches, landmarks, numbers = np.split(inputs, ends)
    return fovea.reshape(13, 13, 9), patches.reshape(7, 23, 9), landmarks.reshape(4, 11), numbers


@pytest.mark.parametrize("hero", [(10, 40), (0, 0), (20, 78), (3, 75)])
def test_things_are_described_where_they_are_from_the_hero(hero: tuple[int, int]) -> None:
    seen = observation(hero=hero)
    fovea, patches, _, _ = split(seen)
    common = np.arange(9) < 3
    counts = np.zeros((7, 23, 9))
    for (row, column), glyph in np.ndenumerate(np.asarray(seen["glyphs"])):
        kind = networks.KINDS.get(Glyph(glyph), 0)
        down, right = row - hero[0], column - hero[1]
        if kind:
            counts[(down + 24) // 7, (right + 80) // 7, kind - 1] += 1
        if max(abs(down), abs(right)) <= 6:
            alone = fovea[6 + down, 6 + right] * np.where(common, 4, 1)
            np.testing.assert_array_equal(alone, np.arange(1, 10) == kind)
    np.testing.assert_allclose(patches * np.where(common, 49, 1), counts, rtol=1e-5)


NORTH_WEST, NORTH, EAST, SOUTH_WEST = 0, 1, 5, 6


@pytest.mark.parametrize(
    ("glyph", "landmark"),
    [(Glyph.VERTICAL_DOOR, 0), (Glyph.HORIZONTAL_DOOR, 0), (Glyph.BROKEN_DOOR, 1), (Glyph.APPLE, 2), (Glyph.BANANA, 3)],
)
@pytest.mark.parametrize(
    ("cell", "direction", "distance"),
    [((19, 2), SOUTH_WEST, 68), ((3, 74), EAST, 4), ((2, 70), NORTH, 1), ((0, 69), NORTH_WEST, 3)],
)
def test_it_is_told_which_way_and_how_far_it_is_to_a_landmark(
    glyph: Glyph, landmark: int, cell: tuple[int, int], direction: int, distance: int
) -> None:
    hero = (3, 70)
    floor = {**observation(hero=hero), "glyphs": jnp.full((21, 79), Glyph.FLOOR)}
    _, _, landmarks, _ = split(with_glyph(floor, cell, glyph))
    np.testing.assert_allclose(landmarks[landmark], [*(np.arange(9) == direction), 1, 1 / distance], rtol=1e-6)
    assert not np.any(np.delete(landmarks, landmark, axis=0))


def test_of_several_landmarks_alike_the_nearest_is_told() -> None:
    floor = {**observation(hero=(10, 40)), "glyphs": jnp.full((21, 79), Glyph.FLOOR)}
    near, far = with_glyph(floor, (10, 43), Glyph.VERTICAL_DOOR), with_glyph(floor, (1, 40), Glyph.HORIZONTAL_DOOR)
    both = with_glyph(near, (1, 40), Glyph.HORIZONTAL_DOOR)
    np.testing.assert_array_equal(split(both)[2], split(near)[2])
    assert np.any(split(both)[2] != split(far)[2])


def test_what_matters_is_heard_over_walls_and_floors() -> None:
    """In rooms as they are, a fruit is a good part of the description's sum of squares."""
    world = FruitChoice(max_rooms=4)
    keys = jax.random.split(jax.random.key(0), 50)
    levels = jit(jax.vmap(world.with_rooms(1)))(keys)

    @jit
    def told(level: Level, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A room's description, with the banana and without it."""
        seen = world.reset(world.build(level.layout), level.aleatoric, key=key)[1]
        without = jnp.where(seen["glyphs"] == Glyph.BANANA, Glyph.FLOOR, seen["glyphs"])
        return describe(seen), describe({**seen, "glyphs": without})

    whole, without = jax.vmap(told)(levels, keys)
    loudness = np.sum(whole**2, axis=1)
    share = np.sum((whole - without) ** 2, axis=1) / loudness
    assert 16 < np.median(loudness) < 64
    assert np.median(share) > 0.1


def test_the_numbers_of_a_game_are_of_about_one_and_a_turn_is_easy_to_see() -> None:
    seen = observation()
    later = {**seen, "blstats": seen["blstats"].at[20].add(1)}
    for one in (seen, {**seen, "blstats": seen["blstats"].at[20].set(250)}):
        assert np.max(np.abs(split(one)[3])) < 1.5
    assert np.abs(split(seen)[3] - split(later)[3]).max() == 1


def test_what_cannot_matter_is_not_described() -> None:
    """The shapes of walls, and rock as against the outside of the map."""
    base = observation()
    walls = [describe(with_glyph(base, (8, 41), wall)) for wall in WALLS]
    for inputs in walls[1:]:
        np.testing.assert_array_equal(inputs, walls[0])
    assert not np.any(describe({**base, "glyphs": jnp.full((21, 79), Glyph.STONE)})[: -(27 + 4)])


# ---- cost


def products(jaxpr: Any) -> int:
    """Multiplications in a program's matrix products and convolutions, from the shapes of what goes in and out."""
    total = 0
    for equation in equations(jaxpr):
        sizes = [math.prod(v.aval.shape) for v in (*equation.invars, *equation.outvars)]
        if equation.primitive.name == "dot_general":
            contracted = equation.params["dimension_numbers"][0][0]
            total += sizes[2] * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
        if equation.primitive.name == "conv_general_dilated":
            channel_axis = equation.params["dimension_numbers"].rhs_spec[0]
            total += sizes[2] * sizes[1] // equation.invars[1].aval.shape[channel_axis]
    return total


def cost(encoder: Any, memory: int, encode: Any = lambda net, seen: net(seen)) -> int:
    """Multiplications per observation, of the encoder and of an LSTM."""
    seen = observation()
    lstm = LSTM(encode(encoder, seen).size, memory, key=jax.random.key(0))
    through = jax.make_jaxpr(lambda net: lstm(lstm.incoming(encode(net, seen)), lstm.empty()))
    return products(through(encoder).jaxpr)


def test_the_compact_student_costs_less_than_a_tenth_of_the_papers() -> None:
    net = encoder("nethack")
    papers = cost(net, 512, straightforward)
    assert papers == pytest.approx(31.56e6, rel=0.001)
    assert cost(CompactEncoder(FruitChoice.defaults["student.hidden"], key=jax.random.key(0)), 512) < papers / 10
    # The folded kernels are made once for all observations, and save a part of the first convolutions.
    folding = 2 * 9 * 23 * 32 * 16
    saved = (21 * 79 + 9 * 9) * 9 * (32 - 23) * 16
    assert cost(net, 512) == papers - saved + folding
