"""Angles in recordings: which unit they have, where they wrap, and their cosine and sine."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

RADIANS = ("rad", "radian", "radians")
DEGREES = ("deg", "degree", "degrees", "°")

_TURNS = (2 * np.pi, 360.0)


def unit_of(values: Float[np.ndarray, " row"], stated: str | None) -> str | None:
    """``rad`` or ``deg``, from what is stated or else from the range; None where neither tells."""
    if stated is not None:
        return "rad" if stated in RADIANS else "deg" if stated in DEGREES else None
    reach = float(np.abs(values).max(initial=0.0))
    if reach <= 4 * np.pi:
        return "rad"
    return "deg" if reach <= 360.0 else None


def cosine_and_sine(values: Float[np.ndarray, " row"], stated: str | None) -> Float[np.ndarray, "row 2"]:
    """The point on the circle; an angle in degrees is turned into radians first."""
    radians = np.deg2rad(values) if unit_of(values, stated) == "deg" else values
    return np.stack([np.cos(radians), np.sin(radians)], axis=1)


def wraps(values: Float[np.ndarray, " row"], within: Bool[np.ndarray, " row"]) -> Bool[np.ndarray, " row"]:
    """Where a smooth column jumps by nearly a full turn from the row before; ``within``: there is such a row."""
    none = np.zeros(len(values), bool)
    if not within.any():
        return none
    jumps = np.where(within, np.abs(np.diff(values, prepend=np.nan)), 0.0)
    reach = float(np.ptp(values))
    for turn in _TURNS:
        # A column that merely scatters over such a range jumps by large parts of it all the time.
        smooth = np.median(jumps[within]) < turn / 4
        if smooth and 0.9 * turn < reach <= 1.02 * turn:
            return jumps > 0.9 * turn
    return none
