"""The command lines: what `train_agent.py` and `evaluate.py` do."""

import os
import sys

try:
    os.getcwd()
except FileNotFoundError:  # before imports that need it
    print(
        f"{os.path.basename(sys.argv[0])}: the working directory was removed; change to another",
        file=sys.stderr,
    )
    sys.exit(2)
