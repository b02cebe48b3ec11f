"""`python -m pd_operator`."""

import sys

from pd_operator.cli import main

sys.exit(main())
