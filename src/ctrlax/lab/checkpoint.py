"""One checkpoint file: a pytree, bit for bit, with a checksum and without pickle.

The file is a line that names the format, the length of a JSON index, the index (one entry per leaf: its path in the
tree, what it is, and for arrays dtype, shape and place), the arrays' raw little-endian bytes, and the SHA-256 of
everything before it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path, tree_map, tree_unflatten
from jaxtyping import PyTree

from ctrlax.errors import UserError

FIRST_LINE = b"ctrlax checkpoint 1\n"
LENGTH = struct.Struct("<Q")
CHECKSUM_BYTES = 32
ALIGNMENT = 64  # bytes; XLA on the CPU wants its buffers so
ASIDE = ".tmp"  # a name that ends so was never finished and may be removed
NAMED_AT_MOST = 8  # leaves in one message


class DamagedError(Exception):
    """The file is not what was written: it is cut short or its bytes changed."""


class NotWrittenError(OSError):
    """A file of the run could not be written, as when the disk is full; what was there before is untouched."""

    def __str__(self) -> str:
        return str(self.strerror)


class Contents(NamedTuple):
    """What a checkpoint file holds: its leaves by path, and the metadata given to `write`."""

    leaves: dict[str, Any]
    kinds: dict[str, str]
    metadata: dict[str, Any]


def write(path: Path, state: PyTree, metadata: Mapping[str, Any] | None = None) -> None:
    """Write ``state`` to ``path``, which holds either its old or its new content at every moment, power cuts included.

    Leaves may be NumPy arrays, JAX arrays, typed keys, bool, int, float, str and None. Of a function only the name is
    kept: it is code, and `restore` takes it from its ``like``. Whether a JAX array is weakly typed is not kept.
    """
    entries, payload = _encode(state)
    index = json.dumps({"metadata": dict(metadata or {}), "leaves": entries}, separators=(",", ":")).encode()
    index += b" " * (-(len(FIRST_LINE) + LENGTH.size + len(index)) % ALIGNMENT)
    checksum = hashlib.sha256()

    def parts() -> Iterable[Any]:
        for part in (FIRST_LINE, LENGTH.pack(len(index)), index, *payload):
            checksum.update(part)
            yield part
        yield checksum.digest()

    write_aside(path, parts())


def read(path: Path) -> Contents:
    """Read a checkpoint file without knowing its tree. Raises `DamagedError` unless every byte is as it was written."""
    content = bytearray(path.read_bytes())
    head = len(FIRST_LINE) + LENGTH.size
    if len(content) < head + CHECKSUM_BYTES:
        raise DamagedError(f"it is cut short at {len(content)} bytes")
    body = memoryview(content)[:-CHECKSUM_BYTES]
    if hashlib.sha256(body).digest() != content[-CHECKSUM_BYTES:]:
        raise DamagedError("its checksum differs: bytes are missing or were changed after it was written")
    if not content.startswith(FIRST_LINE):
        raise UserError(
            f"{path} begins with {bytes(content[: len(FIRST_LINE)])!r}, and this ctrlax reads {FIRST_LINE!r}. "
            "Use the ctrlax version that wrote it."
        )
    (length,) = LENGTH.unpack_from(content, len(FIRST_LINE))
    index = json.loads(bytes(body[head : head + length]))
    payload = body[head + length :]
    leaves = {entry["path"]: _decode(entry, payload) for entry in index["leaves"]}
    kinds = {entry["path"]: entry["kind"] for entry in index["leaves"]}
    return Contents(leaves, kinds, index["metadata"])


def restore(like: PyTree, contents: Contents) -> PyTree:
    """The recorded leaves in the tree ``like``, found by their paths.

    Kinds and dtypes must agree. Shapes must agree with a JAX array in ``like``; they are free where ``like`` has a
    NumPy array or a `jax.ShapeDtypeStruct`: a dataset may have grown. Other differences are a `UserError` that names
    the leaves.
    """
    named, structure = tree_flatten_with_path(like, is_leaf=_is_none)
    wanted = {keystr(path): leaf for path, leaf in named}
    faults = [f"{path}: asked for, not recorded" for path in wanted if path not in contents.leaves]
    faults += [f"{path}: recorded, not asked for" for path in contents.leaves if path not in wanted]
    restored = []
    for path, leaf in wanted.items():
        if path in contents.leaves:
            fault, value = _fitted(leaf, contents.kinds[path], contents.leaves[path])
            restored.append(value)
            faults += [f"{path}: {fault}"] if fault else []
    if faults:
        more = [f"and {len(faults) - NAMED_AT_MOST} more"] if len(faults) > NAMED_AT_MOST else []
        lines = "".join(f"\n  {line}" for line in faults[:NAMED_AT_MOST] + more)
        raise UserError(
            f"The checkpoint holds another kind of state than asked for:{lines}\n"
            "Use the settings and the ctrlax version the run was made with."
        )
    return tree_unflatten(structure, restored)


def any_shape(like: PyTree) -> PyTree:
    """``like`` with the shapes of its JAX arrays left open, for `restore`."""
    return tree_map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, jax.Array) else leaf, like
    )


def write_aside(path: Path, parts: Iterable[Any]) -> None:
    """Put the bytes ``parts`` at ``path``: written under another name, synced, renamed, and the folder synced."""
    aside = path.with_name(path.name + ASIDE)
    try:
        with open(aside, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise not_written(path, error) from error


def not_written(path: Path, error: OSError) -> NotWrittenError:
    """The error to raise when writing ``path`` failed with ``error``."""
    return NotWrittenError(
        error.errno,
        f"{path} could not be written ({error.strerror or error}); what was kept before is untouched. "
        "Make room or mend the disk, then resume the run.",
        str(path),
    )


def sync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_none(leaf: Any) -> bool:
    return leaf is None


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _kind(leaf: Any) -> str:
    if leaf is None:
        return "none"
    if isinstance(leaf, jax.Array):
        return "key" if _is_key(leaf) else "jax"
    if isinstance(leaf, np.ndarray):
        return "numpy"
    if isinstance(leaf, np.generic):  # before float: np.float64 is one
        return "numpy scalar"
    for kind in (bool, int, float, str):  # bool before int, which it is
        if type(leaf) is kind:
            return kind.__name__
    if callable(leaf):
        return "function"
    raise TypeError(f"{type(leaf).__module__}.{type(leaf).__name__} is no array, number, string or function")


def _encode(state: PyTree) -> tuple[list[dict[str, Any]], list[Any]]:
    entries, payload, offset = [], [], 0
    named, _ = tree_flatten_with_path(state, is_leaf=_is_none)
    for path, leaf in named:
        try:
            entry, array = _entry(leaf)
        except TypeError as error:
            raise TypeError(f"the state's leaf {keystr(path)} cannot be kept: {error}") from None
        entry = {"path": keystr(path), **entry}
        if array is not None:
            stored = np.ascontiguousarray(_little(array)).reshape(-1).view(np.uint8).data
            entry |= {"dtype": _name(array.dtype), "shape": list(array.shape), "offset": offset}
            padding = -len(stored) % ALIGNMENT
            payload += [stored, bytes(padding)]
            offset += len(stored) + padding
        entries.append(entry)
    return entries, payload


def _entry(leaf: Any) -> tuple[dict[str, Any], np.ndarray | None]:
    kind = _kind(leaf)
    if kind == "key":
        return {"kind": kind, "impl": str(jax.random.key_impl(leaf))}, np.asarray(jax.random.key_data(leaf))
    if kind in ("jax", "numpy", "numpy scalar"):
        array = np.asarray(leaf)
        if array.dtype.hasobject or array.dtype.names is not None:
            raise TypeError(f"dtype {array.dtype} is not made of plain numbers or strings")
        return {"kind": kind}, array
    if kind == "float":
        return {"kind": kind, "value": struct.pack("<d", leaf).hex()}, None
    return {"kind": kind, "value": _function_name(leaf) if kind == "function" else leaf}, None


def _decode(entry: dict[str, Any], payload: memoryview) -> Any:
    if entry["kind"] == "float":
        return struct.unpack("<d", bytes.fromhex(entry["value"]))[0]
    if "dtype" not in entry:
        return entry["value"]
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    count = int(np.prod(shape, dtype=np.int64))
    stored = np.frombuffer(payload, np.uint8, count * dtype.itemsize, entry["offset"])
    array = stored.copy().view(dtype).reshape(shape)
    array = array if array.dtype.isnative else array.astype(dtype.newbyteorder("="))
    if entry["kind"] == "numpy":
        return array
    if entry["kind"] == "numpy scalar":
        return array[()]
    if entry["kind"] == "key":
        return jax.random.wrap_key_data(jnp.asarray(array), impl=entry["impl"])
    with jax.enable_x64(True):  # a float64 JAX array stays one, whatever the global flag
        return jax.device_put(array)


def _fitted(like: Any, recorded: str, value: Any) -> tuple[str | None, Any]:
    if isinstance(like, jax.ShapeDtypeStruct):
        arrays = ("key",) if _is_key(like) else ("jax", "numpy", "numpy scalar")
        fits = recorded in arrays and value.dtype == like.dtype
        return (None if fits else f"recorded {_described(value)}, asked for {like.dtype}"), value
    wanted = _kind(like)
    if wanted != recorded:
        return f"recorded as {recorded}, asked for as {wanted}", value
    if wanted == "function":
        named = _function_name(like)
        return (None if named == value else f"recorded {value}, asked for {named}"), like
    if wanted in ("jax", "key"):
        if value.dtype != like.dtype or value.shape != like.shape:
            return f"recorded {_described(value)}, asked for {_described(like)}", value
        return None, value if value.sharding == like.sharding else jax.device_put(value, like.sharding)
    if wanted in ("numpy", "numpy scalar"):
        strings = value.dtype.kind in "SU" and value.dtype.kind == like.dtype.kind  # their dtype holds their length
        fits = strings or value.dtype == like.dtype.newbyteorder("=")
        return (None if fits else f"recorded {value.dtype}, asked for {like.dtype}"), value
    return None, value


def _function_name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def _described(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else type(value).__name__


def _little(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _name(dtype: np.dtype) -> str:
    little = dtype.newbyteorder("<")
    try:
        return little.str if np.dtype(little.str) == little else dtype.name
    except TypeError:
        return dtype.name  # bfloat16 and its kin, whose `str` is only a width
