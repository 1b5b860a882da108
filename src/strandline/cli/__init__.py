"""The command line: commands, their output (text or JSON) and their exit statuses.

Source: design pages "environment" (commands) and "the public face" (command line).
"""

from strandline.cli.app import main

__all__ = ["main"]
