"""The data plane on Spark: the session, and all that asks it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from strandline.compute.plan.scalars.remembered import Answers, RememberedAnalyst
from strandline.controller.location.config import Config
from strandline.engine.files.decoder import SparkFiles
from strandline.engine.messages.decoder import SparkMessages
from strandline.engine.parts.part_store import Parts
from strandline.engine.session import kafka_jars
from strandline.engine.session.functions import Functions
from strandline.engine.session.start import adopt, build, stop
from strandline.engine.spark import SparkEngine
from strandline.engine.sql.analysis import SparkAnalyst
from strandline.wiring.authority import authority
from strandline.wiring.locations import Location
from strandline.wiring.planes import Plane

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def on_spark(spark: SparkSession | None, where: Location, parts: Parts, config: Config, opened: ExitStack) -> Plane:
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
    engine = SparkEngine(session, parts)
    opened.callback(engine.close)
    answers = Answers(authority(engine.settings(), functions))
    analyst = RememberedAnalyst(SparkAnalyst(session, functions), answers)
    return Plane(engine, analyst, answers, SparkFiles(session), SparkMessages(session))
