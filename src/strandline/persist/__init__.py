"""Definite collections: shards of ``(row, time, diff)`` updates that every reader reads alike, for ever.

This package knows nothing of where rows come from; rows themselves pass through `plane.Engine` only.  The names
exported here are the public interface: a client of two stores, and the handles that it opens.

Source: design pages "persist" (handles) and "the public face" (lower down).
"""

from strandline.persist.client import PersistClient
from strandline.persist.multi import MultiWriteHandle, open_multi
from strandline.persist.read import ReadHandle
from strandline.persist.records import RecordShard
from strandline.persist.since import SinceHandle
from strandline.persist.stream import StreamClient, StreamReader, StreamWriter, read_stream
from strandline.persist.transactions import Transactions, open_transactions
from strandline.persist.updates import RowCodec, ValueCodec
from strandline.persist.write import WriteHandle

__all__ = [
    "MultiWriteHandle",
    "PersistClient",
    "ReadHandle",
    "RecordShard",
    "RowCodec",
    "SinceHandle",
    "StreamClient",
    "StreamReader",
    "StreamWriter",
    "Transactions",
    "ValueCodec",
    "WriteHandle",
    "open_multi",
    "open_transactions",
    "read_stream",
]
