-- A module for Lmod. PREFIX is a virtual environment into which hpcncf was installed:
--   python3 -m venv PREFIX && PREFIX/bin/pip install hpcncf-@VERSION@-*.whl
--   mkdir PREFIX/command && ln -s ../bin/hpcncf PREFIX/command/
-- Only the command is put on PATH: the environment's python stays out of the way of the user's.
help([[hpcncf measures why a training job wastes its cores. To start: hpcncf run -- python train.py]])
whatis("Name: hpcncf")
whatis("Version: @VERSION@")
whatis("Description: measures why a training job wastes its cores, and what to request instead")

local prefix = os.getenv("HPCNCF_PREFIX") or "/opt/hpcncf/@VERSION@"
prepend_path("PATH", pathJoin(prefix, "command"))
prepend_path("MANPATH", pathJoin(prefix, "share/man"))
-- An empty entry stands for the pages of the system.
append_path("MANPATH", "")
