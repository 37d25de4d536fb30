"""Encoders for what NetHack shows: the network of the NetHack Learning Environment, and a much cheaper one.

An observation has two parts: `glyphs`, the map, and `blstats`, the 27 numbers of the bottom lines, of which the first
two are the hero's column and row. Both encoders compute in half precision where a GPU does, on float32 parameters.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int8, PRNGKeyArray

from samplr.envs.api import Encoder
from samplr.envs.fruit_choice.glyphs import WALLS, Glyph
from samplr.envs.fruit_choice.rooms import MAX_SIZE
from samplr.envs.fruit_choice.terrain import COLUMNS, ROWS

Observation = Mapping[str, Array]

BLSTATS = 27
_TIME = 20
"""Where the bottom lines tell the turn."""


def encoders() -> Mapping[str, Callable[..., Encoder]]:
    """`nethack`, whose sizes are the paper's, and `compact`, whose dense layers have the sizes asked for."""
    return {
        "nethack": lambda hidden, key: NetHackEncoder(key=key),
        "compact": lambda hidden, key: CompactEncoder(hidden, key=key),
    }


# ---- the paper's

EMBEDDING = 32
CHANNELS = (EMBEDDING, 16, 16, 16, 16, 8)
CROP = 9
"""Side of the square around the hero that has convolutions of its own."""
DENSE = 512

PAD, OTHER = 0, 1
"""The class of cells outside the map, which are glyph 0 to NetHack's network, and that of glyphs unknown here."""
CLASSES = 2 + len(Glyph)


class Convolution(eqx.Module):
    """A 3×3 convolution that keeps the map's size.

    XLA's own, which is the fastest there is for one network. Weights of its own for each run of a batch make it a
    grouped convolution, which is slow: train batches of runs with the compact encoder.
    """

    weight: Float[Array, "3 3 channels_in channels_out"]
    bias: Float[Array, " channels_out"]

    def __init__(self, channels_in: int, channels_out: int, *, key: PRNGKeyArray) -> None:
        self.weight, self.bias = _as_pytorch((3, 3, channels_in, channels_out), key=key)

    def __call__(self, x: Float[Array, "height width channels_in"]) -> Float[Array, "height width channels_out"]:
        """Convolve."""
        layout = ("NHWC", "HWIO", "NHWC")
        weight = self.weight.astype(x.dtype)
        y = jax.lax.conv_general_dilated(x[None], weight, (1, 1), "SAME", dimension_numbers=layout)[0]
        return y + self.bias.astype(x.dtype)


