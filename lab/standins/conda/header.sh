#!/bin/sh
# Miniconda3 @VERSION@: STAND-IN of the gpu-bootstrap lab, not Anaconda's installer.
# Real in it: Python @PYTHON@ (Debian's), pip, py-rattler (a real conda solver and installer). The conda command is ours.
# Flags as the vendor's: -b batch, -u update an existing prefix, -p PREFIX; also -f -k -m -s -t, which change nothing here.
set -u
PREFIX=${HOME:-/root}/miniconda3
BATCH=0
UPDATE=0
while getopts bcfhikmp:sut option; do
    case $option in
    b) BATCH=1 ;;
    f | u) UPDATE=1 ;;
    p) PREFIX=$OPTARG ;;
    h)
        echo "usage: $0 [-b] [-u] [-p PREFIX] (stand-in for Miniconda3 @VERSION@)"
        exit 2
        ;;
    c | i | k | m | s | t) ;;
    *)
        echo "ERROR: did not recognize option '$option', please try -h" >&2
        exit 1
        ;;
    esac
done
payload() { tail -c +@OFFSET@ "$0"; }
if [ "$(payload | wc -c)" -ne @BYTES@ ]; then
    echo "ERROR: size of $0 should be larger: the file is cut off, download it again" >&2
    exit 1
fi
if [ "$(payload | sha256sum | cut -d' ' -f1)" != @SHA256@ ]; then
    echo "WARNING: checksum mismatch of tar archive: expected @SHA256@" >&2
    exit 1
fi
if [ $BATCH = 0 ]; then
    echo "Welcome to Miniconda3 @VERSION@ (stand-in). Please, press ENTER to continue"
    read -r _ || { echo "ERROR: no answer; use -b for a batch installation" >&2; exit 1; }
fi
case $PREFIX in
*[[:space:]]*)
    echo "ERROR: Cannot install into directories with spaces" >&2
    exit 1
    ;;
esac
if [ $UPDATE = 0 ] && [ -e "$PREFIX" ]; then
    echo "ERROR: File or directory already exists: '$PREFIX'" >&2
    echo "If you want to update an existing installation, use the -u option." >&2
    exit 1
fi
mkdir -p "$PREFIX" || { echo "ERROR: Could not create directory: '$PREFIX'" >&2; exit 1; }
PREFIX=$(cd "$PREFIX" && pwd)
echo "PREFIX=$PREFIX"
echo "Unpacking payload ..."
payload | tar -xzf - -C "$PREFIX" || { echo "ERROR: could not extract the payload" >&2; exit 1; }
for file in bin/conda bin/activate bin/deactivate etc/profile.d/conda.sh; do
    sed -i "s|@""PREFIX@|$PREFIX|g" "$PREFIX/$file" || exit 1
done
mkdir -p "$PREFIX/envs" "$PREFIX/pkgs" "$PREFIX/condabin"
ln -sf ../bin/conda "$PREFIX/condabin/conda"
echo "installation finished."
exit 0
# ---- payload ----
