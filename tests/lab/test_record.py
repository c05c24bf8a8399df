"""The run folder. Run as a program this file is the kill campaign: `python test_record.py FOLDER KILLS`."""

import csv
import errno
import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ctrlax.errors import UserError
from ctrlax.lab import checkpoint
from ctrlax.lab.header import check_resumable, make_header
from ctrlax.lab.record import Record

HEADER = {"format": 1, "command": "train", "configuration": {"environment": "pendulum", "preset": "paper"}}


# A toy run: a state machine of NumPy numbers, whose every step depends on all before it.


def toy_start():
    return {"numbers": np.zeros(50_000), "data": np.zeros((0, 3)), "step": 0, "best": None}


def toy_step(state):
    draw = np.random.default_rng(state["step"]).normal(size=50_000)
    numbers = 0.9 * state["numbers"] + np.tanh(draw + state["numbers"][::-1])
    return state | {"numbers": numbers, "data": np.vstack([state["data"], numbers[:3]]), "step": state["step"] + 1}


def toy_run(folder, steps, record_class=Record, every=3):
    try:
        record = record_class.open(folder)
    except UserError:
        record = record_class.create(folder, HEADER)
    state = record.restore(toy_start())[0] if record.steps() else toy_start()
    while state["step"] < steps:
        state = toy_step(state)
        record.append({"kind": "step", "step": state["step"], "mean": state["numbers"].mean(), "wall": time.time()})
        if state["step"] % every == 0:
            record.append({"kind": "round", "last": state["numbers"][-1]})
            record.save(state, step=state["step"])
    record.close()


def outcome(folder):
    """What must not depend on how often the run was killed: the rows without wall-clock fields, and the final state."""
    record = Record.open(folder)
    rows = [json.dumps({name: value for name, value in row.items() if name != "wall"}) for row in record.rows()]
    state, step = record.restore(toy_start())
    assert not record.refused
    return rows, step, state["numbers"].tobytes(), state["data"].tobytes(), record.steps()[-2:]


