"""The command `python -m agent.lab`."""

import sys

from agent.lab.command import main

sys.exit(main())
