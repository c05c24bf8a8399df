"""Makes `rig.csv`, a log as a lab rig writes it: not ctrlax's columns, an angle in degrees, jittered clock, held volts.

A pendulum on a geared motor is driven by a digital controller that changes its voltage every 0.2 s. An encoder (0.2
degrees) and a rate sensor (0.02 rad/s of noise) are read about every 0.05 s, not on a grid. `docs/fitting.md` fits it::

    ctrlax fit examples/rig.csv --time t --episode run --obs angle,speed --act volts --angles angle:deg \
        --rates speed:angle --hold hold
"""

import csv
import math
import random
import sys

RUNS, SECONDS, VOLTAGE_STEP, INNER = 12, 4.0, 0.2, 10
GRAVITY, FRICTION, MOTOR = 18.0, 0.3, 4.0  # 1/s^2, 1/s, rad/s^2 per volt


def rates(angle: float, speed: float, volts: float) -> tuple[float, float]:
    """What nobody who fits the log is told; the angle is zero at the bottom."""
    return speed, -GRAVITY * math.sin(angle) - FRICTION * speed + MOTOR * volts


def moved(angle: float, speed: float, volts: float, seconds: float) -> tuple[float, float]:
    """Ten midpoint steps."""
    step = seconds / INNER
    for _ in range(INNER):
        slope = rates(angle, speed, volts)
        slope = rates(angle + step / 2 * slope[0], speed + step / 2 * slope[1], volts)
        angle, speed = angle + step * slope[0], speed + step * slope[1]
    return angle, speed


def main(path: str) -> None:
    """Write the log to ``path``."""
    draw = random.Random(7)
    with open(path, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["run", "t", "angle", "speed", "volts", "temperature"])
        for run in range(RUNS):
            angle, speed, time, volts, until = draw.uniform(-0.5, 0.5), 0.0, 0.0, 0.0, 0.0
            while time < SECONDS:
                if time >= until:
                    volts, until = draw.uniform(-3, 3), until + VOLTAGE_STEP
                shown = round((math.degrees(angle) + 180) % 360 - 180, 1)
                row = [run, round(time, 4), shown, round(speed + draw.gauss(0, 0.02), 3), round(volts, 3)]
                table.writerow([*row, round(24 + 0.1 * run + draw.gauss(0, 0.05), 1)])
                step = min(draw.uniform(0.03, 0.07), until - time if until > time + 1e-9 else 1.0)
                angle, speed = moved(angle, speed, volts, step)
                time += step


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "rig.csv")
