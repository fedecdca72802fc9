"""The command `python -m agent.experiments.optimality`."""

import sys

from agent.experiments.optimality.study import main

sys.exit(main())
