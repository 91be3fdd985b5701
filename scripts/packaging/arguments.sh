# shellcheck shell=bash
# Sourced by the scripts that make packages: takes VERSION STAGE OUT from the command line.
export LC_ALL=C
# shellcheck source=scripts/lib/usage.sh
. "$(dirname "$0")/../lib/usage.sh"
if [ $# != 3 ]; then
    usage
    exit 2
fi
# shellcheck disable=SC2034 # the script that sources this uses them
version=$1 stage=$(cd "$2" && pwd) out=$3
# shellcheck disable=SC2034
here=$(cd "$(dirname "$0")" && pwd)

fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}
need() { # TOOL...
    for tool in "$@"; do
        command -v "$tool" >/dev/null || fail "$tool is missing; ./scripts/setup.sh --package installs it"
    done
}
