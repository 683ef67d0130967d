#!/usr/bin/env bash
# Install what GPUSYNC_INSTALL names: `action`, which is this checkout of the action at its own version, or what pip understands.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/python.sh"
requirement=${GPUSYNC_INSTALL:-action}
[ "$requirement" = action ] && requirement=$(dirname "$here")
"${isolated[@]}" -m pip install --quiet "$requirement"
