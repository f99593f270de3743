"""Array access for compiled modules: pointers when compiled, memoryviews in plain Python.

A compiled module must keep the array alive as long as it uses its pointer.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cython
import numpy as np

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
else:

    def prefetch(record: object) -> None:
        """Do nothing in plain Python; in compiled modules, prefetch the record into the CPU cache."""


_LINE = 64
"""Bytes of a cache line of most processors."""


def address(array: Any) -> Any:
    """Return the address of a contiguous array's data, for compiled modules only."""
    buffer = cython.declare(cython.Py_buffer)
    PyObject_GetBuffer(array, cython.address(buffer), PyBUF_SIMPLE)
    PyBuffer_Release(cython.address(buffer))
    return buffer.buf


def doubles(array: Any) -> Any:
    """Return a pointer or memoryview of a contiguous float64 array."""
    if cython.compiled:
        return cython.cast(cython.p_double, address(array))
    return memoryview(array.reshape(-1))


def ints(array: Any) -> Any:
    """Return a pointer or memoryview of a contiguous int32 array."""
    if cython.compiled:
        return cython.cast(cython.p_int, address(array))
    return memoryview(array.reshape(-1))


class Buffers:
    """Named growable arrays that a compiled module reads and writes; growth keeps the contents."""

    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}

    def doubles(self, name: str, room: cython.int) -> Any:
        """Return the named float64 array, grown to at least ``room`` numbers."""
        return doubles(self._grow_array(name, np.zeros(max(room, 1), np.float64)))

    def ints(self, name: str, room: cython.int) -> Any:
        """Return the named int32 array, grown to at least ``room`` numbers."""
        return ints(self._grow_array(name, np.zeros(max(room, 1), np.int32)))

    def flags(self, name: str, room: cython.int) -> Any:
        """Return the named array of one-byte numbers, grown to at least ``room`` entries."""
        array = self._grow_array(name, np.zeros(max(room, 1), np.uint8))
        return cython.cast(cython.p_uchar, address(array)) if cython.compiled else memoryview(array)

    def view_doubles(self, name: str, values: Any) -> Any:
        """Return ``values`` as a float64 array and keep it alive; copied only if not contiguous float64."""
        self.arrays[name] = np.ascontiguousarray(values, dtype=np.float64)
        return doubles(self.arrays[name])

    def view_ints(self, name: str, values: Any) -> Any:
        """Return ``values`` as an int32 array and keep it alive; copied only if not contiguous int32."""
        self.arrays[name] = np.ascontiguousarray(values, dtype=np.int32)
        return ints(self.arrays[name])

    def records(self, name: str, dtype: Any, room: cython.int) -> Any:
        """Return the named array of ``room`` structs (fields as in ``dtype``), aligned to a cache line."""
        if cython.compiled:
            layout = np.dtype(dtype, align=True)
            size: cython.longlong = layout.itemsize * max(room, 1)
            memory = np.zeros(size + _LINE, np.uint8)
            skipped: cython.longlong = -cython.cast(cython.longlong, address(memory)) & (_LINE - 1)
            return address(self._grow_array(name, memory[skipped : skipped + size].view(layout)))
        records = self.arrays.setdefault(name, [])
        records += [SimpleNamespace(**dict.fromkeys(dict(dtype), 0)) for _ in range(room - len(records))]
        return records

    def make_records(self, name: str, columns: Any, dtype: Any = None) -> Any:
        """Return an array of structs filled from ``columns`` (field name to values); int32 by default."""
        dtype = dtype or [(number, np.int32) for number in columns]
        records = self.records(name, dtype, len(next(iter(columns.values()))))
        for number, values in columns.items():
            self.fill(name, number, values)
        return records

    def fill(self, name: str, number: str, values: Any) -> None:
        """Set one field (``number`` is its name) of every struct in a named array to ``values``."""
        if cython.compiled:
            self.arrays[name][number][: len(values)] = values
        else:
            for record, value in zip(self.arrays[name], values.tolist(), strict=True):
                setattr(record, number, value)

    def column(self, name: str, number: str) -> Any:
        """Return one field (``number`` is its name) of every struct in a named array."""
        if cython.compiled:
            return self.arrays[name][number]
        return np.array([getattr(record, number) for record in self.arrays[name]] or np.zeros(0, np.int64))

    def contents(self, name: str) -> Any:
        """Return the named array as last returned, with its contents."""
        return self.arrays[name]

    def _grow_array(self, name: str, array: Any) -> Any:
        before = self.arrays.get(name)
        if before is not None:
            array[: len(before)] = before
        self.arrays[name] = array
        return array
