"""Collections for other Spark applications: a Python data source, for `spark.read` and `spark.readStream`.

Spark's processes open the location by themselves.  The driver's plans a read from the shard's state; tasks read parts
from Blob, and open nothing else.  No JVM of ours takes part, and no environment needs to be open.
"""

from typing import TYPE_CHECKING

from strandline import lazily

if TYPE_CHECKING:
    from strandline.datasource.sessions import register
    from strandline.datasource.stream import release, streams

__all__ = ["register", "release", "streams"]

__getattr__ = lazily.names(
    __name__,
    {
        "register": "strandline.datasource.sessions",
        **dict.fromkeys(("release", "streams"), "strandline.datasource.stream"),
    },
)
