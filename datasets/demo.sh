#!/bin/sh
# demo.sh OUT - the main job on what is bundled: a report of five small models reading Newton's
# Opticks. Run again, it does only what has changed. FATHOM names the program.
set -eu
fathom=${FATHOM:-build/fathom}
out=${1:-build/demo}
models=datasets/models
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" # threads that wait sleep

# The first is what the others are compared with: one that routes, so that routing is compared too.
"$fathom" report $models/attnres-full $models/mhar-h8 $models/attnres-block $models/mhar-block-h4 \
    $models/standard --text datasets/text/opticks.txt -o "$out" > /dev/null

cat <<END

Open $out/index.html: every figure, what it shows, and the command that made it.
Beside it, for each model, its recording (HDF5), tables (text) and figures (SVG, with script and data).

Next: $fathom show $out/mhar-h8/recording.h5
      $fathom routing $out/mhar-h8/recording.h5 | grep ^AVG
      $fathom plot $out/mhar-h8/routing.txt -o figures --format pdf
      $fathom report YOUR_CHECKPOINT --tokens YOUR_TOKENS.npy -o report
END
