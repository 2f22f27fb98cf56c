#!/bin/sh
# bench/compare_hosts on two hosts, without peers: Tutti and bare sockets are measured, results are right, and no process is
# left behind.
# usage: test_compare_hosts.sh SOURCE_FOLDER BUILD_FOLDER
set -u
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

timeout 100 "$1/bench/compare_hosts" --quick --build "$2" --ranks 1+1,2+2 --libraries none --collectives all_reduce,barrier \
    --max-bytes 4K --samples 1 --sample-ms 1 --retries 0 --others 100 --out "$work" >"$work/out" 2>"$work/err" || {
    echo "FAILED: exit code $?"
    cat "$work/out" "$work/err"
    exit 1
}
for text in 'wrong elements: 0' 'all_reduce, 1+1 ranks' 'barrier, 2+2 ranks' 'limit  share'; do
    grep -qF "$text" "$work/out" || {
        echo "FAILED: no '$text' in"
        cat "$work/out"
        exit 1
    }
done
if grep '^failed: ' "$work/out"; then exit 1; fi
[ "$(wc -l <"$work/compare.csv")" -gt 10 ]
