"""Pytrees of arrays, handled as if they were arrays."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
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


def named_leaves(tree: PyTree) -> dict[str, Array]:
    """The leaves by where they are in the tree."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def with_named_leaves(template: PyTree, leaves: Mapping[str, np.ndarray]) -> PyTree | None:
    """A tree like the template with these leaves instead; None where names, shapes or kinds are not its."""
    wanted = named_leaves(template)
    if {name: leaf.shape for name, leaf in wanted.items()} != {name: leaf.shape for name, leaf in leaves.items()}:
        return None
    if any(leaf.dtype.kind not in "biuf" for leaf in leaves.values()):
        return None
    in_order = [jnp.asarray(leaves[name], leaf.dtype) for name, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(template), in_order)
