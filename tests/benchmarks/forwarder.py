"""A network of one cable: what comes to a port goes to another, until it is killed (cut) or stopped (silent).

python tests/benchmarks/forwarder.py PORT BEHIND
"""

from __future__ import annotations

import socket
import sys
import threading


def carried(one: socket.socket, other: socket.socket) -> None:
    """Bytes one way until either end is gone."""
    try:
        while data := one.recv(65536):
            other.sendall(data)
    except OSError:
        pass
    finally:
        other.close()


def main() -> None:
    port, behind = map(int, sys.argv[1:])
    with socket.create_server(("127.0.0.1", port)) as server:
        while True:
            near, _ = server.accept()
            far = socket.create_connection(("127.0.0.1", behind))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=carried, args=pair, daemon=True).start()


if __name__ == "__main__":
    main()
