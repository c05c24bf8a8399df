"""Tells Gymnasium of our worlds without importing it: at once where it is loaded, else the moment it is.

Gymnasium from 1.0 on looks at no entry points, so ``gymnasium.make("ctrlax/CartPole-v0")`` works only if importing
ctrlax registers the ids, in whichever order the two are imported.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Watch(MetaPathFinder):
    """Stands in the way of `import gymnasium` once, lets it through and registers afterwards."""

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            _register()

        spec.loader.exec_module = execute_and_register
        return spec


def _register() -> None:
    from ctrlax.world.gym_ids import register

    register()


def register_now_or_on_import() -> None:
    """Called once, by ``ctrlax/__init__.py``."""
    if "gymnasium" in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _Watch())
