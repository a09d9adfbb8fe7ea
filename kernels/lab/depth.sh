#!/bin/sh
# Builds lab/depth in FOLDER, once for each way of reading a site: depth.sh FOLDER [sm_90]
set -e
out=$1 arch=${2:-sm_90}
mkdir -p "$out"
flags="-std=c++17 -O3 -arch=$arch -I. -Xcompiler -fopenmp"
compile() { # OBJECT SOURCE FLAGS
    nvcc $flags $3 -c -o "$out/$1.o" "$2" > "$out/$1.log" 2>&1 || cat "$out/$1.log"
}
# OBJECT BATCH STAGES WARPS PIECES WIDE_BATCH WIDE_STAGES WIDE_PIECES ORDER*2+LOCK
reading() {
    compile $1 kernels/cuda/depth_read.cu "-DDEPTH_BATCH=$2 -DDEPTH_STAGES=$3 -DDEPTH_WARPS=$4 \
        -DDEPTH_PIECES=$5 -DDEPTH_WIDE_BATCH=$6 -DDEPTH_WIDE_STAGES=$7 -DDEPTH_WIDE_PIECES=$8 \
        -DDEPTH_ORDER=$(($9 / 2)) -DDEPTH_LOCK=$(($9 % 2))"
}
reading read_a 4 2 4 4 3 2 4 2 &
reading read_b 4 2 4 4 4 2 2 0 &
reading read_c 2 4 4 4 3 3 2 2 &
reading read_d 4 2 8 4 5 2 4 2 &
reading read_e 4 2 4 2 3 2 2 2 &
reading read_f 3 3 2 4 2 3 4 2 &
reading read_g 4 2 8 4 4 2 4 3 &
reading read_h 2 4 4 4 4 2 3 3 &
pull() { # OBJECT BLOCKS STAGES ROWS PIECES WIDE_ROWS FEW_STAGES
    compile $1 kernels/cuda/depth_pull_ring.cu "-DPULL_BLOCKS=$2 -DPULL_STAGES=$3 -DPULL_ROWS=$4 \
        -DPULL_PIECES=$5 -DPULL_WIDE_ROWS=$6 -DPULL_WIDE_PIECES=2 \
        -DPULL_FEW_STAGES=$7"
}
pull pull_a 1 3 2 4 3 6 &
pull pull_b 2 2 2 4 4 4 &
pull pull_c 2 3 2 2 2 7 &
pull pull_d 2 2 1 4 2 3 &
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
for v in a b c d e f g h; do
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
