"""The command lines: what `train_agent.py` and `evaluate.py` do."""

import os
import sys

try:
    os.getcwd()
except FileNotFoundError:  # imports would need it
    sys.stderr.write(f"{os.path.basename(sys.argv[0])}: the working directory was removed; use another\n")
    sys.exit(2)
