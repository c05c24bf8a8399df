"""All cores of a CPU for one seed: the members of a model lie on JAX's CPU devices side by side.

XLA gives a matrix product of these sizes to one core. Members know nothing of each other, so with a device for every
core (`JAX_NUM_CPU_DEVICES`, which the command line sets) each core takes its share of them. With one device nothing is
other than it would be without this page; with several, sums over members are added up in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

CORE = "core"  # the mesh's one axis


@contextmanager
def all_cores(members: int) -> Iterator[Callable[[PyTree], PyTree]]:
    """Inside, `spread` and `each_core` count for what is compiled; it gives the function that puts arrays everywhere.

    Arguments go through it, and so do answers: arrays that lay elsewhere would be compiled for anew. As many cores are
    used as can have equally many of the members.
    """
    devices = jax.devices()
    count = max(size for size in range(1, min(len(devices), members) + 1) if members % size == 0)
    if count == 1 or devices[0].platform != "cpu":
        yield lambda tree: tree
        return
    mesh = Mesh(np.array(devices[:count]), (CORE,), axis_types=(AxisType.Auto,))
    place = NamedSharding(mesh, PartitionSpec())

    def everywhere(tree: PyTree) -> PyTree:
        arrays, rest = eqx.partition(tree, eqx.is_array)
        return eqx.combine(jax.device_put(arrays, place), rest)

    with jax.set_mesh(mesh):
        yield everywhere


def spread(tree: PyTree) -> PyTree:
    """The same arrays, their leading axes shared out over the cores where they can be."""
    cores = _cores()
    if cores == 1:
        return tree

    def one(leaf: PyTree) -> PyTree:
        if not eqx.is_array(leaf) or leaf.ndim == 0 or leaf.shape[0] % cores:
            return leaf
        return jax.lax.with_sharding_constraint(leaf, PartitionSpec(CORE))

    return jax.tree.map(one, tree)


def each_core(run: Callable[..., PyTree], shared: PyTree, *of_members: PyTree) -> PyTree:
    """``run(shared, *of_members)``, each core with the members it has and a copy of its own of what they share.

    A derivative by what is shared is then summed over the cores once, not in every step of a loop inside ``run``.
    """
    cores = _cores()
    sizes = {leaf.shape[0] for leaf in jax.tree.leaves(eqx.filter(of_members, eqx.is_array))}
    if cores == 1 or any(size % cores for size in sizes):
        return run(shared, *of_members)

    def copied(leaf: PyTree) -> PyTree:
        return jnp.broadcast_to(leaf, (cores, *leaf.shape)) if eqx.is_array(leaf) else leaf

    def parted(leaf: PyTree) -> PyTree:
        return leaf.reshape(cores, -1, *leaf.shape[1:]) if eqx.is_array(leaf) else leaf

    inputs = spread((jax.tree.map(copied, shared), *jax.tree.map(parted, of_members)))
    answers = eqx.filter_vmap(run)(*inputs)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), answers)


def _cores() -> int:
    return jax.sharding.get_abstract_mesh().shape.get(CORE, 1)
