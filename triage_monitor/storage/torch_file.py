"""What `torch.save` wrote, read without torch and without running anything that the file says.

A `.pt` file is a zip of plain bytes (one entry for each tensor storage) and one pickle that says how they form tensors,
lists and dicts. A pickle is a program; here it is given a small machine: the opcodes of pickle protocol 2 that values
need, and a fixed list of names, none of which is a real function. What a name stands for is built here from numpy
(`_rebuild_tensor_v2`, numpy arrays and scalars, OrderedDict, range); every other name is refused by name.

Tensors are handles: their bytes are read when `array` is asked, so fields nobody wants cost nothing. Every storage is
checked against its CRC and every view against its bounds. The file is read, never mapped: its writer may cut it.
Left out: the form before torch 1.6 (no zip), compressed entries, big-endian files, quantised and 8-bit float tensors.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from triage_monitor.errors import InputError
from triage_monitor.storage.torch_pickle import (
    SHARED_VALUES,
    Forbidden,
    Restricted,
    StoredArray,
    TensorView,
    checked_extent,
)
from triage_monitor.summary.rows_values import Array

PICKLE_BYTES = 256 << 20
KEPT_STORAGES = 8  # columns of one dump are often views of a few large storages
_DAMAGE = (
    *(pickle.UnpicklingError, EOFError, IndexError, KeyError, AttributeError, TypeError, ValueError, OverflowError),
    *(struct.error, UnicodeDecodeError, MemoryError, RuntimeError, zipfile.BadZipFile, OSError),
)


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    size: int


class TorchFile:
    """One open `.pt` file; `value` is its object with `TensorView` handles in it.

    Raises InputError: `unfinished_file` when the end of the zip is not there (yet), `forbidden_global` for a name that
    is not on the list, `damaged_file` for anything else that does not hold together.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._zip = _opened(path)
        try:
            self.value = self._guarded(self._unpickled)
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> TorchFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()

    def array(self, value: TensorView | StoredArray) -> Array:
        """A tensor or numpy array of the file as a numpy array of its own; bfloat16 comes as float32."""
        made: Array = self._guarded(
            value.array if isinstance(value, StoredArray) else lambda: value.of(self._storage(value))
        )
        return made

    def _storage(self, view: TensorView) -> Array:
        raw = self._kept.pop(view.storage.key, None)
        if raw is None:
            raw = self._read(self._entry(f"data/{view.storage.key}"))
        self._kept[view.storage.key] = raw
        while len(self._kept) > KEPT_STORAGES:
            self._kept.popitem(last=False)
        return np.frombuffer(raw, view.storage.dtype)

    def _unpickled(self) -> Any:
        if any(info.compress_type != zipfile.ZIP_STORED for info in self._zip.infolist()):
            raise ValueError("it has compressed entries, which torch.save never writes")
        order = self._optional("byteorder")
        if order not in (None, b"little"):
            raise ValueError(f"its byte order is {order!r}")
        entry = self._entry("data.pkl")
        if entry.size > PICKLE_BYTES:
            raise ValueError(f"its pickle has {entry.size} bytes, and at most {PICKLE_BYTES} are read")
        value = Restricted(io.BytesIO(self._read(entry))).load()
        return checked_extent(value, max(SHARED_VALUES, 16 * entry.size))

    def _optional(self, name: str) -> bytes | None:
        found = [info for info in self._zip.namelist() if info.partition("/")[2] == name]
        return self._read(_Entry(found[0], 0)) if found else None

    def _entry(self, name: str) -> _Entry:
        for info in self._zip.infolist():
            if info.filename.partition("/")[2] == name:
                return _Entry(info.filename, info.file_size)
        raise ValueError(f"it has no entry '{name[:80]}'")

    def _read(self, entry: _Entry) -> bytes:
        return self._zip.read(entry.name)

    def _guarded(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Forbidden as error:
            detail = (
                f"asks for '{error}', which no training dump needs; nothing of the file was run. "
                "Save it again with tensors, numbers, texts, lists and dicts only"
            )
            raise InputError("forbidden_global", detail, path=str(self.path)) from None
        except _DAMAGE as error:
            line = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise InputError("damaged_file", f"is damaged or no torch file: {line}", path=str(self.path)) from error


def mentions(path: Path, names: tuple[bytes, ...]) -> bool:
    """Whether the file's pickle holds all of these texts; False for what is no torch file. Runs nothing. Raises
    InputError `unfinished_file` for one without its end, `damaged_file` for one whose parts do not fit."""
    try:
        with path.open("rb") as start:
            if start.read(4) != b"PK\x03\x04":
                return False
        with _opened(path) as file:
            found = [info for info in file.infolist() if info.filename.partition("/")[2] == "data.pkl"]
            if not found or found[0].file_size > PICKLE_BYTES or found[0].compress_type != zipfile.ZIP_STORED:
                return False
            text = file.read(found[0])
    except InputError:
        raise
    except OSError:
        return False
    except _DAMAGE as error:
        raise InputError("damaged_file", f"is damaged: {str(error)[:200]}", path=str(path)) from error
    return all(name in text for name in names)


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except OSError as error:
        raise InputError("unreadable", f"cannot be read: {error.strerror}", path=str(path)) from error
    except _DAMAGE as error:
        if isinstance(error, zipfile.BadZipFile) and not zipfile.is_zipfile(path):
            detail = "ends before its table of contents: it is still being written, or its writer was stopped"
            raise InputError("unfinished_file", detail, path=str(path)) from None
        raise InputError("damaged_file", f"is damaged: {str(error)[:200]}", path=str(path)) from error
