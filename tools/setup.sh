#!/bin/sh
# Prepares this machine: `setup.sh venv DIR` makes the virtual environment, `setup.sh lab` the container engine.
# Says what it does. At a terminal it asks before it installs system packages; YES=1 answers, without a terminal it goes on.
set -eu
cd "$(dirname "$0")/.."

say() { echo "==> $*"; }
fail() { echo "setup: $*" >&2; exit 1; }

install_packages() { # install_packages WHY PACKAGE...
  why=$1; shift
  command -v apt-get >/dev/null || fail "please install: $* ($why); only apt-get is known here"
  if [ -t 0 ] && [ "${YES:-}" != 1 ]; then
    printf '==> system packages for %s: %s\n    install them with apt-get? [y/N] ' "$why" "$*"
    read -r answer
    case $answer in [yY]*) ;; *) fail "nothing was installed; install them yourself, or answer with YES=1" ;; esac
  fi
  say "installing system packages for $why: $*"
  root=
  [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null || fail "root or sudo is needed to install: $*"; root=sudo; }
  $root apt-get -o DPkg::Lock::Timeout=600 update -qq
  $root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends "$@" >/dev/null
}

missing_commands() { # prints the packages of the commands that are not there: COMMAND:PACKAGE...
  for pair in "$@"; do
    PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" >/dev/null 2>&1 || printf '%s ' "${pair#*:}"
  done
}

find_python() { # the interpreter asked for with PYTHON=, else the first that ansible-core accepts
  for python in ${PYTHON:-python3 python3.13 python3.12 python3.11 /usr/bin/python3}; do
    if command -v "$python" >/dev/null 2>&1 && "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info)' 2>/dev/null; then
      echo "$python"; return
    fi
  done
}

make_venv() {
  dir=$1
  packages=$(missing_commands ssh:openssh-client)
  # shellcheck disable=SC2086
  [ -z "$packages" ] || install_packages "ssh" $packages
  python=$(find_python)
  [ -n "$python" ] || [ -z "${PYTHON:-}" ] || fail "PYTHON=$PYTHON is no Python 3.11 or newer"
  if [ -z "$python" ]; then
    install_packages "Python 3.11 or newer" python3.11 python3.11-venv
    python=$(find_python)
    [ -n "$python" ] || fail "Python 3.11 or newer is needed; found $(python3 --version 2>&1)"
  fi
  "$python" -c 'import ensurepip, venv' 2>/dev/null || install_packages "virtual environments" "$(basename "$(readlink -f "$(command -v "$python")")")-venv"
  say "virtual environment $dir with $("$python" --version)"
  [ -x "$dir/bin/python" ] || "$python" -m venv "$dir"
  uv=$(grep -E '^uv==' requirements.txt | head -n 1 | sed 's/[ \\].*//')
  "$dir/bin/python" -m pip install --quiet --disable-pip-version-check "$uv"
  "$dir/bin/uv" pip install --quiet --python "$dir/bin/python" --require-hashes -r requirements.txt
}

make_lab() {
  engine=${LAB_ENGINE:-}
  [ -n "$engine" ] || { command -v podman >/dev/null && engine=podman; } || { docker info >/dev/null 2>&1 && engine=docker; } || engine=podman
  packages=$(missing_commands mmdebstrap:mmdebstrap xz:xz-utils zstd:zstd curl:curl ssh-keygen:openssh-client)
  # podman's helpers are only recommended by its package: networks, DNS, and the runtime for hybrid control groups.
  [ "$engine" = docker ] || packages="$packages$(missing_commands podman:podman runc:runc crun:crun slirp4netns:slirp4netns newuidmap:uidmap iptables:iptables)"
  [ "$engine" = docker ] || [ -x /usr/lib/podman/netavark ] || [ -x /usr/libexec/podman/netavark ] || packages="$packages netavark aardvark-dns"
  # shellcheck disable=SC2086
  [ -z "$(echo $packages)" ] || install_packages "the lab's containers" $packages
}

case ${1:-} in
  venv) make_venv "${2:?directory}" ;;
  lab) make_lab ;;
  *) fail "usage: setup.sh venv DIR | lab" ;;
esac
