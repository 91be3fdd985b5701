#!/usr/bin/env bash
# Makes the Debian package of what is installed below STAGE/usr. `make deb` calls it.
#
#   scripts/packaging/deb.sh VERSION STAGE OUT
#
#   STAGE   where `make install PREFIX=/usr` has put everything; it becomes the package
#   OUT     the folder for dptrain_VERSION-REVISION_ARCHITECTURE.deb
#
# debian/ beside this script says what the package is, dpkg-shlibdeps what it depends on, CHANGELOG.md what is new in it.
# DEBFULLNAME and DEBEMAIL name who makes it, REVISION (1) its number among the packages of one version. Equal inputs
# give byte-identical packages. Needs dpkg-dev.
set -euo pipefail
# shellcheck source=scripts/packaging/arguments.sh
. "$(dirname "$0")/arguments.sh"
revision=$version-${REVISION:-1}
need dpkg-deb dpkg-shlibdeps dpkg-gencontrol

# The tools want to stand beside a folder debian/ with a changelog.
work=$stage.work
rm -rf "$work"
mkdir -p "$work" "$out"
cp -r "$here/debian" "$work"
trap 'rm -rf "$work" "$stage"' EXIT
cd "$work"

maintainer=$(sed -n 's/^Maintainer: //p' debian/control)
if [ -n "${DEBEMAIL:-}" ]; then
    maintainer="${DEBFULLNAME:-dptrain maintainers} <$DEBEMAIL>"
    sed -i "s/^Maintainer: .*/Maintainer: $maintainer/" debian/control
fi

# What starts ranks of the MPI that is linked.
if "$stage/usr/bin/dptrain" --version | grep -q '^MPICH'; then
    sed -i '/^Depends:/s/openmpi-bin/mpich/' debian/control
fi

# --- files as Debian wants them -------------------------------------------------------------------------------------------

share=$stage/usr/share
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$stage/usr/bin/dptrain"
gzip -9n "$share/man/man1/dptrain.1"
mkdir -p "$share/zsh/vendor-completions"
mv "$share/zsh/site-functions/_dptrain" "$share/zsh/vendor-completions/"
rmdir "$share/zsh/site-functions"
doc=$share/doc/dptrain
rm "$doc/LICENSE"
install -m 644 debian/copyright "$doc/copyright"
mv "$doc/CHANGELOG.md" "$doc/changelog"

# The package's own changelog: what is new in the sources is told by theirs.
grep -qF "## [$version] - " "$doc/changelog" || fail "CHANGELOG.md has no entry for $version"
epoch=$("$here/epoch.sh")
export SOURCE_DATE_EPOCH=$epoch
{
    echo "dptrain ($revision) unstable; urgency=medium"
    echo
    echo "  * Version $version; changelog.gz says what is new."
    echo
    echo " -- $maintainer  $(date -u -R -d "@$epoch")"
} >debian/changelog
gzip -9nc debian/changelog >"$doc/changelog.Debian.gz"
gzip -9n "$doc/changelog"
chmod -R u=rwX,go=rX "$stage"

# --- what it needs, what it is ---------------------------------------------------------------------------------------------

mkdir -p "$stage/DEBIAN"
dpkg-shlibdeps -Tdebian/substvars "$stage/usr/bin/dptrain"
(cd "$stage" && find usr -type f -printf '%P\0' | sort -z | sed -z 's,^,usr/,' | xargs -0 md5sum) >"$stage/DEBIAN/md5sums"
dpkg-gencontrol -pdptrain -P"$stage" -Tdebian/substvars -n"dptrain_${revision}_$(dpkg --print-architecture).deb" 2>&1 |
    grep -v 'substitution variable' >&2 || true
find "$stage" -newermt "@$epoch" -exec touch --no-dereference --date="@$epoch" {} +
package=$out/dptrain_${revision}_$(dpkg --print-architecture).deb
cd - >/dev/null
dpkg-deb --root-owner-group -Zxz --build "$stage" "$package" >/dev/null
printf '%s: %s\n' "$package" "$(du -h "$package" | cut -f1)"
