"""For every test: types checked as it runs, no network, no display."""

import gc
import os
import socket

os.environ["MPLBACKEND"] = "Agg"
# A worker has a core to itself, and so have the processes its tests start; tests of several devices say so.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "1")

from jaxtyping import install_import_hook

# Before anything imports ctrlax. xdist's workers read this file too, each in its own process.
install_import_hook("ctrlax", "beartype.beartype")

import pytest  # noqa: E402

LOCAL = ("127.0.0.1", "::1", "localhost", "")


def _local_only(connect):
    def guarded(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in LOCAL:
            raise RuntimeError(f"A test tried to reach {address[0]}: tests have no network.")
        return connect(self, address)

    return guarded


@pytest.fixture(autouse=True, scope="session")
def _no_network():
    patch = pytest.MonkeyPatch()
    patch.setattr(socket.socket, "connect", _local_only(socket.socket.connect))
    patch.setattr(socket.socket, "connect_ex", _local_only(socket.socket.connect_ex))
    yield
    patch.undo()


@pytest.fixture(autouse=True, scope="module")
def _forgets_what_was_compiled():
    """Every compiled program holds some of the 65,530 memory maps a process may have: a suite in one would run out."""
    yield
    import jax

    jax.clear_caches()
    gc.collect()


def pytest_addoption(parser):
    parser.addoption(
        "--fail-on-skip", action="store_true", help="a skipped test fails the run (for CI, where every part is there)"
    )


def pytest_sessionfinish(session, exitstatus):
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or not session.config.getoption("--fail-on-skip"):
        return
    if terminal.stats.get("skipped") and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
