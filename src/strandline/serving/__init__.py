"""Serving: people and programs talk to a running environment, over Arrow Flight SQL.

`serve` is the side of the process that writes, and `connect` that of everyone else on this machine, or elsewhere.  Any
client of Flight SQL (ADBC, JDBC, ODBC) may take the place of `connect`.
"""

from typing import TYPE_CHECKING

from strandline import lazily

if TYPE_CHECKING:
    from strandline.serving.remote import RemoteEnvironment, RemoteTransaction, connect, writer
    from strandline.serving.server import Door, Serving, serve

__all__ = ["Door", "RemoteEnvironment", "RemoteTransaction", "Serving", "connect", "serve", "traffic", "writer"]

__getattr__ = lazily.names(
    __name__,
    {
        **dict.fromkeys(("Door", "Serving", "serve"), "strandline.serving.server"),
        **dict.fromkeys(("RemoteEnvironment", "RemoteTransaction", "connect", "writer"), "strandline.serving.remote"),
    },
)
