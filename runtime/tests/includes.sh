#!/bin/sh
# The floors: which room may include which, and which library stands behind which. includes.sh ROOT
# prints FILE:LINE of every breach and fails where there is one.

cd "$1" || exit 1
find runtime kernels datasets probes analyze plots -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' |
    sort | xargs awk '
    BEGIN {
        # A room, and the rooms below it.
        below["base"] = " base "
        below["kernels"] = " base kernels "
        below["datasets"] = " base datasets "
        below["runtime"] = " base kernels datasets runtime "
        below["probes"] = " base kernels datasets runtime probes "
        below["analyze"] = " base kernels datasets runtime probes analyze "
        below["plots"] = " base plots "
        split("cmd_routing cmd_depth cmd_compare cmd_plot cmd_report", names, " ")
        for (i in names)
            model_free[names[i]] = 1
    }
    function room_of(path) {
        if (path ~ /^runtime\/base\//)
            return "base"
        return substr(path, 1, index(path, "/") - 1)
    }
    function breach(text) {
        printf "%s:%d: %s\n", FILENAME, FNR, text
        breaches++
    }
    FNR == 1 {
        room = room_of(FILENAME)
        in_tests = FILENAME ~ /\/tests\//
        command = FILENAME
        gsub(/^.*\/|\.c$/, "", command)
    }
    /^[ \t]*#[ \t]*include[ \t]*"/ {
        split($0, part, "\"")
        header = part[2]
        target = room_of(header)
        if (!(target in below))
            breach("\"" header "\" is not written from the root of the repository")
        else if (in_tests && header ~ /\/tests\//)
            ;
        else if (FILENAME == "runtime/main.c" && target != "base")
            breach("the command table may include runtime/base only, not \"" header "\"")
        else if (room == "plots" && header ~ /^analyze\/table[a-z_]*\.h$/)
            ;
        else if (!index(below[room], " " target " "))
            breach(room " may not include \"" header "\"")
        else if (command in model_free && (target == "runtime" || target == "kernels"))
            breach(command " works on recordings and tables and may not include \"" header "\"")
    }
    /^[ \t]*#[ \t]*include[ \t]*<(hdf5|H5)/ && room != "probes" {
        breach("HDF5 is included in probes/ only")
    }
    /^[ \t]*#[ \t]*include[ \t]*<(cblas|openblas|f77blas|lapacke)/ && room != "kernels" {
        breach("BLAS is included in kernels/ only")
    }
    /^[ \t]*#[ \t]*include[ \t]*<cjson/ && room != "base" {
        breach("cJSON comes with \"runtime/base/json.h\"")
    }
    /if[ \t]*\([ \t]*!?[ \t]*(is_)?cuda/ && room != "kernels" {
        breach("devices are told apart in kernels/ only")
    }
    END { exit breaches > 0 }
' || exit 1
