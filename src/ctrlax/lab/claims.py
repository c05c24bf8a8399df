"""The text's sixteen claims, and verdicts on them: computed from tables with a bootstrap interval, never typed in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

Verdict = Literal["holds", "does not", "depends"]
HOLDS: Verdict = "holds"
DOES_NOT: Verdict = "does not"
DEPENDS: Verdict = "depends"
LEVEL = 0.95
RESAMPLES = 4000
LARGE = 1e12  # what an infinite value counts as: larger than any measure, and a number

# SPEC 3, in our words; the number is the claim's.
CLAIMS = {
    1: "Discrete transitions s + h f are highly erroneous on CartPole; adaptive and fine fixed-step solvers are not.",
    2: "Crude Euler and RK4 leave the true CartPole path near the position where the pole hangs up.",
    3: "Vanilla PETS cannot fit steps that are uniform over (0, 0.2] s; modified PETS can; on fixed steps they match.",
    4: "ENODE, BENODE, IBNODE and PETS reach comparable reward at steps of 0.1 s; Deep PILCO needs more rounds.",
    5: "NODE models are accurate before the policy converges; accuracy alone does not predict the reward.",
    6: "The errors of PETS two seconds ahead explode in early rounds.",
    7: "ENODE is fairly insensitive to the number of its members, from 1 to 15.",
    8: "A horizon too short or too long hurts, within 1 to 4 s; 2 s is good.",
    9: "With noise 0.025, MPETS breaks down at small mean steps and ENODE does not.",
    10: "Random steps leave both ENODE and MPETS roughly unaffected.",
    11: "ENODE and MPETS both solve sooner without noise.",
    12: "Critics with ReLU explode outside the data, with tanh not; dynamics with ELU extrapolate better.",
    13: "Errors at horizons below 2 s are much lower, and still do not predict the reward.",
    14: "Solver errors grow with integration time, for solving and for sub-optimal policies.",
    15: "Discrete-time models see finitely many states of a path; ten ENODE samples agree where data is.",
    16: "Marginalising the horizon lowers the variance of the gradient against a fixed one.",
}


@dataclasses.dataclass(frozen=True)
class Claim:
    """One claim, or a part of it, with what the table says."""

    number: int
    verdict: Verdict
    measure: str  # which number decides, and where it must lie
    value: float | None
    interval: tuple[float, float] | None  # bootstrap, `LEVEL`; None of fewer than two values
    count: int  # values resampled
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For a record."""
        return {"claim": CLAIMS[self.number], **dataclasses.asdict(self)}


def interval(
    values: Sequence[float] | Float[np.ndarray, " value"], statistic: Callable[..., Any] = np.mean
) -> tuple[float, float] | None:
    """The percentile bootstrap interval of a statistic over independent values (seeds, starts, draws)."""
    values = np.asarray(values, np.float64)
    if len(values) < 2:
        return None
    drawn = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    found = statistic(values[drawn], axis=1)
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def judge(
    number: int,
    measure: str,
    values: Sequence[float] | Float[np.ndarray, " value"],
    *,
    above: float | None = None,
    below: float | None = None,
    statistic: Callable[..., Any] = np.mean,
    note: str = "",
) -> Claim:
    """Holds where the whole interval lies ``above`` or ``below`` the bound, does not where none of it; else depends.

    Missing values (NaN) are left out; an infinite error is an error and counts as `LARGE`.
    """
    values = np.asarray(values, np.float64)
    values = np.clip(values[~np.isnan(values)], -LARGE, LARGE)
    if len(values) == 0:
        return Claim(number, DEPENDS, measure, None, None, 0, note or "no values")
    middle, found = float(statistic(values, axis=0)), interval(values, statistic)
    if found is None:
        return Claim(number, DEPENDS, measure, middle, None, len(values), _also(note, "one value has no interval"))
    bound, sign = (above, 1.0) if above is not None else (below, -1.0)
    assert bound is not None
    sides = sorted(sign * (each - bound) for each in found)
    verdict = HOLDS if sides[0] > 0 else DOES_NOT if sides[1] < 0 else DEPENDS
    return Claim(number, verdict, measure, middle, found, len(values), note)


def unanswered(number: int, why: str) -> Claim:
    """A claim that a table cannot answer, and why."""
    return Claim(number, DEPENDS, "not measured", None, None, 0, why)


def together(parts: Sequence[Claim]) -> Verdict:
    """Of a claim in parts: all hold, none does, or it depends."""
    first = parts[0].verdict if parts else DEPENDS
    return first if all(part.verdict == first for part in parts) else DEPENDS


def _also(note: str, more: str) -> str:
    return f"{note}; {more}" if note else more
