"""Pytrees of arrays, handled as if they were arrays."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree


def where(condition: Bool[Array, ""], a: PyTree, b: PyTree) -> PyTree:
    """One pytree or the other."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def prepend(first: PyTree, rest: PyTree) -> PyTree:
    """Put one in front of a stack."""
    return jax.tree.map(lambda one, others: jnp.concatenate([one[None], others]), first, rest)


def repeat(tree: PyTree, count: int) -> PyTree:
    """A stack of the same."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), tree)


def stack(*trees: PyTree) -> PyTree:
    """A stack of some."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
