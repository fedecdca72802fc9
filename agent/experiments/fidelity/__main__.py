"""The command `python -m agent.experiments.fidelity`."""

import sys

from agent.experiments.fidelity.study import main

sys.exit(main())
