"""Where a command writes: checked before any work, so that no result is lost at the end."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from ctrlax.errors import UserError
from ctrlax.names import did_you_mean


def check_writable(option: str, path: Path, suffixes: tuple[str, ...]) -> None:
    """`path` ends in a known suffix and can be written; its folder is made if it is missing."""
    if path.suffix.lower() not in suffixes:
        known = " or ".join([", ".join(suffixes[:-1]), suffixes[-1]] if len(suffixes) > 1 else suffixes)
        hint = did_you_mean(path.suffix, suffixes)
        raise UserError(
            f"{option} {path}: the ending says the format, expected {known}, got {path.suffix or 'none'}.{hint}"
        )
    if path.suffix.lower() == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise UserError(f"{option} {path}: Parquet needs PyArrow: pip install 'ctrlax[parquet]', or write a .csv file.")
    if path.is_dir():
        raise UserError(f"{option} {path} is a folder, expected a file. Name one inside it.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{option} {path}: its folder cannot be made ({error.strerror}). Choose another place."
        ) from error
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{option} {path}: no permission to write there. Choose another place.")
