# Builds the mains of attention and head, and their variants, into a folder: attention.sh FOLDER [ARCH]
to=$1
mkdir -p "$to"
attention() {
    name=$1
    shift
    build "$to/attention$name" "$@" kernels/lab/attention.cu kernels/cuda/attention.cu \
        kernels/cuda/attention_back.cu kernels/cuda/attention_fp32.cu
}
head() {
    build "$to/head$1" "-DHEAD_FLOATS=((size_t)1<<$1)" "-DHEAD_BACK_FLOATS=((size_t)1<<($1+1))" \
        kernels/lab/head.cu kernels/cuda/head.cu
}
build() {
    out=$1
    shift
    nvcc -std=c++17 -O3 -arch="$arch" -t0 -I. -Xcompiler -fopenmp -o "$out" "$@" \
        kernels/lab/alone.cu kernels/cuda/backend.cu kernels/cuda/linear.cu runtime/base/status.c \
        -lcublasLt 2>&1 | grep -v 'valid for C++'
}
arch=${2:-sm_90}
# Channels, 16-row pieces a warp, rows of the passing tiles, warps.
attention 0 &
attention 1 '-DFORWARD64=64\,2\,128\,4' '-DFORWARD128=128\,2\,32\,4' '-DQUERY64=64\,2\,64\,4' \
    '-DQUERY128=128\,2\,32\,4' &
attention 2 '-DFORWARD64=64\,1\,128\,4' '-DFORWARD128=128\,1\,64\,4' '-DKEY64=64\,64\,2\,32\,4' \
    '-DKEY128=128\,128\,1\,32\,4' &
attention 3 '-DFORWARD64=64\,1\,64\,8' '-DFORWARD128=128\,1\,64\,8' '-DQUERY64=64\,2\,32\,4' \
    '-DQUERY128=128\,1\,64\,8' &
attention 4 '-DFORWARD64=64\,2\,64\,8' '-DFORWARD128=128\,2\,64\,8' '-DKEY64=64\,64\,1\,64\,8' \
    '-DKEY128=128\,128\,1\,64\,8' &
for f in 24 25 26 27; do head "$f" & done
wait
