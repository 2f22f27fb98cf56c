#!/bin/sh
# Installs the build into a folder of its own, builds both example projects and the sample of README.md against it and
# runs them under the installed launcher, then the same from the build folder. usage: test_examples.sh BUILD_FOLDER;
# CC and TUTTI_TEST_FLAGS (compiler flags) may be set.
set -eu
build=$1
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/tutti-examples.XXXXXX")
trap 'rm -rf "$work"' EXIT
sums="3 ranks: 3 30 300 6" weights="w = [2.0000, 3.0000]"
prefix=$work/prefix
flags=${TUTTI_TEST_FLAGS:-}

expect() { # expect NAME RANKS TEXT COMMAND...: the ranks print these lines, sorted
    name=$1 ranks=$2 text=$3
    shift 3
    got=$("$prefix/bin/tuttirun" --standalone --nproc_per_node "$ranks" "$@" | sed 's/^\[[0-9]*\] //' | sort)
    if [ "$got" != "$text" ]; then
        echo "$name printed: $got"
        exit 1
    fi
    echo "$name: $got"
}

expect_like() { # expect_like NAME RANKS PATTERN LINES COMMAND...: LINES lines match the pattern
    name=$1 ranks=$2 pattern=$3 lines=$4
    shift 4
    got=$("$prefix/bin/tuttirun" --standalone --nproc_per_node "$ranks" "$@" | sed 's/^\[[0-9]*\] //')
    if [ "$(echo "$got" | grep -cE "$pattern")" != "$lines" ]; then
        echo "$name printed: $got"
        exit 1
    fi
    echo "$name: $(echo "$got" | tail -n 1)"
}

cmake --install "$build" --prefix "$prefix" >"$work/install.log"
for file in bin/tuttirun bin/tutti-info include/tutti/tutti.h include/tutti/ddp.h include/tutti/tensor.h; do
    [ -e "$prefix/$file" ] || { echo "$file was not installed"; exit 1; }
done

cmake -S "$source/examples/cmake" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_FLAGS="$flags" >"$work/configure.log"
cmake --build "$work/cmake" >"$work/build.log" || { cat "$work/build.log"; exit 1; }
expect_all() { # expect_all NAME FOLDER SUFFIX: checks the output of each program
    expect "$1, all_reduce" 3 "$sums" "$2/all_reduce$3"
    expect "$1, linear_ddp" 2 "$weights" "$2/linear_ddp$3"
    expect "$1, async" 4 "4 ranks: 4 6, meanwhile 2" "$2/async$3"
    expect "$1, send_recv" 4 "from the others: 6 numbers
round the ring of 4 ranks: 6" "$2/send_recv$3"
    expect "$1, split" 5 "even: 3 ranks, sum 6
odd: 2 ranks, sum 4" "$2/split$3"
    expect "$1, mem_alloc" 3 "3 ranks: mean 2" "$2/mem_alloc$3"
    expect "$1, tensors" 4 "rows of all ranks: 10
sums on rank 3: 2, from column 6 on, each 10
x[3,5] on rank 3: 35" "$2/tensors$3"
}
expect_operators() { # expect_operators NAME FOLDER, where Tutti was built with a CBLAS and zlib
    [ -e "$2/operators" ] || { [ -z "$(find "$prefix" -name 'libtutti_ops.so')" ] && return; }
    expect "$1, data" 3 "20 batches; samples of each class: 264 272 252 232 210 234 234 226 244 232" "$2/data"
    expect "$1, operators" 4 "abc[3,5] on rank 3: 8840
add ab,ab->ab: axis 0 splits a; 'y' S1 -> S0
rank 1 has 2x5 of x, the rows from 2 on
z[3,3] on rank 1: 165" "$2/operators"
}
expect_training() { # expect_training NAME FOLDER, where Tutti was built with a CBLAS and zlib
    [ -e "$2/train_mlp" ] || { [ -z "$(find "$prefix" -name 'libtutti_trainer.so')" ] && return; }
    expect_like "$1, train_mlp" 2 '^stopped after [0-9]+ steps, accuracy 9[0-9] %$' 1 "$2/train_mlp"
    expect_like "$1, train_lenet" 2 '^ +(0|20) [0-9]+\.[0-9]{10}$' 2 "$2/train_lenet" "" 21
    expect_like "$1, train_resnet50" 2 '^epoch: 1 step: [123], loss is [0-9.]+$' 3 "$2/train_resnet50" digits 2 32 3
}
expect_all "CMake, shared" "$work/cmake" ""
expect_all "CMake, static" "$work/cmake" _static
expect_operators "CMake" "$work/cmake"
expect_training "CMake" "$work/cmake"

