"""A Kafka endpoint keeps the contract of pushes over a real broker, and what is its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.materialize.drivers.kafka.topics_under_test import Topics

from kafka_server import KafkaServer
from strandline.testing.contracts.drivers.push_contract import PushContract
from strandline.testing.contracts.drivers.reduction_contract import PushedReductionContract

pytestmark = pytest.mark.server


@pytest.fixture
def make_endpoint(kafka_broker: KafkaServer) -> Iterator[Callable[[], Topics]]:
    """Each endpoint is seen through topics that were not there before."""
    with ExitStack() as closing:

        def make() -> Topics:
            closing.close()
            topics = Topics(kafka_broker)
            closing.callback(topics.drop)
            return topics

        yield make


class TestKafka(PushContract):
    pass


class TestKafkaOfReductions(PushedReductionContract):
    pass
