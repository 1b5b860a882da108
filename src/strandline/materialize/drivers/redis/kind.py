"""The endpoint `redis`: what it takes, and how it is opened."""

from __future__ import annotations

from typing import Final

from strandline import extras
from strandline.materialize.driver import Driver, DriverKind
from strandline.materialize.drivers.redis.options import RedisEndpoint, RedisResource
from strandline.store.clock import Clock


def _open(options: RedisEndpoint, _clock: Clock) -> Driver:
    from strandline.materialize.drivers.redis.driver import RedisDriver

    return RedisDriver(options, KIND.spec)


KIND: Final = DriverKind(
    "redis", RedisEndpoint, RedisResource, "docs/endpoints/redis.md", _open, lambda _: (extras.REDIS,)
)
