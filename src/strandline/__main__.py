"""``python -m strandline`` is the command ``strandline``."""

import sys

from strandline.cli import main

if __name__ == "__main__":
    sys.exit(main())
