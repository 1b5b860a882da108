"""The data plane, as the rooms that decide see it: rows are opaque, and each job is one named call.

Python decides, the JVM moves rows: a caller may pass `Rows` on but never look inside.  `Engine` is the only way to
Spark.  Its calls are declared by who asks: sources and steps that write (`Staging`),
deliveries and checks that read (`Reading`), steps and queries (`Evaluating`), small windows (`LookUps`), and the
envelopes of sources (`Enveloping`).  A call may be in a hurry (`hurry`): then its jobs wait for no executors.  It may
belong to a query (`asked`): then its jobs run beside those of ticks, and are cancelled with it.
"""

__all__ = ["asked", "described", "edits", "engine", "enveloping", "hurry", "reading", "staging"]
