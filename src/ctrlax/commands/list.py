"""`ctrlax list`: everything that has a name."""

from __future__ import annotations

import dataclasses
import json as json_text
from collections.abc import Callable
from typing import Annotated

import tyro

from ctrlax.names import SYSTEMS, listed, summary_of, unknown_name

# A folder's files are its names; what is named in code comes after, since reading it costs an import.
FOLDERS = {"environments": SYSTEMS, "models": "model/families", "figures": "lab/figures", "backends": "lab/backends"}


def _grids() -> dict[str, str]:
    from ctrlax.world.grids import GRIDS

    return GRIDS


def _solvers() -> dict[str, str]:
    from ctrlax.ode.solvers import SOLVERS

    return {name: setting.description for name, setting in SOLVERS.items()}


def _presets() -> dict[str, str]:
    from ctrlax.config import PRESETS_EXPLAINED

    return PRESETS_EXPLAINED


def _structures() -> dict[str, str]:
    from ctrlax.model.structure import STRUCTURES

    return STRUCTURES


NAMED: dict[str, Callable[[], dict[str, str]]] = {
    "presets": _presets,
    "structures": _structures,
    "grids": _grids,
    "solvers": _solvers,
}


@dataclasses.dataclass(frozen=True)
class List:
    """Names of the environments, solvers and whatever else is chosen by name."""

    kind: Annotated[str | None, tyro.conf.Positional] = None
    """What to list: environments, models, presets, structures, grids, solvers, ...; everything if left out."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print one JSON object last, for machines: kind to names."""

    def run(self) -> None:
        kinds = [*FOLDERS, *NAMED]
        if self.kind is not None and self.kind not in kinds:
            raise unknown_name("kind of name", self.kind, kinds)
        found: dict[str, list[str]] = {}
        for kind in kinds if self.kind is None else [self.kind]:
            named = _descriptions(kind)
            if named or self.kind is not None:
                found[kind] = list(named)
                if not self.json:
                    _show(kind, named)
        if self.json:
            print(json_text.dumps(found))


def _descriptions(kind: str) -> dict[str, str]:
    if kind in NAMED:
        return NAMED[kind]()
    return {name: summary_of(FOLDERS[kind], name) for name in listed(FOLDERS[kind])}


def _show(kind: str, named: dict[str, str]) -> None:
    print(kind if named else f"{kind}: none yet")
    width = max(map(len, named), default=0)
    for name, description in named.items():
        print(f"  {name:{width}}  {description}")
