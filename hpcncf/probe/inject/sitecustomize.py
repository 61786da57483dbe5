"""Start the probe, then run the `sitecustomize` that this one hides.

Every Python below `hpcncf run` finds this file through PYTHONPATH: any version from 3.9 on, with or
without hpcncf installed. So it uses the standard library only, prints nothing, and never fails.
"""

import os
import sys


def _start():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != here]
    folder = os.environ.get("HPCNCF_PROBE")
    if not folder or sys.version_info < (3, 9) or not os.path.isdir(folder):
        return
    sys.path.insert(0, here)
    try:
        import _hpcncf_probe

        _hpcncf_probe.start(folder)
    except Exception:  # the program must not see that there is a probe
        pass
    finally:
        sys.path.remove(here)


_start()
# The user's own errors are shown as Python shows them, so nothing is caught here but its absence.
_OURS = sys.modules.pop(__name__, None)
try:
    import sitecustomize  # noqa: F401
except ImportError as _error:
    if _OURS is not None:
        sys.modules[__name__] = _OURS
    if _error.name != "sitecustomize":
        raise
