#!/usr/bin/env bash
# Lint, each finding an annotation; with GPUSYNC_SARIF also a SARIF file. Exits as gpusync lint does.
set -uo pipefail
: "${GPUSYNC_PYTHON:=python}"
. "$(dirname "${BASH_SOURCE[0]}")/split.sh"
split GPUSYNC_LINT_ARGS
arguments=("${words[@]+"${words[@]}"}")
split GPUSYNC_LINT
paths=("${words[@]+"${words[@]}"}")
lint=("$GPUSYNC_PYTHON" -m pytest_gpusync lint "${arguments[@]+"${arguments[@]}"}")

if [ -n "${GPUSYNC_SARIF:-}" ]; then
    mkdir -p "$(dirname "$GPUSYNC_SARIF")"
    "${lint[@]}" --output-format sarif "${paths[@]}" > "$GPUSYNC_SARIF"
fi
"${lint[@]}" --output-format github --statistics "${paths[@]}"
