# Runs in a Debian 12 container as root, in /out: makes python/ (bin, lib, include), a Python that runs from any prefix
# on any Debian or Ubuntu with glibc 2.36, as a conda package would.
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends python3.11 libpython3.11-stdlib patchelf >/dev/null 2>&1
mkdir python python/bin python/lib python/include headers
cp /usr/bin/python3.11 python/bin/
ln -s python3.11 python/bin/python3
ln -s python3.11 python/bin/python
tar -C /usr/lib -cf - --exclude=__pycache__ --exclude=test --exclude=lib2to3 --exclude=idlelib --exclude=tkinter \
    --exclude=pydoc_data --exclude=dist-packages --exclude='config-3.11*' --exclude=EXTERNALLY-MANAGED \
    --exclude=sitecustomize.py python3.11 | tar -C python/lib -xf -
# headers, for what compiles against this Python at run time
(cd headers && apt-get -qq -o APT::Sandbox::User=root download libpython3.11-dev && dpkg-deb -x libpython3.11-dev_*.deb .)
cp -r headers/usr/include/python3.11 python/include/
cp headers/usr/include/x86_64-linux-gnu/python3.11/pyconfig.h python/include/python3.11/pyconfig.h
rm -r headers
# every library that Debian would bring beside libc comes along; the executable's RPATH finds them, also for its modules
for object in python/bin/python3.11 python/lib/python3.11/lib-dynload/*.so; do ldd "$object"; done \
    | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u \
    | grep -Ev '/(libc|libm|libpthread|libdl|librt|libutil|libresolv)\.so' | xargs -I{} cp -L {} python/lib/
for library in python/lib/*.so*; do patchelf --set-rpath '$ORIGIN' "$library"; done
patchelf --force-rpath --set-rpath '$ORIGIN/../lib' python/bin/python3.11
# Debian installs below local/ and dist-packages; a conda environment does not (the site module is frozen: no patching it)
sed -i "/DEB_PYTHON_INSTALL_LAYOUT/s/'posix_local'/'posix_prefix'/; s/prefix_scheme = 'posix_local'/prefix_scheme = 'posix_prefix'/" \
    python/lib/python3.11/sysconfig.py
cat >python/lib/python3.11/sitecustomize.py <<'P'
"""gpu-bootstrap lab: this Debian Python keeps its packages where a conda environment has them."""
import site
import sys

if sys.prefix == sys.base_prefix:
    _own = f"{sys.prefix}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    site.getsitepackages = lambda prefixes=None: [_own]
    site.addsitedir(_own)
P
mkdir -p python/lib/python3.11/site-packages
chmod -R u+rwX,go+rX python
