"""The options of a Delta source.

CREATE SOURCE sales (id BIGINT, amount DECIMAL(10,2)) FROM DELTA (path = '/lake/sales')
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.connections.delta import DeltaKeys, check_scheme
from strandline.options import TEXT, option


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DeltaOptions(DeltaKeys):
    """Where the table is, and how to reach the object store that it is in.  It has no ``repr``: some are secrets."""

    path: str = option(TEXT, "The table's directory, or its URL: `s3://…`, `gs://…`, `az://…`, `abfss://…`.")

    def __post_init__(self) -> None:
        """Raise `ValueError` if the path's scheme is not known."""
        check_scheme(self.path)

    @property
    def uri(self) -> str:
        """The table as deltalake takes it."""
        return self.path.removeprefix("file://")

    @property
    def local(self) -> bool:
        """Whether the table is in a directory of this machine."""
        return "://" not in self.uri
