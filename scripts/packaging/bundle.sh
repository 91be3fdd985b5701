#!/usr/bin/env bash
# Makes a folder that runs wherever it is put: the program with its libraries and its Open MPI. `make bundle` calls it.
#
#   scripts/packaging/bundle.sh VERSION STAGE OUT
#
#   STAGE   where `make install` has put bin/ and share/; it becomes the bundle
#   OUT     the folder to make; OUT.tar.gz is made of it, unless ARCHIVE=0 is in the environment
#
# What belongs to it is asked, not listed: the loader names the libraries, ompi_info where Open MPI keeps its plug-ins and texts.
# Only glibc stays out, so a bundle runs where glibc is no older than here. Needs patchelf.
set -euo pipefail
# shellcheck source=scripts/packaging/arguments.sh
. "$(dirname "$0")/arguments.sh"
mpicc=$(command -v "${MPICC:-mpicc}") || mpicc=/usr/bin/mpicc
mpi=$(dirname "$mpicc")

need patchelf
[ -x "$mpi/ompi_info" ] || fail "$mpi has no ompi_info: of the MPIs only Open MPI can be taken along"
# What starts ranks: of Open MPI 4 mpirun does it itself, of 5 prterun does, and each has a daemon on other nodes.
starters=()
for name in mpirun orted prterun prted; do
    [ ! -x "$mpi/$name" ] || starters+=("$name")
done
path_of() {
    "$mpi/ompi_info" --parsable --path all | awk -F: -v key="$1" '$1 == "path" && $2 == key { found = $3 } END { print found }'
}

# --- what is the bundle's own ------------------------------------------------------------------------------------------

mkdir -p "$stage"/{libexec,lib/openmpi,lib/hwloc,lib/pmix,share/doc/dptrain}
mv "$stage/bin/dptrain" "$stage/libexec/dptrain"
strip --strip-unneeded "$stage/libexec/dptrain"
for name in "${starters[@]}"; do
    install -m 755 "$(readlink -f "$mpi/$name")" "$stage/libexec/$name"
done
for name in dptrain "${starters[@]}"; do
    install -m 755 "$here/bundle-run" "$stage/bin/$name"
done
ln -s mpirun "$stage/bin/mpiexec"
ln -s mpirun "$stage/libexec/mpiexec"

find -L "$(path_of pkglibdir)" -maxdepth 1 -name 'mca_*.so' -exec install -m 644 -t "$stage/lib/openmpi" {} + # 5 has them inside
mkdir -p "$stage/etc/openmpi" "$stage/share/openmpi"
find -L "$(path_of sysconfdir)" -maxdepth 1 -type f -exec cp {} "$stage/etc/openmpi" \;
find -L "$(path_of pkgdatadir)" -maxdepth 1 -type f ! -name '*wrapper-data*' -exec cp {} "$stage/share/openmpi" \;
if [ -x "$mpi/prte_info" ]; then
    mkdir -p "$stage/share/prte"
    cp -rL "$("$mpi/prte_info" --path pkgdatadir | sed 's/.*: *//')/." "$stage/share/prte"
fi

# --- the libraries of all of it ----------------------------------------------------------------------------------------

glibc='^(ld-linux.*|linux-vdso|lib(c|m|mvec|pthread|dl|rt|util|resolv|anl|nsl|nss_.*|BrokenLocale|thread_db))\.so'
origins=$(mktemp)
trap 'rm -f "$origins" "$origins.packages"' EXIT
loader=$(patchelf --print-interpreter "$stage/libexec/dptrain") # asked itself, in a fifth of the time that ldd takes
resolve() { # NAME PATH of each library that the files named on stdin load, in the end
    LD_LIBRARY_PATH="$stage/lib:${LD_LIBRARY_PATH:-}" xargs -n 1 "$loader" --list 2>/dev/null |
        awk '$2 == "=>" { print $1, ($3 == "not" ? "" : $3) }' | grep -vE "$glibc" | sort -u
}
# Takes along what the files below a folder load.
collect() {
    local name path
    while read -r name path; do
        [ -n "$path" ] || fail "$name is needed, and is not on this machine"
        [ ! -e "$stage/lib/$name" ] || continue
        install -m 644 "$path" "$stage/lib/$name"
        printf '%s %s\n' "$name" "$path" >>"$origins"
    done < <(find "$@" -type f | resolve)
}
collect "$stage/libexec" "$stage/lib/openmpi"

