"""How pictures look and how they are kept: a PNG of the whole, an SVG of each panel for the report, and a list of both.

Figures are made as objects, never through pyplot: nothing is global, and a run drawn in a thread disturbs nobody. The
colours stay apart for colour-blind eyes; `page` exchanges them for lighter ones on a dark screen.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json
import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ctrlax.errors import UserError
from ctrlax.lab import checkpoint

LIST = "pictures.json"  # which pictures a folder holds, with their captions
PANEL = (4.4, 3.0)  # width and height of a panel in inches
COLORS = {
    "ink": "#2d323a",
    "faint": "#d5d8dd",
    "blue": "#0072b2",
    "orange": "#d55e00",
    "green": "#00845f",
    "purple": "#a3518a",
}
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],  # the widest first: where it is missing, others fit too
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLORS["faint"],
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "svg.fonttype": "none",
    **dict.fromkeys(
        ("axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "text.color", "xtick.color", "ytick.color"),
        COLORS["ink"],
    ),
}

Panel = Callable[[Any], None]  # draws on the matplotlib axes it is given


@dataclasses.dataclass(frozen=True)
class Picture:
    """Panels that are seen together."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    note: str = ""  # a line under the whole, of which there is then an SVG too

    def save(self, folder: Path) -> list[Path]:
        """One ``NAME-N.svg`` per panel for pages that flow, and ``NAME.png`` of all, two or three in a row."""
        paths = []
        for number, panel in enumerate(self.panels, start=1):
            paths.append(folder / f"{self.name}-{number}.svg")
            checkpoint.write_aside(paths[-1], [_drawn([panel], "svg", salt=paths[-1].stem)])
        for form in ("png", "svg") if self.note else ("png",):
            paths.append(folder / f"{self.name}.{form}")
            checkpoint.write_aside(paths[-1], [_drawn(self.panels, form, salt=self.name, note=self.note)])
        return paths


@dataclasses.dataclass(frozen=True)
class Film:
    """A moving picture; ``write`` makes the GIF at the path it is given."""

    name: str
    title: str
    caption: str
    write: Callable[[Path], None]

    def save(self, folder: Path) -> list[Path]:
        """``NAME.gif``."""
        path = folder / f"{self.name}.gif"
        self.write(path)
        return [path]


@dataclasses.dataclass(frozen=True)
class Shown:
    """A picture that was kept: what a page shows of it."""

    title: str
    caption: str
    files: tuple[Path, ...]  # SVG panels, or a GIF


def check_drawable() -> None:
    """Raise a `UserError` of one line where a library that draws is missing."""
    missing = [
        package for module, package in (("matplotlib", "matplotlib"), ("PIL", "Pillow"))
        if importlib.util.find_spec(module) is None
    ]  # fmt: skip
    if missing:
        raise UserError(f"Pictures need {' and '.join(missing)}: pip install {' '.join(missing)}.")


def keep(pictures: Sequence[Picture | Film], folder: Path) -> list[Path]:
    """Draw ``pictures`` into ``folder`` in place of those it held, and list them there."""
    folder.mkdir(parents=True, exist_ok=True)
    earlier = {path for shown in kept(folder) for path in shown.files} | set(folder.glob("*.png"))
    made, entries = [], []
    for picture in pictures:
        paths = picture.save(folder)
        made += paths
        names = [path.name for path in paths if path.suffix != ".png" and path.name != f"{picture.name}.svg"]
        entries.append({"title": picture.title, "caption": picture.caption, "files": names})
    checkpoint.write_aside(folder / LIST, [json.dumps(entries, indent=2).encode(), b"\n"])
    for stale in earlier - set(made):
        stale.unlink(missing_ok=True)
    return made


def kept(folder: Path) -> list[Shown]:
    """The pictures that `keep` put into ``folder`` and that are still there."""
    try:
        entries = json.loads((folder / LIST).read_text())
    except (FileNotFoundError, ValueError):
        return []
    shown = [Shown(e["title"], e["caption"], tuple(folder / name for name in e["files"])) for e in entries]
    return [each for each in shown if all(path.exists() for path in each.files)]


def _drawn(panels: Sequence[Panel], form: str, *, salt: str, note: str = "") -> bytes:
    import matplotlib
    from matplotlib.figure import Figure

    columns = 3 if note and len(panels) % 3 == 0 else min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    # The salt makes the ids of an SVG a function of its content: the same records give the same bytes.
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": salt}):
        figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows), layout="constrained")
        for place, panel in enumerate(panels, start=1):
            panel(figure.add_subplot(rows, columns, place))
        if note:
            lines = textwrap.wrap(note, 62 * columns)
            figure.supxlabel("\n".join(lines), fontsize=7.5, x=0.01, ha="left")
        content = io.BytesIO()
        if form == "svg":
            figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
        else:
            figure.savefig(content, format=form, dpi=110)
    return content.getvalue()
