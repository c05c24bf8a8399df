"""The Gymnasium ids of the built-in environments. Light, for it runs as Gymnasium is imported."""

from ctrlax.names import listed

OWN_SYSTEM = "ctrlax/System-v0"
_CAPITALS = {"cartpole": "CartPole"}  # where a name does not show its words


def ids() -> dict[str, str]:
    """Gymnasium id to built-in environment name."""
    spelled = {name: _CAPITALS.get(name, name.title().replace("-", "")) for name in listed("world/systems")}
    return {f"ctrlax/{capitals}-v0": name for name, capitals in spelled.items()}


def register() -> None:
    """Make the built-in systems and `ctrlax/System-v0` known to Gymnasium; calling it again changes nothing."""
    from gymnasium.envs import registration

    for gym_id, name in [*ids().items(), (OWN_SYSTEM, None)]:
        if gym_id not in registration.registry:
            registration.register(
                id=gym_id,
                entry_point="ctrlax.world.gym:SystemEnv",
                vector_entry_point="ctrlax.world.gym:SystemVectorEnv",
                kwargs={} if name is None else {"system": name},
            )
