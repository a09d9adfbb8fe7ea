# Builds the mains of attention and head into a folder, with `variants` also those listed below:
#     sh kernels/lab/attention.sh FOLDER [variants]
to=$1
mkdir -p "$to"
compile() {
    out=$1
    shift
    nvcc -std=c++17 -O3 -arch=sm_90 -I. -Xcompiler -fopenmp -c -o "$to/$out.o" "$@"
}
link() {
    out=$1
    shift
    nvcc -arch=sm_90 -Xcompiler -fopenmp -o "$to/$out" "$@" "$to/alone.o" "$to/backend.o" \
        "$to/linear.o" "$to/status.o" -lcublasLt
}
attention() {
    name=$1
    shift
    compile "forward$name" "$@" kernels/cuda/attention.cu
    compile "back$name" "$@" kernels/cuda/attention_back.cu
}
gcc -std=c17 -O2 -D_GNU_SOURCE -I. -c -o "$to/status.o" runtime/base/status.c
compile backend kernels/cuda/backend.cu &
compile linear kernels/cuda/linear.cu &
compile fp32 kernels/cuda/attention_fp32.cu &
compile alone kernels/lab/alone.cu &
compile lab_attention kernels/lab/attention.cu &
compile lab_head kernels/lab/head.cu &
attention 0 &
compile head27 kernels/cuda/head.cu &
variants=0
floats=27
if [ "$2" = variants ]; then
    variants='0 1 2 3 4'
    floats='25 26 27 28'
    # How a head of 64 or 128 channels is cut: channels, pieces of 16 rows a warp, rows of the tiles
    # that pass, warps; see launch in cuda/attention.cu and attention_back.cu.
    attention 1 '-DFORWARD64=64\,2\,64\,4' '-DFORWARD128=128\,2\,32\,4' \
        '-DQUERY64=64\,1\,64\,4' '-DQUERY128=128\,1\,64\,4' &
    attention 2 '-DFORWARD64=64\,1\,128\,4' '-DFORWARD128=128\,1\,64\,4' \
        '-DKEY64=64\,64\,2\,32\,4' '-DKEY128=128\,128\,1\,32\,4' &
    attention 3 '-DFORWARD64=64\,1\,64\,8' '-DFORWARD128=128\,1\,64\,8' \
        '-DQUERY64=64\,2\,32\,4' '-DQUERY128=128\,1\,64\,8' &
    attention 4 '-DFORWARD64=64\,2\,64\,8' '-DFORWARD128=128\,2\,64\,8' \
        '-DKEY64=64\,64\,1\,64\,8' '-DKEY128=128\,128\,1\,64\,4' &
    for f in 25 26 28; do
        compile "head$f" "-DHEAD_FLOATS=((size_t)1<<$f)" kernels/cuda/head.cu &
    done
fi
wait
for v in $variants; do
    link "attention$v" "$to/lab_attention.o" "$to/forward$v.o" "$to/back$v.o" "$to/fp32.o" &
done
for f in $floats; do link "head$f" "$to/lab_head.o" "$to/head$f.o" & done
wait
