"""What a user's own system file defines, read name by name into the fields of an `Environment`."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import numbers
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ctrlax.errors import UserError
from ctrlax.names import did_you_mean, nearest

REQUIRED = ("field", "reward_rate", "state_names", "action_names", "action_high", "start_low", "start_high")
OPTIONAL = (
    *(
        "action_low",
        "observe",
        "observation_names",
        "restore",
        "angles",
        "velocities",
        "rates_of",
        "actuated",
        "known_structure",
        "units",
    ),
    *("energy", "energy_scale", "draw", "initial_trajectories", "exploring_trajectories", "time_limit", "rise_time"),
)
ALIKE = 0.8  # of difflib's ratio: a letter or two in a word; a constant of the file's own may be called much the like
PAGE = "See docs/your-own-system.md."


@dataclasses.dataclass(frozen=True)
class Reader:
    """The names a file defines; every method says what was expected, what came and what to do."""

    where: str
    defined: Mapping[str, Any]

    def fields(self) -> dict[str, Any]:
        """Everything an `Environment` needs but its name."""
        self._nothing_missing()
        self._nothing_misspelt()
        states, actions = self._names("state_names"), self._names("action_names")
        self._distinct(states + actions, "state_names and action_names")
        action_high = self._numbers("action_high", actions, "action")
        action_low = tuple(-bound for bound in action_high)
        if "action_low" in self.defined:
            action_low = self._numbers("action_low", actions, "action")
        start_low, start_high = (self._numbers(name, states, "state") for name in ("start_low", "start_high"))
        self._ordered("action_low", action_low, "action_high", action_high, actions, strictly=True)
        self._ordered("start_low", start_low, "start_high", start_high, states, strictly=False)
        return {
            "state_names": states,
            "action_names": actions,
            "action_low": action_low,
            "action_high": action_high,
            "start_low": start_low,
            "start_high": start_high,
            "field": self._function("field", "state", "action"),
            "reward_rate": self._function("reward_rate", "observation", "action"),
            **self._observation(states),
            **self._roles(states, actions),
            **self._units(states, actions),
            **self._rest(),
        }

    def _nothing_missing(self) -> None:
        missing = [name for name in REQUIRED if name not in self.defined]
        if not missing:
            return
        own = [name for name in self.defined if not name.startswith("_") and name not in (*REQUIRED, *OPTIONAL)]
        meant = [(name, nearest(name, own)) for name in missing]
        hint = "".join(f" Did you mean {name!r} where you wrote {found!r}?" for name, found in meant if found)
        raise UserError(
            f"{self.where}: missing {', '.join(missing)}.{hint} A system defines {', '.join(REQUIRED)}, "
            f"or a function `make` that returns a ctrlax.Environment. {PAGE}"
        )

    def _nothing_misspelt(self) -> None:
        free = [name for name in OPTIONAL if name not in self.defined]
        for name, value in self.defined.items():
            if name.startswith("_") or name in (*REQUIRED, *OPTIONAL) or inspect.ismodule(value):
                continue
            if meant := difflib.get_close_matches(name, free, n=1, cutoff=ALIKE):
                hint = f"{self.where}: `{name}` means nothing to ctrlax. Did you mean `{meant[0]}`?"
                warnings.warn(hint, stacklevel=2)

    def _names(self, name: str) -> tuple[str, ...]:
        value = self.defined.get(name, ())
        if isinstance(value, str):
            raise UserError(f"{self.where}: `{name}` is the text {value!r}, expected a tuple of names: ({value!r},).")
        if not isinstance(value, (tuple, list)) or not all(
            isinstance(item, str) and item.isidentifier() for item in value
        ):
            raise UserError(
                f"{self.where}: `{name}` is {value!r}, expected a tuple of names such as ('position', 'velocity'): "
                "letters, digits and underscores only, for they name the columns of written data."
            )
        if not value and name in REQUIRED:
            raise UserError(f"{self.where}: `{name}` is empty, expected at least one name.")
        return tuple(value)

    def _distinct(self, value: Sequence[str], what: str) -> None:
        twice = sorted({item for item in value if list(value).count(item) > 1})
        if twice:
            raise UserError(f"{self.where}: {what} say {', '.join(twice)} more than once. Every name is used once.")

    def _numbers(self, name: str, of: tuple[str, ...], kind: str) -> tuple[float, ...]:
        value = self.defined[name]
        each = f"one number per {kind} ({', '.join(of)})"
        if isinstance(value, numbers.Real):
            value = (value,) * len(of)  # one number stands for all of them
        try:
            read = tuple(float(item) for item in value)
        except (TypeError, ValueError):
            raise UserError(f"{self.where}: `{name}` is {value!r}, expected {each}.") from None
        if len(read) != len(of):
            raise UserError(f"{self.where}: `{name}` has {len(read)} entries, expected {len(of)}: {each}.")
        if not all(math.isfinite(item) for item in read):
            raise UserError(f"{self.where}: `{name}` is {read}, expected finite numbers: {each}.")
        return read

    def _ordered(
        self, low_name: str, low: tuple[float, ...], high_name: str, high: tuple[float, ...], of, strictly: bool
    ):
        for name, below, above in zip(of, low, high, strict=True):
            if below > above or (strictly and below == above):
                implied = "" if low_name in self.defined else f" ({low_name} is -{high_name} unless defined)"
                raise UserError(
                    f"{self.where}: `{low_name}` of {name} is {below:g} and `{high_name}` is {above:g}{implied}, "
                    f"expected low {'below' if strictly else 'not above'} high. Swap or correct them."
                )

    def _function(self, name: str, *parameters: str) -> Callable[..., Any]:
        function = self.defined[name]
        wanted = f"a function {name}({', '.join(parameters)})"
        if not callable(function):
            raise UserError(f"{self.where}: `{name}` is {function!r}, expected {wanted}.")
        try:
            inspect.signature(function).bind(*parameters)
        except TypeError:
            raise UserError(
                f"{self.where}: `{name}{inspect.signature(function)}` takes other parameters than expected: {wanted}. "
                "Constants belong at the top of the file."
            ) from None
        except ValueError:
            pass  # some compiled functions have no signature; calling them will tell
        return function

    def _observation(self, states: tuple[str, ...]) -> dict[str, Any]:
        if "observe" not in self.defined:
            for name in ("observation_names", "restore"):
                if name in self.defined:
                    raise UserError(f"{self.where}: `{name}` without `observe(state)`. Define both, or neither.")
            return {}
        if "observation_names" not in self.defined:
            raise UserError(
                f"{self.where}: `observe` without `observation_names`. Name what it returns, in its order: "
                f"observation_names = ({', '.join(repr(name) for name in states)},), say."
            )
        observed_names = self._names("observation_names")
        self._distinct(observed_names, "observation_names")
        restored = self._function("restore", "observation") if "restore" in self.defined else self._cannot_restore
        return {"observed": self._function("observe", "state"), "restored": restored, "observed_names": observed_names}

    def _cannot_restore(self, observation: Any) -> Any:
        raise UserError(
            f"{self.where} defines `observe` and no `restore(observation)`, which is needed to start from observed "
            "data. "
            "Define it, or explore from fresh starts (explore_from reset)."
        )

    def _roles(self, states: tuple[str, ...], actions: tuple[str, ...]) -> dict[str, Any]:
        angles, velocities = self._among("angles", states, "state"), self._among("velocities", states, "state")
        rates_of = self._among("rates_of", states, "state")
        actuated = self._among("actuated", velocities or states, "velocity")
        if rates_of and len(rates_of) != len(velocities):
            raise UserError(
                f"{self.where}: `rates_of` has {len(rates_of)} entries and `velocities` {len(velocities)}, expected as "
                "many: "
                "the position each velocity is the rate of."
            )
        if actuated and len(actuated) != len(actions):
            raise UserError(
                f"{self.where}: `actuated` has {len(actuated)} entries, expected {len(actions)}: "
                f"the velocity each action ({', '.join(actions)}) pushes on."
            )
        roles = {"angles": angles, "velocities": velocities, "rates_of": rates_of, "actuated": actuated}
        return roles | {"known_structure": self._names("known_structure")}

    def _among(self, name: str, known: tuple[str, ...], kind: str) -> tuple[str, ...]:
        value = self._names(name)
        for item in value:
            if item not in known:
                raise UserError(
                    f"{self.where}: `{name}` names {item!r}, which is no {kind}.{did_you_mean(item, known)} "
                    f"Expected some of: {', '.join(known)}."
                )
        return value

    def _units(self, states: tuple[str, ...], actions: tuple[str, ...]) -> dict[str, Any]:
        units = self.defined.get("units", {})
        if not isinstance(units, Mapping):
            raise UserError(
                f"{self.where}: `units` is {units!r}, expected a dictionary such as {{{states[0]!r}: 'm'}}."
            )
        for name in units:
            if name not in states + actions:
                raise UserError(
                    f"{self.where}: `units` names {name!r}, no state or action.{did_you_mean(name, states + actions)} "
                    f"Expected some of: {', '.join(states + actions)}."
                )
        if not units:
            return {}
        return {
            "state_units": tuple(str(units.get(name, "")) for name in states),
            "action_units": tuple(str(units.get(name, "")) for name in actions),
        }

    def _rest(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if "energy" in self.defined:
            found["energy"] = self._function("energy", "state")
        if callable(self.defined.get("draw")):
            found["draw"] = self.defined["draw"]
        for name, unit in (("time_limit", "hours"), ("rise_time", "seconds"), ("energy_scale", "joules")):
            if name in self.defined:
                found[name] = self._number(name, f"a positive number of {unit}", lambda value: value > 0)
        for name, least in (("initial_trajectories", 1), ("exploring_trajectories", 0)):
            if name in self.defined:
                whole = f"a whole number, {least} or more"
                found[name] = int(
                    self._number(name, whole, lambda value, least=least: value >= least and value % 1 == 0)
                )
        return found

    def _number(self, name: str, wanted: str, right: Callable[[float], bool]) -> float:
        value = self.defined[name]
        if (
            isinstance(value, bool)
            or not isinstance(value, numbers.Real)
            or not math.isfinite(value)
            or not right(float(value))
        ):
            raise UserError(f"{self.where}: `{name}` is {value!r}, expected {wanted}.")
        return float(value)
