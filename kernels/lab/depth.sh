#!/bin/sh
# Builds lab/depth in FOLDER, once for each way of reading a site: depth.sh FOLDER [sm_90]
set -e
out=$1 arch=${2:-sm_90}
mkdir -p "$out"
flags="-std=c++17 -O3 -arch=$arch -I. -Xcompiler -fopenmp"
compile() { # OBJECT SOURCE FLAGS
    nvcc $flags $3 -c -o "$out/$1.o" "$2" > "$out/$1.log" 2>&1 || cat "$out/$1.log"
}
# OBJECT BATCH STAGES BLOCKS PIECES ORDER, and of slices of five pieces BATCH STAGES BLOCKS
reading() {
    compile $1 kernels/cuda/depth_read.cu "-DDEPTH_BATCH=$2 -DDEPTH_STAGES=$3 -DDEPTH_BLOCKS=$4 \
        -DDEPTH_WARPS=4 -DDEPTH_PIECES=$5 -DDEPTH_ORDER=$6 -DDEPTH_FIVE_BATCH=$7 \
        -DDEPTH_FIVE_STAGES=$8 -DDEPTH_FIVE_BLOCKS=$9 -DDEPTH_WIDE_BATCH=3 -DDEPTH_WIDE_STAGES=2 \
        -DDEPTH_WIDE_PIECES=4"
}
reading read_a 2 2 4 4 1 2 2 4 &
reading read_b 2 2 4 4 0 2 2 3 &
reading read_c 1 5 4 4 0 1 5 3 &
reading read_d 4 2 5 2 0 1 4 4 &
pull() { # OBJECT BATCH STAGES BLOCKS FEW_STAGES FAR_ROWS
    compile $1 kernels/cuda/depth_pull_ring.cu "-DPULL_BATCH=$2 -DPULL_STAGES=$3 -DPULL_BLOCKS=$4 \
        -DPULL_FEW_STAGES=$5 -DPULL_FAR_ROWS=$6"
}
pull pull_a 2 2 2 4 2 &
pull pull_b 1 4 2 7 1 &
pull pull_c 2 4 1 3 2 &
pull pull_d 3 2 1 2 1 &
for file in depth depth_weigh depth_sums depth_back depth_pull depth_queries backend linear; do
    compile $file kernels/cuda/$file.cu "" &
done
compile alone kernels/lab/alone.cu "" &
compile lab kernels/lab/depth.cu "" &
compile streams kernels/lab/streams.cu "" &
for file in runtime/base/status kernels/routing_sums; do
    cc -O2 -std=c17 -I. -c -o "$out/$(basename $file).o" $file.c &
done
wait
link() { # PROGRAM READ PULL
    nvcc $flags -o "$out/$1" "$out/lab.o" "$out/read_$2.o" "$out/pull_$3.o" "$out"/depth.o \
        "$out"/depth_weigh.o "$out"/depth_sums.o "$out"/depth_back.o "$out"/depth_pull.o \
        "$out"/depth_queries.o "$out"/backend.o "$out"/linear.o "$out"/alone.o "$out"/status.o \
        "$out"/routing_sums.o -lcublasLt
}
for v in a b c d; do
    link depth_$v $v a &
done
for v in b c d; do
    link depth_pull_$v a $v &
done
nvcc $flags -o "$out/streams" "$out"/streams.o "$out"/backend.o "$out"/linear.o "$out"/alone.o \
    "$out"/status.o "$out"/depth.o "$out"/depth_weigh.o "$out"/depth_sums.o "$out"/depth_back.o \
    "$out"/depth_pull.o "$out"/depth_queries.o "$out"/read_a.o "$out"/pull_a.o \
    "$out"/routing_sums.o -lcublasLt
wait