if ! command -v pkg-config >/dev/null || ! command -v make >/dev/null; then
    echo "pkg-config or make is missing: the pkg-config example was not built"
    exit 1
fi
cp -r "$source/examples" "$work/examples"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name tutti.pc)")
export PKG_CONFIG_PATH
make -C "$work/examples/pkgconfig" CFLAGS="-O2 -Wall -Wextra -Werror $flags" >"$work/make.log" || { cat "$work/make.log"; exit 1; }
expect_all "pkg-config" "$work/examples/pkgconfig" ""
expect_operators "pkg-config" "$work/examples/pkgconfig"
[ ! -e "$work/cmake/train_mlp" ] || expect_like "pkg-config, train_mlp" 2 '^stopped after' 1 "$work/examples/pkgconfig/train_mlp"

# The first sample of README.md, with its command line as printed there, without settings for the loader.
unset LD_LIBRARY_PATH
awk '/^```c$/ { inside = 1; next } /^```$/ { if (inside) exit } inside' "$source/README.md" >"$work/sum.c"
line=$(grep '^cc sum.c ' "$source/README.md")
readme() { # readme NAME BIN_FOLDER
    got=$(cd "$work" && rm -f sum && PATH=$2:$PATH && eval "$line")
    [ "$got" = "4 6" ] || { echo "README's sum.c, $1, printed: $got"; exit 1; }
    echo "README's sum.c, $1: $got"
}
readme installed "$prefix/bin"
PKG_CONFIG_PATH=$build/lib/pkgconfig
readme "from the build folder" "$build/bin"
grep -q rpath "$(find "$prefix" -name tutti.pc)" || { echo "no rpath for a prefix that the loader does not know"; exit 1; }
DESTDIR=$work/destination cmake --install "$build" --prefix /usr >"$work/install.log"
! grep -q rpath "$(find "$work/destination" -name tutti.pc)" || { echo "an rpath for the system's own folder"; exit 1; }

# The library depends only on libc.
needed=$(readelf -d "$(find "$prefix" -name 'libtutti.so')" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -v -E '^(libc|libpthread|libm|librt|libdl|ld-linux[^.]*|lib[a-z]*san)\.so' || true)
[ -z "$needed" ] || { echo "libtutti.so needs more than libc: $needed"; exit 1; }
"$prefix/bin/tutti-info" | grep -q "^Tutti " || { echo "the installed tutti-info does not run"; exit 1; }

# tutti-train uses the installed library, like any program.
if [ -e "$prefix/bin/tutti-train" ]; then
    readelf -d "$prefix/bin/tutti-train" | grep -q 'NEEDED.*libtutti_trainer\.so\.' || { echo "tutti-train has a trainer of its own"; exit 1; }
    "$prefix/bin/tutti-train" --version | grep -q '^tutti-train ' || { echo "the installed tutti-train does not run"; exit 1; }
    hidden=$(nm -D --defined-only "$(find "$prefix" -name libtutti_trainer.so)" | grep -vE ' tutti_train(_|$)' || true)
    [ -z "$hidden" ] || { echo "libtutti_trainer exports more than train.h: $hidden"; exit 1; }
fi
