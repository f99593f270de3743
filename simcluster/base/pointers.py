"""Numbers of arrays as compiled modules read and write them: pointers when compiled, lists in plain Python.

A compiled module must keep the array alive as long as it uses its pointer.
"""

from __future__ import annotations

from typing import Any

import cython


def doubles(array: Any) -> Any:
    """Return the numbers of a contiguous array of float64."""
    if cython.compiled:
        address: cython.size_t = array.ctypes.data
        return cython.cast(cython.p_double, address)
    return array.tolist()


def ints(array: Any) -> Any:
    """Return the numbers of a contiguous array of int32."""
    if cython.compiled:
        address: cython.size_t = array.ctypes.data
        return cython.cast(cython.p_int, address)
    return array.tolist()
