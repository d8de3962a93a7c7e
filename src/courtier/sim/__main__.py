"""`python -m courtier.sim`: many seeds, or one again."""

import sys

from courtier.sim.main import main

sys.exit(main())
