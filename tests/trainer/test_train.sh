#!/bin/sh
# tutti-train as users start it: the format of the output, and one-line errors that end all ranks at once.
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

# expect_failure TEXT command...: ends in time with an error, and exactly one line of its stderr contains the text.
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

# The format of the output.
timeout 60 $alone --model mlp --batch_size 20 --steps=41 --log-every 20 --metrics m.jsonl >out 2>err || fail "plain run"
grep -q '^no MNIST found: training on' out || fail "the line on drawn digits is missing"
[ "$(grep -c '^        step         loss$' out)" = 1 ] || fail "the losses have not one heading"
[ "$(grep -cE '^ {10}(20|40) {1,}[0-9]+\.[0-9]{10}$' out)" = 2 ] || fail "loss lines are not {:12} {:>12.10f}"
tail -n 1 out | grep -qE '^test accuracy \(drawn digits, not MNIST\): [0-9]+\.[0-9]{2} %$' || fail "last line: $(tail -n 1 out)"
[ "$(grep -c '"event":"step"' m.jsonl)" = 3 ] || fail "metrics have not three steps"
if command -v python3 >/dev/null; then
    python3 -c 'import json,sys; [json.loads(line) for line in open("m.jsonl")]' || fail "metrics are no JSON lines"
fi
[ -s err ] && { fail "stderr is not empty"; cat err; }
timeout 60 $alone --model mlp --hidden 64 --batch-size 20 --steps 2 >out 2>err || fail "a hidden layer of 64"
grep -q '^mlp: 50890 trained parameters' out || fail "not the parameters of 64 units: $(head -n 3 out)"
timeout 60 $alone --model lenet --freeze conv --freeze dense1 --batch-size 2 --steps 1 --eval-samples 2 >out 2>err || fail "--freeze"
grep -q '^lenet: 5130 trained parameters, 1658240 frozen ones, 0 other values' out || fail "not what is frozen: $(head -n 3 out)"
timeout 20 $alone --help >help || fail "--help"
for option in monitor eval-samples batch-size view parallel-mode mesh strategy save-strategy memory-limit explain zero freeze parameter-broadcast mirror-mean check-parameters nodes device_num ctrl_port node_rank version; do
    grep -qE -- "^  --$option( |\$)" help || fail "--help does not list --$option"
done
timeout 20 $alone --version | grep -qE '^tutti-train [0-9]+\.[0-9]+\.[0-9]+$' || fail "--version"
timeout 60 $three --model mlp --batch-size 10 --steps 5 >out 2>err || fail "three ranks"
[ "$(grep -c '^test accuracy (' out)" = 1 ] || fail "three ranks: not one last line"

# MNIST's format: the last line does not mention drawn digits. Numbers of epochs and speeds, over three epochs of four
# steps.
if command -v python3 >/dev/null; then
    python3 - mnist <<'EOF'
import os, struct, sys
os.mkdir(sys.argv[1])
for part, count in ("train", 80), ("t10k", 20):
    pixels = bytes((i * 37 + n) % 251 for n in range(count) for i in range(784))
    for kind, dims, data in ("images-idx3", (count, 28, 28), pixels), ("labels-idx1", (count,), bytes(n % 10 for n in range(count))):
        with open(f"{sys.argv[1]}/{part}-{kind}-ubyte", "wb") as file:
            file.write(struct.pack(f">HBB{len(dims)}I", 0, 8, len(dims), *dims) + data)
EOF
    timeout 60 $alone --data mnist --model lenet --batch-size 20 --epochs 3 --log-every 1 --eval-every 3 --metrics epochs.jsonl \
        --checkpoint-dir epochs >out 2>err || { fail "three epochs"; cat err; }
    tail -n 1 out | grep -qE '^test accuracy: [0-9]+\.[0-9]{2} %$' || fail "last line with data: $(tail -n 1 out)"
    timeout 20 $alone --data mnist --model mlp --batch-size 5 --steps 1 --eval-samples 7 >part 2>err || { fail "a part of a test"; cat err; }
    grep -qE '^test accuracy: [0-9.]+ % \(on 7 of 20 samples\)$' part || fail "a part of a test: $(tail -n 1 part)"
    timeout 20 $three --data mnist --model mlp --batch-size 2 --steps 1 --eval-samples 4 >part 2>err || { fail "a part of a test, 3 ranks"; cat err; }
    grep -qE '^test accuracy: [0-9.]+ % \(on 4 of 20 samples\)$' part || fail "a part of a test, 3 ranks: $(tail -n 1 part)"
    [ "$(grep -c '^checkpoint written: epochs/step-000000' out)" = 3 ] || { fail "the output does not name three checkpoints"; cat out; }
    python3 - <<'EOF' || fail "epochs or speeds in the metrics"
