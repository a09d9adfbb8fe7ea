# Builds the mains of attention and head, and their variants, into a folder: attention.sh FOLDER [ARCH]
to=$1
arch=${2:-sm_90}
mkdir -p "$to"
compile() {
    out=$1
    shift
    nvcc -std=c++17 -O3 -arch="$arch" -I. -Xcompiler -fopenmp -c -o "$to/$out.o" "$@"
}
link() {
    out=$1
    shift
    nvcc -arch="$arch" -Xcompiler -fopenmp -o "$to/$out" "$@" "$to/alone.o" "$to/backend.o" \
        "$to/linear.o" "$to/status.o" -lcublasLt
}
# How a head of 64 or 128 channels is cut: channels, pieces of 16 rows a warp, rows of the tiles that
# pass, warps; see launch in cuda/attention.cu and attention_back.cu.
attention() {
    name=$1
    shift
    compile "forward$name" "$@" kernels/cuda/attention.cu
    compile "back$name" "$@" kernels/cuda/attention_back.cu
}
head() {
    compile "head$1" "-DHEAD_FLOATS=((size_t)1<<$1)" "-DHEAD_BACK_FLOATS=((size_t)1<<($1+1))" \
        kernels/cuda/head.cu
}
gcc -std=c17 -O2 -D_GNU_SOURCE -I. -c -o "$to/status.o" runtime/base/status.c
compile backend kernels/cuda/backend.cu &
compile linear kernels/cuda/linear.cu &
compile fp32 kernels/cuda/attention_fp32.cu &
compile alone kernels/lab/alone.cu &
compile lab_attention kernels/lab/attention.cu &
compile lab_head kernels/lab/head.cu &
attention 0 &
attention 1 '-DFORWARD64=64\,2\,128\,4' '-DFORWARD128=128\,2\,32\,4' '-DQUERY64=64\,2\,64\,4' \
    '-DQUERY128=128\,2\,32\,4' &
attention 2 '-DFORWARD64=64\,1\,128\,4' '-DFORWARD128=128\,1\,64\,4' '-DKEY64=64\,64\,2\,32\,4' \
    '-DKEY128=128\,128\,1\,32\,4' &
attention 3 '-DFORWARD64=64\,1\,64\,8' '-DFORWARD128=128\,1\,64\,8' '-DQUERY64=64\,2\,32\,4' \
    '-DQUERY128=128\,1\,64\,8' &
attention 4 '-DFORWARD64=64\,2\,64\,8' '-DFORWARD128=128\,2\,64\,8' '-DKEY64=64\,64\,1\,64\,8' \
    '-DKEY128=128\,128\,1\,64\,8' &
attention 5 -DEARLY '-DFORWARD64=64\,1\,64\,4' '-DFORWARD128=128\,1\,128\,4' &
attention 6 -DSEQUENCE_OUTERMOST &
attention 7 '-DKEY64=64\,64\,1\,32\,4' '-DKEY128=128\,128\,1\,32\,8' '-DFORWARD64=64\,2\,32\,4' \
    '-DFORWARD128=128\,2\,32\,8' &
attention 8 '-DQUERY64=64\,2\,32\,8' '-DQUERY128=128\,1\,32\,4' '-DFORWARD64=64\,2\,32\,8' \
    '-DFORWARD128=128\,1\,32\,4' &
for f in 24 25 26 27; do head "$f" & done
wait
for v in 0 1 2 3 4 5 6 7 8; do
    link "attention$v" "$to/lab_attention.o" "$to/forward$v.o" "$to/back$v.o" "$to/fp32.o" &
done
for f in 24 25 26 27; do link "head_$f" "$to/lab_head.o" "$to/head$f.o" & done
wait
