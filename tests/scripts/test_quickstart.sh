#!/bin/sh
# scripts/quickstart refuses wrong options before it installs or builds anything: within a second, in one line.
set -u
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/tutti-quickstart.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

refused() { # refused TEXT OPTIONS...
    text=$1
    shift
    timeout 5 "$source/scripts/quickstart" "$@" >out 2>err
    code=$?
    if [ $code -ne 1 ] || [ -s out ] || [ "$(wc -l <err)" -ne 1 ] || ! grep -q -- "$text" err; then
        echo "FAILED: exit code $code of: quickstart $*" && cat out err
        failures=$((failures + 1))
    fi
}

mkdir empty
refused "--data $work/nosuch: there is no such folder" --data nosuch
refused "--data $work/nosuch: there is no such folder" --epochs 1 --data=nosuch
refused "--data $work/empty: this folder has no train-images-idx3-ubyte" --data "$work/empty"
for ranks in x 0 -1 2x 5000 99999 ''; do
    refused "--ranks $ranks: must be a whole number from 1 to 4096" --ranks "$ranks"
done
refused "--ranks needs a value" --epochs 1 --ranks
[ $failures = 0 ] && echo "all well"
exit $failures
