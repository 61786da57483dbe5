"""`python -m hpcncf` is `hpcncf`."""

import sys

from hpcncf.cli import main

if __name__ == "__main__":
    sys.exit(main())
