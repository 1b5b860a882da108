"""What every Spark of the tests begins with, also one that a process under test starts (`tests/conftest.py`).

Plans are interpreted: over a few rows Java's compiler takes longer than all that it compiles.

It is said by system properties, and not by a `spark-defaults.conf`: the directory of that would be on the class path,
and a JVM with another class path than the class archive was made with does not use the archive.
"""

from __future__ import annotations

import shlex
from typing import Final

from strandline.engine.session.start import SHORT_LIVED_JAVA

_CONF: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}

CONF_OPTIONS: Final = " ".join(shlex.quote(f"-D{key}={value}") for key, value in _CONF.items())
JAVA_OPTIONS: Final = f"{SHORT_LIVED_JAVA} {CONF_OPTIONS}"
"""For `SPARK_SUBMIT_OPTS`: every JVM that a test starts lives for minutes at most, and runs many small plans."""
