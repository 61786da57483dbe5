"""Entry point of `hpcncf` and of `python -m hpcncf`."""

import os
import sys


def prefer_own_packages() -> None:
    """Move the folders of PYTHONPATH to the end of `sys.path`.

    PYTHONPATH is for the user's program: it may hold numpy for another version of Python.
    """
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    try:
        theirs = {os.path.abspath(each) for each in given}  # noqa: PTH100, as `site` writes them
    except OSError:  # the current folder is gone
        return
    sys.path.sort(key=theirs.__contains__)  # last, otherwise in order


def main() -> int:
    """Run the command line; Ctrl-C ends it without a traceback, even during its imports.

    The process then ends by SIGINT, so that a shell sees it.
    """
    prefer_own_packages()
    try:
        from hpcncf.cli import main as run_command

        return run_command()
    except KeyboardInterrupt:
        import signal

        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        return 130


if __name__ == "__main__":
    sys.exit(main())
