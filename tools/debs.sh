#!/bin/sh
# Prints the Debian packages that the tests and the lab can use; as root, installs them.
# It does not start i2pd, and disables it if it is new: its default configuration would join the public I2P
# network.
set -eu

packages="chromium curl i2pd iproute2 nginx openssl python3-venv strace systemd util-linux"
policy=/usr/sbin/policy-rc.d

echo "$packages"
if [ "$(id -u)" != 0 ]; then
    echo "To install them: run this as root." >&2
    exit 0
fi

new=
[ -e /etc/init.d/i2pd ] || new=yes

restore() {
    rm -f "$policy"
    [ ! -e "$policy.garlicfarm" ] || mv "$policy.garlicfarm" "$policy"
}
[ ! -e "$policy" ] || [ -e "$policy.garlicfarm" ] || mv "$policy" "$policy.garlicfarm"
trap restore EXIT
trap 'exit 130' INT TERM HUP
printf '#!/bin/sh\nexit 101\n' >"$policy"
chmod 755 "$policy"

export DEBIAN_FRONTEND=noninteractive
apt-get update
# shellcheck disable=SC2086
apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $packages
[ -z "$new" ] || update-rc.d i2pd disable
