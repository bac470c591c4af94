#!/bin/sh
# Builds garlicfarm_VERSION-REVISION_ARCHITECTURE.deb: `make deb`. Arguments: REVISION, which counts the packages of one
# version (1), and the directory for it (dist).
# All libraries are inside, for the Python of the Debian that this runs on, so that it installs without a network.
set -eu

revision=${1:-1}
target=${2:-dist}
python=${DEB_PYTHON:-/usr/bin/python3}
case $revision in *[!0-9a-z+.~]* | "") echo "$revision is no revision of a Debian package" >&2; exit 2 ;; esac
command -v dpkg-deb >/dev/null || { echo "dpkg-deb is not installed: a Debian package is built on Debian" >&2; exit 2; }
"$python" -c 'import venv' 2>/dev/null || { echo "$python is no Python with venv; name Debian's with DEB_PYTHON=" >&2; exit 2; }

project=$(pwd)
pip="$project/.venv/bin/python -m pip --disable-pip-version-check --quiet"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/root
installed=$root/opt/garlicfarm
umask 022

# shellcheck disable=SC2086
$pip wheel --no-deps --wheel-dir "$scratch" "$project"
wheel=$(echo "$scratch"/*.whl)
"$python" -m venv --without-pip "$installed"
# shellcheck disable=SC2086
$pip --python "$installed/bin/python" install --only-binary :all: --no-compile "$wheel"
rm -f "$installed"/bin/[Aa]ctivate* "$installed"/lib/python3.*/site-packages/garlicfarm-*.dist-info/direct_url.json
for script in "$installed"/bin/*; do
    [ -L "$script" ] || sed -i "1s|^#!.*|#!/opt/garlicfarm/bin/python|" "$script"
done
# Without the paths of this build.
printf 'home = /usr/bin\ninclude-system-site-packages = false\n' >"$installed/pyvenv.cfg"
# They do not depend on the time of the build, and the user of a node could not write them.
"$python" -m compileall -q --invalidation-mode unchecked-hash -s "$root" -p / "$installed/lib"

install -d "$root/etc" "$root/usr/bin" "$root/usr/share/zsh" "$root/usr/lib/systemd/system" "$root/usr/share/doc/garlicfarm"
mv "$installed/share/man" "$installed/share/bash-completion" "$installed/share/fish" "$root/usr/share/"
mv "$installed/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
rm -r "$installed/share"
gzip -9n "$root"/usr/share/man/man1/*.1
install -m 0644 LICENSE "$root/usr/share/doc/garlicfarm/copyright"
install -m 0644 garlicfarm/cli/garlicfarm.service "$root/usr/lib/systemd/system/"
ln -s /opt/garlicfarm/bin/garlicfarm "$root/usr/bin/garlicfarm"
ln -s /var/lib/garlicfarm/node "$root/etc/garlicfarm"

version=$(basename "$wheel" | cut -d- -f2)-$revision
architecture=$(dpkg --print-architecture)
this=$("$python" -c 'import sys; print("3.%d" % sys.version_info[1])')
next=$("$python" -c 'import sys; print("3.%d" % (sys.version_info[1] + 1))')
install -d "$root/DEBIAN"
install -m 0755 tools/debian/postinst tools/debian/prerm tools/debian/postrm "$root/DEBIAN/"
cat >"$root/DEBIAN/control" <<END
Package: garlicfarm
Version: $version
Architecture: $architecture
Maintainer: The garlicfarm project <garlicfarm@localhost>
Section: net
Priority: optional
Depends: python3 (>= $this), python3 (<< $next~), adduser
Suggests: i2pd
Description: cluster node for the Garlic Farm protocol of I2P
 One of several routers of a multihomed I2P service may publish its Meta
 LeaseSet. A node beside each router replicates, through Raft, what the
 routers report, and the farm names one publisher.
END
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1580601600)}"
mkdir -p "$target"
package=$target/garlicfarm_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
