"""The command `ctrlax`: which commands there are, and how each ends. No maths.

To add a command, write a dataclass with a `run` in `ctrlax/commands` and add its line to `COMMANDS`. A user's mistake
is a `UserError` and ends with exit code 2 and one message; ours ends with 1, Ctrl-C with 130.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import tyro

from ctrlax import __version__
from ctrlax.commands.eval import Eval
from ctrlax.commands.fit import Fit
from ctrlax.commands.list import List
from ctrlax.commands.predict import Predict
from ctrlax.commands.report import Report
from ctrlax.commands.reproduce import Reproduce
from ctrlax.commands.resume import Resume
from ctrlax.commands.simulate import Simulate
from ctrlax.commands.sweep import Sweep
from ctrlax.commands.train import Train
from ctrlax.errors import UserError
from ctrlax.machine import usable_cores
from ctrlax.names import unknown_name


class Command(Protocol):
    """What a command is once its options are parsed."""

    def run(self) -> None:
        """Do it; raise `UserError` for the user's mistakes, before any work."""


COMMANDS: dict[str, type[Command]] = {
    "list": List,
    "simulate": Simulate,
    "fit": Fit,
    "predict": Predict,
    "train": Train,
    "resume": Resume,
    "eval": Eval,
    "sweep": Sweep,
    "reproduce": Reproduce,
    "report": Report,
}

USERS_MISTAKE, OUR_MISTAKE, INTERRUPTED = 2, 1, 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit."""
    prepare_jax()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _show_note
            if arguments == ["--version"]:
                print(f"ctrlax {__version__}")
                return
            _check_name(arguments)
            command = tyro.extras.subcommand_cli_from_dict(
                COMMANDS,
                prog="ctrlax",
                description="Continuous-time model-based reinforcement learning in JAX.",
                args=arguments,
            )
            command.run()
            sys.stdout.flush()
    except UserError as error:
        _end(USERS_MISTAKE, f"error: {error}", error)
    except KeyboardInterrupt as error:
        _end(INTERRUPTED, "interrupted", error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read our output has seen enough
    except Exception as error:
        said = str(error).split("\n", 1)[0]
        _end(
            OUR_MISTAKE,
            f"error: {type(error).__name__}: {said}\nThis is a mistake in ctrlax, not in what you asked. "
            "With CTRLAX_DEBUG=1 in front of the command it shows where; please report that.",
            error,
        )


def _check_name(arguments: Sequence[str]) -> None:
    if not arguments:
        raise UserError(f"Say what to do: {', '.join(COMMANDS)}. `ctrlax --help` explains them.")
    if not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        raise unknown_name("command", arguments[0], COMMANDS, " `ctrlax --help` explains them.")


def prepare_jax() -> None:
    """Settings that count only before JAX and Equinox are imported: all cores; what is compiled is kept for later.

    Equinox's run-time errors are callbacks, with which nothing can be kept; as NaN the health checks catch them.
    """
    os.environ.setdefault("EQX_ON_ERROR", "nan")
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(usable_cores()))  # see ode/cores.py
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ctrlax" / "jax"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a home that cannot be written costs time, nothing else
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


def _end(code: int, message: str, error: BaseException) -> None:
    if os.environ.get("CTRLAX_DEBUG", "") not in ("", "0"):
        raise error
    print(message, file=sys.stderr)
    sys.exit(code)


def _show_note(message: Warning | str, *_: object, **__: object) -> None:
    print(f"note: {message}", file=sys.stderr)


if __name__ == "__main__":
    main()
