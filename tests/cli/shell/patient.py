"""The command line, which waits for long where a person would not: a busy machine answers late, and that is no end."""

from __future__ import annotations

import sys

from strandline.cli import main
from strandline.cli.shell import connection, running
from strandline.cli.terminal import opening

PATIENCE_S = 240.0
for module, name in (
    (opening, "ANSWER_S"),
    (connection, "ANSWER_S"),
    (connection, "BACK_S"),
    (running, "KNOWN_S"),
):
    assert hasattr(module, name)
    setattr(module, name, PATIENCE_S)

if __name__ == "__main__":
    sys.exit(main())
