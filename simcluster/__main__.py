"""python -m simcluster."""

import sys

from simcluster.cli import main

if __name__ == "__main__":
    sys.exit(main())
