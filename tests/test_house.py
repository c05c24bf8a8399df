"""The rules of the house: each is a function from a source file to complaints, and each is shown able to complain."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

import ctrlax

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "ctrlax"
ROOMS = ("ode", "world", "model", "agent", "lab")
BASE = ("errors", "names", "machine", "config")  # what every room may know
IMPORTED_WHERE_USED = ("ray", "gymnasium", "pyarrow", "matplotlib", "PIL")
FILES_OPENED_IN = ("cli.py", "model/dataset.py", "world/load.py", "world/render.py", "lab/")
OPENING_METHODS = {
    *("open", "read_text", "write_text", "read_bytes", "write_bytes", "savefig", "imsave"),
    *("savez", "savez_compressed", "savetxt", "loadtxt", "genfromtxt", "fromfile", "tofile", "memmap"),
    *("tree_serialise_leaves", "tree_deserialise_leaves"),
}
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source(NamedTuple):
    path: str  # inside src/ctrlax, as "world/gym.py"
    tree: ast.Module

    def within(self, *places: str) -> bool:
        return any(self.path == place or (place.endswith("/") and self.path.startswith(place)) for place in places)

    @property
    def room(self) -> str | None:
        first = PurePosixPath(self.path).parts[0]
        return first if first in ROOMS else None


def imports(source: Source, under: ast.AST | None = None) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything imported, relative imports resolved."""
    package = ["ctrlax", *PurePosixPath(source.path).parts[:-1]]
    for node in ast.walk(under or source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)


