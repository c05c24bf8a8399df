"""What the benchmarks share: the PyTorch peer as a process beside this one, ceilings, and the record of a result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ctrlax.lab.header import make_header
from ctrlax.machine import usable_cores

jax.config.update("jax_num_cpu_devices", usable_cores())  # as the command line does

ROOT = Path(__file__).resolve().parents[1]
PEER = Path(__file__).parent / "peer"
PEER_ENVIRONMENT = ROOT / ".benchmarks" / "venv"
SIZE = 200  # of a hidden layer


class Peer:
    """`peer/peer.py` in its own environment; it waits silently while this process computes."""

    def __init__(self, python: str | None) -> None:
        command = [python or _peer_python(), str(PEER / "peer.py")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions = self.ask(do="versions")

    def ask(self, **request: Any) -> dict[str, Any]:
        """One request, one answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):  # the package prints now and then
                return json.loads(line)
        raise RuntimeError("the PyTorch peer ended: its message is above")

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


def _peer_python() -> str:
    python = PEER_ENVIRONMENT / "bin" / "python"
    ready = PEER_ENVIRONMENT / ".ready"
    if not ready.exists():
        print(f"Setting up {PEER_ENVIRONMENT.relative_to(ROOT)} with PyTorch (a few minutes, once)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(PEER_ENVIRONMENT)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "-r", str(PEER / "requirements.txt")], check=True)
        ready.touch()
    return str(python)


def summary(seconds: list[float]) -> dict[str, float]:
    """Median and minimum, in milliseconds."""
    return {"median_ms": 1e3 * float(np.median(seconds)), "min_ms": 1e3 * min(seconds)}


def timed(call: Any) -> tuple[float, Any]:
    """Wall-clock seconds of a call whose arrays are waited for, and its answer."""
    begin = time.perf_counter()
    answer = jax.block_until_ready(call())
    return time.perf_counter() - begin, answer


def product_ceiling(members: int, rows: int, *, repeats: int = 20, products: int = 50) -> dict[str, float]:
    """GFLOP/s of batched products ``[member, row, 200] x [member, 200, 200]`` in XLA, rows or features first."""
    weight = jax.random.normal(jax.random.key(0), (members, SIZE, SIZE)) / SIZE**0.5

    def chain(subscripts: str, inputs: Any) -> Any:
        @jax.jit
        def run(inputs: Any) -> Any:
            def product(state: Any, _: None) -> tuple[Any, None]:
                return jnp.einsum(subscripts, state, weight, precision="highest"), None

            return jax.lax.scan(product, inputs, None, length=products)[0]

        jax.block_until_ready(run(inputs))
        return min(timed(lambda: run(inputs))[0] for _ in range(repeats))

    flop = 2 * products * members * rows * SIZE * SIZE
    inputs = jax.random.normal(jax.random.key(1), (members, rows, SIZE))
    turned = jnp.swapaxes(inputs, 1, 2)
    return {
        "rows_first": flop / chain("mbi,mio->mbo", inputs) / 1e9,
        "features_first": flop / chain("mib,mio->mob", turned) / 1e9,
    }


def perceptron_flop(inputs: int, outputs: int, hidden: int) -> int:
    """Of one forward evaluation for one example, matrix products alone."""
    return 2 * (inputs * SIZE + (hidden - 1) * SIZE * SIZE + SIZE * outputs)


def layers_as_arrays(prefix: str, layers: Any) -> dict[str, np.ndarray]:
    """Weights and biases under the names the peer reads."""
    arrays = {}
    for place, (weight, bias) in enumerate(layers):
        arrays[f"{prefix}_weight_{place}"] = np.asarray(weight)
        arrays[f"{prefix}_bias_{place}"] = np.asarray(bias)
    return arrays


def _command() -> str:
    """What was asked for, without the folders of the machine it was asked on."""
    return " ".join(["benchmarks/" + Path(sys.argv[0]).name, *(Path(word).name for word in sys.argv[1:])])


def write_record(path: Path, result: dict[str, Any], load_before: tuple[float, float, float]) -> None:
    """The result with versions, hardware, commit and the machine's load."""
    header = make_header("benchmark", {})
    kept = {name: header[name] for name in ("versions", "hardware", "commit", "commit_modified", "created")}
    load = {"before": load_before, "after": os.getloadavg()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**kept, "command": _command(), "load": load, **result}, indent=1) + "\n")
    print(f"record: {path}")
