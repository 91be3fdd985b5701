#!/usr/bin/env bash
# Finds the libraries that dptrain is built from and writes how to use them, as make variables, to the file named.
# A library is found when a tiny program with it compiles and links. What is missing is told in one list; exit 1.
# Called by the Makefile, which passes its build options in the environment.
set -u
# shellcheck disable=SC2153  # the build options are in capitals, the rows below are not
: "${CC:?} ${MPICC:?} ${PKG_CONFIG:?} ${ONEDNN:?}"
: "${TIFF:=auto} ${BMP:=auto} ${WEBP:=auto} ${TIFF_ROOT:=} ${WEBP_ROOT:=}"
: "${CUDA:=0} ${CUDA_ARCHS:=} ${CUDA_HOME:=} ${CUDNN_ROOT:=}"
out=$1
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
missing=()

# What it is, its header, a call, its name in packages.txt, the build option
mpi=("MPI" "mpi.h" "MPI_Init(0, 0)" mpi "MPICC=/path/to/mpicc")
hdf5=("HDF5 1.10 or later" "hdf5.h" "H5open()" hdf5 "HDF5_ROOT=/path")
yaml=("libyaml" "yaml.h" "yaml_get_version_string() == 0" yaml "YAML_ROOT=/path")
jansson=("jansson 2.8 or later" "jansson.h" "json_object() == NULL" jansson "JANSSON_ROOT=/path")
zlib=("zlib" "zlib.h" "zlibVersion() == 0" zlib "ZLIB_ROOT=/path")
libzip=("libzip 1.4 or later" "zip.h" "zip_source_buffer_fragment_create(0, 0, 0, 0) == 0" libzip "LIBZIP_ROOT=/path")
png=("libpng 1.6 or later" "png.h" "png_access_version_number() == 0" libpng "PNG_ROOT=/path")
jpeg=("libjpeg (libjpeg-turbo)" "jpeglib.h" "jpeg_std_error(NULL) == NULL" libjpeg "JPEG_ROOT=/path")
tiff=("libtiff 4 or later" "tiffio.h" "TIFFGetVersion() == 0" libtiff "TIFF_ROOT=/path, or TIFF=0")
webp=("libwebp" "webp/decode.h" "WebPGetDecoderVersion() == 0" libwebp "WEBP_ROOT=/path, or WEBP=0")
bmp=("stb_image" "stb/stb_image.h" "stbi_load_from_memory == 0" stb "BMP=0")
onednn=("oneDNN 2.6 or later" "dnnl.h" "dnnl_version() == 0" onednn "ONEDNN_ROOT=/path, or ONEDNN=0")

package_of() {
    awk -v what="$1" '$3 == what { printf "%s ", $2 }' "$(dirname "$0")/packages.txt"
}

# try COMPILER 'FLAGS' 'LIBS' HEADER CALL: does such a program build? Flags are lists of words.
try() {
    printf '#include <stddef.h>\n#include <stdio.h>\n#include <stdarg.h>\n#include <setjmp.h>\n#include <stdint.h>\n#include <%s>\nint main(void) { return (int)(%s); }\n' \
        "$4" "$5" >"$scratch/try.c"
    # shellcheck disable=SC2086
    OMPI_CC=$CC MPICH_CC=$CC I_MPI_CC=$CC $1 $CPPFLAGS $2 -o "$scratch/try" "$scratch/try.c" $LDFLAGS $3 \
        >"$scratch/log" 2>&1
}

miss() {
    missing+=("$(printf '  %-20s %-28s %s' "$1" "Debian: $(package_of "$4")" "else: $5")")
}

# search NAME ROOT PKG 'LIBS' HEADER CALL: sets found_cflags and found_libs. A root given by hand is the only place looked at.
search() {
    local root=$1 pkg=$2 libs=$3 header=$4 call=$5 folder
    if [ -n "$root" ]; then
        [ -e "$root/include/$header" ] || return
        found_cflags="-I$root/include" found_libs=
        for folder in "$root/lib64" "$root/lib"; do
            [ -d "$folder" ] && found_libs+="-L$folder -Wl,-rpath,$folder "
        done
        found_libs+=$libs
        try "${using:-$CC}" "$found_cflags" "$found_libs" "$header" "$call"
        return
    fi
    if found_cflags=$($PKG_CONFIG --cflags "$pkg" 2>/dev/null) && found_libs=$($PKG_CONFIG --libs "$pkg" 2>/dev/null) &&
        try "${using:-$CC}" "$found_cflags" "$found_libs" "$header" "$call"; then
        return 0
    fi
    found_cflags='' found_libs=$libs
    try "${using:-$CC}" "" "$libs" "$header" "$call"
}

