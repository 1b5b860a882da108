"""`strandline doctor` and `strandline --version`: what this machine has, what a project needs, and what is missing.

Nothing is changed, no JVM is started but to ask Java who it is, and nothing secret is shown.
"""
