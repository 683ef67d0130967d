# Sourced: the array `isolated` is the command that runs GPUSYNC_PYTHON without anything from the checkout. A pull request can add
# modules to the checkout (pytest_gpusync.py, libcst.py, pip.py), and `python -m` and `python -c` look there first.
: "${GPUSYNC_PYTHON:=python}"
isolated=("$GPUSYNC_PYTHON" -P -E)
# Python 3.10 has no -P; -I also leaves out packages that were installed with `pip install --user`.
"${isolated[@]}" -c '' 2>/dev/null || isolated=("$GPUSYNC_PYTHON" -I)
