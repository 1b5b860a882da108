"""The command line: commands, their output (text or JSON) and their exit statuses."""

from strandline.cli.app import main

__all__ = ["main"]
