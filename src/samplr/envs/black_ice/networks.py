"""Encoders for what the driver sees, a picture or a sketch, and the evidence where the driver is told it."""

import functools
from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, UInt8

from samplr.student.networks import MLPEncoder

CHANNELS = (8, 16, 32, 64, 128, 256)

PAPER_KERNELS = ((2, 2), (2, 2), (2, 2), (2, 2), (3, 1), (3, 1))
"""Side and stride of each kernel in the paper; on 96×96 pixels they leave 2×2×256 features, not the 256 it states."""
LINEAGE_KERNELS = ((4, 2), (3, 2), (3, 2), (3, 2), (3, 1), (3, 1))
"""As in the code base the paper grew from; they leave 1×1×256."""


class Convolution(eqx.Module):
    """A convolution without padding, written as patches times a matrix.

    With weights of its own for each run of a batch, XLA makes a batched matrix product of this, where it would make a
    slow grouped convolution of `eqx.nn.Conv2d`.
    """

    weight: Float[Array, "patch channels_out"]
    bias: Float[Array, " channels_out"]
    side: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)

    def __init__(self, channels_in: int, channels_out: int, side: int, stride: int, *, key: PRNGKeyArray) -> None:
        # Xavier's, for ReLU: its fans count every pixel of the patch.
        bound = 2**0.5 * (6 / (side**2 * (channels_in + channels_out))) ** 0.5
        shape = (side**2 * channels_in, channels_out)
        self.weight = jax.random.uniform(key, shape, minval=-bound, maxval=bound)
        self.bias = jnp.full(channels_out, 0.1)
        self.side, self.stride = side, stride

    def __call__(self, x: Float[Array, "height width channels_in"]) -> Float[Array, "h w channels_out"]:
        """Convolve."""
        weight = self.weight.astype(x.dtype)
        # A CPU takes three times as long for a gradient through blocks as for one through patches.
        by_blocks = jax.default_backend() != "cpu" and self._shrinks(x.shape[-1])
        multiplied = self._by_blocks(x, weight) if by_blocks else self._patches(x) @ weight
        return multiplied + self.bias.astype(x.dtype)

    def _shrinks(self, channels_in: int) -> bool:
        """Whether a stride's block of pixels, of which kernels are made, has more numbers than comes out of it."""
        return self.side % self.stride == 0 and self.weight.shape[1] < self.stride**2 * channels_in

    def _by_blocks(
        self, x: Float[Array, "height width channels_in"], weight: Float[Array, "patch channels_out"]
    ) -> Float[Array, "h w channels_out"]:
        """The product of every block with each part of the kernel, and then the sum of the parts.

        Patches of a large picture would hold each of its pixels several times.
        """
        side, stride, out = self.side, self.stride, weight.shape[1]
        parts, height, width = side // stride, x.shape[0] // stride, x.shape[1] // stride
        blocks = x[: height * stride, : width * stride].reshape(height, stride, width, stride, -1)
        blocks = jnp.swapaxes(blocks, 1, 2).reshape(height, width, -1)
        by_part = weight.reshape(parts, stride, parts, stride, -1, out).transpose(1, 3, 4, 0, 2, 5)
        products = (blocks @ by_part.reshape(blocks.shape[-1], -1)).reshape(height, width, parts, parts, out)
        rows = [slice(part, height - parts + 1 + part) for part in range(parts)]
        columns = [slice(part, width - parts + 1 + part) for part in range(parts)]
        shifted = [products[row, column, i, j] for i, row in enumerate(rows) for j, column in enumerate(columns)]
        return functools.reduce(jnp.add, shifted)

    def _patches(self, x: Float[Array, "height width channels_in"]) -> Float[Array, "h w patch"]:
        """The pixels under the kernel at each of its places, by row, column and channel."""
        # Columns first, and rows of those: half as many pieces to take a gradient through.
        side, stride = self.side, self.stride
        columns = [x[:, start : x.shape[1] - side + start + 1 : stride] for start in range(side)]
        beside = jnp.concatenate(columns, axis=-1)
        rows = [beside[start : x.shape[0] - side + start + 1 : stride] for start in range(side)]
        return jnp.concatenate(rows, axis=-1)


class CarEncoder(eqx.Module):
    """The paper's stack of convolutions with ReLU, flattened."""

    convolutions: tuple[Convolution, ...]

    def __init__(self, channels: int, kernels: Sequence[tuple[int, int]], *, key: PRNGKeyArray) -> None:
        inputs = (channels, *CHANNELS)
        self.convolutions = tuple(
            Convolution(channels_in, channels_out, side, stride, key=layer_key)
            for channels_in, channels_out, (side, stride), layer_key in zip(
                inputs, CHANNELS, kernels, jax.random.split(key, len(kernels)), strict=False
            )
        )

    def __call__(self, observation: Array | Mapping[str, Array]) -> Float[Array, " features"]:
        """Encode what the driver sees, followed by the evidence where the observation holds it."""
        if not isinstance(observation, Mapping):
            return self._look(observation)
        counts = jnp.log1p(observation["evidence"])
        return jnp.concatenate([self._look(observation["view"]), counts])

    def _look(self, view: UInt8[Array, "96 96 channels"]) -> Float[Array, " features"]:
        # Half precision doubles the speed of a GPU and would halve that of a CPU.
        precision = jnp.bfloat16 if jax.default_backend() == "gpu" else jnp.float32
        x = view.astype(precision) / 128 - 1
        for convolution in self.convolutions:
            x = jax.nn.relu(convolution(x))
        return x.astype(jnp.float32).ravel()


class SketchEncoder(eqx.Module):
    """Hidden layers with tanh over the numbers that a driver sees, and over the logarithms of what it has met."""

    layers: MLPEncoder

    def __init__(self, inputs: int, hidden: tuple[int, ...], *, key: PRNGKeyArray) -> None:
        self.layers = MLPEncoder(inputs, hidden, key=key)

    def __call__(self, observation: Array | Mapping[str, Array]) -> Float[Array, " features"]:
        """Encode a sketch, or a sketch and the evidence."""
        if not isinstance(observation, Mapping):
            return self.layers(observation)
        return self.layers([observation["view"], jnp.log1p(observation["evidence"])])
