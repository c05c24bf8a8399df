"""Models by name: a file in ``families`` is a model, and its ``build(blueprint, *, key)`` makes one."""

from __future__ import annotations

import dataclasses
import importlib
import typing

from jaxtyping import PRNGKeyArray

from ctrlax import config
from ctrlax.errors import UserError
from ctrlax.model.blueprint import Blueprint
from ctrlax.model.dynamics import AbstractDynamics, AbstractField, AbstractTransition
from ctrlax.model.structure import KNOWN, Coordinates, Known, Scaling, coordinates_of
from ctrlax.names import listed, module_of, unknown_name
from ctrlax.world.environment import Environment

FAMILIES = "model/families"


def families() -> list[str]:
    """Names of all models."""
    return listed(FAMILIES)


def kind_of(family: str) -> type[AbstractDynamics]:
    """What the models of a family are, by what its ``build`` says it returns: a field's class or a transition's."""
    if family not in families():
        raise unknown_name("model", family, families())
    build = importlib.import_module(module_of(FAMILIES, family)).build
    return typing.get_type_hints(build)["return"]


def makes_transitions(family: str) -> bool:
    """Whether the models of a family are discrete."""
    return issubclass(kind_of(family), AbstractTransition)


def build(
    settings: config.Model,
    world: Environment | Coordinates,
    scaling: Scaling,
    *,
    key: PRNGKeyArray,
    known: Known | None = None,
    step: float = 0.1,
) -> AbstractDynamics:
    """A fresh model as ``settings`` ask for it; from an environment, or from coordinates where there is only data.

    ``known(observation, action)`` is the part of the rate that need not be learned: the model learns what it leaves
    over. ``step`` is the mean number of seconds between observations, for models that are transitions. Pure in
    ``scaling`` and ``key``, so that seeds are a `vmap`.
    """
    if settings.family not in families():
        raise unknown_name("model", settings.family, families())
    if settings.members < 1:
        raise UserError(f"a model needs at least one member, but members = {settings.members} came")
    environment = world if isinstance(world, Environment) else None
    coordinates = world_coordinates(world) if isinstance(world, Environment) else world
    if KNOWN in settings.structure:
        told = environment.known_structure if environment is not None else ()
        rest = tuple(name for name in settings.structure if name != KNOWN and name not in told)
        settings = dataclasses.replace(settings, structure=(*told, *rest))
    family = importlib.import_module(module_of(FAMILIES, settings.family))
    return family.build(Blueprint(settings, coordinates, scaling, environment, known, step), key=key)


def build_field(
    settings: config.Model,
    world: Environment | Coordinates,
    scaling: Scaling,
    *,
    key: PRNGKeyArray,
    known: Known | None = None,
) -> AbstractField:
    """`build` where only a continuous model will do."""
    made = build(settings, world, scaling, key=key, known=known)
    if not isinstance(made, AbstractField):
        raise UserError(f"a continuous model is needed here, but {settings.family} is a transition: choose enode, say")
    return made


def world_coordinates(environment: Environment) -> Coordinates:
    """What an environment says of its observations."""
    rates = dict(zip(environment.velocities, environment.rates_of, strict=False))
    return coordinates_of(environment.observation_names, environment.action_size, rates)
