"""The command ``python -m benchmarks.adapters``."""

import sys

from benchmarks.adapters.command import main

if __name__ == "__main__":
    sys.exit(main())
