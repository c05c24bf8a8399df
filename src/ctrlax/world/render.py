"""Pictures of a system: one frame, or a GIF of a trajectory that plays at the speed of the world.

A system draws its body through `Canvas`, in metres with y up; the panel under it (time, and each action between its
bounds) is the same for all. A system without a `draw` gets its coordinates: angles as hands on dials (zero
upwards, growing clockwise), others as bars. Everything is drawn at
`SUPERSAMPLING` times the size and averaged down, which is what makes edges smooth.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Float, UInt8

from ctrlax.errors import UserError
from ctrlax.world.environment import Environment

SIZE = (420, 380)  # width and height in pixels, panel included
SUPERSAMPLING = 4
COLORS = {
    "paper": (252, 252, 250),
    "panel": (240, 241, 243),
    "faint": (205, 208, 213),
    "ink": (45, 50, 58),
    "body": (54, 92, 141),
    "second": (120, 137, 158),
    "goal": (38, 150, 92),
    "action": (214, 88, 38),
}
ROW = 24  # height of one line of the panel, in pixels
Point = Sequence[Any] | np.ndarray  # x and y in metres


@dataclasses.dataclass
class Canvas:
    """What a system draws on: shapes in metres, y up, colours by their name in `COLORS`.

    `view` comes first. `goal` and `rewarded` mark where the rewarded point should be and where it is; `arrow` and
    `torque` show an action.
    """

    pen: Any  # a PIL.ImageDraw.ImageDraw
    box: tuple[float, float, float, float]  # left, top, right, bottom of the scene in the pen's pixels
    scale: float = 1.0  # the pen's pixels per metre
    origin: tuple[float, float] = (0.0, 0.0)  # pixel of the world's (0, 0)

    def view(self, left: float, right: float, bottom: float, top: float) -> None:
        """Fit this rectangle of the world into the picture, with equal scales."""
        x0, y0, x1, y1 = self.box
        self.scale = min((x1 - x0) / (right - left), (y1 - y0) / (top - bottom))
        middle = ((x0 + x1) / 2, (y0 + y1) / 2)
        self.origin = (
            middle[0] - self.scale * (left + right) / 2,
            middle[1] + self.scale * (bottom + top) / 2,
        )

    def line(self, points: Iterable[Point], color: str, width: float = 0.03) -> None:
        pixels = np.array([self._pixel(point) for point in points])
        half = max(1.0, width * self.scale) / 2
        for start, end in itertools.pairwise(
            pixels
        ):  # Pillow's own wide line is rounded to whole pixels and looks bent
            along = (end - start) / max(float(np.linalg.norm(end - start)), 1e-9)
            side = half * np.array([-along[1], along[0]])
            corners = (start + side, end + side, end - side, start - side)
            self.pen.polygon([tuple(corner) for corner in corners], fill=COLORS[color])
        for x, y in pixels:
            self._disc((x, y), half, fill=COLORS[color])

    def polygon(self, points: Iterable[Point], color: str) -> None:
        self.pen.polygon([self._pixel(point) for point in points], fill=COLORS[color])

    def circle(self, center: Point, radius: float, color: str, outline: float = 0.0) -> None:
        """A disc, or where `outline` is given a ring that wide."""
        ring = {"outline": COLORS[color], "width": max(1, round(outline * self.scale))}
        self._disc(self._pixel(center), radius * self.scale, **(ring if outline else {"fill": COLORS[color]}))

    def arc(self, center: Point, radius: float, start: float, stop: float, color: str, width: float = 0.03) -> None:
        """From angle `start` to `stop` (radians, counter-clockwise from the x axis)."""
        angles = np.linspace(start, stop, 40)
        self.line(np.asarray(center) + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1), color, width)

    def joint(self, center: Point) -> None:
        self.circle(center, 6 * self._pixels(), "ink")
        self.circle(center, 2.5 * self._pixels(), "paper")

    def goal(self, center: Point) -> None:
        """The goal; where it lies beside the picture, a mark at the edge that points to it."""
        pixel = self._pixels()
        x0, _, x1, _ = ((edge - self.origin[0]) / self.scale for edge in self.box)
        inside = min(max(center[0], x0 + 8 * pixel), x1 - 8 * pixel)
        if abs(inside - center[0]) > 8 * pixel:
            self._tip(np.array([inside, center[1]]), np.array([np.sign(center[0] - inside), 0.0]), 12 * pixel, "goal")
            return
        self.circle(center, 11 * pixel, "goal", outline=2 * pixel)
        x, y = center
        for across, up in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            inner, outer = ((x + r * pixel * across, y + r * pixel * up) for r in (8, 15))
            self.line([inner, outer], "goal", 2 * pixel)

    def rewarded(self, center: Point) -> None:
        self.circle(center, 6 * self._pixels(), "paper")
        self.circle(center, 4.5 * self._pixels(), "goal")

    def arrow(self, tail: Point, head: Point) -> None:
        """An action that pushes: its length is the caller's; one too short to be seen is left out."""
        tail, head = np.asarray(tail, float), np.asarray(head, float)
        length = float(np.linalg.norm(head - tail))
        if length > 6 * self._pixels():
            tip = min(9 * self._pixels(), length)
            self.line([tail, head - (head - tail) / length * tip * 0.8], "action", 4 * self._pixels())
            self._tip(head, (head - tail) / length, tip)

    def torque(self, center: Point, share: float, radius: float) -> None:
        """An action that turns: an arc whose sweep is `share` of the bound, counter-clockwise where positive."""
        sweep = float(np.clip(share, -1, 1)) * 0.75 * np.pi
        if abs(sweep) * radius > 12 * self._pixels():
            tip = min(10 * self._pixels(), abs(sweep) * radius)
            turn, start = np.sign(sweep), np.pi / 2 - sweep / 2
            end = start + sweep - turn * tip * 0.8 / radius
            self.arc(center, radius, start, end, "paper", 7 * self._pixels())  # sets it off from the body
            self.arc(center, radius, start, end, "action", 4 * self._pixels())
            head = np.asarray(center) + radius * np.array([np.cos(start + sweep), np.sin(start + sweep)])
            neck = np.asarray(center) + radius * np.array([np.cos(end), np.sin(end)])
            self._tip(head, (head - neck) / np.linalg.norm(head - neck), tip)

    def rail(self, height: float) -> None:
        """A rail across the whole picture, and a faint upright with its number at every metre."""
        x0, y0, x1, y1 = self.box
        left, right = ((edge - self.origin[0]) / self.scale for edge in (x0, x1))
        bottom, top = ((self.origin[1] - edge) / self.scale for edge in (y1, y0))
        for metre in range(int(np.ceil(left)), int(np.floor(right)) + 1):
            self.line([(metre, bottom + 16 * self._pixels()), (metre, top)], "panel", self._pixels())
            if 12 * self._pixels() < min(metre - left, right - metre):  # else the edge would cut it
                self.text((metre, bottom + 8 * self._pixels()), f"{metre} m")
        self.line([(left - 1, height), (right + 1, height)], "faint", 2 * self._pixels())

    def text(self, center: Point, text: str, color: str = "second") -> None:
        self.pen.text(self._pixel(center), text, fill=COLORS[color], font=_font(10), anchor="mm")

    def _tip(self, head: np.ndarray, along: np.ndarray, length: float, color: str = "action") -> None:
        side = np.array([-along[1], along[0]]) * length * 0.6
        self.polygon([head, head - along * length + side, head - along * length - side], color)

    def _disc(self, pixel: tuple[float, float], radius: float, **style: Any) -> None:
        x, y = pixel
        self.pen.ellipse((x - radius, y - radius, x + radius, y + radius), **style)

    def _pixels(self) -> float:
        return SUPERSAMPLING / self.scale  # metres to one pixel of the finished picture

    def _pixel(self, point: Point) -> tuple[float, float]:
        return self.origin[0] + self.scale * float(point[0]), self.origin[1] - self.scale * float(point[1])


