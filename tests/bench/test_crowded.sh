#!/bin/sh
# bench/crowded: the table that it makes from rows, and a small run without peers.
# usage: test_crowded.sh SOURCE_FOLDER BUILD_FOLDER
set -u
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
crowded=$1/bench/crowded

expect_line() {
    grep -qxF "$1" "$work/crowded.md" && return
    echo "FAILED: no line '$1' in"
    cat "$work/crowded.md" "$work/err"
    exit 1
}

# Cores were near and far; the state with more libraries counts, if there are as many, the near one.
mkdir "$work/part1" "$work/part4"
head=round,ranks,library,collective,form,bytes,us,iterations,wrong,before_ns,after_ns,slow,pace_ns,state,others_percent,quiet
rest=9,0,30,30,0,0
cat >"$work/part1/compare.csv" <<END
$head
1,8,tutti,all_reduce,out,8,4.0,$rest,near,0,True
2,8,tutti,all_reduce,out,8,4.2,$rest,near,0,True
1,8,ompi,all_reduce,out,8,12.3,$rest,near,0,True
1,8,ompi-ucx,all_reduce,out,8,10.25,$rest,near,0,True
1,8,gloo,all_reduce,out,8,410,$rest,near,0,True
1,8,limit,all_reduce,out,8,3.0,$rest,near,0,True
1,8,tutti,all_reduce,out,8,9.0,$rest,far,0,True
1,8,tutti,all_reduce,in,8,1.0,$rest,near,0,True
1,8,tutti,all_reduce,in,8,2.0,$rest,far,0,True
1,8,ompi,all_reduce,in,8,6.0,$rest,far,0,True
END
cat >"$work/part4/compare.csv" <<END
$head
1,256,tutti,barrier,out,0,2000,$rest,far,0,True
1,256,ompi,barrier,out,0,9000,$rest,near,0,True
END
python3 "$crowded" --out "$work" --tables >/dev/null 2>"$work/err" || exit 1
expect_line '| 8 | all_reduce | 8 B | 4.1 | 12.3(1) | 10.2(1) | 410(1) | 3(1) | 2.5 | 3.4 | 100 |'
expect_line '| 8 | all_reduce, in place | 8 B | 2(1) | 6(1) |  |  |  | 3.0 |  |  |'
expect_line '| 256 | barrier |  | 2m(1) | 9m(1) |  |  |  | 4.5 |  |  |'
[ "$(wc -l <"$work/crowded.md")" -eq 5 ] || exit 1

rm -r "$work"/part*
run_part() { # run_part NUMBER MORE-OPTIONS...
    part=$1
    shift
    python3 "$crowded" --out "$work" --only "$part" -- --build "$build" --ranks 8 --quick --libraries none --rounds 1 --samples 1 \
        --sample-ms 2 --max-bytes 4K --retries 0 --others 100 --near-ns 1e9 "$@" >"$work/out" 2>"$work/err" || { cat "$work/err"; exit 1; }
}
build=$2
run_part 2
for size in '8 B' '4 KiB'; do
    grep -qE "^\| 8 \| ping_pong \| $size \| [0-9.]+m?\(1\)!? \|(  \|){7}$" "$work/out" || { cat "$work/out" "$work/err"; exit 1; }
done
run_part 1 --collectives broadcast,barrier
for call in broadcast barrier; do
    grep -q ",8,limit,$call," "$work/part1/compare.csv" || { cat "$work/part1/compare.csv" "$work/err"; exit 1; }
done
if python3 "$crowded" --out "$work" --only 6 >/dev/null 2>"$work/err"; then exit 1; fi
grep -q 'there are parts 1 to 5' "$work/err"
