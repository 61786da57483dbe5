"""`hpcncf`, and `python -m hpcncf`."""

import sys


def main() -> int:
    """Ctrl-C ends a command without a traceback, among its imports, too."""
    try:
        from hpcncf.cli import main as run_command

        return run_command()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