class NetHackEncoder(eqx.Module):
    """The network of the NetHack Learning Environment up to its LSTM (Küttler et al., 2020).

    Glyphs are embedded; one stack of convolutions reads the whole map, another a square around the hero; a small
    perceptron reads the bottom lines as they are; two dense layers read all of it. Only the glyphs that occur here have
    an embedding, which is the same function of fewer parameters.
    """

    embedding: Float[Array, "classes 32"]
    whole: tuple[Convolution, ...]
    crop: tuple[Convolution, ...]
    numbers: tuple["Dense", ...]
    dense: tuple["Dense", ...]

    def __init__(self, *, key: PRNGKeyArray) -> None:
        embedding_key, whole_key, crop_key, numbers_key, dense_key = jax.random.split(key, 5)
        self.embedding = jax.random.normal(embedding_key, (CLASSES, EMBEDDING))
        self.whole, self.crop = _stack(key=whole_key), _stack(key=crop_key)
        self.numbers = _perceptron((BLSTATS, 32, 32), key=numbers_key)
        features = (ROWS * COLUMNS + CROP**2) * CHANNELS[-1] + 32
        self.dense = _perceptron((features, DENSE, DENSE), key=dense_key)

    def __call__(self, observation: Observation) -> Float[Array, " 512"]:
        """Encode one observation."""
        classes = _read(_CLASS_OF, observation["glyphs"])
        around = _window(classes, observation["blstats"], CROP // 2, CROP // 2, PAD)
        numbers = _through(self.numbers, observation["blstats"].astype(jnp.float32))
        seen = [self._look(self.crop, around), self._look(self.whole, classes)]
        features = jnp.concatenate([numbers.astype(_precision()), *seen])
        return _through(self.dense, features).astype(jnp.float32)

    def _look(self, stack: tuple[Convolution, ...], classes: Int8[Array, "height width"]) -> Float[Array, " features"]:
        """Embed and convolve.

        An embedding is a product with one-hot vectors, and the first convolution is linear as well: folded into one
        kernel from classes to channels, they need no embedded map, nor its gradient. A lookup's gradient would be
        worse still, a sum of thousands of cells into the same few rows.
        """
        first, *others = stack
        kernel = jnp.einsum("ce,hweo->hwco", self.embedding, first.weight, precision="highest")
        x = jax.nn.one_hot(classes, CLASSES, dtype=_precision())
        for convolution in (eqx.tree_at(lambda layer: layer.weight, first, kernel), *others):
            x = jax.nn.elu(convolution(x))
        return x.ravel()


def _stack(*, key: PRNGKeyArray) -> tuple[Convolution, ...]:
    keys = jax.random.split(key, len(CHANNELS) - 1)
    return tuple(Convolution(*sizes, key=key) for sizes, key in zip(itertools.pairwise(CHANNELS), keys, strict=True))


def _perceptron(sizes: Sequence[int], *, key: PRNGKeyArray) -> tuple["Dense", ...]:
    keys = jax.random.split(key, len(sizes) - 1)
    return tuple(
        Dense(*_as_pytorch(shape, key=key)) for shape, key in zip(itertools.pairwise(sizes), keys, strict=True)
    )


def _as_pytorch(shape: tuple[int, ...], *, key: PRNGKeyArray) -> tuple[Array, Array]:
    """Weights and biases as PyTorch draws them, which is how the NetHack Learning Environment begins."""
    bound = math.prod(shape[:-1]) ** -0.5
    weight_key, bias_key = jax.random.split(key)
    weight = jax.random.uniform(weight_key, shape, minval=-bound, maxval=bound)
    return weight, jax.random.uniform(bias_key, shape[-1:], minval=-bound, maxval=bound)


# ---- ours

KINDS = {
    **dict.fromkeys(WALLS, 1),
    Glyph.FLOOR: 2,
    Glyph.DARK_FLOOR: 3,
    Glyph.STAIRS: 4,
    Glyph.VERTICAL_DOOR: 5,
    Glyph.HORIZONTAL_DOOR: 6,
    Glyph.BROKEN_DOOR: 7,
    Glyph.APPLE: 8,
    Glyph.BANANA: 9,
}
"""What the compact encoder tells apart: the shape of a wall matters to nothing that one can do. All else is nothing, 0:
rock, what was never seen, what is outside the map, and the hero, who is always in the middle."""
_LAST_KIND = max(KINDS.values())
_COMMON = np.array([kind in (KINDS[Glyph.FLOOR], KINDS[Glyph.DARK_FLOOR], 1) for kind in range(1, _LAST_KIND + 1)])
"""Walls and floors: what a map is full of. They are told more softly than the rest."""

LANDMARKS = (
    (Glyph.VERTICAL_DOOR, Glyph.HORIZONTAL_DOOR),
    (Glyph.BROKEN_DOOR,),
    (Glyph.APPLE,),
    (Glyph.BANANA,),
)
"""What one goes to. Doors that look open do not occur, so those that look like doors are locked."""

FOVEA = 2 * (MAX_SIZE - 2) + 1
"""Side of the square around the hero that is seen exactly: from anywhere in a room, all of it with its walls."""
PATCH = 7
"""Side of the patches that the rest is counted in."""
PATCHES = (7, 23)
"""As many as reach from the middle one, around the hero, to the far ends of the map."""
_REACH = (PATCHES[0] * PATCH // 2, PATCHES[1] * PATCH // 2)
_FOVEA_SCALE = np.where(_COMMON, 0.25, 1.0).astype(np.float32)
_PATCH_SCALE = np.where(_COMMON, 1 / PATCH**2, 1.0).astype(np.float32)
_PHASES = 4
"""Turns after which the phase of the time is the same again."""
INPUTS = (FOVEA**2 + PATCHES[0] * PATCHES[1]) * _LAST_KIND + len(LANDMARKS) * (9 + 2) + BLSTATS + _PHASES
_LOUDNESS = 32
"""About what the squares of the inputs add up to."""


class CompactEncoder(eqx.Module):
    """What the paper's network sees, described so that dense layers suffice.

    Everything is relative to the hero: the things in the square around him one by one, those on the whole map counted
    in patches, and which way it is to the nearest doors and to each fruit. The bottom lines are scaled to about 1, and
    the turn is told modulo 4 as well: time stands still while a question is open, and one turn in 250 is hard to see.
    With weights of its own for each run, all of it is a few batched matrix products.
    """

    dense: tuple["Dense", ...]

    def __init__(self, hidden: Sequence[int], *, key: PRNGKeyArray) -> None:
        layers = []
        # He's weights, for ReLU: they keep the sum of squares, which for a description is far from its length.
        for (inputs, outputs), squares in zip(
            itertools.pairwise((INPUTS, *hidden)), (_LOUDNESS, *hidden), strict=False
        ):
            key, layer_key = jax.random.split(key)
            weight = (2 / squares) ** 0.5 * jax.random.normal(layer_key, (inputs, outputs))
            layers.append(Dense(weight, jnp.zeros(outputs)))
        self.dense = tuple(layers)

    def __call__(self, observation: Observation) -> Float[Array, " features"]:
        """Encode one observation."""
        return _through(self.dense, describe(observation).astype(_precision())).astype(jnp.float32)


def describe(observation: Observation) -> Float[Array, " inputs"]:
    """The inputs of the compact encoder."""
    kinds, blstats = _read(_KIND_OF, observation["glyphs"]), observation["blstats"]
    window = _window(kinds, blstats, *_REACH, 0)
    parts = (_fovea(window), _patches(window), _landmarks(kinds, blstats), _numbers(blstats))
    return jnp.concatenate([part.ravel() for part in parts])


def _fovea(window: Int8[Array, "height width"]) -> Float[Array, "side side kinds"]:
    """The things right around the hero."""
    rows, columns = (slice(reach - FOVEA // 2, reach + FOVEA // 2 + 1) for reach in _REACH)
    return jax.nn.one_hot(window[rows, columns] - 1, _LAST_KIND) * _FOVEA_SCALE


def _patches(window: Int8[Array, "height width"]) -> Float[Array, "rows columns kinds"]:
    """How many things of each kind there are in each patch, scaled.

    Five counts share a number, six bits for each, so that cells are added up twice rather than nine times.
    """
    tiles = window.reshape(PATCHES[0], PATCH, PATCHES[1], PATCH).astype(jnp.int32)
    bits, shared = 6, 5
    counts = []
    for first in range(1, _LAST_KIND + 1, shared):
        mine = (tiles >= first) & (tiles < first + shared)
        total = jnp.sum(jnp.where(mine, 1 << bits * jnp.clip(tiles - first, 0, shared - 1), 0), axis=(1, 3))
        counts.append(total[..., None] >> bits * np.arange(shared) & 2**bits - 1)
    return jnp.concatenate(counts, axis=-1)[..., :_LAST_KIND] * _PATCH_SCALE


def _landmarks(kinds: Int8[Array, "21 79"], blstats: Int[Array, " 27"]) -> Float[Array, "landmarks 11"]:
    """Of each landmark, the nearest that is seen: if there is one, how near, and in which of nine directions."""
    down, right = np.arange(ROWS)[:, None] - blstats[1], np.arange(COLUMNS) - blstats[0]
    distance = jnp.maximum(jnp.abs(down), jnp.abs(right))
    nowhere = ROWS * COLUMNS

    def nearest(glyphs: tuple[Glyph, ...]) -> Float[Array, " 11"]:
        alike = functools.reduce(jnp.logical_or, (kinds == KINDS[glyph] for glyph in glyphs))
        cell = jnp.argmin(jnp.where(alike, distance, nowhere))
        row, column = cell // COLUMNS, cell % COLUMNS
        seen = alike[row, column].astype(jnp.float32)
        direction = 3 * jnp.sign(row - blstats[1]) + jnp.sign(column - blstats[0]) + 4
        near = 1 / jnp.maximum(distance[row, column], 1)
        return seen * jnp.concatenate([jax.nn.one_hot(direction, 9), jnp.stack([jnp.ones(()), near])])

    return jnp.stack([nearest(glyphs) for glyphs in LANDMARKS])


def _numbers(blstats: Int[Array, " 27"]) -> Float[Array, " numbers"]:
    """The bottom lines, those that vary from about -1 to 1, and the phase of the time."""
    scaled = (blstats.astype(jnp.float32) - _MIDDLES) / _SPREADS
    phase = jax.nn.one_hot(blstats[_TIME].astype(jnp.int32) % _PHASES, _PHASES)
    return jnp.concatenate([scaled, phase])


def _scales() -> tuple[Float[np.ndarray, " 27"], Float[np.ndarray, " 27"]]:
    """Middle and spread of each of the bottom lines."""
    middles, spreads = np.zeros(BLSTATS, np.float32), np.full(BLSTATS, 10, np.float32)
    middles[:2], spreads[:2] = (COLUMNS // 2, ROWS // 2), (COLUMNS / 2, ROWS / 2)
    # Strength twice, once with its hundredths, and the other attributes.
    middles[2:9], spreads[2:9] = 12, 6
    spreads[3] = 50
    # Health, and its greatest.
    middles[10:12], spreads[10:12] = 6, 6
    middles[_TIME], spreads[_TIME] = 125, 125
    return middles, spreads


_MIDDLES, _SPREADS = _scales()


# ---- shared


class Dense(eqx.Module):
    """A dense layer with ReLU, in the precision of what comes in."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        """Transform."""
        return jax.nn.relu(x @ self.weight.astype(x.dtype) + self.bias.astype(x.dtype))


def _table(numbers: Mapping[Glyph, int], other: int) -> Int8[np.ndarray, " glyphs"]:
    """A number for each glyph; its last entry stands for every greater one."""
    table = np.full(max(numbers) + 2, other, np.int8)
    table[list(numbers)] = list(numbers.values())
    return table


_KIND_OF = _table(KINDS, 0)
_CLASS_OF = _table({glyph: 2 + index for index, glyph in enumerate(Glyph)}, OTHER)
_CLASS_OF[0] = PAD


def _read(table: Int8[np.ndarray, " glyphs"], glyphs: Int[Array, "21 79"]) -> Int8[Array, "21 79"]:
    return jnp.asarray(table).at[glyphs].get(mode="clip")


def _window(cells: Int8[Array, "21 79"], blstats: Array, down: int, right: int, outside: int) -> Int8[Array, "h w"]:
    """The cells as far from the hero as this, in each direction."""
    padded = jnp.pad(cells, ((down, down), (right, right)), constant_values=outside)
    column, row = blstats[0].astype(jnp.int32), blstats[1].astype(jnp.int32)
    return jax.lax.dynamic_slice(padded, (row, column), (2 * down + 1, 2 * right + 1))


def _through(layers: tuple[Dense, ...], x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
    for layer in layers:
        x = layer(x)
    return x


def _precision() -> type:
    # Half precision doubles the speed of a GPU and would halve that of a CPU.
    return jnp.bfloat16 if jax.default_backend() == "gpu" else jnp.float32
