#!/bin/sh
# The public headers in C++ programs: compiles options_cxx.cc as C++17 and C++20 with every installed compiler,
# with warnings as errors, and runs it. usage: test_cxx.sh BUILD_FOLDER; TUTTI_TEST_FLAGS (compiler flags) may be set.
set -eu
build=$1
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/tutti-cxx.XXXXXX")
trap 'rm -rf "$work"' EXIT
tried=
for compiler in "${CXX:-c++}" g++ clang++; do
    command -v "$compiler" >/dev/null || continue
    for standard in 17 20; do
        "$compiler" -std=c++$standard -O2 -Wall -Wextra -Wpedantic -Wshadow -Werror ${TUTTI_TEST_FLAGS:-} \
            -I "$source/include" "$source/tests/scripts/options_cxx.cc" -o "$work/options" -L "$build/lib" -ltutti \
            -Wl,-rpath,"$build/lib"
        timeout 60 "$work/options"
        tried="$tried $compiler:$standard"
    done
done
[ -n "$tried" ] || { echo "there is no C++ compiler"; exit 77; }
echo "options work in C++:$tried"
