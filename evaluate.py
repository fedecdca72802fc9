"""Compare placers; see `python evaluate.py --help`."""

import sys

from agent.commands.evaluate import main

if __name__ == "__main__":
    sys.exit(main())
