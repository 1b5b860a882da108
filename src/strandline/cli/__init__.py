"""The command line: what a person types, and what comes of it (text or JSON, and an exit status).

Source: design pages "environment" (commands) and "the public face" (command line).
"""

from strandline.cli.app import main

__all__ = ["main"]
