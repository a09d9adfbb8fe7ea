#!/bin/sh
# Builds lab/depth in FOLDER, once for each way of reading a site: depth.sh FOLDER [sm_90]
set -e
out=$1 arch=${2:-sm_90}
mkdir -p "$out"
flags="-std=c++17 -O3 -arch=$arch -I. -Xcompiler -fopenmp"
compile() { # OBJECT SOURCE FLAGS
    nvcc $flags $3 -c -o "$out/$1.o" "$2" > "$out/$1.log" 2>&1 || cat "$out/$1.log"
}
read="-DDEPTH_BATCH=4 -DDEPTH_STAGES=2 -DDEPTH_WARPS=4 -DDEPTH_PIECES=4"
compile read_a kernels/cuda/depth_read.cu "$read" &
compile read_b kernels/cuda/depth_read.cu "-DDEPTH_BATCH=2 -DDEPTH_STAGES=4 -DDEPTH_WARPS=4 -DDEPTH_PIECES=4" &
compile read_c kernels/cuda/depth_read.cu "-DDEPTH_BATCH=4 -DDEPTH_STAGES=3 -DDEPTH_WARPS=4 -DDEPTH_PIECES=4" &
compile read_d kernels/cuda/depth_read.cu "-DDEPTH_BATCH=4 -DDEPTH_STAGES=2 -DDEPTH_WARPS=4 -DDEPTH_PIECES=2" &
compile read_e kernels/cuda/depth_read.cu "-DDEPTH_BATCH=8 -DDEPTH_STAGES=2 -DDEPTH_WARPS=4 -DDEPTH_PIECES=2" &
compile read_f kernels/cuda/depth_read.cu "-DDEPTH_BATCH=3 -DDEPTH_STAGES=3 -DDEPTH_WARPS=2 -DDEPTH_PIECES=4" &
for file in depth depth_weigh depth_sums depth_back depth_pull backend linear; do
    compile $file kernels/cuda/$file.cu "" &
done
compile alone kernels/lab/alone.cu "" &
compile lab kernels/lab/depth.cu "" &
for file in runtime/base/status kernels/routing_sums; do
    cc -O2 -std=c17 -I. -c -o "$out/$(basename $file).o" $file.c &
done
wait
for v in a b c d e f; do
    nvcc $flags -o "$out/depth_$v" "$out/lab.o" "$out/read_$v.o" "$out"/depth.o "$out"/depth_weigh.o \
        "$out"/depth_sums.o "$out"/depth_back.o "$out"/depth_pull.o "$out"/backend.o "$out"/linear.o \
        "$out"/alone.o "$out"/status.o "$out"/routing_sums.o -lcublasLt &
done
wait
