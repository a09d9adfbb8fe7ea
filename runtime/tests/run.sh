#!/bin/sh
# Runs every test and ends with the line "N passed, N failed, N skipped". Called by `make check`.
#
# From the environment: OUT (folder of the build), ASAN (not empty: under sanitizers), BUILT (exit
# status of compiling), TESTS and FUZZERS (programs). What a test prints is shown where it fails.
#
# The parts, in order: the include check, the test programs (each cmocka test counts), the command
# line cases FOLDER/tests/*.cases, the commands in README.md and FOLDER/README.md, each fuzz driver
# for two seconds.

unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES asan BUILD
OUT=$(cd "${OUT:?names the folder of the build}" && pwd) || exit 1
export OUT TEST_TMP="$OUT/tmp" FATHOM="$OUT/fathom" PATH="$OUT:$PATH"
# Statuses of their own, so that a finding is never taken for one of fathom's 0, 1, 2.
export ASAN_OPTIONS="exitcode=99:detect_leaks=1:$ASAN_OPTIONS"
export UBSAN_OPTIONS="exitcode=99:print_stacktrace=1:$UBSAN_OPTIONS"
# Threads that wait for work sleep: on a machine that does something else too, spinning is slow.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
# The CPU is tested, on every machine; a GPU is for `make check-gpu`.
export CUDA_VISIBLE_DEVICES=
limit=${ASAN:+900}
limit=${limit:-300}
passed=0 failed=0 skipped=0
rm -rf "$TEST_TMP" && mkdir -p "$TEST_TMP" || exit 1
log=$TEST_TMP/log

# Adds the counts "P F S" of one part.
count() {
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

# One check that passes or fails as a whole: whole NAME COMMAND...
whole() {
    name=$1
    shift
    if timeout "$limit" "$@" > "$log" 2>&1; then
        count 1 0 0
        echo "ok      $name"
    else
        echo "FAILED  $name (exit status $?)"
        count 0 1 0
        cat "$log"
    fi
}

# A cmocka program. Where it dies, or counts no failure yet exits with one, that is one failure.
cmocka_program() {
    timeout "$limit" "$1" > "$log" 2>&1
    status=$?
    counts=$(awk '
        /^\[  PASSED  \] [0-9]+ test/ { p += $4; n++ }
        /^\[  FAILED  \] [0-9]+ test/ { f += $4 }
        /^\[  SKIPPED \] [0-9]+ test/ { s += $4 }
        END { print p + 0, f + 0, s + 0, n + 0 }' "$log")
    set -- "$1" $counts
    if [ "$3" -eq 0 ] && { [ "$status" -ne 0 ] || [ "$5" -eq 0 ]; }; then
        set -- "$1" "$2" 1 "$4"
    fi
    count "$2" "$3" "$4"
    if [ "$3" -eq 0 ]; then
        echo "ok      ${1#"$OUT"/} ($2 tests)"
    else
        echo "FAILED  ${1#"$OUT"/} (exit status $status)"
        cat "$log"
    fi
}

# A driver that counts by itself: its last line is "P F S", what stands before it is shown.
counting() {
    "$@" > "$log" 2>&1
    sed '$d' "$log"
    set -- $(tail -n 1 "$log" | grep -E '^[0-9]+ [0-9]+ [0-9]+$' || echo 0 1 0)
    count "$1" "$2" "$3"
}

if [ "$BUILT" -ne 0 ]; then
    echo "FAILED  build"
    count 0 1 0
fi
whole "include check" sh runtime/tests/includes.sh .
for program in $TESTS; do
    cmocka_program "$(cd "$(dirname "$program")" 2> /dev/null && pwd)/$(basename "$program")"
done
# Other matrix kernels, as another machine would choose them: other bits, the same bounds.
if [ "$(uname -m)" = x86_64 ] && [ -z "$ASAN" ] && grep -qw fma /proc/cpuinfo; then
    export OPENBLAS_CORETYPE=Haswell
    echo "        again with OPENBLAS_CORETYPE=$OPENBLAS_CORETYPE"
    for program in runtime/test_golden probes/test_capture; do
        cmocka_program "$OUT/tests/$program"
    done
    unset OPENBLAS_CORETYPE
fi
for cases in runtime/tests/*.cases [!r]*/tests/*.cases; do
    [ ! -e "$cases" ] || counting sh runtime/tests/cases.sh "$cases" "$limit"
done
for text in README.md */README.md; do
    [ ! -e "$text" ] || counting sh runtime/tests/readme.sh "$text" "$limit"
done
for fuzzer in $FUZZERS; do
    whole "fuzz $(basename "$fuzzer")" "$fuzzer" 2 1
done
rm -rf "$TEST_TMP"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
