"""`ctrlax report`: a run's pictures and its page, drawn again."""

from __future__ import annotations

import dataclasses
import json as json_text
import os
from pathlib import Path
from typing import Annotated

import tyro

from ctrlax.commands.train import console_for
from ctrlax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Report:
    """Draw the pictures and the page of a run or of a folder of runs, report.html, from its records alone."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run, which may still go on, of a sweep, or of `ctrlax reproduce`."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print one JSON object last, for machines."""

    def run(self) -> None:
        if not self.run_folder.is_dir():
            raise UserError(f"{self.run_folder} is no folder. Name the folder of a run, as `ctrlax train` printed it.")
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # drawing needs no GPU, and a training run may have it

        from ctrlax.lab import pictures, report, sweep_report
        from ctrlax.lab.run import Run, load

        if sweep_report.is_folder_of_runs(self.run_folder):
            self._say([], sweep_report.write(self.run_folder))
            return
        run = load(self.run_folder)
        if not isinstance(run, Run):
            raise UserError(
                f"{self.run_folder} is a fit, not a run of `ctrlax train`: `ctrlax fit` has drawn what there is "
                f"to see, in {self.run_folder / pictures.FOLDER}."
            )
        self._say(pictures.draw_all(run), report.write(run))

    def _say(self, drawn: list[Path], page: Path) -> None:
        if self.json:
            print(json_text.dumps({"report": str(page), "pictures": [str(path) for path in drawn]}))
            return
        console = console_for(json=False)
        if drawn:
            console.print(f"  pictures       {len(drawn)} files in {drawn[0].parent}", markup=False)
        console.print(f"  report         {page}", markup=False)
