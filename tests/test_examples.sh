#!/bin/sh
# Installs the build into a folder of its own, builds both example projects against it and runs them under the
# installed launcher. usage: test_examples.sh BUILD_FOLDER; CC and TUTTI_TEST_FLAGS (compiler flags) may be set.
set -eu
build=$1
source=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/tutti-examples.XXXXXX")
trap 'rm -rf "$work"' EXIT
sums="3 ranks: 3 30 300 6" weights="w = [2.0000, 3.0000]"
prefix=$work/prefix
flags=${TUTTI_TEST_FLAGS:-}

expect() { # expect NAME RANKS TEXT COMMAND...: the ranks print the text, once
    name=$1 ranks=$2 text=$3
    shift 3
    got=$("$prefix/bin/tuttirun" --standalone --nproc_per_node "$ranks" "$@" | sed 's/^\[[0-9]*\] //')
    if [ "$got" != "$text" ]; then
        echo "$name printed: $got"
        exit 1
    fi
    echo "$name: $got"
}

cmake --install "$build" --prefix "$prefix" >"$work/install.log"
for file in bin/tuttirun bin/tutti-info include/tutti/tutti.h include/tutti/ddp.h; do
    [ -e "$prefix/$file" ] || { echo "$file was not installed"; exit 1; }
done

cmake -S "$source/examples/cmake" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_FLAGS="$flags" >"$work/configure.log"
cmake --build "$work/cmake" >"$work/build.log" || { cat "$work/build.log"; exit 1; }
expect "CMake, shared" 3 "$sums" "$work/cmake/all_reduce"
expect "CMake, static" 3 "$sums" "$work/cmake/all_reduce_static"
expect "linear regression, shared" 2 "$weights" "$work/cmake/linear_ddp"
expect "linear regression, static" 2 "$weights" "$work/cmake/linear_ddp_static"

if ! command -v pkg-config >/dev/null || ! command -v make >/dev/null; then
    echo "pkg-config or make is missing: the pkg-config example was not built"
    exit 1
fi
cp -r "$source/examples" "$work/examples"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name tutti.pc)")
export PKG_CONFIG_PATH
make -C "$work/examples/pkgconfig" CFLAGS="-O2 -Wall -Wextra -Werror $flags" >"$work/make.log" || { cat "$work/make.log"; exit 1; }
expect "pkg-config" 3 "$sums" "$work/examples/pkgconfig/all_reduce"

# Ours needs nothing but libc to load.
needed=$(readelf -d "$(find "$prefix" -name 'libtutti.so')" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -v -E '^(libc|libpthread|libm|librt|libdl|ld-linux[^.]*|lib[a-z]*san)\.so' || true)
[ -z "$needed" ] || { echo "libtutti.so needs more than libc: $needed"; exit 1; }
"$prefix/bin/tutti-info" | grep -q "^Tutti " || { echo "the installed tutti-info does not run"; exit 1; }
