"""``python -m garlicfarm.testing.simulator``."""

import sys

from garlicfarm.testing.simulator.simulation import main

sys.exit(main())
