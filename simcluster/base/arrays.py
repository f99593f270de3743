"""Names of numpy's array types, by what is in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Int32s = npt.NDArray[np.int32]
"""Whole numbers below 2**31, of which there are many."""
Numbers = npt.NDArray[np.integer[Any]]
"""Whole numbers of any width."""
Hashes = npt.NDArray[np.uint64]