def fork(run):
    """``run`` in a child process, which ends without cleaning up."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of any fork; no computation of JAX's was begun here
        child = os.fork()
    if child == 0:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    return child


def kill_at_call(number):
    """Have this process killed by its ``number``-th call that changes a file; checkpoint writes are cut in half."""
    count = 0

    def counted(call):
        def killing(*arguments):
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return killing

    def torn(path, parts, write_aside=checkpoint.write_aside):
        def torn_parts():
            for part in parts:
                half = len(part) // 2
                yield part[:half]
                counted(lambda: None)()
                yield part[half:]

        write_aside(path, torn_parts())

    os.fsync, os.replace, os.unlink = counted(os.fsync), counted(os.replace), counted(os.unlink)
    checkpoint.write_aside = torn


def readable(folder):
    """A folder after a kill: nothing there yet, or a run whose rows and newest state can be read."""
    try:
        record = Record.open(folder)
    except UserError:
        return True
    record.rows()
    return not record.steps() or (record.restore(toy_start())[1] % 3 == 0 and not record.refused)


def campaign(folder, kills):
    folder, steps, report = Path(folder), 60, {"random": 0, "calls": 0, "runs": 0}
    toy_run(folder / "undisturbed", steps)
    expected = outcome(folder / "undisturbed")
    generator = random.Random(0)
    while report["random"] < kills:
        report["runs"] += 1
        run, killed = folder / f"random-{report['runs']}", True
        while killed:
            child = fork(lambda run=run: toy_run(run, steps))
            if report["random"] < kills:
                time.sleep(generator.uniform(0.0, 0.12))
                os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
            killed = os.WIFSIGNALED(status)
            report["random"] += killed
            assert killed or status == 0
            assert readable(run)
        assert outcome(run) == expected, f"run {run} differs from the undisturbed one"
    toy_run(folder / "short", 9)
    expected = outcome(folder / "short")
    killed = True
    while killed:
        run = folder / f"call-{report['calls']}"
        child = fork(lambda run=run: (kill_at_call(report["calls"] + 1), toy_run(run, 9)))
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        assert readable(run)
        toy_run(run, 9)
        assert outcome(run) == expected, f"killed at call {report['calls']}"
        report["calls"] += killed
    print(json.dumps(report))


@pytest.mark.slow
def test_killed_at_any_moment_and_resumed_a_run_is_the_undisturbed_one(tmp_path):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path), "50"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["random"] >= 50
    assert report["calls"] >= 40  # moments inside file writes, every one of three checkpoints'


class NeverCut(Record):
    """Deliberately wrong: goes on behind whatever the metrics file holds."""

    def restore(self, like):
        state, step = super().restore(like)
        self._length = (self.folder / "metrics.jsonl").stat().st_size
        return state, step


@pytest.mark.parametrize(("record_class", "equal"), [(Record, True), (NeverCut, False)])
def test_rows_beyond_the_checkpoint_are_cut(tmp_path, record_class, equal):
    toy_run(tmp_path / "undisturbed", 9)
    toy_run(tmp_path / "killed", 6)
    record = Record.open(tmp_path / "killed")
    state, _ = record.restore(toy_start())
    record.append({"kind": "step", "step": 7, "mean": toy_step(state)["numbers"].mean(), "wall": 0.0})
    record.flush()
    record.close()
    toy_run(tmp_path / "killed", 9, record_class)
    assert (outcome(tmp_path / "killed") == outcome(tmp_path / "undisturbed")) == equal


def calls_of_a_save(folder, monkeypatch):
    """The order of the calls that decide what survives a power cut, in the third save of a run."""
    toy_run(folder, 6)
    record = Record.open(folder)
    state, _ = record.restore(toy_start())
    calls = []

    def noted(name):
        call = getattr(os, name)

        def noting(target, *rest, **options):
            where = os.readlink(f"/proc/self/fd/{target}") if name == "fsync" else str(target)
            calls.append((name, Path(where).name))
            return call(target, *rest, **options)

        monkeypatch.setattr(os, name, noting)

    for name in ("fsync", "replace", "unlink"):
        noted(name)
    record.append({"kind": "step", "step": 9})
    calls.clear()
    record.save(state, step=9)
    return calls


def survives_a_power_cut(calls):
    aside, final = "step-000000009.ckpt.tmp", "step-000000009.ckpt"
    order = [("fsync", "metrics.jsonl"), ("fsync", aside), ("replace", aside), ("fsync", "checkpoints"),
             ("unlink", "step-000000003.ckpt")]  # fmt: skip
    return [call for call in calls if call[1] != final] == order


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to name open files")
def test_a_checkpoint_is_synced_before_it_is_renamed_and_the_old_one_removed_last(tmp_path, monkeypatch):
    assert survives_a_power_cut(calls_of_a_save(tmp_path, monkeypatch))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to name open files")
def test_the_check_sees_a_rename_before_the_sync(tmp_path, monkeypatch):
    def wrong(path, parts):
        aside = path.with_name(path.name + checkpoint.ASIDE)
        aside.write_bytes(b"".join(parts))
        os.replace(aside, path)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        checkpoint.sync_folder(path.parent)

    toy_run(tmp_path, 3)
    monkeypatch.setattr(checkpoint, "write_aside", wrong)
    assert not survives_a_power_cut(calls_of_a_save(tmp_path, monkeypatch))


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def path_of(folder, step):
    return folder / "checkpoints" / f"step-{step:09d}.ckpt"


@pytest.mark.parametrize("share", [0.0, 1e-6, 3e-5, 5e-4, 0.01, 0.4, 0.9, 0.99999, 1.0])
def test_one_flipped_byte_is_refused_by_name_and_the_checkpoint_before_is_used(tmp_path, share, caplog):
    toy_run(tmp_path, 6)
    newest = path_of(tmp_path, 6)
    flip(newest, int(share * (newest.stat().st_size - 1)))
    record = Record.open(tmp_path)
    assert record.restore(toy_start())[1] == 3
    assert [newest.name in message for message in record.refused] == [True]
    assert newest.name in caplog.text
    assert newest.exists()  # reading changes nothing
    toy_run(tmp_path / "undisturbed", 9)
    toy_run(tmp_path, 9)
    assert outcome(tmp_path) == outcome(tmp_path / "undisturbed")


@pytest.mark.parametrize("length", [0, 10, 1000, -1])
def test_a_checkpoint_cut_short_is_refused(tmp_path, length):
    toy_run(tmp_path, 6)
    newest = path_of(tmp_path, 6)
    newest.write_bytes(newest.read_bytes()[:length])
    record = Record.open(tmp_path)
    assert record.restore(toy_start())[1] == 3
    record.append({"kind": "step"})
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.refused")] == ["step-000000006.ckpt.refused"]


def test_when_both_are_broken_both_are_named(tmp_path):
    toy_run(tmp_path, 6)
    for step in (3, 6):
        flip(path_of(tmp_path, step), 5000)
    with pytest.raises(UserError, match=r"(?s)step-000000006.ckpt is refused.*step-000000003.ckpt is refused"):
        Record.open(tmp_path).restore(toy_start())


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_checkpoints_and_says_so(tmp_path, monkeypatch, failing):
    toy_run(tmp_path, 6)
    record = Record.open(tmp_path)
    state, _ = record.restore(toy_start())
    before = {path.name: path.read_bytes() for path in (tmp_path / "checkpoints").iterdir()}
    call = getattr(os, failing)

    def full(target, *rest):
        if failing == "replace" or stat.S_ISREG(os.fstat(target).st_mode):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return call(target, *rest)

    record.append({"kind": "step", "step": 7})
    with monkeypatch.context() as patch:
        patch.setattr(os, failing, full)
        with pytest.raises(checkpoint.NotWrittenError, match=r"could not be written \(No space left") as caught:
            record.save(state, step=9)
    assert caught.value.errno == errno.ENOSPC
    assert {path.name: path.read_bytes() for path in (tmp_path / "checkpoints").iterdir()} == before
    record.save(state, step=9)  # once there is room
    assert record.steps() == [6, 9]
    assert [row["step"] for row in record.rows("step")] == [1, 2, 3, 4, 5, 6, 7]


def test_a_file_that_may_not_grow_keeps_the_rows_for_later(tmp_path):
    import resource

    record = Record.create(tmp_path, HEADER)
    for number in range(200):
        record.append({"kind": "step", "step": number})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(checkpoint.NotWrittenError, match=r"metrics\.jsonl could not be written"):
            record.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / "metrics.jsonl").stat().st_size == 0
    record.flush()
    assert [row["step"] for row in Record.open(tmp_path).rows()] == list(range(200))


def test_a_torn_last_line_is_left_out_and_a_broken_one_named(tmp_path):
    toy_run(tmp_path, 3)
    metrics = tmp_path / "metrics.jsonl"
    whole = metrics.read_bytes()
    metrics.write_bytes(whole + b'{"kind": "step", "st')
    assert len(Record.open(tmp_path).rows()) == 4
    metrics.write_bytes(b"{" + whole)
    with pytest.raises(UserError, match="line 1, is not what was written"):
        Record.open(tmp_path).rows()
    metrics.write_bytes(whole[:-20])
    with pytest.raises(UserError, match="rows were removed"):
        Record.open(tmp_path).restore(toy_start())


STATE = {
    "parameters": {"weight": jnp.arange(6.0).reshape(2, 3), "low": jnp.array([1.5, jnp.nan], jnp.bfloat16)},
    "moments": optax.adam(0.1).init({"weight": jnp.ones((2, 3))}),
    "flags": jnp.array([True, False]),
    "host": [np.array([1e-320, -0.0, np.nan, np.inf]), np.arange(4, dtype=">i2"), np.zeros((0, 3)), np.float64(0.1)],
    "names": np.array(["a", "länger"]),
    "numbers": (3, -(2**80), 0.1, float("nan"), float("-inf"), -0.0, True, None, "text"),
    "activation": jnp.tanh,
}


def bits(leaf):
    if leaf is None or isinstance(leaf, (bool, int, str)) or callable(leaf):
        return leaf
    array = np.asarray(leaf)
    return type(leaf), array.dtype.newbyteorder("="), array.shape, array.astype(array.dtype.newbyteorder("=")).tobytes()


def test_every_kind_of_leaf_comes_back_bit_for_bit(tmp_path):
    path = tmp_path / "one.ckpt"
    checkpoint.write(path, STATE, {"phase": "fit"})
    contents = checkpoint.read(path)
    assert contents.metadata == {"phase": "fit"}
    for like in (STATE, checkpoint.any_shape(STATE)):
        restored = checkpoint.restore(like, contents)
        assert jax.tree.structure(restored) == jax.tree.structure(STATE)
        assert [bits(leaf) for leaf in jax.tree.leaves(restored)] == [bits(leaf) for leaf in jax.tree.leaves(STATE)]
    assert b"pickle" not in path.read_bytes()


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_typed_keys_come_back_and_draw_the_same(tmp_path, implementation):
    keys = jax.random.split(jax.random.key(3, impl=implementation), 4)
    checkpoint.write(tmp_path / "keys.ckpt", {"key": keys})
    contents = checkpoint.read(tmp_path / "keys.ckpt")
    for like in (keys, jax.eval_shape(lambda: keys)):
        restored = checkpoint.restore({"key": like}, contents)["key"]
        assert restored.dtype == keys.dtype
        assert (jax.random.normal(restored[2], (5,)) == jax.random.normal(keys[2], (5,))).all()
    other = jax.random.key(3, impl="rbg" if implementation != "rbg" else "threefry2x32")
    with pytest.raises(UserError, match=r"\['key'\]: recorded key<"):
        checkpoint.restore({"key": jax.eval_shape(lambda: other)}, contents)


def test_float64_on_the_device_stays_so_whatever_the_flag(tmp_path):
    with jax.enable_x64(True):
        precise = jnp.array([1 / 3, 1e300])
    checkpoint.write(tmp_path / "one.ckpt", precise)
    restored = checkpoint.restore(precise, checkpoint.read(tmp_path / "one.ckpt"))
    assert bits(restored) == bits(precise)
    assert jnp.ones(1).dtype == jnp.float32


def test_a_dataset_may_grow_and_anything_else_is_named(tmp_path):
    path = tmp_path / "one.ckpt"
    checkpoint.write(path, {"data": np.ones((7, 2)), "weight": jnp.ones(3), "count": 3})
    contents = checkpoint.read(path)
    grown = checkpoint.restore({"data": np.zeros((0, 2)), "weight": jnp.zeros(3), "count": 0}, contents)
    assert grown["data"].shape == (7, 2)
    wrong = {"data": np.zeros((0, 2), np.float32), "weight": jnp.zeros(4), "count": 0.0, "more": None}
    with pytest.raises(UserError) as caught:
        checkpoint.restore(wrong, contents)
    assert str(caught.value).splitlines()[1:-1] == [
        "  ['more']: asked for, not recorded",
        "  ['count']: recorded as int, asked for as float",
        "  ['data']: recorded float64, asked for float32",
        "  ['weight']: recorded float32[3], asked for float32[4]",
    ]


@pytest.mark.parametrize("leaf", [np.array([object()]), object(), np.zeros(2, [("a", "f4")]), 1 + 2j])
def test_what_cannot_be_kept_is_named(tmp_path, leaf):
    with pytest.raises(TypeError, match=r"\['odd'\]"):
        checkpoint.write(tmp_path / "one.ckpt", {"odd": leaf})
    assert not list(tmp_path.iterdir())


def test_fifty_megabytes_take_half_a_second(tmp_path):
    state = [np.random.default_rng(0).normal(size=(250, 1000)) for _ in range(25)]
    durations = []
    for _ in range(5):
        begun = time.perf_counter()
        checkpoint.write(tmp_path / "large.ckpt", state)
        durations.append(time.perf_counter() - begun)
    assert min(durations) < 0.5


def test_rows_are_finite_or_null_and_tables_follow_from_them(tmp_path):
    record = Record.create(tmp_path, HEADER)
    record.append({"kind": "round", "round": 1, "loss": np.float32(0.5), "reward": jnp.array([0.25, jnp.nan])})
    record.append({"kind": "update", "loss": float("inf"), "health": {"skipped": np.int32(2)}})
    record.append({"kind": "round", "round": 2, "solved": np.bool_(True)})
    record.flush()
    assert Record.open(tmp_path).rows("round") == [
        {"kind": "round", "round": 1, "loss": 0.5, "reward": [0.25, None]},
        {"kind": "round", "round": 2, "solved": True},
    ]
    assert [path.name for path in record.write_tables()] == ["metrics-round.csv", "metrics-update.csv"]
    with open(tmp_path / "metrics-round.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == ["kind", "round", "loss", "reward.0", "reward.1", "solved"]
    assert list(table[0].values()) == ["round", "1", "0.5", "0.25", "", ""]
    assert (tmp_path / "metrics-update.csv").read_text() == "kind,loss,health.skipped\nupdate,,2\n"
    with pytest.raises(TypeError, match="kind"):
        record.append({"round": 1})


def test_a_folder_is_never_begun_over_what_is_there(tmp_path):
    toy_run(tmp_path / "run", 3)
    with pytest.raises(UserError, match=r"already holds a run, kept up to step 3\. Go on with it by `ctrlax resume"):
        Record.create(tmp_path / "run", HEADER)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").touch()
    with pytest.raises(UserError, match="is not empty and holds no run"):
        Record.create(tmp_path / "thesis", HEADER)
    with pytest.raises(UserError, match="is no run"):
        Record.open(tmp_path / "thesis")
    Record.create(tmp_path / "early", HEADER).append({"kind": "step"})
    with pytest.raises(UserError, match="before its first checkpoint"):
        Record.open(tmp_path / "early").restore({})
    Record.create(tmp_path / "early", HEADER)  # killed before its first checkpoint: it may start over


def test_a_run_has_one_writer_and_readers_change_nothing(tmp_path):
    toy_run(tmp_path, 3)
    writer, second, reader = (Record.open(tmp_path) for _ in range(3))
    with pytest.raises(RuntimeError, match="restore before writing"):
        writer.append({"kind": "step"})
    state, _ = writer.restore(toy_start())
    second.restore(toy_start())
    writer.append({"kind": "step"})
    with pytest.raises(UserError, match="Another process is writing"):
        second.append({"kind": "step"})
    writer.save(state, step=6)
    assert reader.restore(toy_start())[1] == 6
    with pytest.raises(ValueError, match="steps count upwards"):
        writer.save(state, step=5)
    writer.close()


def test_resuming_another_run_is_refused_field_by_field():
    header = {
        "format": 0,
        "configuration": {"environment": "pendulum", "model": {"members": 10, "sizes": [2, 3]}, "rounds": 5},
    }
    with pytest.raises(UserError) as caught:
        check_resumable(
            header,
            {"environment": "cartpole", "model": {"members": 10, "sizes": (2, 3), "ode": "rk4"}, "rounds": 9},
            {"rounds"},
        )
    assert str(caught.value).splitlines()[1:-1] == [
        "  format: recorded 0, asked for 1",
        '  environment: recorded "pendulum", asked for "cartpole"',
        '  model.ode: recorded nothing, asked for "rk4"',
    ]
    check_resumable(HEADER, HEADER["configuration"])


def test_a_header_says_what_ran_where(tmp_path):
    header = make_header("train", {"environment": "pendulum", "seeds": (0, 1), "horizon": 2.0})
    assert header["configuration"]["seeds"] == [0, 1]
    assert {"python", "jax", "jaxlib", "diffrax", "equinox", "optax", "numpy", "ctrlax"} == set(header["versions"])
    assert {"platform", "device", "devices", "cores"} == set(header["hardware"])
    Record.create(tmp_path, header)
    assert Record.open(tmp_path).header == header


if __name__ == "__main__":
    campaign(sys.argv[1], int(sys.argv[2]))
