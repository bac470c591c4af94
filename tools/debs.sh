#!/bin/sh
# Prints the Debian packages that the tests and the lab can use; as root, installs them.
# No service of theirs is started, and none newly installed stays enabled: i2pd's default
# configuration would join the public I2P network, nginx would listen on port 80.
set -eu

packages="curl i2pd iproute2 nginx strace util-linux"
services="i2pd nginx"
policy=/usr/sbin/policy-rc.d

echo "$packages"
if [ "$(id -u)" != 0 ]; then
    echo "To install them: run this as root." >&2
    exit 0
fi

new_services=
for service in $services; do
    [ -e "/etc/init.d/$service" ] || new_services="$new_services $service"
done

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
for service in $new_services; do
    update-rc.d "$service" disable
done
