"""One self-contained HTML page from sections of data: no script, nothing fetched, readable light, dark, on paper.

A part of a page is anything with an ``html()``; `page` puts sections of parts together. Pictures are inlined: an SVG as
it is, with the gallery's colours exchanged for the page's, so that it follows a dark screen, anything else as data.
"""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Protocol, runtime_checkable

from ctrlax.lab.gallery import COLORS, Shown

ON_DARK = {
    "ink": "#d9dde3",
    "faint": "#3b424c",
    "blue": "#5ab4f0",
    "orange": "#ff9a4d",
    "green": "#34c796",
    "purple": "#e08fc8",
}
TYPES = {".gif": "image/gif", ".png": "image/png"}


@runtime_checkable
class Part(Protocol):
    """Anything that stands in a section."""

    def html(self) -> str:
        """Its HTML, with everything that came from outside escaped."""
        ...


@dataclasses.dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str

    def html(self) -> str:
        return f"<p>{escape(self.text)}</p>"


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Numbers to see first: label, value, and a note under it."""

    tiles: Sequence[tuple[str, str, str]]

    def html(self) -> str:
        cells = (
            f"<div><dt>{escape(label)}</dt><dd><b>{escape(value)}</b><span>{escape(note)}</span></dd></div>"
            for label, value, note in self.tiles
        )
        return f'<dl class="tiles">{"".join(cells)}</dl>'


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows under a header; cells that are numbers stand right, and None is a dash."""

    header: Sequence[str]
    rows: Sequence[Sequence[object]]

    def html(self) -> str:
        right = [
            any(_is_number(row[place]) for row in self.rows) and all(_is_number(row[place], True) for row in self.rows)
            for place in range(len(self.header))
        ]
        kinds = [' class="number"' if each else "" for each in right]
        head = "".join(
            f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(self.header, kinds, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(f"<td{kind}>{escape(shown(cell))}</td>" for cell, kind in zip(row, kinds, strict=True))
            + "</tr>"
            for row in self.rows
        )
        return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


@dataclasses.dataclass(frozen=True)
class Commands:
    """Commands to copy, each with what it does."""

    commands: Sequence[tuple[str, str]]

    def html(self) -> str:
        return "".join(f"<p>{escape(does)}</p><pre><code>{escape(line)}</code></pre>" for does, line in self.commands)


@dataclasses.dataclass(frozen=True)
class Details:
    """Parts that are folded away until asked for."""

    summary: str
    parts: Sequence[Part]

    def html(self) -> str:
        inner = "".join(part.html() for part in self.parts)
        return f"<details><summary>{escape(self.summary)}</summary>{inner}</details>"


@dataclasses.dataclass(frozen=True)
class Figure:
    """A kept picture with its title and caption."""

    shown: Shown

    def html(self) -> str:
        images = "".join(_inlined(path, self.shown.title) for path in self.shown.files)
        title, caption = escape(self.shown.title), escape(self.shown.caption)
        return f'<figure><h3>{title}</h3><figcaption>{caption}</figcaption><div class="panels">{images}</div></figure>'


@dataclasses.dataclass(frozen=True)
class Section:
    """A titled part of a page."""

    title: str
    parts: Sequence[Part]

    def html(self) -> str:
        return f"<section><h2>{escape(self.title)}</h2>{''.join(part.html() for part in self.parts)}</section>"


def page(title: str, lead: str, parts: Sequence[Part]) -> str:
    """The whole page."""
    # The policy is a promise that a browser keeps: nothing is fetched, nothing is run.
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{_style()}</style></head><body><main>"
        f'<header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p></header>'
        + "\n".join(part.html() for part in parts)
        + "</main></body></html>\n"
    )


def shown(value: object) -> str:
    """A value as a reader wants it: thousands apart, four digits of a fraction, yes and no."""
    if value is None or (isinstance(value, float) and value != value):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(shown(each) for each in value) or "none"
    return str(value)


def _is_number(value: object, or_nothing: bool = False) -> bool:
    return (isinstance(value, (int, float)) and not isinstance(value, bool)) or (or_nothing and value is None)


def _inlined(path: Path, title: str) -> str:
    if path.suffix == ".svg":
        return _svg(path.read_text(), path.stem, title)
    content = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{escape(title)}" src="data:{TYPES[path.suffix]};base64,{content}">'


def _svg(text: str, name: str, title: str) -> str:
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # One page holds many: their ids would meet.
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    for color, code in COLORS.items():
        text = re.sub(code, f"var(--{color})", text, flags=re.IGNORECASE)
    size = re.search(r'width="([\d.]+)pt"', text)
    width = f"{float(size.group(1)) * 4 / 3:.0f}px" if size else "100%"
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    label = re.search(r"<text[^>]*bold[^>]*>([^<]*)</text>", text)
    spoken = escape(f"{title}: {label.group(1)}" if label else title)
    return text.replace("<svg", f'<svg role="img" aria-label="{spoken}" style="width:{width}"', 1)


def _style() -> str:
    light = "".join(f"--{name}:{code};" for name, code in COLORS.items())
    dark = "".join(f"--{name}:{code};" for name, code in ON_DARK.items())
    return (
        f":root{{{light}--ground:#fff;--raised:#f4f5f7}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}--ground:#15181d;--raised:#1f242b}}}}"
        + STYLE_SHEET
    )


STYLE_SHEET = """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:960px;margin:0 auto;padding:24px 20px 64px}
h1{font-size:1.75rem;line-height:1.2;margin:.3em 0 .2em}
h2{font-size:1.25rem;margin:2.2em 0 .6em;padding-bottom:.2em;border-bottom:1px solid var(--faint)}
h3{font-size:1.05rem;margin:1.6em 0 .2em}
p{margin:.5em 0}
.lead{font-size:1.05rem;margin:0 0 1.2em}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:12px;margin:0}
.tiles div{background:var(--raised);border-radius:8px;padding:12px 14px;break-inside:avoid}
dt{font-size:.85rem}
dd{margin:0}
dd b{display:block;font-size:1.5rem;line-height:1.3}
dd span{font-size:.85rem}
figure{margin:0 0 1.6em}
figcaption{max-width:46em;margin-bottom:.6em}
.panels{display:flex;flex-wrap:wrap;gap:12px 20px}
.panels svg{flex:0 1 auto;max-width:100%;height:auto;break-inside:avoid}
.panels img{max-width:100%;height:auto;border-radius:8px}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--faint);vertical-align:top}
th{font-weight:600}
.number{text-align:right}
pre{background:var(--raised);border-radius:8px;padding:10px 14px;font-size:.88rem;margin:.3em 0 1em;
    white-space:pre-wrap;overflow-wrap:anywhere}
code{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace}
summary{cursor:pointer;padding:.3em 0}
@media print{
body{font-size:11pt}
main{max-width:none;padding:0}
pre{border:1px solid var(--faint)}
.tiles div{border:1px solid var(--faint)}
.panels svg{max-width:48%}
h2,h3,figcaption{break-after:avoid}
table{break-inside:auto}
tr{break-inside:avoid}
}
"""
