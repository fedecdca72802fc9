"""Train a placement policy; see `python train_agent.py --help`."""

import sys

from agent.commands.train import main

if __name__ == "__main__":
    sys.exit(main())
