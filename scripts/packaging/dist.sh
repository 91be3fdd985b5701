#!/usr/bin/env bash
# Packs the sources: BUILD/dist/dptrain-VERSION.tar.gz. `make dist` calls it.
#
#   scripts/packaging/dist.sh VERSION BUILD
#
# Equal files give byte-identical archives, whoever packs them, from a clone or from an unpacked archive: sorted, one owner, one
# time (epoch.sh). In a clone it is what git knows or would add, as it lies there; what git ignores stays out.
set -euo pipefail
# shellcheck source=scripts/lib/usage.sh
. "$(dirname "$0")/../lib/usage.sh"
if [ $# != 2 ]; then
    usage
    exit 2
fi
cd "$(dirname "$0")/../.."
export LC_ALL=C
version=$1 build=${2#"$PWD"/}
name=dptrain-$version
out=$build/dist/$name.tar.gz

# An archive that was unpacked inside somebody's clone is none of that clone's business.
clone=0
[ "$(git rev-parse --show-toplevel 2>/dev/null)" != "$PWD" ] || clone=1
files() {
    if [ $clone = 1 ]; then
        git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
            [ ! -f "$file" ] || printf '%s\0' "$file"
        done
    else
        find . \( -path ./.git -o -path ./build -o -path ./runs -o -name __pycache__ -o -name .pytest_cache \) -prune -o \
            -type f ! -path './data/*.h5' -printf '%P\0'
    fi
}
if [ $clone = 1 ] && [ -n "$(git --no-optional-locks status --porcelain)" ]; then
    echo "dist.sh: with changes that are not committed" >&2
fi

mkdir -p "$build/dist"
list=$(mktemp)
trap 'rm -f "$list" "$out.new"' EXIT
files | sort -z | grep -zv "^$build/" >"$list"
tar --create --format=ustar --null --no-recursion --files-from="$list" --transform="s,^,$name/," \
    --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$(scripts/packaging/epoch.sh)" | gzip -9n >"$out.new"
mv "$out.new" "$out"
printf '%s: %s files, %s, sha256 %s\n' "$out" "$(tr -cd '\0' <"$list" | wc -c)" \
    "$(du -h --apparent-size "$out" | cut -f1)" "$(sha256sum "$out" | cut -d' ' -f1)"
