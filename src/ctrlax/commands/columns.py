"""What `fit` and `predict` are told about a file: lists and pairs as people type them, and the data read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ctrlax.errors import UserError

if TYPE_CHECKING:
    from ctrlax.model.dataset import Dataset

DATA_FORMATS = (".csv", ".parquet", ".npz")


def listed(text: str | None) -> tuple[str, ...] | None:
    """``a,b,c`` -> names; None where nothing was said, none where an empty text was."""
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


def paired(option: str, text: str | None) -> dict[str, str] | None:
    """``omega:theta,v:x`` -> {"omega": "theta", "v": "x"}."""
    if text is None:
        return None
    pairs = [part.split(":") for part in listed(text) or ()]
    if wrong := [":".join(pair) for pair in pairs if len(pair) != 2 or not all(pair)]:
        raise UserError(f"{option} is a list of VELOCITY:POSITION such as omega:theta,v:x; {wrong[0]!r} came.")
    return {velocity.strip(): position.strip() for velocity, position in pairs}


def numbers_of(option: str, text: str) -> tuple[float, ...]:
    """``0.5,1,2`` -> increasing positive numbers."""
    try:
        numbers = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 < number < float("inf") for number in numbers):
        raise UserError(f"{option} is a list of positive numbers such as 0.5,1,2; {text!r} came.")
    return numbers


def read_file(
    path: Path,
    *,
    time: str | None,
    episode: str | None,
    obs: str | None,
    act: str | None,
    angles: str | None,
    rates: str | None,
    hold: Literal["gp", "linear", "hold"] | None,
    on_nan: str,
    on_duplicate: str,
) -> Dataset:
    """The data of a file with its columns named as on the command line."""
    from ctrlax.model.dataset import read

    return read(
        path,
        time=time,
        episode=episode,
        obs=listed(obs),
        act=listed(act),
        angles=listed(angles),
        rates=paired("--rates", rates),
        hold=hold,
        on_nan=on_nan,
        on_duplicate=on_duplicate,
    )
