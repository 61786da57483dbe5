"""`hpcncf` of this tree, whatever is installed: run as a file."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
from hpcncf.__main__ import main  # noqa: E402

sys.exit(main())
