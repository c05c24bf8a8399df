"""Names people type: a folder's files are its names, and an unknown one is answered with the known ones.

Nothing here imports what it lists, so a list or a misspelt name is answered at once.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
from collections.abc import Iterable
from importlib.abc import InspectLoader
from pathlib import Path

from ctrlax.errors import UserError

SYSTEMS = "world/systems"  # the folder of the built-in environments


def listed(folder: str) -> list[str]:
    """Public names of the files in a folder of the package (``"world/systems"``): underscores become hyphens."""
    files = sorted((Path(__file__).parent / folder).glob("*.py"))
    return [file.stem.replace("_", "-") for file in files if not file.stem.startswith("_")]


def module_of(folder: str, name: str) -> str:
    """The dotted module behind a public name."""
    return ".".join(["ctrlax", *folder.split("/"), name.replace("-", "_")])


def summary_of(folder: str, name: str) -> str:
    """The first line of the docstring of the file behind a public name."""
    module = module_of(folder, name)
    spec = importlib.util.find_spec(module)
    source = spec.loader.get_source(module) if spec and isinstance(spec.loader, InspectLoader) else None
    return (ast.get_docstring(ast.parse(source or "")) or "").split("\n", 1)[0]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` probably means, if any is near."""
    plain = {candidate.lower().replace("_", "-"): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower().replace("_", "-"), list(plain), n=1, cutoff=0.6)
    return plain[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` with its leading space, or nothing."""
    found = nearest(name, known)
    return f" Did you mean {found!r}?" if found else ""


def unknown_name(kind: str, name: str, known: Iterable[str], also: str = "") -> UserError:
    """The error for a name nobody knows; `also` says what else would have been accepted."""
    known = sorted(known)
    return UserError(f"Unknown {kind} {name!r}.{did_you_mean(name, known)} Known: {', '.join(known) or 'none'}.{also}")
