"""Settings as people give them -> `Config`: names, types and ranges checked before any work, and back from a header."""

from __future__ import annotations

import ast
import dataclasses
import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from ctrlax.config import PRESETS, Config, preset
from ctrlax.errors import UserError
from ctrlax.names import unknown_name

GROUPS = ("sampling", "model", "fit", "one_step", "agent", "schedule")


def settings_of(config: Config) -> Iterator[tuple[str, Any]]:
    """Every setting by its name, ``group.setting``."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in GROUPS:
            yield from (
                (f"{field.name}.{inner.name}", getattr(value, inner.name)) for inner in dataclasses.fields(value)
            )
        elif field.name not in ("environment", "preset"):
            yield field.name, value


# Numbers that may be zero though they are not by themselves; every other number is greater.
MAY_BE_ZERO = {
    "sampling.exploration_scale", "fit.matching_updates", "fit.warmup_updates", "fit.kl_weight",
    *(name for name, value in settings_of(Config()) if value == 0),
}  # fmt: skip
MAY_BE_ZERO |= {f"one_step.{name}" for name in ("held_out", "patience", "weight_decay", "bound_weight", "kl_weight")}
ANY_NUMBER = {"fit.initial_log_noise"}


def configure(preset_name: str, environment: str, changes: Mapping[str, Any]) -> Config:
    """The preset with ``changes``: ``agent__horizon=3.0``, nested dicts, or ``{"agent.horizon": "3"}``."""
    if preset_name not in PRESETS:
        raise unknown_name("preset", preset_name, PRESETS)
    return changed(preset(preset_name, environment), changes)


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """``config`` with single settings changed, checked; text is read as the setting's own type."""
    for name, given in flat(changes):
        config = config.replaced(**{name.replace(".", "__"): checked_value(name, given)})
    check(config)
    return config


def checked_value(name: str, given: Any) -> Any:
    """``given`` as the type of the setting ``group.setting``; an unknown setting or another type is a `UserError`."""
    group, _, setting = name.rpartition(".")
    place = type(getattr(Config(), group)) if group in GROUPS else Config
    free = {field.name for field in dataclasses.fields(place)}
    free -= {*GROUPS, "environment", "preset"} if place is Config else set()
    if (group and group not in GROUPS) or setting not in free:
        raise unknown_name("setting", name, [known for known, _ in settings_of(Config())])
    return _value(name, given, typing.get_type_hints(place)[setting])


def as_dict(config: Config) -> dict[str, Any]:
    """For a header."""
    return dataclasses.asdict(config)


def from_dict(recorded: Mapping[str, Any]) -> Config:
    """The configuration `as_dict` made; a header of another version is refused field by field."""
    recorded = {
        name: recorded[name] for name in (field.name for field in dataclasses.fields(Config)) if name in recorded
    }
    known, wanted = dict(flat(recorded)), dict(flat(as_dict(Config())))
    lines = [f"  {name}: recorded, unknown to this version" for name in known if name not in wanted]
    lines += [f"  {name}: not recorded" for name in wanted if name not in known]
    if lines:
        raise UserError(
            "The run's configuration is of another ctrlax:\n"
            + "\n".join(lines)
            + "\nUse the ctrlax version named in its header.json."
        )
    groups = {
        name: type(getattr(Config(), name))(**{key: _tupled(value) for key, value in recorded[name].items()})
        for name in GROUPS
    }
    return Config(**{**recorded, **groups})


