"""A Dask cluster that says nothing more: one message after a limit, never a command that waits for ever."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from simcluster.base.errors import InputError
from simcluster.studies.sweep import dask_cluster
from simcluster.studies.sweep.dask_cluster import call_with_timeout

ASKING = """
from simcluster import InputError
from simcluster.studies.sweep import dask_cluster
dask_cluster._CONNECT_SECONDS, dask_cluster._GRACE_SECONDS = 1.0, 0.5
try:
    with dask_cluster.connect_to_dask({address!r}):
        pass
except InputError as problem:
    print(problem)
"""


@pytest.mark.programs
def test_a_scheduler_that_takes_a_connection_and_says_nothing_is_none() -> None:
    """As one that is stopped, or behind a network that drops what is sent: its machine still answers the connection.

    Asked in a process of its own: Dask's threads stay, and processes are no copies of one that has others.
    """
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code = ASKING.format(address=f"dask://127.0.0.1:{silent.getsockname()[1]}")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert re.search(r"no Dask scheduler answers there.*start one", done.stdout)


def test_a_broken_connection_is_told_as_one() -> None:
    """While Dask tries to connect again, its client says that it is connecting, which says nothing to a reader."""
    cluster = dask_cluster._DaskCluster("dask://h:1", cast("Any", SimpleNamespace(status="connecting")))
    with pytest.raises(InputError, match=r"is lost \(the connection to the Dask .* broke\); .*run the same command"):
        cluster.check_alive()


def test_what_is_asked_ends_at_its_limit() -> None:
    assert call_with_timeout(5.0, lambda: 3) == 3
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        call_with_timeout(0.05, lambda: time.sleep(0.2))
    for thread in threading.enumerate():
        if thread.name == "asks Dask":
            thread.join()
    with pytest.raises(KeyError):
        call_with_timeout(5.0, lambda: {}["x"])
