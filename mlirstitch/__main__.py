"""``python -m mlirstitch`` is the command line."""

import sys

from mlirstitch.driver.cli import main

sys.exit(main())
