"""Units for a network from the first data it sees."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from ctrlax.model.dataset import Dataset
from ctrlax.model.structure import Scaling

# A column that hardly moves is not blown up: its scale is at least this share of its magnitude, or of one.
FLOOR = 1e-3


def scaling_of(dataset: Dataset, action_middle: np.ndarray, action_reach: np.ndarray) -> Scaling:
    """Angles are on the unit circle whatever was seen; other coordinates in standard deviations, rates likewise.

    Only first data is looked at. It covers little of the world (a pole hanging down), so the middle of everything stays
    at zero but for coordinates far from it.
    """
    seen = np.concatenate([log.observations for log in dataset.logs])
    rates = np.concatenate([np.diff(log.observations, axis=0) / np.diff(log.times)[:, None] for log in dataset.logs])
    circle = np.array([name.startswith(("cos_", "sin_")) for name in dataset.observation_names])
    middle = np.where(circle, 0.0, seen.mean(axis=0))
    middle = np.where(np.abs(middle) > 3 * seen.std(axis=0), middle, 0.0)
    scale = np.maximum(seen.std(axis=0), FLOOR * np.maximum(np.abs(middle), 1.0))
    # The root mean square over the middle 98 %: one tiny gap's noisy difference says nothing of the rest.
    inside = np.clip(rates, *np.quantile(rates, [0.01, 0.99], axis=0))
    rate_scale = np.maximum(np.sqrt((inside**2).mean(axis=0)), FLOOR)
    parts = (middle, np.where(circle, 1.0, scale), action_middle, action_reach, rate_scale)
    return Scaling(*(jnp.asarray(part, jnp.float32) for part in parts))
