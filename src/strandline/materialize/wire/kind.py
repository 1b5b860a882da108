"""The endpoint `connector`: what it takes, and how it is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strandline import extras
from strandline.materialize.driver import Driver, DriverKind
from strandline.materialize.wire.options import ConnectorOptions
from strandline.options import TEXT, option
from strandline.store.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorResource:
    """Where a collection is."""

    name: str = option(
        TEXT, "The name of the table, topic, …; the connector says where in its configuration it stands."
    )


def _open(options: ConnectorOptions, _clock: Clock) -> Driver:
    from strandline.materialize.wire.connector import ConnectorDriver

    return ConnectorDriver(options)


KIND: Final = DriverKind(
    "connector",
    ConnectorOptions,
    ConnectorResource,
    "https://docs.estuary.dev/reference/Connectors/",
    _open,
    lambda _: (extras.FLOW,),
)
