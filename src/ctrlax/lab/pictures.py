"""Every picture of a run, drawn from its records: rows of metrics and the last checkpoint."""

from __future__ import annotations

from pathlib import Path

from ctrlax.lab import curves, worlds
from ctrlax.lab.gallery import Film, Picture, check_drawable, keep
from ctrlax.lab.run import Run

FOLDER = "pictures"


def draw_all(run: Run) -> list[Path]:
    """Draw every picture of ``run`` into ``RUN/pictures``, in place of those there; `UserError` if no library draws."""
    check_drawable()
    one = worlds.typical(run)
    made: list[Picture | Film | None] = [
        curves.learning(run.rows("round")),
        worlds.film(one),
        worlds.imagined(one),
        worlds.landscape(one),
        curves.losses(run.rows("fit"), run.rows("improve")),
    ]
    return keep([picture for picture in made if picture is not None], Path(run.folder) / FOLDER)