import json
rows = [json.loads(line) for line in open("epochs.jsonl")]
for row in rows:
    expected = 0 if row["event"] == "start" else (row["step"] + 3) // 4
    assert row["epoch"] == expected, row
steps = [row for row in rows if row["event"] == "step"]
assert len(steps) == 12 and len({row["images_per_second"] for row in steps}) > 6, "stale speeds"
for before, row in zip(steps, steps[1:]):
    own = 20 / row["images_per_second"]
    others = [other for other in rows if before["time_s"] < other["time_s"] < row["time_s"]]
    if not others:
        assert abs(own - (row["time_s"] - before["time_s"])) < 0.5 * own + 0.05, (before, row)
    assert own < row["time_s"] - before["time_s"] + 0.05, (before, row)
EOF
    # Ranks test with rank 0's moving values, which are in its checkpoint: a single rank computes the same loss.
    timeout 60 $bin/tuttirun --standalone --nproc_per_node 2 $alone --data mnist --model resnet20 --batch-size 4 --steps 8 \
        --checkpoint-dir moving --metrics two.jsonl >out 2>err || { fail "resnet20 with two ranks"; cat err; }
    timeout 60 $alone --data mnist --batch-size 4 --resume moving --epochs 0 --metrics one.jsonl >out 2>err || { fail "its test"; cat err; }
    python3 - <<'EOF' || fail "the ranks' test differs from that of the checkpoint"
import json
two, one = ([json.loads(line) for line in open(name) if '"evaluation"' in line][-1]["test_loss"] for name in ("two.jsonl", "one.jsonl"))
assert abs(two - one) < 1e-4 * one, (two, one)
EOF
    # --epochs 0 only tests: a new model, and a checkpoint's.
    timeout 60 $alone --data mnist --model mlp --batch-size 20 --epochs 0 >out 2>err || fail "--epochs 0"
    grep -q '^step 0: test loss' out || { fail "--epochs 0 trained"; cat out; }
    timeout 60 $alone --data mnist --resume epochs --epochs 0 --batch-size 20 >out2 2>err || fail "--epochs 0 --resume"
    grep -q '^resumed at step 12 from epochs/step-00000012.safetensors; nothing is left to train$' out2 || { fail "--epochs 0 --resume"; cat out2; }
    grep -q '^step 12: test loss' out2 || { fail "--epochs 0 --resume trained"; cat out2; }
fi

# OFRecord: options, and their errors; the program that packs, shows and checks.
if command -v python3 >/dev/null; then
    ofrecord="$bin/tutti-ofrecord"
    expect_ofrecord() { # expect_ofrecord TEXT WORDS...: fails with that text
        text=$1
        shift
        timeout 20 $ofrecord "$@" >out 2>err && fail "no failure of tutti-ofrecord $*"
        grep -q "$text" err || { fail "no \"$text\" of tutti-ofrecord $*"; cat err; }
    }
    for part in train test; do
        timeout 20 $ofrecord pack --from mnist --data mnist --out parts/$part --parts 2 $([ $part = test ] && echo --test) \
            >out 2>err || { fail "packing"; cat err; }
    done
    timeout 20 $ofrecord check parts/train >out 2>err || { fail "checking"; cat err; }
    cp -r parts damaged
    python3 - damaged/train/part-1 <<'EOF'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
