"""Start hpcncf from one file: unpack it once, then run it in an environment of its own.

The environment is a virtual one around the Python that runs this file, so that a torch installed
there is found; a user's program that hpcncf starts sees none of it.
"""

import os
import sys


def main():
    # Each start runs this: nothing slow is imported before something is to be unpacked.
    file = os.path.dirname(os.path.abspath(__file__))
    about = __loader__.get_data(os.path.join(file, "about")).decode()  # version-python-content
    made_for = about.split("-")[1]
    if made_for != "cp%d%d" % sys.version_info[:2] or sys.implementation.name != "cpython":
        sys.exit(
            "hpcncf: this file is for CPython 3.%s, and %s is Python %d.%d. Start it with that "
            "version, or build one for this: make pyz PYTHON=%s"
            % (made_for[3:], sys.executable, *sys.version_info[:2], sys.executable)
        )
    folder = os.path.join(_cache(), about)
    # Each Python that runs this file has an environment of its own.
    base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    env = os.path.join(folder, "env" + base.replace("/", "-"))
    python = os.path.join(env, "bin/python")
    if not os.path.exists(python):
        _unpack(file, folder, env, base)
    os.execv(python, [python, "-P", "-m", "hpcncf", *sys.argv[1:]])


def _cache():
    named = os.environ.get("HPCNCF_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for folder in [named] if named else [os.path.join(home, "hpcncf"), None]:
        if folder is None:
            folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), "hpcncf-%d" % os.getuid())
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK) and os.stat(folder).st_uid == os.getuid():
            return folder
    sys.exit("hpcncf: no folder to unpack to; name one of your own: export HPCNCF_CACHE=FOLDER")


def _unpack(file, folder, env, base):
    """Another process may do the same: each prepares a copy, and one becomes the folder."""
    import tempfile
    import zipfile

    os.makedirs(folder, exist_ok=True)
    packages = os.path.join(folder, "site-packages")
    if not os.path.isdir(packages):
        if sys.stderr.isatty():
            print("hpcncf: unpacking to %s, once" % folder, file=sys.stderr)
        partial = tempfile.mkdtemp(dir=folder)
        with zipfile.ZipFile(file) as outer, outer.open("site-packages.zip") as inner:
            with zipfile.ZipFile(inner) as files:
                files.extractall(partial)
        _become(partial, packages)
    partial = tempfile.mkdtemp(dir=folder)
    site = os.path.join(partial, "lib/python%d.%d/site-packages" % sys.version_info[:2])
    os.makedirs(site)
    os.makedirs(os.path.join(partial, "bin"))
    os.symlink(base, os.path.join(partial, "bin/python"))
    with open(os.path.join(partial, "pyvenv.cfg"), "w") as file:
        file.write("home = %s\n" % os.path.dirname(base))
        file.write("include-system-site-packages = true\n")
        file.write("version = %d.%d.%d\n" % sys.version_info[:3])
    with open(os.path.join(site, "hpcncf.pth"), "w") as file:
        file.write(packages + "\n")
        # Of a virtual environment that runs this file: its torch.
        file.writelines(
            each + "\n" for each in sys.path if each.endswith(("site-packages", "dist-packages"))
        )
    _become(partial, env)


def _become(partial, place):
    os.chmod(partial, 0o700)
    try:
        os.rename(partial, place)
    except OSError:
        if not os.path.isdir(place):
            raise


main()
