#!/usr/bin/env bash
# Lint, each finding an annotation; with GPUSYNC_SARIF also a SARIF file. Exits as gpusync lint does. No code of the checkout
# is executed.
set -uo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
. "$here/python.sh"
. "$here/split.sh"
split GPUSYNC_LINT_ARGS
arguments=("${words[@]+"${words[@]}"}")
split GPUSYNC_LINT
paths=("${words[@]+"${words[@]}"}")
lint=("${isolated[@]}" -m pytest_gpusync lint "${arguments[@]+"${arguments[@]}"}")

if [ -n "${GPUSYNC_SARIF:-}" ]; then
    folder=$(dirname "$GPUSYNC_SARIF")
    mkdir -p "$folder"
    # The checkout may contain links of these names, to files elsewhere.
    case $GPUSYNC_SARIF in
    /*) ;;
    *)
        case $(cd -P "$folder" && pwd)/ in
        "$(pwd -P)"/*) ;;
        *)
            echo "gpusync: $folder, the folder of the SARIF file, is a link to a place outside the checkout" >&2
            exit 2
            ;;
        esac
        ;;
    esac
    rm -f "$GPUSYNC_SARIF"
    "${lint[@]}" --output-format sarif "${paths[@]}" > "$GPUSYNC_SARIF"
fi
"${lint[@]}" --output-format github --statistics "${paths[@]}"