def run_when_imported(tree: ast.Module) -> Iterator[ast.stmt]:
    """The simple statements outside functions."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, Function) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            continue
        inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.excepthandler)]
        if isinstance(node, ast.stmt) and not inner:
            yield node
        waiting += inner


def no_room_imports_a_later_one(source: Source) -> Iterator[str]:
    here = ROOMS.index(source.room) if source.room else None
    for line, name in imports(source):
        parts = name.split(".")
        if parts[0] != "ctrlax":
            continue
        if len(parts) > 1 and parts[1] in ctrlax._PUBLIC:
            parts = ctrlax._PUBLIC[parts[1]].split(".")
        target = parts[1] if len(parts) > 1 else "ctrlax"
        if here is not None and target not in BASE and target not in ROOMS[: here + 1]:
            yield f"{line}: {source.room} imports {name}"
        if source.path.removesuffix(".py") in BASE and target not in BASE:
            yield f"{line}: {source.path} imports {name}"


def diffrax_only_in_ode(source: Source) -> Iterator[str]:
    yield from only_in(source, "diffrax", "ode/")


def matplotlib_only_in_lab(source: Source) -> Iterator[str]:
    yield from only_in(source, "matplotlib", "lab/")


def pillow_only_where_pictures_are_made(source: Source) -> Iterator[str]:
    yield from only_in(source, "PIL", "world/render.py", "lab/")


def only_in(source: Source, library: str, *places: str) -> Iterator[str]:
    if not source.within(*places):
        yield from (f"{line}: imports {name}" for line, name in imports(source) if name.split(".")[0] == library)


def files_are_opened_at_the_edges(source: Source) -> Iterator[str]:
    if source.within(*FILES_OPENED_IN):
        return
    opened = {id(call) for function in ast.walk(source.tree) for call in calls_on_open_files(function)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and id(node) not in opened and opens_a_file(node.func):
            yield f"{node.lineno}: {ast.unparse(node)}"


def opens_a_file(called: ast.expr) -> bool:
    if isinstance(called, ast.Name):
        return called.id == "open"
    if not isinstance(called, ast.Attribute):
        return False
    numpy = isinstance(called.value, ast.Name) and called.value.id in ("np", "numpy", "jnp")
    return called.attr in OPENING_METHODS or (numpy and called.attr in ("save", "load"))


def calls_on_open_files(function: ast.AST) -> Iterator[ast.Call]:
    """Calls whose first argument is a parameter annotated as an open file: somebody else opened it."""
    if isinstance(function, Function):
        arguments = [*function.args.args, *function.args.kwonlyargs]
        files = {
            a.arg
            for a in arguments
            if a.annotation and re.search(r"\b(BinaryIO|TextIO|IO)\b", ast.unparse(a.annotation))
        }
        for call in ast.walk(function):
            if (
                isinstance(call, ast.Call)
                and call.args
                and isinstance(call.args[0], ast.Name)
                and call.args[0].id in files
            ):
                yield call


def large_libraries_are_imported_where_used(source: Source) -> Iterator[str]:
    allowed = ("gymnasium",) if source.path == "world/gym.py" else ()  # its classes inherit from Gymnasium's
    for statement in run_when_imported(source.tree):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for line, name in imports(source, statement):
                if name.split(".")[0] in IMPORTED_WHERE_USED and name.split(".")[0] not in allowed:
                    yield f"{line}: imports {name} at module level"


def modules_have_names_that_say_something(source: Source) -> Iterator[str]:
    for part in PurePosixPath(source.path).with_suffix("").parts:
        if part.strip("_") in FORBIDDEN_NAMES:
            yield f"1: a module named {part}"


def keys_are_keyword_only_and_never_defaulted(source: Source) -> Iterator[str]:
    for owner in [source.tree, *(node for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef))]:
        for function in (node for node in owner.body if isinstance(node, Function)):
            public = not function.name.startswith("_") or function.name.startswith("__")
            positional = [
                a.arg for a in [*function.args.posonlyargs, *function.args.args] if a.arg not in ("self", "cls")
            ]
            if (
                public and "key" in positional and positional != ["key"]
            ):  # alone, it cannot be taken for another argument
                yield f"{function.lineno}: {function.name} takes its key by position"
    for function in (node for node in ast.walk(source.tree) if isinstance(node, Function)):
        arguments = function.args
        ordinary = [*arguments.posonlyargs, *arguments.args]
        given = ordinary[len(ordinary) - len(arguments.defaults) :] if arguments.defaults else []
        given += [a for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default]
        if any(argument.arg == "key" for argument in given):
            yield f"{function.lineno}: {function.name} has a default for its key"


def importing_changes_no_flag_of_jax(source: Source) -> Iterator[str]:
    for statement in run_when_imported(source.tree):
        if re.search(r"\bconfig\.update\(|\bjax\.config\.\w+ = ", ast.unparse(statement)):
            yield f"{statement.lineno}: {ast.unparse(statement)}"
        if source.path != "cli.py" and re.search(
            r"\bos\.environ\[.*\] = |\bos\.environ\.\w+\(", ast.unparse(statement)
        ):
            # The command line alone does: it sets EQX_ON_ERROR before Equinox is imported.
            yield f"{statement.lineno}: {ast.unparse(statement)}"


Rule = Callable[[Source], Iterator[str]]

# Each rule with files that break it: (rule, path, text).
BROKEN: list[tuple[Rule, str, str]] = [
    (no_room_imports_a_later_one, "ode/solve.py", "from ctrlax.world import environment"),
    (no_room_imports_a_later_one, "world/load.py", "from ..agent.policy import Policy"),
    (no_room_imports_a_later_one, "ode/solve.py", "from ctrlax import simulate"),
    (no_room_imports_a_later_one, "model/fit.py", "def late():\n    import ctrlax.lab.learn"),
    (no_room_imports_a_later_one, "lab/learn.py", "import ctrlax.cli"),
    (no_room_imports_a_later_one, "errors.py", "import ctrlax.ode.solve"),
    (diffrax_only_in_ode, "world/collect.py", "def late():\n    from diffrax import diffeqsolve"),
    (matplotlib_only_in_lab, "world/render.py", "def late():\n    import matplotlib.pyplot"),
    (pillow_only_where_pictures_are_made, "world/environment.py", "def late():\n    from PIL import Image"),
    (files_are_opened_at_the_edges, "ode/solve.py", "open('notes')"),
    (files_are_opened_at_the_edges, "agent/policy.py", "from pathlib import Path\nPath('notes').read_text()"),
    (files_are_opened_at_the_edges, "model/fit.py", "import numpy as np\nnp.save('notes', 1)"),
    (large_libraries_are_imported_where_used, "lab/report.py", "import matplotlib.pyplot as plt"),
    (large_libraries_are_imported_where_used, "world/gym.py", "if True:\n    from PIL import Image"),
    (large_libraries_are_imported_where_used, "world/collect.py", "import gymnasium"),
    (
        large_libraries_are_imported_where_used,
        "lab/backends/ray.py",
        "try:\n    import ray\nexcept ImportError:\n    ray = 0",
    ),
    (modules_have_names_that_say_something, "model/utils.py", ""),
    (modules_have_names_that_say_something, "common/things.py", ""),
    (keys_are_keyword_only_and_never_defaulted, "ode/control.py", "def draw(count, key): ..."),
    (keys_are_keyword_only_and_never_defaulted, "ode/control.py", "class A:\n    def draw(self, count, key): ..."),
    (keys_are_keyword_only_and_never_defaulted, "ode/control.py", "def draw(*, key=None): ..."),
    (keys_are_keyword_only_and_never_defaulted, "ode/control.py", "def _draw(count, key=0): ..."),
    (importing_changes_no_flag_of_jax, "ode/solve.py", "import jax\njax.config.update('jax_enable_x64', True)"),
    (importing_changes_no_flag_of_jax, "ode/solve.py", "import jax\njax.config.jax_enable_x64 = True"),
    (importing_changes_no_flag_of_jax, "ode/solve.py", "import os\nos.environ['JAX_PLATFORMS'] = 'cpu'"),
]
RULES = list(dict.fromkeys(rule for rule, _, _ in BROKEN))


def package_sources() -> list[Source]:
    files = sorted(PACKAGE.rglob("*.py"))
    return [Source(file.relative_to(PACKAGE).as_posix(), ast.parse(file.read_text(), str(file))) for file in files]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Rule):
    complaints = [f"src/ctrlax/{source.path}:{said}" for source in package_sources() for said in rule(source)]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(("rule", "path", "text"), BROKEN, ids=[f"{rule.__name__}-{path}" for rule, path, _ in BROKEN])
def test_the_rule_can_complain(rule: Rule, path: str, text: str):
    assert list(rule(Source(path, ast.parse(text))))
