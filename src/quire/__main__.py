"""`python -m quire` is `quire`."""

import sys

from quire.cli import main

sys.exit(main())
