#!/bin/sh
# bench/compare_hosts on two hosts, without peers: Tutti and bare sockets are measured, results are right, and no process is
# left behind.
# usage: test_compare_hosts.sh SOURCE_FOLDER BUILD_FOLDER
set -u
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# Rows of a library count only where the cores were as near or far as in Tutti's, which may change at any time: here they
# are always near.
compare() {
    timeout 100 "$source/bench/compare_hosts" --quick --build "$build" --ranks 2+2 --libraries none --max-bytes 4K \
        --collectives all_reduce,barrier,gather,scatter --samples 1 --sample-ms 1 --retries 0 --others 100 --patience 0 --near-ns 1e9 --out "$work" "$@" \
        >"$work/out" 2>"$work/err" && return
    echo "FAILED: exit code $?"
    cat "$work/out" "$work/err"
    exit 1
}
source=$1 build=$2

compare
for text in 'wrong elements: 0' 'all_reduce, 2+2 ranks' 'barrier, 2+2 ranks' 'gather, 2+2 ranks' 'scatter, 2+2 ranks' 'limit  share'; do
    grep -qF "$text" "$work/out" || {
        echo "FAILED: no '$text' in"
        cat "$work/out"
        exit 1
    }
done
if grep '^failed: ' "$work/out"; then exit 1; fi
[ "$(wc -l <"$work/compare.csv")" -gt 10 ] || exit 1
grep -q '^## all_reduce, 2+2 ranks' "$work/hosts.md" || exit 1

grep -q '^0 of 0 cells are behind' "$work/behind.md" || exit 1 # there are no peers

# Tutti with some of its algorithms, on four hosts, next to a second build.
mkdir "$work/rows"
compare --rows --ranks 4x1 --collectives all_reduce --min-bytes 4K --libraries any-order,double_tree,other --other "$build" \
    --out "$work/rows"
for text in 'wrong elements: 0' 'all_reduce, 4x1 ranks'; do
    grep -qF "$text" "$work/out" || {
        echo "FAILED: --rows: no '$text' in"
        cat "$work/out"
        exit 1
    }
done
for library in any-order double_tree other; do # a column of the tables, and rows of results
    grep -q "^ *size  *tutti .* $library " "$work/out" && grep -q ",$library,all_reduce," "$work/rows/compare.csv" || {
        echo "FAILED: --rows: $library was not measured:"
        cat "$work/out" "$work/rows/compare.csv"
        exit 1
    }
done
if grep '^failed: ' "$work/out"; then exit 1; fi

# A run that was stopped while it wrote a line resumes after the line before.
cp "$work/launches.jsonl" "$work/all"
kept=$(($(wc -l <"$work/all") - 4))
head -n "$kept" "$work/all" >"$work/launches.jsonl"
printf '[["1", "cut' >>"$work/launches.jsonl"
compare --resume
[ "$(head -n "$kept" "$work/launches.jsonl")" = "$(head -n "$kept" "$work/all")" ] || exit 1
[ "$(wc -l <"$work/launches.jsonl")" -eq "$(wc -l <"$work/all")" ]
