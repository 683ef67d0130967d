#!/usr/bin/env bash
# Measure on a GPU what no other machine shows: serving, captures, compilation, and the recorder of the dispatcher.
#
# usage: benchmarks/gpu_session.sh OUT [PART...]
#
# Runs the parts in their order, all of them unless some are named, each with a time limit of its own. OUT gets
# session.json (the status, the seconds and the last lines of each part) and session.tar.gz (their JSON results and whole
# output); both are written after each part, so a session that is ended early keeps what it has. Ends with status 1 if a
# part failed. Without a GPU the parts that can use the simulated device do, and the others fail.
#
# TRUTH names a file of statements for gpu_truth.py; without it the part `truth` is left out. PYTHON is the interpreter.
set -uo pipefail

if [[ $# -lt 1 || $1 == -* ]]; then
    sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"
    exit 2
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 2
python=${PYTHON:-python}
export PYTHONPATH="$root:$root/lint${PYTHONPATH:+:$PYTHONPATH}"
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
failed=0

device=simulated
if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    device=cuda
fi

tests=("$python" -m pytest -q -p no:cacheprovider -p no:randomly)
parts=(doctor serving captures captures-tests traces graph-breaks truth cost memory fixes tests catalogue)
declare -A limits=(
    [doctor]=120 [serving]=60 [captures]=200 [captures-tests]=120 [traces]=60 [graph-breaks]=300 [truth]=120
    [cost]=60 [memory]=240 [fixes]=240 [tests]=420 [catalogue]=420
)

# The command of a part.
run() {
    case $1 in
    doctor) "$python" -m pytest_gpusync doctor ;;
    serving) "$python" benchmarks/serving_syncs.py --json "$results/serving.json" ;;
    captures) "$python" benchmarks/captures.py --device "$device" --json "$results/captures.json" ;;
    captures-tests) "${tests[@]}" tests/gpu/test_captures_on_gpu.py ;;
    traces) "$python" benchmarks/imported_traces.py "$results/traces" ;;
    graph-breaks) "$python" benchmarks/graph_breaks.py --write && cp lint/gpusync_lint/catalogue/graph_breaks.json "$results/" ;;
    truth) "$python" benchmarks/gpu_truth.py "$TRUTH" --recorder dispatcher --json "$results/truth.json" ;;
    cost) "$python" benchmarks/dispatcher_cost.py --json "$results/cost.json" ;;
    memory) "$python" benchmarks/endurance.py --json "$results/memory.json" steps --steps 20000 ;;
    fixes)
        "$python" benchmarks/verified_fixes.py . "$results/fixes" --device "$device" \
            --only conv_net char_gpt deferred_read
        ;;
    tests) "${tests[@]}" tests/gpu ;;
    catalogue)
        "$python" benchmarks/catalogue_truth.py --device "$device" --json "$results/catalogue.json" \
            --table "$results/catalogue.md"
        ;;
    *) echo "unknown part $1; the parts are ${parts[*]}" && return 2 ;;
    esac
}
export -f run
export results device root python TRUTH

# Write session.json from the rows "part, limit, status, seconds", and pack the results.
write() {
    "$python" - "$results" "$out/session.json" <<'PYTHON'
import json, pathlib, sys

results, written = map(pathlib.Path, sys.argv[1:])
rows = [row.split("\t") for row in (results / "rows.tsv").read_text().splitlines()]
parts = [
    {"part": part, "limit_s": int(limit), "status": int(status), "seconds": int(seconds),
     "output": (results / f"{part}.log").read_text(errors="replace").splitlines()[-15:]}
    for part, limit, status, seconds in rows
]
written.write_text(json.dumps({"schema": "gpusync.session/1", "parts": parts}, indent=2) + "\n")
PYTHON
    tar -czf "$out/session.tar.gz" -C "$results" .
}

for part in "${@:-${parts[@]}}"; do
    limit=${limits[$part]:-10}
    if [[ $part == truth && -z ${TRUTH:-} ]]; then
        echo "truth: left out; TRUTH names no file"
        continue
    fi
    began=$SECONDS
    timeout --kill-after=10 "$limit" bash -c "$(declare -p tests parts); run $part" >"$results/$part.log" 2>&1
    status=$?
    ((status)) && failed=1
    printf '%s\t%s\t%s\t%s\n' "$part" "$limit" "$status" "$((SECONDS - began))" >>"$results/rows.tsv"
    write
    echo "$part: status $status, $((SECONDS - began)) s of $limit"
done
exit "$failed"
