"""The command `python -m agent.experiments`."""

import sys

from agent.experiments.command import main

sys.exit(main())