data[data.index(b"label", len(data) // 2)] = 0xff
open(sys.argv[1], "wb").write(data)
EOF
    timeout 20 $ofrecord check damaged/train >out 2>err || { fail "checking unlike records"; cat err; }
    grep -q "note: damaged/train/part-1: record 2[0-9] at .*: it has a feature ?abel, and no feature label, which" err ||
        { fail "no note on a record that is unlike the first"; cat err; }
    grep -q "damaged/train/part-1: .*, 1 with other features than the first one$" out || { fail "no count of them"; cat out; }
    expect_ofrecord "bla: expected pack, show or check" bla
    expect_ofrecord "^  tutti-ofrecord check FILE" # without a command, prints the help
    of="$alone --dataset ofrecord --model mlp --batch-size 10 --data-part-num 2 --blob label:1,1:int32"
    timeout 60 $of --data parts --blob img_raw:28,28,1:float32 --epochs 3 --shuffle-after-epoch --log-every 1 >out 2>err ||
        { fail "--shuffle-after-epoch"; cat err; }
    timeout 60 $of --data parts --blob img_raw:28,28,1:float32 --epochs 3 --log-every 1 >expected 2>err ||
        { fail "OFRecord"; cat err; }
    cmp -s expected out && fail "--shuffle-after-epoch changes nothing"
    [ "$(grep -c '^ ' out)" = "$(grep -c '^ ' expected)" ] || fail "--shuffle-after-epoch has other steps"
    expect_failure "a float_list of 784 values, expected 812; truncate (tutti-train --truncate)" $of --data parts \
        --blob img_raw:29,28,1:float32
    timeout 60 $of --data parts --blob img_raw:29,28,1:float32 --truncate --steps 3 >out 2>err || { fail "--truncate"; cat err; }
    expect_failure "there is no feature img_rw; the record has img_raw (float_list of 784), label (int32_list of 1)" $of \
        --data parts --blob img_rw:28,28,1:float32
    expect_failure "part-2: No such file or directory; expected 3 files .* --data-part-num" $of --data parts --data-part-num 3 \
        --blob img_raw:28,28,1:float32
    expect_failure "types of images are uint8 and float32" $of --data parts --blob img_raw:28,28,1:float64
    expect_failure "images of type int32, expected uint8 or float32" $of --data parts --blob img_raw:28,28,1:int32
    expect_failure "a blob of type uint8; give the blob the type float32" $of --data parts --blob img_raw:28,28,1:uint8
fi

# MindSpore's LossMonitor: steps count within the epoch; 0 is never; a loss that is not a number ends training.
timeout 60 $three --model mlp --batch-size 1000 --epochs 2 --monitor loss:4 --log-every 1 >out 2>err || { fail "--monitor"; cat err; }
[ "$(grep -cE '^epoch: [12] step: 4, loss is [0-9.]+$' out)" = 2 ] || { fail "--monitor loss:4"; cat out; }
grep -qE '^ +step +loss$' out && fail "--monitor leaves the other form of losses"
timeout 60 $alone --model mlp --batch-size 20 --steps 3 --monitor loss:0 >out 2>err || fail "--monitor loss:0"
grep -q 'loss is' out && fail "--monitor loss:0 prints losses"
expect_failure 'In epoch: 1 step: [0-9]*, loss is NAN or INF, training process cannot continue' $alone --model mlp --batch-size 20 \
    --steps 50 --lr 1e6 --momentum 1 --monitor loss
expect_failure 'expected loss, or loss:N' $alone --monitor losses:1

# The progress line, if stderr is a terminal.
if command -v python3 >/dev/null; then
    python3 - $alone <<'EOF' || fail "no progress on a terminal"
import os, pty, re, subprocess, sys
master, slave = pty.openpty()
run = subprocess.Popen([sys.argv[1], "--model", "mlp", "--batch-size", "50", "--epochs", "1"], stdout=subprocess.DEVNULL, stderr=slave)
os.close(slave)
seen = b""
while True:
    try:
        part = os.read(master, 4096)
    except OSError:  # the end of a terminal
        break
    if not part:
        break
    seen += part
assert run.wait() == 0
assert re.search(rb"\repoch 1  step \d+ of 400  loss \d+\.\d{4}  \d+ images/s  0:\d\d left", seen), seen[:500]
EOF
fi

# A list of nodes instead of a launcher: here one node, this one.
timeout 60 $alone --nodes 127.0.0.1 --ctrl_port=$((20000 + $$ % 10000)) --model mlp --device_num 2 --batch-size 10 --steps 5 \
    --metrics nodes.jsonl >out 2>err || { fail "a list of nodes"; cat err; }
[ "$(grep -c '^test accuracy (' out)" = 1 ] || fail "a list of nodes: not one last line"
grep -q '"ranks":2' nodes.jsonl || fail "a list of nodes: not two ranks"

# A number of devices alone: this machine. In a rank of a launcher it must match the launcher's.
for option in --device_num --gpu_device_num --gpu-device-num=; do
    count="$option 2"
    [ "$option" != "${option%=}" ] && count="${option}2"
    timeout 60 $alone --model mlp $count --batch-size 10 --steps 5 --metrics devices.jsonl >out 2>err ||
        { fail "$option alone"; cat err; }
    [ "$(grep -c '^test accuracy (' out)" = 1 ] || fail "$option alone: not one last line"
    grep -q '"ranks":2' devices.jsonl || fail "$option alone: not two ranks"
    rm -f devices.jsonl
done
timeout 60 $three --model mlp --device_num 3 --batch-size 10 --steps 5 --metrics devices.jsonl >out 2>err ||
    { fail "--device_num of the launcher"; cat err; }
grep -q '"ranks":3' devices.jsonl || fail "--device_num of the launcher: not three ranks"
expect_failure "device-num 2, but the launcher has started 3 ranks on this machine; leave out the option" $three --device_num 2
expect_failure "device-num needs a value" $alone --device_num

# Errors: with one rank, and with three ranks, one of which reports.
for program in "$alone" "$three"; do
    expect_failure '/no/such is not a folder' $program --data /no/such
    expect_failure 'nearest known one is --momentum' $program --momentun 0.9
    expect_failure 'lower --batch-size' $program --batch-size 30000
    mkdir -p exists empty
    touch exists/step-00000001.safetensors
    expect_failure '--checkpoint-dir exists has checkpoints' $program --checkpoint-dir exists
    expect_failure '--resume empty: no file' $program --resume empty
    expect_failure '--metrics /no/such/file' $program --metrics /no/such/file
done

# Old files stay until they are replaced: with --explain, and if the preparation or the first step fails.
mkdir precious
touch precious/step-00000007.safetensors
echo old >precious.m
for program in "$alone" "$three"; do
    into="--checkpoint-dir precious --overwrite"
    timeout 60 $program --model mlp --batch-size 10 --explain --metrics precious.m $into >out 2>err || { fail "--explain --overwrite"; cat err; }
    expect_failure '--metrics /no/such/file' $program --model mlp $into --metrics /no/such/file
    expect_failure 'one of auto|host|cuda' $program --model mlp $into --metrics precious.m --device 'auto|host'
    expect_failure 'expected with --lr-schedule step' $program --model mlp $into --metrics precious.m --lr-milestones 80
    [ "$(cat precious.m)" = old ] || fail "old metrics are gone"
    [ "$(ls precious)" = step-00000007.safetensors ] || fail "old checkpoints are gone"
done
timeout 60 $three --model mlp --batch-size 10 --steps 2 --metrics precious.m $into >out 2>err || { fail "--overwrite"; cat err; }
[ "$(ls precious)" = step-00000002.safetensors ] || fail "--overwrite leaves $(ls precious)"
grep -q old precious.m && fail "old metrics stay"

# Different options on one rank: an error, not a hang.
for option in '--batch-size $((10 + RANK))' '--zero $RANK' '--check-parameters $RANK' '--freeze dense$((1 + RANK))' \
    '--mirror-mean $([ $RANK = 0 ] && echo yes || echo no)' '--parameter-broadcast $([ $RANK = 0 ] && echo yes || echo no)'; do
    printf '#!/bin/sh\nexec "%s/tutti-train" --model mlp --steps 3 %s\n' "$bin" "$option" >differ
    chmod +x differ
    timeout 30 "$bin/tuttirun" --standalone --nproc_per_node 2 ./differ >out 2>err
    code=$?
    [ $code -ne 0 ] && [ $code -ne 124 ] || fail "exit code $code with different options, $option"
    grep -q 'different options, layers or data' err || { fail "different options are not told: $option"; cat err; }
done

# An unusable GPU is an error, with the reason, only if a GPU was requested.
for program in "$alone" "$three"; do
    TUTTI_CUDA_MODULE=/no/such/module.so expect_failure "cannot load /no/such/module.so.*; leave out --device cuda to train on the processor" \
        $program --device cuda --steps 1
done
expect_failure "needs --optimizer momentum" $alone --optimizer adam --nesterov
expect_failure "rising epochs" $alone --lr-schedule step --lr-milestones 80,20
expect_failure "expected with --lr-schedule step" $alone --lr-milestones 80
expect_failure "tf32 and bf16 need a GPU" $alone --device host --precision bf16 --steps 1
TUTTI_CUDA_MODULE=/no/such/module.so timeout 60 $alone --model mlp --batch-size 20 --steps 2 >out 2>err || fail "no GPU"

# Model and optimizer come from the checkpoint; other options are an error.
timeout 60 $alone --model mlp --optimizer adam --batch-size 20 --steps 4 --checkpoint-dir adam >out 2>err || fail "saving with adam"
timeout 60 $alone --resume adam --batch-size 20 --steps 8 >out 2>err || { fail "resuming without --model"; cat err; }
grep -q '^resumed at step 4 from adam/step-00000004.safetensors$' out || { fail "resuming is not told"; cat out; }
expect_failure '--model lenet: the checkpoint adam/step-00000004.safetensors was written with --model mlp' $alone --resume adam --model lenet
expect_failure 'was written with --optimizer adam' $alone --resume adam --optimizer sgd

# Ctrl-C in an epoch, with one rank and with three, to the launcher and to one rank: writes a checkpoint, from which a
# run with the same folder resumes. (A shell's background jobs ignore SIGINT, hence env.) wait_for_steps FILE: until
# the first losses are printed.
wait_for_steps() {
    for _ in $(seq 200); do
        [ "$(grep -c '"event":"step"' "$1" 2>/dev/null)" -ge 2 ] 2>/dev/null && return
        sleep 0.1
    done
    fail "no steps in $1"
}
children() { echo $(cat /proc/"$1"/task/*/children); }
interrupt() { # interrupt NAME launcher|rank PROGRAM...: the process that gets the signal
    name=$1 how=$2
    shift 2
    env --default-signal=INT timeout -s KILL 100 "$@" --model mlp --batch-size 10 --steps 1000000 --log-every 1 --metrics "$name.jsonl" \
        --checkpoint-dir "$name" >"$name.out" 2>"$name.err" &
    pid=$!
    wait_for_steps "$name.jsonl"
    target=$(children $pid)
    [ "$how" = launcher ] || for child in $(children "$target"); do
        grep -qz "^$bin/tutti-train" "/proc/$child/cmdline" && target=$child
    done
    kill -INT $target
    wait $pid
    code=$?
    [ "$code" = 130 ] || { fail "$name: exit code $code after Ctrl-C"; cat "$name.err"; }
    [ "$(ls -A "$name" | grep -vc '^step-[0-9]*\.safetensors$')" = 0 ] || fail "$name: $(ls -A "$name")"
    at=$(sed -n 's/^tutti-train: stopped by SIGINT after step \([0-9]*\) of 1000000; --resume .* continues$/\1/p' "$name.err")
    [ -n "$at" ] || { fail "$name: not told that it was stopped"; cat "$name.err"; }
    [ -e "$name/step-$(printf %08d "$at").safetensors" ] || fail "$name: no checkpoint of step $at: $(ls -A "$name")"
    grep -q "^checkpoint written: $name/step-0*$at.safetensors\$" "$name.out" || { fail "$name: no line on the checkpoint"; tail "$name.out"; }
    timeout 60 "$@" --batch-size 10 --steps $((at + 3)) --resume "$name" --checkpoint-dir "$name" >out 2>err || { fail "$name: going on"; cat err; }
    grep -q "^resumed at step $at from " out || { fail "$name: not resumed at step $at"; cat out; }
}
interrupt one launcher $alone
interrupt three launcher $three
interrupt rank rank $three

# A second Ctrl-C ends at once, also during steps; before the first checkpoint there is no folder.
env --default-signal=INT timeout -s KILL 100 $alone --model lenet --batch-size 2000 --steps 100 --metrics slow.jsonl --checkpoint-dir slow >out 2>err &
pid=$!
for _ in $(seq 200); do grep -q '"event":"start"' slow.jsonl 2>/dev/null && break || sleep 0.1; done
sleep 0.1
target=$(children $pid)
kill -INT "$target" && sleep 0.1 && kill -INT "$target"
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$target" 2>/dev/null || break; sleep 0.1; done
kill -0 "$target" 2>/dev/null && fail "a second Ctrl-C does not end it"
wait $pid
[ -e slow ] && fail "a folder is left: $(ls -a slow)"

# Parallel modes: stand_alone prints one rank's losses, once; --explain ends before training; a saved strategy is read
# again.
two="$bin/tuttirun --standalone --nproc_per_node 2 $bin/tutti-train"
options="--model mlp --batch-size 10 --steps 3 --log-every 1"
timeout 60 $alone $options >expected 2>err || { fail "one rank"; cat err; }
timeout 60 $two $options --parallel-mode STAND_ALONE >out 2>err || { fail "stand_alone"; cat err; }
cmp -s expected out || { fail "stand_alone differs from one rank"; diff expected out; }
timeout 60 $two $options --parallel-mode layerwise_parallel --explain --save-strategy layers.txt >out 2>err || { fail "--explain"; cat err; }
grep -qE '^dense1 +outputs +B +S3 +[0-9]+ +[0-9]+ +weight S1, bias S0$' out || { fail "--explain shows no dense1"; cat out; }
grep -qE '^    backwards: (reduce_scatter|all_reduce) of 2 ranks' out || { fail "--explain shows no sum of gradients"; cat out; } # whichever is quicker here
grep -qE '^step: predicted [0-9.]+ ms, measured [0-9.]+ ms \([0-9]+ % off\); of the prediction ' out || { fail "--explain predicts no step"; cat out; }
grep -qE '^data_parallel would take [0-9.]+ ms, .* 1.6 MiB of gradients$' out || { fail "--explain compares with no other mode"; cat out; }
grep -q '^test accuracy' out && fail "--explain trained"
timeout 60 $two $options --parallel-mode layerwise_parallel --view consistent >expected 2>err || { fail "layerwise_parallel"; cat err; }
timeout 60 $two $options --strategy layers.txt --view consistent >out 2>err || { fail "a saved strategy"; cat err; }
cmp -s expected out || { fail "a saved strategy gives other losses"; diff expected out; }
grep -q '^dense1 outputs$' layers.txt || { fail "--save-strategy"; cat layers.txt; }

# A warning if a step has other samples than before, or batch norm other parts of them; none if losses continue.
timeout 60 $alone --model mlp --batch-size 20 --steps 4 --checkpoint-dir saved >out 2>err || fail "saving"
timeout 60 $two --model mlp --batch-size 10 --steps 8 --resume saved >out 2>err || fail "resuming with two ranks"
grep -q warning err && { fail "a warning where a step has the same samples"; cat err; }
timeout 60 $two --batch-size 10 --steps 5 --resume saved --parallel-mode layerwise_parallel >out 2>err || fail "resuming in another mode"
grep -q warning err && { fail "a warning where another mode divides the same samples"; cat err; }
timeout 60 $two --batch-size 20 --steps 5 --resume saved >out 2>err || fail "resuming with larger batches"
grep -q 'warning: .* batches of 20 samples of all ranks together, now 40: losses will differ' err || { fail "no warning of another batch"; cat err; }
if [ -d moving ]; then
    timeout 60 $alone --data mnist --batch-size 8 --steps 9 --resume moving >out 2>err || { fail "resuming resnet20 alone"; cat err; }
    grep -q 'warning: .* statistics of 2 parts of each batch, now 1: losses will differ' err || { fail "no warning of batch norm"; cat err; }
fi

# Training that diverges between two reported losses: no checkpoint, no success.
bad="--model mlp --batch-size 20 --steps 12 --lr 1e6 --optimizer momentum --weight-decay 1"
expect_failure 'the loss at step 12 is not a number: training diverged; lower --lr' $alone $bad --log-every 1000
timeout 60 $two $bad --log-every 1000 --checkpoint-dir bad >out 2>err && fail "two ranks that diverge end well"
grep -q 'the loss at step 12 is not a number: training diverged; lower --lr' err || { fail "two ranks: divergence is not told"; cat err; }
[ -e bad ] && fail "a checkpoint of a model that diverged: $(ls bad)"
expect_failure 'In epoch: 1 step: 4, loss is NAN or INF' $alone $bad --monitor loss:1000

[ $failures = 0 ] && echo "all well"
exit $failures
