"""The demo: a year of flights arrives day by day, the process is killed once, and the result is proved right.

data.py         the packaged CSV files, cut into the files that arrive
data.py  the project: sources, three views, one DuckDB file
data.py     what happens when: files, a renamed airline, a corrected day, a kill
worker.py       the main loop, in a process of its own
child.py        the other end of it: starts, asks, kills, starts again
proof.py        plain Spark over the raw files, and DuckDB, against the views
story.py        all of it, with a progress bar
"""
