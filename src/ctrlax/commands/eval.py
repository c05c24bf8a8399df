"""`ctrlax eval`: a run's best policy in the true world."""

from __future__ import annotations

import dataclasses
import json as json_text
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from ctrlax.commands.paths import check_writable
from ctrlax.commands.train import console_for
from ctrlax.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

    from ctrlax.lab.evaluate import Evaluation
    from ctrlax.lab.run import Run


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
    planner: Literal["cem"] | None = None
    """Decide with a planner on the run's newest model in place of its policy."""
    plan_horizon: float = 2.0
    """Seconds the planner looks ahead."""
    plan_interval: float = 0.1
    """Seconds for which a decision is held, a multiple of 0.05."""
    plan_population: int = 100
    """Action sequences proposed in an iteration."""
    plan_elites: int = 10
    """The best of them, which the next ones are drawn around."""
    plan_iterations: int = 3
    """Iterations for a decision."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print one JSON object last, for machines."""

    def run(self) -> None:
        self._check()
        if self.planner is None:  # the true world is solved on the host: no need to wake a GPU
            os.environ.setdefault("JAX_PLATFORMS", "cpu")

        import jax

        from ctrlax.lab.run import Run

        run = Run(self.run_folder)
        evaluation, speed = self._evaluated(run, jax.random.key(self.seed))
        picture = self._picture_path()
        if picture is not None:
            from ctrlax.world.render import write_gif

            seen = evaluation.trajectory
            write_gif(run.environment, seen.times[0], seen.states[0], seen.actions[0], picture)
        answer = {"reward": evaluation.reward, "solved": evaluation.solved, "trials": self.trials}
        if self.json:
            if speed is not None:
                print(f"{speed:.3g} decisions per second", file=sys.stderr)
            print(json_text.dumps(answer))
            return
        console = console_for(json=False)
        verdict = "[bold green]solved[/]" if evaluation.solved else "[bold yellow]not solved[/]"
        console.print(f"{verdict}: the goal is held in {evaluation.held.sum()} of {self.trials} trials")
        console.print(f"  reward rate    {evaluation.reward:.4g} over {self.seconds:g} s")
        what = "policy " if speed is None else "planner"
        console.print(f"  {what}        seed {run.best_seed if self.of_seed is None else self.of_seed}")
        if speed is not None:
            console.print(f"  speed          {speed:.3g} decisions per second")
        if picture is not None:
            console.print(f"  picture        {picture}", markup=False)
        else:
            console.print(f"  next           [bold]ctrlax eval {self.run_folder} --gif[/]")

    def _evaluated(self, run: Run, key: PRNGKeyArray) -> tuple[Evaluation, float | None]:
        """The trials and, of a planner, its decisions per second."""
        if self.planner is None:
            return run.evaluate(self.trials, self.seconds, key=key, seed=self.of_seed), None
        from ctrlax.agent.plan import Cem
        from ctrlax.lab.planned import evaluate_planner, planner_of

        settings = Cem(
            horizon=self.plan_horizon,
            interval=self.plan_interval,
            population=self.plan_population,
            elites=self.plan_elites,
            iterations=self.plan_iterations,
            discount_time=run.config.agent.discount_time,
        )
        planner = planner_of(run, settings, seed=self.of_seed)
        planned = evaluate_planner(run.environment, planner, trials=self.trials, seconds=self.seconds, key=key)
        return planned.evaluation, planned.per_second

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