emit() {
    printf '%s_CFLAGS := %s\n%s_LIBS := %s\n' "$1" "$found_cflags" "$1" "$found_libs" >>"$scratch/deps.mk"
}

# need VARIABLE ROOT PKG 'LIBS' ROW...: a library that must be there.
need() {
    if search "$2" "$3" "$4" "$6" "$7"; then
        emit "$1"
    else
        shift 4
        miss "$@"
    fi
}

# The compiler first: without it nothing else can be tried.
printf 'int main(void) { return 0; }\n' >"$scratch/cc.c"
# shellcheck disable=SC2086
if ! $CC -o "$scratch/cc" "$scratch/cc.c" >"$scratch/log" 2>&1; then
    {
        echo "dptrain needs a C compiler, and '$CC' does not compile a program. It and the libraries that cannot be looked for yet:"
        miss "C compiler" "" "" compiler "CC=/path/to/gcc"
        for row in mpi hdf5 yaml jansson zlib libzip png jpeg onednn; do
            declare -n entry=$row
            miss "${entry[@]}"
        done
        printf '%s\n' "${missing[@]}"
        echo "On Debian './scripts/setup.sh --build' installs them."
    } >&2
    exit 1
fi

if ! try "$MPICC" "" "" "${mpi[1]}" "${mpi[2]}"; then
    miss "${mpi[@]}"
fi
# The MPIs that the program of `try` would load. Their libraries' numbers tell them apart: 40 is Open MPI's, 12 that of MPICH and its kin.
mpis() {
    ldd "$scratch/try" 2>/dev/null | sed -n 's/^[[:space:]]*\(libmpi[a-z0-9_]*\.so\.[0-9]*\).*/\1/p' | sort -u
}

# The header of a parallel HDF5 includes mpi.h: then the MPI's wrapper compiles what uses it. With that of another MPI it would end
# at its first call.
if search "$HDF5_ROOT" hdf5 "-lhdf5" "${hdf5[1]}" "${hdf5[2]}"; then
    emit HDF5
elif using=$MPICC search "$HDF5_ROOT" hdf5 "-lhdf5" "${hdf5[1]}" "${hdf5[2]}"; then
    emit HDF5
    echo "HDF5_NEEDS_MPI := 1" >>"$scratch/deps.mk"
    if [ "$(mpis | sed 's/.*\.so\.//' | sort -u | wc -l)" -gt 1 ]; then
        miss "HDF5 of $MPICC's MPI" "" "" hdf5 "HDF5_ROOT=/path; the parallel one found is of another MPI: $(mpis | paste -sd ' ')"
    fi
else
    miss "${hdf5[@]}"
fi
need YAML "$YAML_ROOT" yaml-0.1 "-lyaml" "${yaml[@]}"
need JANSSON "$JANSSON_ROOT" jansson "-ljansson" "${jansson[@]}"
need ZLIB "$ZLIB_ROOT" zlib "-lz" "${zlib[@]}"
need LIBZIP "$LIBZIP_ROOT" libzip "-lzip" "${libzip[@]}"
need PNG "$PNG_ROOT" libpng "-lpng" "${png[@]}"
need JPEG "$JPEG_ROOT" libjpeg "-ljpeg" "${jpeg[@]}"

# choose VARIABLE WANTED FIND MISS...: a library that may be there, auto, must be, 1, or is not wanted, 0. FIND: a function that finds
# it, and emits how it is used; MISS...: a command for one that must be there and is not.
choose() {
    local with=0
    case $2 in
    auto | 1)
        if $3; then
            with=1
        elif [ "$2" = 1 ]; then
            "${@:4}"
        fi
        ;;
    0) ;;
    *)
        echo "$1=$2: auto, 0 or 1" >&2
        exit 1
        ;;
    esac
    echo "WITH_$1 := $with" >>"$scratch/deps.mk"
}

