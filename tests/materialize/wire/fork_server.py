"""Serves drivers in processes that are forked, since a fresh interpreter takes a second to import them.

The server is started once, as ``fork_server.py SOCKET``.  The connector's command is ``relay.py SOCKET``: it hands its
stdin, stdout and stderr to the server, whose child becomes the connector.  The child ends when the relay does.

What DuckDB imports when it is first used (pandas: half a second) is imported here, before any fork.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading

import duckdb  # noqa: F401
import pandas as pd  # noqa: F401
from tests.materialize.wire.served_duckdb import main

from strandline.materialize.wire.options import CODEC_VARIABLE


def serve(path: str) -> None:
    """Fork a connector for each relay that connects."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        relay, _ = listener.accept()
        data, descriptors, _, _ = socket.recv_fds(relay, 1 << 16, 3)
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os._exit(connector(relay, json.loads(data), descriptors))
        for descriptor in descriptors:
            os.close(descriptor)
        relay.close()


def connector(relay: socket.socket, variables: dict[str, str], descriptors: list[int]) -> int:
    """Become a connector; tell the relay how it ended."""
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
        os.close(descriptor)
    threading.Thread(target=lambda: (relay.recv(1), os._exit(137)), daemon=True).start()  # noqa: TID251
    status = main(variables[CODEC_VARIABLE])
    relay.sendall(bytes([status]))
    return status


if __name__ == "__main__":
    serve(sys.argv[1])
