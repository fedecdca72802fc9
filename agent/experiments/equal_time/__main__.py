"""The command `python -m agent.experiments.equal_time`."""

import sys

from agent.experiments.equal_time.study import main

sys.exit(main())
