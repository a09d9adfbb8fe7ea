#!/bin/sh
# demo.sh OUT - the main job on what is bundled: records five small models reading Newton's Opticks,
# with gradients and null routing, computes the statistics of depth and of routing, draws the figures.
# FATHOM names the program.
set -eu
fathom=${FATHOM:-build/fathom}
out=${1:-build/demo}
models=datasets/models
text=datasets/text/opticks.txt
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" # threads that wait sleep
mkdir -p "$out"

for name in standard attnres-full attnres-block mhar-block-h4 mhar-h8; do
    null=8
    [ "$name" != standard ] || null=0 # nothing is routed there
    "$fathom" capture "$models/$name" --text "$text" --context 256 --sequences 32 \
        --gradients --null $null -o "$out/$name.h5"
    "$fathom" check -q "$out/$name.h5" > "$out/$name.check.txt"
    "$fathom" depth -q "$out/$name.h5" -o "$out/$name.depth.txt"
    [ "$null" -gt 0 ] || continue
    "$fathom" routing -q "$out/$name.h5" -o "$out/$name.routing.txt"
    "$fathom" plot -q "$out/$name.routing.txt" -o "$out/$name" --format svg > /dev/null
done
"$fathom" compare -q "$out/standard.h5" "$out/mhar-h8.h5" -o "$out/compare.txt"

cat <<END

Recordings (HDF5), tables (text) and figures (SVG, with the gnuplot script and data beside each):
$(ls -d "$out"/*.h5 "$out"/*.depth.txt "$out"/*.routing.txt "$out"/compare.txt "$out"/*/*.svg | sed 's/^/  /')

Next: $fathom show $out/mhar-h8.h5
      $fathom routing $out/mhar-h8.h5 | grep ^AVG
      open $out/mhar-h8/depth_attention.svg
END
