"""The constants a built-in system runs with: those of its variant, with the user's own in their place."""

import math
from collections.abc import Mapping
from typing import Any

from ctrlax.errors import UserError


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
        raise UserError(f"{system}: variant must be one of {_listed(variants)}, not {variant!r}")
    constants = dict(variants[variant])
    for name, value in settings.items():
        if name not in constants:
            raise UserError(f"{system} has no setting {name!r}; it has variant, {_listed(constants)}")
        if choices and name in choices:
            if value not in choices[name]:
                raise UserError(f"{system}: {name} must be one of {_listed(choices[name])}, not {value!r}")
            constants[name] = value
        else:
            constants[name] = _number(system, name, value)
    return constants


def recorded(settings: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Settings as `Environment.settings` keeps them: text, which `choose` reads back to the same values."""
    return tuple(sorted((name, str(value)) for name, value in settings.items()))


def _number(system: str, name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise UserError(f"{system}: {name} must be a finite number, zero or more, not {value!r}")
    return number


def _listed(names) -> str:
    return ", ".join(sorted(names))
