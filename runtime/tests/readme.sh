#!/bin/sh
# Runs the commands of a README and compares what they print: readme.sh README.md [SECONDS]
#
# In blocks fenced by ```console a line `$ COMMAND` is run (a final \ joins the next line) and the
# lines up to the next one are what it prints on standard output and standard error together. A
# line `...` stands for any lines. The commands of one file run in order in one fresh folder in which
# `datasets` is the repository's; `fathom` is the program that was built. Each command counts as one
# test. The last line printed is "PASSED FAILED SKIPPED" in numbers.

readme=$1 limit=${2:-300}
base=$(mkdir -p "${TEST_TMP:-build/tmp}/readme" && cd "${TEST_TMP:-build/tmp}/readme" && pwd) || exit 1
root=$(pwd)
passed=0 failed=0
mkdir -p "$base/work"
ln -s "$root/datasets" "$base/work/datasets"

# N.command, N.expected and N.line for the N-th command.
awk -v base="$base" '
    /^```/ { inside = !inside && $0 ~ /^```console[ \t]*$/; continued = 0; named = 0; next }
    !inside { next }
    continued || /^\$ / {
        if (!continued) {
            n++
            named = 1
            print NR > (base "/" n ".line")
            printf "" > (base "/" n ".expected")
            sub(/^\$ /, "")
        }
        print > (base "/" n ".command")
        continued = /\\$/
        next
    }
    named { print > (base "/" n ".expected") }
' "$readme"

# Whether the lines of $2 are those of $1, where `...` in $1 is any number of lines.
agrees() {
    awk '
        FNR == NR { pattern[++p] = $0; next }
        { line[++l] = $0 }
        END {
            i = j = 1
            while (j <= l) {
                if (i <= p && pattern[i] == "...") { star = i++; from = j }
                else if (i <= p && pattern[i] == line[j]) { i++; j++ }
                else if (star) { i = star + 1; j = ++from }
                else exit 1
            }
            while (i <= p && pattern[i] == "...") i++
            exit i <= p
        }' "$1" "$2"
}

n=1
while [ -e "$base/$n.command" ]; do
    (cd "$base/work" && timeout "$limit" sh "$base/$n.command") > "$base/$n.found" 2>&1 < /dev/null
    # awk cannot tell an empty first file from a missing one.
    if { [ ! -s "$base/$n.expected" ] && [ ! -s "$base/$n.found" ]; } ||
        { [ -s "$base/$n.expected" ] && agrees "$base/$n.expected" "$base/$n.found"; }; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED  $readme:$(cat "$base/$n.line"): $(cat "$base/$n.command")"
        diff "$base/$n.expected" "$base/$n.found" | sed 's/^/    /'
    fi
    n=$((n + 1))
done
rm -rf "$base"
[ "$failed" -ne 0 ] || echo "ok      $readme ($passed commands)"
echo "$passed $failed 0"
