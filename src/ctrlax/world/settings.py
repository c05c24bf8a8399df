"""The constants a built-in system runs with: those of its variant, with the user's own in their place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ctrlax.errors import UserError
from ctrlax.names import unknown_name


def choose(
    system: str,
    variant: str,
    settings: Mapping[str, Any],
    *,
    variants: Mapping[str, Mapping[str, Any]],
    choices: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, Any]:
    """The constants of `variant` with `settings` in their place, checked.

    A constant named in `choices` is one of the words given there; every other is a finite number not below zero
    (its decimal text will do, as it comes from a command line or a file's metadata).
    """
    if variant not in variants:
        raise unknown_name(f"variant of {system}", str(variant), variants)
    constants = dict(variants[variant])
    for name, value in settings.items():
        if name not in constants:
            raise unknown_name(f"setting of {system}", name, ["variant", *constants])
        if choices is None or name not in choices:
            constants[name] = _number(system, name, value)
        elif value in choices[name]:
            constants[name] = value
        else:
            raise unknown_name(f"{name} of {system}", str(value), choices[name])
    return constants


def _number(system: str, name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise UserError(f"{system}: {name} must be a finite number, zero or more, but {value!r} came")
    return number
