# Sourced after python.sh: split "VARIABLE" reads the variable as a shell would read words, quotes included, into the array
# `words`. Nothing in it is executed or expanded.
split() {
    words=()
    while IFS= read -r -d '' word; do
        words+=("$word")
    done < <("${isolated[@]}" -c 'import os, shlex, sys
sys.stdout.write("".join(word + "\0" for word in shlex.split(os.environ.get(sys.argv[1], ""))))' "$1")
}
