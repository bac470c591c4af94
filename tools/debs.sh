#!/bin/sh
# Prints the Debian packages that the tests and the lab can use, or with the argument `bench` those that
# `make bench` compares with; as root, installs them.
# It starts none of their services, and disables the new ones: i2pd's default configuration would join the
# public I2P network.
set -eu

case "${1:-}" in
    "") packages="chromium curl fish i2pd iproute2 mmdebstrap nginx openssh-client openssl prometheus python3-venv strace systemd util-linux zsh" ;;
    bench) packages="etcd-server golang-etcd-server-dev golang-go" ;;
    *) echo "usage: $0 [bench]" >&2; exit 2 ;;
esac
policy=/usr/sbin/policy-rc.d

echo "$packages"
if [ "$(id -u)" != 0 ]; then
    echo "To install them: run this as root." >&2
    exit 0
fi

new=
for service in etcd i2pd prometheus; do
    [ -e "/etc/init.d/$service" ] || new="$new $service"
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
for service in $new; do
    [ ! -e "/etc/init.d/$service" ] || update-rc.d "$service" disable
done
