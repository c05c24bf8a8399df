"""The solver settings by name: which method, how its steps are chosen, how exact it must be.

A setting knows nothing of fields, gradients or saving. To add one, add a line to `SOLVERS`.
"""

from __future__ import annotations

import dataclasses
import difflib

import diffrax

from ctrlax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Tableau:
    """An explicit Runge-Kutta method for fixed steps: nodes, stage weights, solution weights."""

    nodes: tuple[float, ...]
    stages: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]


EULER = Tableau(nodes=(0.0,), stages=((),), weights=(1.0,))
RK4 = Tableau(
    nodes=(0.0, 0.5, 0.5, 1.0), stages=((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), weights=(1 / 6, 1 / 3, 1 / 3, 1 / 6)
)


@dataclasses.dataclass(frozen=True)
class Adaptive:
    """Steps chosen by the method's own error estimate."""

    method: type[diffrax.AbstractSolver]
    order: int
    description: str
    rtol: float = 1e-6
    atol: float = 1e-8
    # For a method whose interpolation is coarser than its steps: the times asked for are stepped to, not interpolated.
    lands_on_times: bool = False

    @property
    def stages(self) -> int:
        """New field evaluations per step; a method whose last stage is the next step's first spends one fewer.

        Of an implicit method's stages each counts once: the iterations that solve it, and the Jacobian, do not count.
        """
        return self.tableau.num_stages - int(self.tableau.fsal)

    @property
    def tableau(self) -> diffrax.ButcherTableau:
        """The method's coefficients."""
        return getattr(self.method, "tableau")  # noqa: B009  (a class attribute that Diffrax's base class does not declare)

    def at(self, rtol: float | None, atol: float | None) -> Adaptive:
        """The same method at other tolerances; None keeps the setting's own."""
        for name, tolerance in (("rtol", rtol), ("atol", atol)):
            if tolerance is not None and not 0 < tolerance < float("inf"):
                raise UserError(f"a tolerance must be a positive number such as 1e-8, but {name} = {tolerance} came")
        return dataclasses.replace(
            self, rtol=self.rtol if rtol is None else rtol, atol=self.atol if atol is None else atol
        )


@dataclasses.dataclass(frozen=True)
class Fixed:
    """The same number of equal inner steps between any two observations."""

    tableau: Tableau
    inner_steps: int
    order: int
    description: str

    def at(self, rtol: float | None, atol: float | None) -> Fixed:
        """A fixed-step setting has no tolerance: asking for one is a mistake."""
        if rtol is not None or atol is not None:
            raise UserError(
                "a fixed-step solver has no tolerance, but rtol or atol was given: leave them out, "
                "or choose an adaptive solver such as dopri5"
            )
        return self


SolverSetting = Adaptive | Fixed

SOLVERS: dict[str, SolverSetting] = {
    "dopri5": Adaptive(diffrax.Dopri5, 5, "Dormand-Prince 5(4), the text's solver for learned models", 1e-3, 1e-6),
    "tsit5": Adaptive(diffrax.Tsit5, 5, "Tsitouras 5(4)"),
    "dopri8": Adaptive(diffrax.Dopri8, 8, "Dormand-Prince 8(7), the true world's solver (RK78)", 1e-8, 1e-10),
    "bosh3": Adaptive(diffrax.Bosh3, 3, "Bogacki-Shampine 3(2) (RK23)"),
    "heun": Adaptive(diffrax.Heun, 2, "Heun with embedded Euler (RK12)"),
    "kvaerno5": Adaptive(diffrax.Kvaerno5, 5, "Kvaerno 5(4), implicit, for stiff systems", lands_on_times=True),
    "rk4": Fixed(RK4, 1, 4, "classical Runge-Kutta, one step per observation interval"),
    "rk4-10": Fixed(RK4, 10, 4, "classical Runge-Kutta, ten steps per observation interval"),
    "euler-10": Fixed(EULER, 10, 1, "Euler, ten steps per observation interval"),
    "euler-100": Fixed(EULER, 100, 1, "Euler, a hundred steps per observation interval"),
    "euler-1000": Fixed(EULER, 1000, 1, "Euler, a thousand steps per observation interval"),
    "discrete": Fixed(EULER, 1, 1, "s + h f(s, a) once per observation interval, as discrete-time code does"),
}


def named(name: str) -> SolverSetting:
    """The setting of that name; an unknown name is answered with the known ones."""
    if name not in SOLVERS:
        close = difflib.get_close_matches(name, SOLVERS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise UserError(f"no solver is called {name!r}{hint}: choose one of {', '.join(SOLVERS)}")
    return SOLVERS[name]
