#!/bin/sh
# NVIDIA CUDA Toolkit @VERSION@: STAND-IN of the gpu-bootstrap lab, not NVIDIA's installer.
# Real in it: the compiler (nvcc @NVCC@) with its headers and runtime. Absent: driver, most libraries, tools, samples.
# As the vendor's file does, it unpacks itself below --tmpdir, TMPDIR or /tmp, hands the flags on to ./cuda-installer
# and ends with that one's exit code.
set -u
umask 022
root=${TMPDIR:-/tmp}
keep=0
extract=
for argument in "$@"; do
    case $argument in
    --tmpdir=*) root=${argument#*=} ;;
    --extract=*) extract=${argument#*=} ;;
    --keep) keep=1 ;;
    --info) echo "gpu-bootstrap lab stand-in for CUDA Toolkit @VERSION@, nvcc @NVCC@, @KIB@ KiB unpacked"; exit 0 ;;
    esac
done
payload() { tail -c +@OFFSET@ "$0"; }
found=$(payload | wc -c)
if [ "$found" -ne @BYTES@ ] || [ "$(payload | sha256sum | cut -d' ' -f1)" != @SHA256@ ]; then
    echo "Error in checksums: the payload has $found bytes, expected @BYTES@" >&2
    exit 2
fi
if [ "${1:-}" = --check ]; then
    echo "Verifying archive integrity... All good."
    exit 0
fi
if [ -n "$extract" ]; then
    mkdir -p "$extract" && payload | tar -xzf - -C "$extract"
    exit
fi
if [ ! -d "$root" ]; then
    echo "Cannot create target directory $root/selfgz: no such directory" >&2
    exit 1
fi
free=$(df -Pk "$root" | awk 'NR == 2 {print $4}')
if [ "$free" -lt @KIB@ ]; then
    echo "Not enough space left in $root ($free KB) to decompress $0 (@KIB@ KB)" >&2
    echo "Consider setting TMPDIR or --tmpdir to a directory with more free space." >&2
    exit 1
fi
work=$(mktemp -d "$root/selfgz.XXXXXXXX") || exit 1
[ $keep = 1 ] || trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
payload | tar -xzf - -C "$work" || { echo "Extraction failed." >&2; exit 1; }
cd "$work" || exit 1
./cuda-installer "$@"
exit $?
# ---- payload ----
