"""`ctrlax eval`: a run's best policy in the true world."""

from __future__ import annotations

import dataclasses
import json as json_text
import os
from pathlib import Path
from typing import Annotated

import tyro

from ctrlax.commands.paths import check_writable
from ctrlax.commands.train import console_for
from ctrlax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Eval:
    """Try a run's best policy in the true world, from fresh starts."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder."""
    trials: int = 10
    """How many, each from a start of its own."""
    seconds: float = 30.0
    """How long each is, a multiple of 0.05."""
    seed: int = 0
    """Draws the starts."""
    of_seed: int | None = None
    """Whose policy, of the run's seeds; the best one's if left out."""
    gif: Annotated[tuple[Path, ...] | None, tyro.conf.arg(metavar="[PATH]")] = None
    """Write the first trial as a moving picture, here or as RUN/eval.gif."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print one JSON object last, for machines."""

    def run(self) -> None:
        self._check()
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the true world is solved on the host: no need to wake a GPU

        import jax

        from ctrlax.lab.run import Run

        run = Run(self.run_folder)
        evaluation = run.evaluate(self.trials, self.seconds, key=jax.random.key(self.seed), seed=self.of_seed)
        picture = self._picture_path()
        if picture is not None:
            from ctrlax.world.render import write_gif

            seen = evaluation.trajectory
            write_gif(run.environment, seen.times[0], seen.states[0], seen.actions[0], picture)
        answer = {"reward": evaluation.reward, "solved": evaluation.solved, "trials": self.trials}
        if self.json:
            print(json_text.dumps(answer))
            return
        console = console_for(json=False)
        verdict = "[bold green]solved[/]" if evaluation.solved else "[bold yellow]not solved[/]"
        console.print(f"{verdict}: the goal is held in {evaluation.held.sum()} of {self.trials} trials")
        console.print(f"  reward rate    {evaluation.reward:.4g} over {self.seconds:g} s")
        console.print(f"  policy         seed {run.best_seed if self.of_seed is None else self.of_seed}")
        if picture is not None:
            console.print(f"  picture        {picture}", markup=False)
        else:
            console.print(f"  next           [bold]ctrlax eval {self.run_folder} --gif[/]")

    def _check(self) -> None:
        if self.trials < 1:
            raise UserError(f"--trials is {self.trials}, expected 1 or more.")
        if not self.seconds > 0:
            raise UserError(f"--seconds is {self.seconds}, expected more than zero.")
        if self.seed < 0:
            raise UserError(f"--seed is {self.seed}, expected zero or more.")
        path = self._picture_path()
        if path is not None and self.run_folder.is_dir():
            check_writable("--gif", path, (".gif",))

    def _picture_path(self) -> Path | None:
        if self.gif is None:
            return None
        if len(self.gif) > 1:
            raise UserError(f"--gif takes one path, {len(self.gif)} came: {' '.join(map(str, self.gif))}.")
        return self.gif[0] if self.gif else self.run_folder / "eval.gif"
