"""The data plane on Spark: the session, and all that asks it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from strandline.compute.plan.scalars.remembered import Answers, RememberedAnalyst
from strandline.controller.location.config import Config, Mode
from strandline.engine.files.decoder import SparkFiles
from strandline.engine.frames.failures import translated
from strandline.engine.messages.decoder import SparkMessages
from strandline.engine.parts.aside import InLocation, Nowhere, OfThisMachine, Place, Places
from strandline.engine.parts.part_store import Parts
from strandline.engine.session import kafka_jars
from strandline.engine.session.cluster import is_cluster
from strandline.engine.session.executors import PARTITIONS, Executors
from strandline.engine.session.functions import Functions
from strandline.engine.session.start import adopt, build, stop
from strandline.engine.session.workers import Workers
from strandline.engine.spark import SparkEngine
from strandline.engine.sql.analysis import SparkAnalyst
from strandline.persist.shard.batch import scratch_prefix
from strandline.plane import in_hurry
from strandline.store.clock import Clock, Ids, SystemClock, SystemIds
from strandline.wiring.locations import Location
from strandline.wiring.spark_start import Plane, authority

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


def on_spark(
    spark: SparkSession | None, where: Location, parts: Parts, config: Config, mode: Mode, opened: ExitStack
) -> Plane:
    """Return the data plane of a location; ``opened`` closes what is made for it.

    ``spark``: a session to work beside; None starts Spark.

    Raises `ConfigError`: Java is missing or too old, or Spark cannot reach the location.
    """
    wanted = kafka_jars.jars(where.spark_settings(config.spark), config.kafka_jars)
    session = build(wanted) if spark is None else adopt(spark, wanted)
    if spark is None:
        opened.callback(stop, session)
    where.prepare(session)
    functions = Functions(config.functions)
    functions.learn(session)
    place: Places = OfThisMachine
    executors: Executors | None = None
    workers: Workers | None = None
    if is_cluster(str(session.sparkContext.master)):
        executors = Executors(
            session,
            SystemClock(),
            patience_s=config.executors_wait_s,
            end_s=config.executors_end_s,
            partitions=PARTITIONS not in config.spark,
            alone=spark is None,
        )
        workers = Workers(session, partial(_carried_out, executors))
        place = Nowhere if mode is Mode.INDEPENDENT else partial(_beside, parts, SystemClock(), SystemIds())
    engine = SparkEngine(session, parts, place, executors)
    opened.callback(engine.close)
    answers = Answers(authority(engine.settings(), functions))
    analyst = RememberedAnalyst(SparkAnalyst(session, functions, workers), answers)
    return Plane(engine, analyst, answers, SparkFiles(session, workers, place), SparkMessages(session, workers))


def _carried_out(executors: Executors, call: Callable[[], T]) -> T:
    """Make a call of ours whose jobs wait for executors as long as those of the engine."""
    return executors.carried_out(partial(translated, call), hurried=in_hurry())


def _beside(parts: Parts, clock: Clock, ids: Ids) -> Place:
    """Return a place for rows that are put aside, which executors reach."""
    return InLocation(parts, f"{scratch_prefix()}{clock.now_ms()}-{ids.fresh('a')}")
