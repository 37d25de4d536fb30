"""`python -m samplr`."""

import sys

from samplr.cli import main

sys.exit(main())