# PMIx has plug-ins of its own, beside itself, and texts.
pmix=$(awk '/^libpmix\.so/ { print $2; exit }' "$origins")
if [ -n "$pmix" ]; then
    pmix=$(dirname "$(readlink -f "$pmix")")
    mkdir -p "$stage/share/pmix"
    for file in "$pmix"/pmix/*.so "$pmix"/../share/pmix/help-*.txt /usr/share/pmix/help-*.txt; do
        case $file in
        */\*.so | */help-\*.txt) ;;
        *.so) install -m 644 "$file" "$stage/lib/pmix" ;;
        *) install -m 644 "$file" "$stage/share/pmix" ;;
        esac
    done
    collect "$stage/lib/pmix"
fi

# A program's RPATH holds for all that it loads, a RUNPATH (which hides it) only for its own.
# shellcheck disable=SC2016
find "$stage/libexec" -type f -exec patchelf --force-rpath --set-rpath '$ORIGIN/../lib' {} +
while read -r file; do
    if readelf -d "$file" | grep -qE '\((RPATH|RUNPATH)\)'; then
        patchelf --remove-rpath "$file"
    fi
done < <(find "$stage/lib" -type f)

outside=$(find "$stage/libexec" "$stage/lib/openmpi" "$stage/lib/pmix" -type f | resolve | grep -vF " $stage/") || true
[ -z "$outside" ] || fail "still taken from this machine: $outside"

# --- where it comes from, and under which licences ---------------------------------------------------------------------------

doc=$stage/share/doc/dptrain
# PACKAGE VERSION FILE, asked for all at once; a file may be known by its path with /usr or without.
owners() {
    local files
    mapfile -t files < <(cut -d' ' -f2 "$origins" | xargs readlink -f | sed 'p; s,^/usr/,/,; t; d')
    { dpkg -S "${files[@]}" 2>/dev/null || true; } | awk '!/^diversion/ { sub(/[:,].*/, "", $1); print $1, $NF }' |
        while read -r package file; do
            # shellcheck disable=SC2016
            echo "$package $(dpkg-query -W -f '${Version}\n' "$package" | sort -u | tail -n 1) ${file#/usr}"
        done
}
if command -v dpkg >/dev/null; then owners; fi >"$origins.packages"
while read -r name path; do
    file=$(readlink -f "$path")
    awk -v name="$name" -v file="${file#/usr}" '$3 == file { found = $1 " " $2 } END { print name, found ? found : file }' \
        "$origins.packages"
done <"$origins" | sort >"$doc/libraries.txt"
mkdir -p "$doc/licences"
awk 'NF == 3 { print $2 }' "$doc/libraries.txt" | sort -u | while read -r package; do
    [ ! -r "/usr/share/doc/$package/copyright" ] || cp -L "/usr/share/doc/$package/copyright" "$doc/licences/$package"
done
oldest=$(find "$stage/libexec" "$stage/lib" -type f -exec objdump -T {} + 2>/dev/null | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -n 1)
cat >"$stage/README.txt" <<END
dptrain $version, with its libraries and $("$mpi/mpirun" --version | sed -n 's/^mpirun (\(.*\))/\1/p').

Put this folder anywhere, on a disk that all nodes see where there are several, and run

    bin/dptrain JOB.yaml
    bin/dptrain JOB.yaml --ranks 4
    bin/mpirun -np 4 bin/dptrain JOB.yaml

It needs $(uname -s) on $(uname -m) with glibc ${oldest#GLIBC_} or later, and /bin/sh. Links to bin/dptrain work too.
share/doc/dptrain has the README, jobs and SLURM batch files to begin with, and the libraries' origins and licences.
END

rm -rf "$out" "$out.tar.gz"
mv "$stage" "$out"
[ "${ARCHIVE:-1}" != 0 ] || exit 0
tar --create --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$("$here/epoch.sh")" -C "$(dirname "$out")" \
    "$(basename "$out")" | gzip -6n >"$out.tar.gz"
printf '%s: %s; %s.tar.gz: %s\n' "$out" "$(du -sh "$out" | cut -f1)" "$out" "$(du -h "$out.tar.gz" | cut -f1)"
du -k "$out"/lib/*.so* | sort -rn | awk 'NR <= 3 { sub(".*/", "", $2); printf "  %-24s %3d MB\n", $2, $1 / 1024 }'
