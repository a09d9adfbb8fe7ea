#!/bin/sh
# Builds lab/depth and lab/streams in FOLDER: depth.sh FOLDER [sm_90]
set -e
out=$1 arch=${2:-sm_90}
mkdir -p "$out"
flags="-std=c++17 -O3 -arch=$arch -I. -Xcompiler -fopenmp"
compile() { # OBJECT SOURCE
    nvcc $flags -c -o "$out/$1.o" "$2" > "$out/$1.log" 2>&1 || cat "$out/$1.log"
}
axis="depth depth_read depth_weigh depth_sums depth_back depth_pull depth_pull_ring depth_queries"
objects=
for file in $axis backend linear; do
    compile $file kernels/cuda/$file.cu &
    objects="$objects $out/$file.o"
done
compile alone kernels/lab/alone.cu &
compile lab kernels/lab/depth.cu &
compile streams kernels/lab/streams.cu &
for file in runtime/base/status kernels/depth_plan kernels/routing_sums; do
    cc -O2 -std=c17 -I. -c -o "$out/$(basename $file).o" $file.c &
    objects="$objects $out/$(basename $file).o"
done
wait
nvcc $flags -o "$out/depth" "$out/lab.o" $objects "$out/alone.o" -lcublasLt
nvcc $flags -o "$out/streams" "$out/streams.o" $objects "$out/alone.o" -lcublasLt
