"""A Dask cluster that says nothing more: one message after a limit, never a command that waits for ever."""

from __future__ import annotations

import socket
import time

import pytest

from simcluster import InputError
from simcluster.studies.sweep import dask_cluster
from simcluster.studies.sweep.dask_cluster import on_dask, within


def test_a_scheduler_that_takes_a_connection_and_says_nothing_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is stopped, or behind a network that drops what is sent: its machine still answers the connection."""
    pytest.importorskip("distributed", reason="needs Dask: pip install 'simcluster[dask]'")
    monkeypatch.setattr(dask_cluster, "_CONNECT_SECONDS", 1.0)
    monkeypatch.setattr(dask_cluster, "_MORE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun = time.monotonic()
        address = f"dask://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(InputError, match=r"no Dask scheduler answers there.*start one"), on_dask(address):
            pass
        assert time.monotonic() - begun < 20


def test_what_is_asked_ends_at_its_limit() -> None:
    assert within(5.0, lambda: 3) == 3
    with pytest.raises(TimeoutError, match=r"nothing came in 0\.05 s"):
        within(0.05, lambda: time.sleep(0.5))
    with pytest.raises(KeyError):
        within(5.0, lambda: {}["x"])
