"""Call a function once a module has been imported."""

import sys

from _hpcncf_probe.phases import hide_frames

_WAITING = {}


class Finder:
    """Stands before the other finders, and lets them find; only then adds a call."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in _WAITING:
            return None
        for finder in list(sys.meta_path):
            if finder is Finder or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _add_call(spec, name)
                return spec
        return None


def _add_call(spec, name):
    """To the execution of the module, for a spec may be asked for and not used: libraries look
    whether torch is there before they import it."""
    execute = getattr(spec.loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module):
        # As before for the module's own code: a reload, or a copy of the loader, finds no trace.
        try:
            spec.loader.exec_module = execute
            execute(module)
            call = _WAITING.pop(name, None)
            if call is not None:
                call(module)
        except BaseException as error:
            hide_frames(error)
            raise

    try:
        spec.loader.exec_module = exec_module
    except AttributeError:
        pass  # a loader that keeps no attributes: this module is not observed


def after(name, call):
    """Call `call(module)` as soon as the module is imported, now if it is."""
    module = sys.modules.get(name)
    if module is not None:
        call(module)
        return
    _WAITING[name] = call
    if Finder not in sys.meta_path:
        sys.meta_path.insert(0, Finder)
