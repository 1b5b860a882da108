"""The demo: a year of flights arrives day by day, the process is killed once, and the result is proved right.

| file | contents |
| --- | --- |
| data.py | the packaged CSV files cut by day, the project (four sources, three views), and the steps |
| worker.py | the main loop, in a process of its own |
| child.py | the other end of it: starts, asks, kills, starts again |
| proof.py | plain Spark over the raw files, and DuckDB, against the views |
| story.py | all of it, with a progress bar |
"""
