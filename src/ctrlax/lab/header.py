"""The header of a run: what was asked for, and what it ran on."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ctrlax.errors import UserError
from ctrlax.machine import usable_cores

FORMAT = 1  # of a run folder; counts up when an older ctrlax could not resume a newer run, or the other way
PACKAGES = ("jax", "jaxlib", "diffrax", "equinox", "optax", "numpy", "ctrlax")
ABSENT = object()  # where a field is only on one side


def make_header(command: str, configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The header of a run of ``command`` ("train" or "fit") begun now and here; ``configuration`` is a nested dict."""
    commit = _commit()
    return {
        "format": FORMAT,
        "command": command,
        "configuration": json.loads(json.dumps(configuration, allow_nan=False)),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "hardware": _hardware(),
        "commit": commit,
        "commit_modified": None if commit is None else bool(_git("status", "--porcelain", "--untracked-files=no")),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def check_resumable(
    header: Mapping[str, Any], wanted_configuration: Mapping[str, Any], free: Collection[str] = ()
) -> None:
    """Raise a `UserError` with one line per field in which a run and what is asked of it differ.

    ``free`` names the fields that may differ, as the number of rounds may; a name frees all beneath it.
    """
    recorded = _fields({"format": header.get("format"), **header["configuration"]})
    asked = _fields({"format": FORMAT, **json.loads(json.dumps(wanted_configuration))})
    lines = [
        f"  {name}: recorded {_shown(recorded, name)}, asked for {_shown(asked, name)}"
        for name in dict.fromkeys([*recorded, *asked])
        if recorded.get(name, ABSENT) != asked.get(name, ABSENT)
        and not any(f"{name}.".startswith(f"{each}.") for each in free)
    ]
    if lines:
        raise UserError(
            "This run cannot be resumed as asked:\n"
            + "\n".join(lines)
            + "\nAsk for what is recorded, or start a new run in another folder."
        )


def _shown(fields: dict[str, Any], name: str) -> str:
    return json.dumps(fields[name]) if name in fields else "nothing"


def _fields(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        fields: dict[str, Any] = {}
        for key, inner in value.items():
            fields |= _fields(inner, f"{name}.{key}" if name else str(key))
        return fields
    return {name: value}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _hardware() -> dict[str, Any]:
    import jax

    device = jax.devices()[0]
    found = {"platform": device.platform, "device": device.device_kind, "devices": jax.device_count()}
    return found | {"cores": usable_cores()}


def _commit() -> str | None:
    # An installed package may lie inside somebody else's checkout: only a tracked file has this one's commit.
    return _git("rev-parse", "HEAD") if _git("ls-files", "--error-unmatch", __file__) else None


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
