#!/bin/sh
# Runs a table of command line cases: cases.sh FILE.cases [SECONDS]
#
#   # a remark
#   case NAME                 begins a case
#   $ COMMAND                 run by sh in the repository's root; several such lines are one script
#   exit N                    the expected status, 0 where this line is left out
#   out: TEXT                 standard output contains TEXT
#   out= LINE                 ... has exactly this line
#   out~ REGEX                ... has a line that matches (grep -E)
#   out! TEXT                 ... does not contain TEXT
#   out empty                 ... is empty
#   err...                    the same for standard error
#   skip unless COMMAND       counts as skipped where COMMAND fails
#
# In a COMMAND `fathom` is the program that was built, $OUT the folder of the build, $TMP a fresh
# empty folder. The last line printed is "PASSED FAILED SKIPPED" in numbers.

file=$1 limit=${2:-300}
passed=0 failed=0 skipped=0
base=${TEST_TMP:-build/tmp}/cases
name='' script='' status=0 skip=''

# Says that the expectation $1 does not hold, once per case with what was printed.
wrong() {
    if [ -z "$bad" ]; then
        echo "FAILED  $file: $name"
        printf '%s' "$script" | sed 's/^/    $ /'
        sed 's/^/    out | /' "$base/out"
        sed 's/^/    err | /' "$base/err"
    fi
    bad=1
    echo "    expected $1"
}

# One line such as `out: TEXT` against what was printed.
expect() {
    printed=$base/${1%"${1#???}"}
    text=${1#????}
    text=${text# }
    case $1 in
    ???' empty') [ ! -s "$printed" ] || wrong "$1" ;;
    ???:*) grep -qF -e "$text" "$printed" || wrong "$1" ;;
    ???=*) grep -qxF -e "$text" "$printed" || wrong "$1" ;;
    ???~*) grep -qE -e "$text" "$printed" || wrong "$1" ;;
    ???!*) ! grep -qF -e "$text" "$printed" || wrong "$1" ;;
    *) wrong "a line that cases.sh knows, found: $1" ;;
    esac
}

run_case() {
    [ -n "$name" ] || return
    if [ -n "$skip" ]; then
        skipped=$((skipped + 1))
        echo "skipped $file: $name (without: $skip)"
        return
    fi
    bad=''
    mkdir -p "$base/tmp"
    printf '%s' "$script" > "$base/script"
    TMP=$base/tmp timeout "$limit" sh "$base/script" > "$base/out" 2> "$base/err" < /dev/null
    got=$?
    [ "$got" -eq "$status" ] || wrong "exit $status, found $got"
    while IFS= read -r line; do
        expect "$line"
    done < "$base/expected"
    if [ -n "$bad" ]; then
        failed=$((failed + 1))
    else
        passed=$((passed + 1))
    fi
}

begin_case() {
    name=$1 script='' status=0 skip=''
    rm -rf "$base"
    mkdir -p "$base"
    : > "$base/expected"
}

while IFS= read -r row || [ -n "$row" ]; do
    case $row in
    '' | '#'*) ;;
    'case '*)
        run_case
        begin_case "${row#case }"
        ;;
    '$ '*)
        script="$script${row#??}
"
        ;;
    'exit '*) status=${row#exit } ;;
    'skip unless '*) sh -c "${row#skip unless }" > /dev/null 2>&1 || skip=${row#skip unless } ;;
    *) printf '%s\n' "$row" >> "$base/expected" ;;
    esac
done < "$file"
run_case
rm -rf "$base"
[ "$failed" -ne 0 ] || echo "ok      $file ($passed cases)"
echo "$passed $failed $skipped"