def frame(
    env: Environment,
    state: Float[ArrayLike, " state"],
    action: Float[ArrayLike, " action"],
    time: float | int,
    *,
    size: tuple[int, int] = SIZE,
    reach: Float[ArrayLike, " state"] | None = None,
) -> UInt8[np.ndarray, "height width 3"]:
    """One picture of `env` in `state` under `action`, `size` (width, height) in pixels.

    `reach` is how far from zero the bars of a system without a `draw` go, per state coordinate.
    """
    from PIL import Image, ImageDraw

    state, action = np.asarray(state, float), np.asarray(action, float)
    image = Image.new("RGB", (SUPERSAMPLING * size[0], SUPERSAMPLING * size[1]), COLORS["paper"])
    width, height = (float(pixels) for pixels in image.size)
    pen = ImageDraw.Draw(image)
    top_of_panel = height - SUPERSAMPLING * (ROW * max(env.action_size, 1) + 12)
    if not np.isfinite(state).all():
        pen.text((width / 2, top_of_panel / 2), "the state is not finite", COLORS["action"], _font(15), "mm")
    elif env.draw is None:
        _coordinates(pen, env, state, reach, width, top_of_panel)
    else:
        env.draw(Canvas(pen, (0.0, 0.0, width, top_of_panel)), state, np.nan_to_num(action))
    _panel(pen, env, action, float(time), top_of_panel, (width, height))
    return np.asarray(image.reduce(SUPERSAMPLING))


