"""What the project promises as a whole: a lock without addresses, a quick import, public names that exist."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ctrlax

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "ctrlax"

PRIVATE_PLACES = re.compile(
    r"file://|/home/\w|/root/\w|/work/\w|/opt/\w|/Users/\w|/tmp/\w|pypi\.org/simple|--(extra-)?index-url|--find-links"
)


def names_a_private_place(text: str) -> bool:
    return PRIVATE_PLACES.search(text) is not None


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_index_addresses_and_no_paths_of_one_machine():
    found = []
    for file in tracked_files():
        content = file.read_bytes()
        if b"\0" in content or file == Path(__file__):
            continue
        lines = enumerate(content.decode().splitlines(), start=1)
        found += [f"{file.relative_to(ROOT)}:{number}: {line}" for number, line in lines if names_a_private_place(line)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text", ["file:///x", "see /home/me/x", "a = '/work/x'", "--index-url x", "https://pypi.org/simple"]
)
def test_a_private_place_is_seen(text: str):
    assert names_a_private_place(text)


def test_the_lock_is_names_and_numbers_only():
    assert not [file for file in tracked_files() if file.name == "uv.lock"]
    assert lock_complaints((ROOT / "requirements.lock").read_text()) == []
    assert lock_complaints("jax==0.10.2 --hash=sha256:00\n") != []
    assert lock_complaints("jax @ file:///x\n") != []
    assert lock_complaints("jax>=0.10\n") != []


def lock_complaints(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line)]


@pytest.mark.extras
def test_the_lock_has_everything_that_is_installed():
    pytest.importorskip("stable_baselines3", reason="the large extras are not installed: make test-all")
    locked = {
        normal(line.split("==")[0]) for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line
    }
    # In a process of its own: Ray puts copies of packages on the path of whoever imports it.
    program = "from importlib import metadata; print(*(part.metadata['Name'] for part in metadata.distributions()))"
    installed = {normal(name) for name in run_python(program).split()} - {"ctrlax", "pip", "setuptools"}
    ours = {
        name for name in installed if not name.startswith(("nvidia-", "triton", "cuda-"))
    }  # PyTorch's own, by platform
    assert not ours - locked


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def run_python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_nothing_heavy():
    heavy = ("jax", "numpy", "diffrax", "equinox", "optax", "ray", "gymnasium", "pyarrow", "matplotlib", "PIL")
    loaded = run_python(f"import ctrlax, sys; print(*[name for name in {heavy} if name in sys.modules])").split()
    assert loaded == []


def test_import_costs_little_beyond_its_libraries():
    seconds = float(
        run_python(
            "import time, jax, diffrax, equinox\nbegan = time.perf_counter()\n"
            "import ctrlax\nctrlax.make, ctrlax.simulate\nprint(time.perf_counter() - began)"
        )
    )
    assert seconds < 0.3


def test_no_module_changes_a_flag_of_jax_when_imported():
    """Every module but the command line's, which owns its process."""
    files = [file.relative_to(PACKAGE.parent) for file in PACKAGE.rglob("*.py") if file.stem not in ("cli", "__main__")]
    modules = sorted(".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files)
    changed = run_python(
        "import importlib, jax, diffrax, equinox, optax, gymnasium\nbefore = dict(jax.config.values)\n"
        f"for module in {modules}:\n    importlib.import_module(module)\n"
        "print([name for name, value in jax.config.values.items() if before.get(name, value) != value])"
    )
    assert changed.strip() == "[]"


def test_public_names_exist_and_unknown_ones_say_so():
    for name in ctrlax._PUBLIC:
        assert getattr(ctrlax, name) is not None
        assert name in dir(ctrlax)
    with pytest.raises(AttributeError, match="simulate"):
        ctrlax.nothing_of_this_name  # pyright: ignore[reportAttributeAccessIssue]


def test_type_checkers_see_the_names_that_exist():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {a.asname: node.module for node in guarded.body if isinstance(node, ast.ImportFrom) for a in node.names}
    assert seen == ctrlax._PUBLIC


@pytest.mark.parametrize("order", ["import ctrlax, gymnasium", "import gymnasium, ctrlax"])
def test_gymnasium_knows_our_worlds_in_either_order_of_import(order: str):
    assert "ctrlax/CartPole-v0" in run_python(f"{order}\nprint(*gymnasium.registry)")
