"""`python -m worldline.cli`: the command line where its script is not on the path."""

import sys

from worldline import cli

if __name__ == "__main__":
    sys.exit(cli.main())
