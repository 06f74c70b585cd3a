"""``python -m simulator``: the command line without its entry point."""

import sys

from simulator.cli import main

if __name__ == "__main__":
    sys.exit(main())
