"""What this machine has, asked before JAX is imported."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
