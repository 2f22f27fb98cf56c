#!/bin/sh
# tutti-train as users start it: form of the output, and one-line errors that end all ranks at once.
# usage: test_train.sh BIN_FOLDER
set -u
bin=$1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
unset TUTTI_DATA
failures=0

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# expect_failure TEXT command...: ends in time with an error, and one line of its stderr, and only one, has the text.
expect_failure() {
    text=$1
    shift
    timeout 20 "$@" >out 2>err
    code=$?
    [ $code -ne 0 ] && [ $code -ne 124 ] || fail "exit code $code of: $*"
    [ "$(grep -c "tutti-train: .*$text" err)" = 1 ] || { fail "no single line with \"$text\" from: $*"; cat err; }
}

alone="$bin/tutti-train"
three="$bin/tuttirun --standalone --nproc_per_node 3 $bin/tutti-train"

# The form of the output.
timeout 60 $alone --model mlp --batch_size 20 --steps=41 --log-every 20 --metrics m.jsonl >out 2>err || fail "plain run"
grep -q '^no MNIST found: training on' out || fail "the line on drawn digits is missing"
[ "$(grep -cE '^ {10}(20|40) {1,}[0-9]+\.[0-9]{10}$' out)" = 2 ] || fail "loss lines are not {:12} {:>12.10f}"
tail -n 1 out | grep -qE '^test accuracy: [0-9]+\.[0-9]{2} %$' || fail "last line: $(tail -n 1 out)"
[ "$(grep -c '"event":"step"' m.jsonl)" = 3 ] || fail "metrics have not three steps"
if command -v python3 >/dev/null; then
    python3 -c 'import json,sys; [json.loads(line) for line in open("m.jsonl")]' || fail "metrics are no JSON lines"
fi
[ -s err ] && { fail "stderr is not empty"; cat err; }
timeout 20 $alone --help | grep -q -- '--batch-size N' || fail "--help"
timeout 60 $three --model mlp --batch-size 10 --steps 5 >out 2>err || fail "three ranks"
[ "$(grep -c 'test accuracy: ' out)" = 1 ] || fail "three ranks: not one last line"

# A list of nodes instead of a launcher: here one node, this one.
timeout 60 $alone --nodes 127.0.0.1 --ctrl_port=$((20000 + $$ % 10000)) --model mlp --device_num 2 --batch-size 10 --steps 5 \
    --metrics nodes.jsonl >out 2>err || { fail "a list of nodes"; cat err; }
[ "$(grep -c 'test accuracy: ' out)" = 1 ] || fail "a list of nodes: not one last line"
grep -q '"ranks":2' nodes.jsonl || fail "a list of nodes: not two ranks"

# Errors: alone and with three ranks, of which one tells.
for program in "$alone" "$three"; do
    expect_failure '/no/such is no folder' $program --data /no/such
    expect_failure 'nearest known one is --momentum' $program --momentun 0.9
    expect_failure 'lower --batch-size' $program --batch-size 30000
    mkdir -p exists
    expect_failure '--checkpoint-dir exists exists' $program --checkpoint-dir exists
    expect_failure '--resume exists: no file' $program --resume exists
    expect_failure '--metrics /no/such/file' $program --metrics /no/such/file
done

# Different options on one rank: told, not a hang.
cat >differ <<EOF
#!/bin/sh
exec "$bin/tutti-train" --model mlp --steps 3 --batch-size \$((10 + RANK))
EOF
chmod +x differ
timeout 30 "$bin/tuttirun" --standalone --nproc_per_node 2 ./differ >out 2>err
code=$?
[ $code -ne 0 ] && [ $code -ne 124 ] || fail "exit code $code with different options"
grep -q 'different options or data' err || { fail "different options are not told"; cat err; }

# A GPU that cannot be used is an error where one was asked for, with its reason, and none where it was not.
TUTTI_CUDA_MODULE=/no/such/module.so expect_failure "cannot load /no/such/module.so" $alone --device cuda --steps 1
expect_failure "tf32 and bf16 need a GPU" $alone --device host --precision bf16 --steps 1
TUTTI_CUDA_MODULE=/no/such/module.so timeout 60 $alone --model mlp --batch-size 20 --steps 2 >out 2>err || fail "no GPU"

# A warning when another number of ranks resumes.
timeout 60 $alone --model mlp --batch-size 20 --steps 4 --checkpoint-dir saved >out 2>err || fail "saving"
timeout 60 "$bin/tuttirun" --standalone --nproc_per_node 2 "$bin/tutti-train" --model mlp --batch-size 10 --steps 8 --resume saved \
    >out 2>err || fail "resuming with two ranks"
grep -q 'warning: the checkpoint was written by 1 ranks' err || fail "no warning about the number of ranks"

[ $failures = 0 ] && echo "all well"
exit $failures
