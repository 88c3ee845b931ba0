#!/bin/sh
# Leaves a package of the driver family half configured, as a build that fails does: its postinst never succeeds.
set -eu
tree=$(mktemp -d)
mkdir -p "$tree/DEBIAN"
printf 'Package: nvidia-driver-broken\nVersion: 1.0\nArchitecture: all\nMaintainer: lab\nDescription: a package of the lab whose configuration fails\n' >"$tree/DEBIAN/control"
printf '#!/bin/sh\nexit 10\n' >"$tree/DEBIAN/postinst"
chmod 755 "$tree/DEBIAN/postinst"
dpkg-deb --build "$tree" /var/tmp/broken.deb >/dev/null
dpkg --unpack /var/tmp/broken.deb >/dev/null
if dpkg --configure nvidia-driver-broken >/dev/null 2>&1; then exit 1; fi
rm -r "$tree" /var/tmp/broken.deb
