#!/bin/sh
# demo.sh OUT - the main job on what is bundled: records five small models reading Newton's Opticks,
# computes their routing statistics, draws the figures. FATHOM names the program.
set -eu
fathom=${FATHOM:-build/fathom}
out=${1:-build/demo}
models=datasets/models
text=datasets/text/opticks.txt
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" # threads that wait sleep
mkdir -p "$out"

for name in standard attnres-full attnres-block mhar-block-h4 mhar-h8; do
    "$fathom" capture "$models/$name" --text "$text" --context 256 --sequences 32 \
        -o "$out/$name.h5"
    "$fathom" check -q "$out/$name.h5"
    [ "$name" = standard ] && continue # nothing is routed there
    "$fathom" routing -q "$out/$name.h5" -o "$out/$name.routing.txt"
    "$fathom" plot -q "$out/$name.routing.txt" -o "$out/$name" --format svg
done

cat <<END

Recordings (HDF5), tables (text) and figures (SVG, with the gnuplot script and data beside each):
$(ls -d "$out"/*.h5 "$out"/*.routing.txt "$out"/*/*.svg | sed 's/^/  /')

Next: $fathom show $out/mhar-h8.h5
      $fathom routing $out/mhar-h8.h5 | grep ^AVG
      open $out/mhar-h8/depth_attention.svg
END
