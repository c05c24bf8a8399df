"""Random numbers for the float64 host side, drawn from JAX keys."""

import jax
import numpy as np
from jaxtyping import PRNGKeyArray


def host_generator(key: PRNGKeyArray) -> np.random.Generator:
    """A NumPy generator that is a function of the key alone: same key, same numbers, whatever runs beside it."""
    words = np.asarray(jax.random.key_data(key), dtype=np.uint32).ravel()
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([int(word) for word in words])))
