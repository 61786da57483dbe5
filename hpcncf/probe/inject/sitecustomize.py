"""Start the probe when Python starts, then run the `sitecustomize` that this file hides.

Every Python below `hpcncf run` finds this file through PYTHONPATH: any version from 2.7 on, with or
without hpcncf installed. So it uses what the interpreter itself has loaded by now, prints nothing,
and never fails. The name ends up in `sys.modules` only if the user has such a module.
"""

if True:  # pragma: no cover - coverage.py in its subprocess mode counts no line of this file
    import os
    import sys

    def _start():
        here = os.path.dirname(os.path.abspath(__file__))
        _restore_path(here)
        folder = os.environ.get("HPCNCF_PROBE")
        if not folder or sys.version_info < (3, 9) or not os.path.isdir(folder):
            return
        try:
            import _imp

            path = os.path.join(here, "_hpcncf_probe", "__init__.py")
            loader = sys.modules["_frozen_importlib_external"].SourceFileLoader("_", path)
            code = loader.get_code("_")
            # No file's name: debuggers and coverage tools take it for a part of Python.
            _imp._fix_co_filename(code, "<_hpcncf_probe>")
            probe = {"__name__": "_hpcncf_probe"}
            exec(code, probe)
            probe["start"](folder, os.path.dirname(path), loader, probe)
        except Exception:  # the program must not see that there is a probe
            pass

    def _restore_path(here):
        """Have `sys.path` be what it is without hpcncf.

        Our entry ends with a separator where PYTHONPATH was unset. With more before or after it, as
        in `PYTHONPATH=$PYTHONPATH:lib`, the program's own value has an empty entry there, which is
        the working directory.
        """
        entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        ours = [bool(entry) and os.path.abspath(entry) == here for entry in entries]
        means_here = len(entries) > 1 and any(
            own and entry.endswith(os.sep) for own, entry in zip(ours, entries)
        )
        for entry in [here] + entries:
            if os.path.abspath(entry) == here:
                sys.path_importer_cache.pop(entry, None)
        if here not in sys.path:
            return
        at = sys.path.index(here)
        sys.path[:] = [entry for entry in sys.path if entry != here]
        if means_here:
            try:
                current = os.path.abspath("")
            except OSError:  # it has been removed
                return
            if current not in sys.path[:at]:
                sys.path[:] = [entry for entry in sys.path if entry != current]
                sys.path.insert(at, current)

    _start()
    # The user's own. Where there is none, the error is the one that `site` expects.
    del sys.modules[__name__]
    import sitecustomize  # noqa: F401
