"""The command `python -m agent.experiments.orders`."""

import sys

from agent.experiments.orders.study import main

sys.exit(main())