def write_gif(
    env: Environment,
    times: Float[ArrayLike, " time"],
    states: Float[ArrayLike, "time state"],
    actions: Float[ArrayLike, "time action"],
    path: str | Path,
    *,
    frames_per_second: int = 20,
    size: tuple[int, int] = SIZE,
) -> None:
    """Write one trajectory as a GIF that loops and plays in real time, whatever its `times`.

    States and actions between `times` are interpolated linearly, angles along the shorter arc.
    """
    from PIL import Image

    times, states, actions = (np.asarray(values, float) for values in (times, states, actions))
    pause = round(100 / frames_per_second) / 100  # a GIF counts time in hundredths of a second
    moments, states, actions = _resampled(env, times, states, actions, pause)
    reach = np.max(np.abs(states), axis=0, initial=0.0, where=np.isfinite(states))
    pictures = [
        Image.fromarray(frame(env, state, action, moment, size=size, reach=reach))
        for moment, state, action in zip(moments, states, actions, strict=True)
    ]
    palette = _palette(pictures)
    pictures = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    try:
        pictures[0].save(
            path,
            format="GIF",
            save_all=True,
            append_images=pictures[1:],
            duration=round(1000 * pause),
            loop=0,
            optimize=False,  # it would give frames palettes of their own
        )
    except OSError as error:
        raise UserError(f"cannot write the GIF {path}: {error.strerror or error}") from error


