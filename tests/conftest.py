"""Settings of all tests, and of the processes they start."""

import os

os.environ["MLIRSTITCH_CACHE"] = "off"  # neither read the user's cache nor write to it; tests of it name a folder
