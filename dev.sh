#!/bin/sh
# Two commands for a fresh checkout; each makes the environment it needs on its first run.
#
#   sh dev.sh demo            lint the examples, then hold their training steps to a budget
#   sh dev.sh test            run the test-suite, in two processes
#   sh dev.sh test ARG...     run pytest with these arguments
#
# They work with or without a GPU: without one, training runs on the simulated CUDA device. Settings, from the environment:
#
#   PYTHON   the interpreter of a new environment (python3)
#   VENV     the environment (.venv). One that is there already, such as "$VIRTUAL_ENV", keeps the torch it has
#   TORCH    the torch to install, such as torch==2.15.0 (the one of constraints.txt)
#   INSTALL  "no": install nothing, use VENV as it is
set -eu
cd "$(dirname "$0")"

PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
case $VENV in /*) ;; *) VENV=$PWD/$VENV ;; esac
INSTALL=${INSTALL:-yes}
stamp=$VENV/.gpusync-installed

fail() {
    echo "dev.sh: $*" >&2
    exit 2
}

# What the environment should hold, in two lines: the torch asked for, now or at an earlier call (empty: that of
# constraints.txt), and a checksum of the project's own list. A change of either is a reason to install again.
wanted() {
    echo "${TORCH:-$(earlier_torch)}"
    cat pyproject.toml constraints.txt | cksum
}

# The torch that VENV was made with, or the one it holds from elsewhere as torch==VERSION; else nothing.
earlier_torch() {
    if [ -f "$stamp" ]; then
        head -n 1 "$stamp"
    elif [ -x "$VENV/bin/python" ]; then
        "$VENV/bin/python" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' \
            2>/dev/null || true
    fi
}

prepare() {
    if [ "$INSTALL" = no ]; then
        [ -x "$VENV/bin/python" ] || fail "INSTALL=no, and $VENV is not a virtual environment"
        return
    fi
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(wanted)" ]; then
        return
    fi
    torch=${TORCH:-$(earlier_torch)}
    stamped=$(wanted)
    if [ ! -x "$VENV/bin/python" ]; then
        command -v "$PYTHON" >/dev/null || fail "$PYTHON not found; set PYTHON to a Python 3.10 or newer"
        "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
            fail "$PYTHON is $("$PYTHON" --version); set PYTHON to a Python 3.10 or newer"
        echo "making the environment $VENV"
        "$PYTHON" -m venv "$VENV" || fail "$PYTHON could not make $VENV (on Debian: apt install python3-venv)"
        # From here on the environment is known as ours, also when the installation below is interrupted.
        : >"$stamp"
    fi
    constraints=$VENV/.gpusync-constraints.txt
    if [ -n "$torch" ]; then
        # Another torch brings its own versions of what it needs; the rest stays as tested.
        grep -Eiv '^(torch|numpy|sympy|mpmath|networkx|fsspec|filelock|setuptools)==' constraints.txt >"$constraints"
    else
        torch=torch
        cp constraints.txt "$constraints"
    fi
    echo "installing pytest-gpusync and $torch into $VENV"
    if [ -z "${PIP_EXTRA_INDEX_URL:-}" ] && [ "$(uname)" = Linux ]; then
        echo "(PyPI's torch for Linux is a CUDA build of several gigabytes. The CPU build:" \
            "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu sh dev.sh ...)"
    fi
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
        -c "$constraints" -e ".[test]" "$torch"
    echo "$stamped" >"$stamp"
}

# The tensors of the tests are tiny: on a busy machine, threads that wait for each other take longer than the work.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

# Print a command as it would be typed in the environment, then run it.
show() {
    printf '\n$ %s\n' "$*"
    PATH=$VENV/bin:$PATH "$@"
}

demo() {
    show gpusync lint --exit-zero examples
    # A budget that is broken, as a failed test shows it. The test is marked as an expected failure; --runxfail lets it fail.
    broken=0
    show pytest -q --gpu-sync-budget=5 --runxfail --show-capture=no examples/char_gpt -k slow_training_keeps || broken=$?
    [ "$broken" -eq 1 ] || fail "the slow training was to break its budget, and pytest ended with status $broken"
    show pytest --gpu-sync-budget=5 -rx examples/char_gpt examples/conv_net
}

command=${1:-}
[ $# -eq 0 ] || shift
case $command in
demo)
    prepare
    demo
    ;;
test)
    prepare
    # Many tests start a program and wait for it, so two processes take little more than half of the time.
    [ $# -gt 0 ] || set -- -n 2 --dist worksteal
    show pytest "$@"
    ;;
*)
    fail "usage: sh dev.sh demo | sh dev.sh test [PYTEST-ARGUMENT...]"
    ;;
esac
