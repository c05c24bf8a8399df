"""Environments by name, and a user's own system from a file.

A built-in is a file in ``world/systems``. A user's own system is a path ending in ``.py``: about twenty lines of
module-level names (``docs/your-own-system.md``), or a function ``make`` that returns an `Environment`. Whatever is
wrong with it is said before any work: this page runs the file, `world.reader` reads its names, `world.check` tries its
functions.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ctrlax.errors import UserError
from ctrlax.names import SYSTEMS, did_you_mean, listed, module_of, unknown_name
from ctrlax.world.check import check, check_constants, line_of
from ctrlax.world.environment import Environment
from ctrlax.world.reader import OPTIONAL, PAGE, REQUIRED, Reader


def names() -> list[str]:
    """Names of the built-in environments."""
    return listed(SYSTEMS)


def make(name_or_file: str | os.PathLike[str], **settings: Any) -> Environment:
    """An environment by its built-in name, or a user's own system from a path ending in ``.py``.

    ``variant="paper"`` or ``"reference"`` chooses a built-in's constants and reward; other settings are a system's own.
    A file of module-level names takes those names as settings: ``make("tank.py", rise_time=60.0)``.
    """
    source = os.fspath(name_or_file)
    if source.endswith(".py"):
        environment = _own_system(Path(source), {name: _value(given) for name, given in settings.items()})
    elif source in names():
        system = importlib.import_module(module_of(SYSTEMS, source))
        environment = _called(system.make, f"environment {source!r}", settings)
    else:
        raise unknown_name("environment", source, names(), " Your own system is a path that ends in .py.")
    given = tuple(sorted((name, str(value)) for name, value in settings.items() if name != "variant"))
    return dataclasses.replace(environment, source=source, settings=given)


def _value(given: Any) -> Any:
    """Settings come back from a run's record or a command line as text: a number or a tuple is read from it."""
    try:
        return ast.literal_eval(given) if isinstance(given, str) else given
    except (ValueError, SyntaxError):
        return given


def _called(build: Callable[..., Any], who: str, settings: Mapping[str, Any]) -> Any:
    parameters = inspect.signature(build).parameters
    accepted = [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD]
    if len(accepted) == len(parameters):
        for name in settings:
            if name not in accepted:
                raise unknown_name(f"setting of {who}", name, accepted)
    return build(**settings)


def _own_system(path: Path, settings: Mapping[str, Any]) -> Environment:
    defined = vars(_executed(path))
    check_constants(defined, str(path))
    build = defined.get("make")
    if inspect.isfunction(build) and "field" not in defined:
        wanted = dict(settings)
        if "variant" not in inspect.signature(build).parameters and wanted.get("variant") == "paper":
            del wanted["variant"]
        environment = _ran(path, lambda: _called(build, f"make in {path}", wanted))
        if not isinstance(environment, Environment):
            raise UserError(
                f"{path}: `make` returned {type(environment).__name__}, expected a ctrlax.Environment. "
                f"Return one, or write the system as module-level names. {PAGE}"
            )
    else:
        environment = _from_names(path, defined, settings)
    check(environment, str(path))
    return environment


def _executed(path: Path) -> ModuleType:
    if path.is_dir():
        raise UserError(f"{path} is a folder, expected a system's file. Give the path of a file inside it.")
    if not path.is_file():
        beside = [file.name for file in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise UserError(
            f"No file {str(path)!r} (looked from {os.getcwd()}).{did_you_mean(path.name, beside)} "
            f"Give the path of your system's file, or a built-in name: {', '.join(names())}."
        )
    text = path.read_bytes()
    try:
        if b"\0" in text:
            raise ValueError("it contains null bytes")
        code = compile(text, str(path), "exec")
    except SyntaxError as error:
        line = f": {error.text.strip()}" if error.text else ""
        raise UserError(f"{path}, line {error.lineno}: {error.msg}{line}. Correct the syntax there.") from error
    except ValueError as error:
        raise UserError(f"{path} is no Python text ({error}). Expected a system written in Python.") from error
    module = ModuleType(f"ctrlax_own_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and Equinox modules look their own module up
    folder = str(path.parent.resolve())
    sys.path.insert(0, folder)
    try:
        _ran(path, lambda: exec(code, vars(module)))
    finally:
        sys.path.remove(folder)
    return module


def _ran(path: Path, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{path}{line_of(error, str(path))}: {type(error).__name__}: {error}. "
            "Expected a file that runs from top to bottom; correct that line."
        ) from error


def _from_names(path: Path, defined: Mapping[str, Any], settings: Mapping[str, Any]) -> Environment:
    plain = [name for name in (*REQUIRED, *OPTIONAL) if not callable(defined.get(name))]
    wanted = dict(settings)
    if wanted.get("variant") == "paper":
        del wanted["variant"]
    for name in wanted:
        if name == "variant":
            raise UserError(
                f"{path} has one variant, 'paper'; {wanted[name]!r} came. Leave it out, or write a `make(variant)`."
            )
        if name not in plain:
            raise unknown_name(f"setting of {path}", name, plain)
    reader = Reader(str(path), {**defined, **wanted})
    return Environment(name=path.stem.replace("_", "-"), **reader.fields())
