# shellcheck shell=bash
# Sourced at the head of a script, before it changes its folder: with --help or -h among the arguments it prints the comment at
# the script's top and ends it. `usage` prints that comment.
usage() {
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
}
for arg in "$@"; do
    case $arg in
    --help | -h)
        usage
        exit 0
        ;;
    esac
done
