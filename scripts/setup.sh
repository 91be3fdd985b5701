#!/usr/bin/env bash
# Installs the Debian packages that dptrain needs and this machine lacks, as root or with sudo.
#
#   scripts/setup.sh [--build | --test | --bench | --simulate | --package] [--yes] [--list]
#
#   --build   what building and running needs (the default)
#   --test    and what the tests need, Slurm and the fuzzers' compiler too
#   --bench   and what scripts/bench.sh needs
#   --simulate  and what scripts/simulate/run.sh needs
#   --package   and what `make bundle` and `make deb` need; --test has that too
#   --yes     do not ask; without it a person at a terminal is asked first
#   --list    print the missing packages and do nothing
#
# Where all is there it does nothing, and needs no network. Without root, or on another system, it says what is needed.
set -euo pipefail
cd "$(dirname "$0")/.."

uses=build yes=0 list=0
for arg in "$@"; do
    case $arg in
    --build) uses=build ;;
    --test) uses='build|test|package' ;;
    --bench) uses='build|bench' ;;
    --simulate) uses='build|simulate' ;;
    --package) uses='build|package' ;;
    --yes | -y) yes=1 ;;
    --list) list=1 ;;
    --help | -h)
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
        exit 0
        ;;
    *)
        echo "setup.sh: unknown option $arg (see --help)" >&2
        exit 2
        ;;
    esac
done

mapfile -t wanted < <(awk -v uses="^($uses)\$" '$1 ~ uses { print $2 }' scripts/packages.txt)
missing=()
for package in "${wanted[@]}"; do
    status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null) || status=
    [ "$status" = "install ok installed" ] || missing+=("$package")
done

if [ $list = 1 ]; then
    [ ${#missing[@]} = 0 ] || printf '%s\n' "${missing[@]}"
    exit 0
fi
[ ${#missing[@]} -gt 0 ] || exit 0

# What is needed may be there without its Debian package: a cluster's modules, another system.
found_anyway() {
    case $uses in
    build) ;;
    *test*)
        command -v shellcheck >/dev/null && python3 -c 'import pytest, h5py, numpy' 2>/dev/null || return 1
        ;;
    *package*) command -v patchelf >/dev/null && command -v dpkg-shlibdeps >/dev/null || return 1 ;;
    *simulate*) command -v smpicc >/dev/null && command -v python3 >/dev/null || return 1 ;;
    *) python3 -c 'import venv' 2>/dev/null || return 1 ;;
    esac
    command -v make >/dev/null && command -v mpirun >/dev/null && make -s build/deps.mk >/dev/null 2>&1
}

refuse() {
    if found_anyway; then
        exit 0
    fi
    {
        echo "setup.sh: $1"
        echo "These Debian packages, or what they stand for, are needed and missing:"
        echo "  ${missing[*]}"
        echo "A build from a cluster's modules needs no root: 'make help' lists the knobs, 'make' says what it does not find."
    } >&2
    exit 1
}

command -v apt-get >/dev/null || refuse "this is not a Debian system, so nothing can be installed from here."
person=0
[ -t 0 ] && [ -z "${CI:-}" ] && person=1
root=()
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || refuse "installing needs root, and there is no sudo."
    root=(sudo)
    if [ $person = 0 ]; then
        sudo -n true 2>/dev/null || refuse "installing needs root, and sudo asks for a password."
    fi
fi

echo "To be installed from Debian: ${missing[*]}"
if [ $person = 1 ] && [ $yes = 0 ]; then
    LC_ALL=C apt-get -o Debug::NoLocking=1 --assume-no --no-install-recommends install "${missing[@]}" 2>/dev/null |
        grep -E '^(Need to get|After this)' | sed 's/^/  /' || true
    read -r -p "Go on? [Y/n] " answer || answer=n
    case $answer in
    '' | [yY]*) ;;
    *)
        echo "Nothing was installed." >&2
        exit 1
        ;;
    esac
fi

mkdir -p build
log=build/setup.log
apt() {
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get -q -y -o DPkg::Lock::Timeout=600 \
        -o Dpkg::Use-Pty=0 "$@" >>"$log" 2>&1 </dev/null
}
: >"$log"
echo "Installing, which takes a minute or more; $log has the details."
# The lists of packages may be old or absent: then they are fetched, once.
if ! apt --no-install-recommends install "${missing[@]}"; then
    if ! { apt update && apt --no-install-recommends install "${missing[@]}"; }; then
        tail -n 15 "$log" >&2
        echo "setup.sh: installing failed, see above; all of it is in $log" >&2
        exit 1
    fi
fi
