"""Definite collections: shards of ``(row, time, diff)`` updates that every reader reads alike, for ever.

This package knows nothing of where rows come from; rows themselves pass through `RowJobs` only.  The names
exported here are the public interface for programs: a client of two stores, and the handles that it opens.  Modules
beside them, and in the rooms inside, are for other rooms.
"""

from strandline.persist.client import PersistClient
from strandline.persist.handles.read import ReadHandle, SinceHandle
from strandline.persist.handles.records import RecordShard
from strandline.persist.handles.updates import RowCodec, ValueCodec
from strandline.persist.handles.write import WriteHandle
from strandline.persist.together.multi import MultiWriteHandle, open_multi
from strandline.persist.together.stream import StreamClient, StreamReader, StreamWriter, read_stream
from strandline.persist.together.transactions import Transactions, open_transactions

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
    "client",
    "fsck",
    "notices",
    "open_multi",
    "open_transactions",
    "read_stream",
]
