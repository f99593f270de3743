"""Calls beside this process, each in a Python of its own (a fork would copy threads that hold locks)."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Generic, TypeVar

from simcluster.errors import InputError

T = TypeVar("T")

_WORKER = """
import pickle
from simcluster.errors import InputError
try:
    answer = pickle.load(sys.stdin.buffer)()
except InputError as error:
    answer = error
sys.stdout.buffer.write(pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL))
"""


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Apart(Generic[T]):
    """A call that goes on beside this process: a function of a module, bound to what can be pickled."""

    def __init__(self, call: Callable[[], T]) -> None:
        command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{_WORKER}"]
        self._helper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._helper.stdin is not None
        self._helper.stdin.write(pickle.dumps(call, protocol=pickle.HIGHEST_PROTOCOL))
        self._helper.stdin.close()

    def result(self) -> T:
        """What it returns, as soon as it does; raises the InputError that it raises."""
        assert self._helper.stdout is not None
        answer = self._helper.stdout.read()
        self._helper.stdout.close()
        if self._helper.wait():
            raise RuntimeError("a process beside this one has failed; its message is above")
        found = pickle.loads(answer)
        if isinstance(found, InputError):
            raise found
        return found  # type: ignore[no-any-return]
