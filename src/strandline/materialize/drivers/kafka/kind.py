"""The endpoint `kafka`: what it takes, and how it is opened."""

from __future__ import annotations

from typing import Final

from strandline import extras
from strandline.materialize.driver import Driver, DriverKind
from strandline.materialize.drivers.kafka.options import KafkaEndpoint, KafkaResource
from strandline.store.clock import Clock


def _open(options: KafkaEndpoint, _clock: Clock) -> Driver:
    from strandline.materialize.drivers.kafka.driver import KafkaDriver

    return KafkaDriver(options, KIND.spec)


KIND: Final = DriverKind(
    "kafka", KafkaEndpoint, KafkaResource, "docs/endpoints/kafka.md", _open, lambda _: (extras.KAFKA,)
)