def check(config: Config) -> None:
    """Raise a `UserError` for what cannot work, before any work."""
    from ctrlax.model.registry import families, makes_transitions
    from ctrlax.model.structure import STRUCTURES
    from ctrlax.ode.solvers import named
    from ctrlax.world.grids import grid_named

    for name, value in settings_of(config):
        if isinstance(value, bool) or not isinstance(value, int | float) or name in ANY_NUMBER:
            continue
        least = "zero or more" if name in MAY_BE_ZERO else "more than zero"
        if not math.isfinite(value) or value < 0 or (value == 0 and name not in MAY_BE_ZERO):
            raise UserError(f"{name} is {value}, expected {least}.")
    grid_named(config.sampling.grid)
    for solver in (config.fit.solver, config.agent.solver):
        named(solver)
    if config.model.family not in families():
        raise unknown_name("model", config.model.family, families())
    for structure in config.model.structure:
        if structure not in STRUCTURES:
            raise unknown_name("structure", structure, STRUCTURES)
    if makes_transitions(config.model.family):
        _check_transition(config)
    if config.sampling.count() < config.fit.window_points:
        raise UserError(
            f"a trajectory has {config.sampling.count()} observations, fewer than the {config.fit.window_points} of a "
            "window: raise sampling.points, or lower fit.window_points."
        )
    by_share = config.model.family != "true" and not makes_transitions(config.model.family)
    if by_share and config.agent.members_per_start == "one" and config.agent.starts < config.model.members:
        raise UserError(
            f"agent.starts is {config.agent.starts} and model.members {config.model.members}: with one member per "
            "start every member needs a start. Raise agent.starts, or set agent.members_per_start to all."
        )


def _check_transition(config: Config) -> None:
    from ctrlax.model.structure import KNOWN

    family, asked = config.model.family, [name for name in config.model.structure if name != KNOWN]
    if asked:
        raise UserError(
            f"the model {family} learns steps, not a field: the structure {', '.join(asked)} does not apply to it. "
            "Leave --structure out, or choose a continuous model such as enode."
        )
    if config.model.dropout is not None and config.model.dropout >= 1:
        raise UserError(f"model.dropout is {config.model.dropout}, expected a share between 0 and 1.")
    if config.one_step.held_out >= 1:
        raise UserError(f"one_step.held_out is {config.one_step.held_out}, expected a share below 1.")
    particles = config.agent.particles
    if particles and family != "deep-pilco" and particles % config.model.members:
        raise UserError(
            f"agent.particles is {particles} and model.members {config.model.members}: every member needs the same "
            "number of particles. Choose a multiple."
        )


def flat(changes: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """``group.setting`` and value of each, from nested or flat names."""
    for name, value in changes.items():
        name = above + name.replace("__", ".")
        if isinstance(value, Mapping):
            yield from flat(value, f"{name}.")
        else:
            yield name, value


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _value(name: str, given: Any, kind: Any) -> Any:
    """``given`` as the setting's type; text comes from a command line."""
    union = typing.get_origin(kind) in (types.UnionType, typing.Union)  # Literal[..] | None is the latter
    options = typing.get_args(kind) if union else (kind,)
    for option in options:
        fits, value = _as(option, given)
        if fits:
            return value
    raise UserError(f"{name} must be {' or '.join(map(_said, options))}; {given!r} came.")


def _as(option: Any, given: Any) -> tuple[bool, Any]:
    if typing.get_origin(option) is Literal:
        return given in typing.get_args(option), given
    if option is str:
        return isinstance(given, str), given
    if typing.get_origin(option) is tuple:
        parts = [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given
        return isinstance(parts, list | tuple) and all(isinstance(part, str) for part in parts), tuple(parts)
    if isinstance(given, str):
        try:
            given = ast.literal_eval(given.capitalize() if given.lower() in ("true", "false", "none") else given)
        except (ValueError, SyntaxError):
            return False, given
    if option is type(None):
        return given is None, None
    if option is bool:
        return isinstance(given, bool), given
    if isinstance(given, bool) or (not isinstance(given, int | float) and not hasattr(given, "__index__")):
        return False, given
    if option is float:
        return True, float(given)
    return float(given).is_integer(), int(given)


def _said(option: Any) -> str:
    if typing.get_origin(option) is Literal:
        return ", ".join(typing.get_args(option))
    if typing.get_origin(option) is tuple:
        return "names separated by commas"
    return {str: "text", bool: "true or false", int: "a whole number", float: "a number", type(None): "none"}[option]