def _resampled(
    env: Environment, times: np.ndarray, states: np.ndarray, actions: np.ndarray, step: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if times.ndim != 1 or len(times) == 0 or not np.isfinite(times).all() or (np.diff(times) <= 0).any():
        raise UserError(f"a GIF needs increasing, finite times [time], not shape {times.shape} with values {times}")
    for name, values, count in (("states", states, env.state_size), ("actions", actions, env.action_size)):
        if values.shape != (len(times), count):
            raise UserError(f"a GIF needs {name} of shape ({len(times)}, {count}), not {values.shape}")
    moments = times[0] + step * np.arange(int(np.floor((times[-1] - times[0]) / step + 1e-6)) + 1)
    states = np.stack(
        [
            np.interp(moments, times, np.unwrap(column) if name in env.angles else column)
            for name, column in zip(env.state_names, states.T, strict=True)
        ],
        axis=1,
    )
    columns = [np.interp(moments, times, column) for column in actions.T]
    return moments, states, np.stack(columns, axis=1) if columns else np.zeros((len(moments), 0))


def _palette(pictures: list[Any], samples: int = 12, colors: int = 48) -> Any:
    from PIL import Image

    # one palette for all frames, made from a strip of some of them: nothing flickers, unchanged pixels cost nothing
    chosen = pictures[:: -(-len(pictures) // samples)]
    strip = Image.new("RGB", (chosen[0].width, chosen[0].height * len(chosen)))
    for place, picture in enumerate(chosen):
        strip.paste(picture, (0, place * picture.height))
    return strip.quantize(colors=colors)


def _panel(pen: Any, env: Environment, action: np.ndarray, time: float, top: float, size: tuple[float, float]) -> None:
    width, height = size
    unit = SUPERSAMPLING
    pen.rectangle((0, top, width, height), fill=COLORS["panel"])
    pen.text((12 * unit, (top + height) / 2), f"t = {time:.2f} s", COLORS["ink"], _font(15), "lm")
    units = env.action_units or ("",) * env.action_size
    left, right = width * 0.50, width * 0.76
    for place in range(env.action_size):
        low, high, value = env.action_low[place], env.action_high[place], float(action[place])
        y = top + (6 + ROW * (place + 0.5)) * unit
        pen.text((left - 32 * unit, y), env.action_names[place], COLORS["ink"], _font(13), "rm")
        pen.text((left - 5 * unit, y), f"{low:.3g}", COLORS["second"], _font(10), "rm")
        pen.text((right + 5 * unit, y), f"{high:.3g}", COLORS["second"], _font(10), "lm")
        _bar(pen, (left, right), y, value, low, high)
        times = "x " if units[place][:1].isdigit() else ""  # a unit such as "3 N"
        shown = f"{round(value, 2) + 0.0:+.2f} {times}{units[place]}" if np.isfinite(value) else "not finite"
        pen.text((width - 10 * unit, y), shown, COLORS["ink"], _font(12), "rm")


def _bar(pen: Any, span: tuple[float, float], y: float, value: float, low: float, high: float) -> None:
    left, right = span
    half = 5 * SUPERSAMPLING
    pen.rectangle((left, y - half, right, y + half), fill=COLORS["faint"])

    def at(number: float) -> float:
        return left + (right - left) * (min(max(number, low), high) - low) / (high - low)

    if np.isfinite(value):
        ends = sorted((at(0.0), at(value)))
        pen.rectangle((ends[0], y - half, ends[1], y + half), fill=COLORS["action"])
    middle, thin = at(0.0), 0.6 * SUPERSAMPLING
    pen.rectangle((middle - thin, y - 1.5 * half, middle + thin, y + 1.5 * half), fill=COLORS["ink"])


def _coordinates(
    pen: Any, env: Environment, state: np.ndarray, reach: ArrayLike | None, width: float, height: float
) -> None:
    unit = SUPERSAMPLING
    units = env.state_units or ("",) * env.state_size
    starts = np.maximum(np.abs(env.start_low), np.abs(env.start_high))
    reaches = np.maximum(np.abs(state), starts) if reach is None else np.asarray(reach, float)
    row = min(height / env.state_size, 60 * unit)
    left, right = width * 0.28, width * 0.72
    for place, (name, value) in enumerate(zip(env.state_names, state, strict=True)):
        y = row * (place + 0.5) + (height - row * env.state_size) / 2
        pen.text((left - 12 * unit, y), name, COLORS["ink"], _font(13), "rm")
        pen.text((width - 12 * unit, y), f"{value:+.3g} {units[place]}", COLORS["ink"], _font(12), "rm")
        if name in env.angles:
            radius, x = row * 0.42, (left + right) / 2
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), outline=COLORS["faint"], width=2 * unit)
            hand = (x + radius * np.sin(value), y - radius * np.cos(value))
            pen.line([(x, y), hand], fill=COLORS["body"], width=3 * unit)
        else:
            end = float(max(reaches[place], 1e-9))
            _bar(pen, (left, right), y, float(value), -end, end)


def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size * SUPERSAMPLING)
