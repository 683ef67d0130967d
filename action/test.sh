#!/usr/bin/env bash
# Run pytest under a budget or a baseline, write the reports and show the Markdown one as the step summary. Exits as
# pytest does.
set -uo pipefail
: "${GPUSYNC_REPORT:=gpusync-report}"
here=$(dirname "${BASH_SOURCE[0]}")
. "$here/python.sh"
. "$here/split.sh"
split GPUSYNC_TEST
command=("$GPUSYNC_PYTHON" -m pytest "${words[@]+"${words[@]}"}")
[ -n "${GPUSYNC_BUDGET:-}" ] && command+=("--gpu-sync-budget=$GPUSYNC_BUDGET")
[ -n "${GPUSYNC_BASELINE:-}" ] && command+=("--gpu-sync-baseline=$GPUSYNC_BASELINE")
[ "${GPUSYNC_REQUIRE:-false}" = true ] && command+=(--gpu-require)
for ending in json md html; do
    # What an earlier step left behind is not this one's result.
    rm -f "$GPUSYNC_REPORT/run.$ending"
    command+=("--gpu-sync-report=$GPUSYNC_REPORT/run.$ending")
done

"${command[@]}"
code=$?
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
    if [ -f "$GPUSYNC_REPORT/run.md" ]; then
        cat "$GPUSYNC_REPORT/run.md" >> "$GITHUB_STEP_SUMMARY"
    else
        printf '## GPU syncs\n\n**Nothing was measured:** pytest ended with exit code %s before the first test.\n' "$code" \
            >> "$GITHUB_STEP_SUMMARY"
    fi
fi
exit "$code"
