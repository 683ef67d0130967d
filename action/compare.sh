#!/usr/bin/env bash
# Compare the run GPUSYNC_RUN with GPUSYNC_COMPARE, show the comparison as the step summary, and with GPUSYNC_COMMENT=true as the
# one comment of the pull request, for which the command reads GPUSYNC_TOKEN. Both files are untrusted: they are only read.
# Exits as gpusync report diff does.
set -uo pipefail
: "${GPUSYNC_REPORT:=gpusync-report}"
: "${GPUSYNC_RUN:=$GPUSYNC_REPORT/run.json}"
here=$(dirname "${BASH_SOURCE[0]}")
. "$here/python.sh"
if [ ! -e "$GPUSYNC_COMPARE" ] && [ "${GPUSYNC_FAIL_ON_MORE:-false}" != true ]; then
    echo "gpusync: there is no $GPUSYNC_COMPARE to compare with; the first run on the target branch writes one" >&2
    exit 0
fi
rm -f "$GPUSYNC_REPORT/diff.md"
diff=("${isolated[@]}" -m pytest_gpusync report diff -o "$GPUSYNC_REPORT/diff.md")
[ "${GPUSYNC_COMMENT:-false}" = true ] && diff+=("--comment=${GPUSYNC_COMMENT_NAME:-report}")
[ "${GPUSYNC_FAIL_ON_MORE:-false}" = true ] && diff+=(--exit-nonzero-on-more)
"${diff[@]}" -- "$GPUSYNC_COMPARE" "$GPUSYNC_RUN"
code=$?
if [ -n "${GITHUB_STEP_SUMMARY:-}" ] && [ -f "$GPUSYNC_REPORT/diff.md" ]; then
    cat "$GPUSYNC_REPORT/diff.md" >> "$GITHUB_STEP_SUMMARY"
fi
exit "$code"
