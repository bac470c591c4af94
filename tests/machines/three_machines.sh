#!/bin/bash
# Three machines on one cable, a.example to c.example, from one root of Debian's packages; then runs a script
# among them, as a reader does beside them. For namespaces of its own, which end with it:
#   unshare --net --mount --pid --fork --kill-child --mount-proc bash three_machines.sh DIRECTORY
# DIRECTORY: base/ (the root), wheels/ (what pip installs there from), key (the reader's, for ssh) and script.
set -euo pipefail
cd "$1"

mount -t tmpfs tmpfs /run
mkdir -p /run/netns
ip link set lo up
ip link add cable type bridge
ip address add 10.77.0.254/24 dev cable
ip link set cable up
number=0
for name in a b c; do
    number=$((number + 1))
    ip netns add "$name"
    ip link add "v$name" type veth peer name eth0 netns "$name"
    ip link set "v$name" master cable up
    ip -n "$name" link set lo up
    ip -n "$name" address add "10.77.0.$number/24" dev eth0
    ip -n "$name" link set eth0 up

    mkdir -p "$name/upper" "$name/work" "$name/root"
    mount -t overlay -o "lowerdir=base,upperdir=$name/upper,workdir=$name/work" overlay "$name/root"
    mount -t proc proc "$name/root/proc"
    mount --rbind /dev "$name/root/dev"
    mount --bind wheels "$name/root/mnt"
    ip netns exec "$name" unshare --uts --pid --fork --kill-child --mount-proc="$PWD/$name/root/proc" \
        chroot "$name/root" sh -c 'hostname "$1"; exec /usr/sbin/sshd -D -e' sh "$name" 2>"$name/sshd.log" &
done

bash -eu -o pipefail script