find_tiff() { search "$TIFF_ROOT" libtiff-4 "-ltiff" "${tiff[@]:1:2}" && emit TIFF; }
find_webp() { search "$WEBP_ROOT" libwebp "-lwebp" "${webp[@]:1:2}" && emit WEBP; }
# A header alone: what it declares is compiled in.
find_bmp() { search "" no-package "" "${bmp[@]:1:2}" && emit BMP; }
find_onednn() {
    if ! search "$ONEDNN_ROOT" dnnl "-ldnnl" "${onednn[@]:1:2}"; then
        [ "$ONEDNN" = 1 ] ||
            echo "oneDNN was not found (Debian: $(package_of onednn); else ONEDNN_ROOT=): building with custom kernels only." >&2
        return 1
    fi
    # Its threads are kept out of the way through its OpenMP, which is GCC's where the distribution built it.
    try "$CC" "" "-lgomp" omp.h "omp_get_max_threads()" && found_libs+=" -lgomp"
    emit ONEDNN
}
choose TIFF "$TIFF" find_tiff miss "${tiff[@]}"
choose WEBP "$WEBP" find_webp miss "${webp[@]}"
choose BMP "$BMP" find_bmp miss "${bmp[@]}"
choose ONEDNN "$ONEDNN" find_onednn miss "${onednn[@]}"

# CUDA: nvcc, and the headers of the driver, cuBLASLt and cuDNN. Nothing is linked: the libraries are opened at run time.
find_cuda() {
    local home folders='' root folder arch nvcc cuda_cflags='' cuda_code
    nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
    [ -n "$CUDA_HOME" ] && nvcc=$CUDA_HOME/bin/nvcc
    [ -x "$nvcc" ] || return
    home=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
    for root in "$CUDNN_ROOT" "$home"; do
        [ -n "$root" ] || continue
        [ -e "$root/include/cuda.h" ] || [ -e "$root/include/cudnn_graph.h" ] && cuda_cflags+="-isystem $root/include "
        for folder in "$root/lib64" "$root/lib"; do
            [ -d "$folder" ] && folders+="$folder:"
        done
    done
    try "$CC" "$cuda_cflags" "" cublasLt.h "CUBLASLT_MATMUL_DESC_EPILOGUE" || return
    # As of cuDNN 9.8.
    try "$CC" "$cuda_cflags" "" cudnn_graph.h "CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION" || return
    printf '__global__ void nothing() {}\n' >"$scratch/try.cu"
    "$nvcc" -fatbin -o "$scratch/try.fatbin" "$scratch/try.cu" >"$scratch/log" 2>&1 || return
    cuda_cflags+="-DDPT_WITH_CUDA=1 -DDPT_CUDA_FOLDERS='\"${folders%:}\"'"
    local archs=() known
    known=$("$nvcc" --list-gpu-arch | sed -n 's/^compute_\([0-9]*\)$/\1/p' | sort -n | awk '$1 >= 70')
    mapfile -t archs <<<"$known"
    if [ -n "$CUDA_ARCHS" ]; then
        read -ra archs <<<"$CUDA_ARCHS"
        cuda_code="-gencode arch=compute_${archs[0]},code=compute_${archs[0]} "
    elif [ "$CUDA" = 1 ]; then
        cuda_code="-gencode arch=compute_${archs[-1]},code=compute_${archs[-1]} "
    else
        cuda_code="-gencode arch=compute_${archs[0]},code=compute_${archs[0]} "
        archs=(90)
    fi
    for arch in "${archs[@]}"; do
        cuda_code+="-gencode arch=compute_$arch,code=sm_$arch "
    done
    printf 'CUDA_NVCC := %s\nCUDA_CFLAGS := %s\nCUDA_CODE := %s\n' "$nvcc" "$cuda_cflags" "$cuda_code" >>"$scratch/deps.mk"
}

miss_cuda() {
    missing+=("$(printf '  %-20s %-28s %s' "CUDA and cuDNN 9.8" "NVIDIA: cuda-toolkit, cudnn9" "else: CUDA_HOME=/path CUDNN_ROOT=/path, or CUDA=0")")
}
choose CUDA "$CUDA" find_cuda miss_cuda

# Only the test programs need it; they say so themselves.
if search "$CMOCKA_ROOT" cmocka "-lcmocka" cmocka.h "sizeof(struct CMUnitTest)"; then
    emit CMOCKA
    echo "HAVE_CMOCKA := 1" >>"$scratch/deps.mk"
fi

if [ ${#missing[@]} -gt 0 ]; then
    {
        echo "dptrain needs what was not found:"
        printf '%s\n' "${missing[@]}"
        echo "On Debian './scripts/setup.sh --build' installs them."
    } >&2
    exit 1
fi
mkdir -p "$(dirname "$out")" && mv "$scratch/deps.mk" "$out"
