#!/usr/bin/env bash
# As root, gives a bare Debian 12 machine what `docker compose` needs: the engine, compose, and the image
# python:3.11-slim, which is built from Debian's Python if no registry is reachable.
#
#   tools/lab-engine.sh          installs and starts what is missing; on failure the last line on stderr says why
#   tools/lab-engine.sh stop     stops the engine that it started, and undoes that engine's network changes
#
# Images stay in $GARLICFARM_ENGINE_DIR (/var/tmp/garlicfarm-engine); packages stay installed.
set -euo pipefail
image=python:3.11-slim
dir=${GARLICFARM_ENGINE_DIR:-/var/tmp/garlicfarm-engine}
space_kb=6000000 # images with Spark, and build leftovers
export DEBIAN_FRONTEND=noninteractive HOME=${HOME:-/root}

no() {
    echo "$*" >&2
    exit 1
}

has_compose() { docker compose version && docker buildx version; } >/dev/null 2>&1
answers() { timeout 20 docker info; } >/dev/null 2>&1
has_image() { timeout 20 docker image inspect "$image" || timeout 120 docker pull -q "$image"; } >/dev/null 2>&1

stop() {
    [ -s "$dir/dockerd.pid" ] || { echo "no engine started by this script is running" >&2; return 0; }
    pid=$(cat "$dir/dockerd.pid")
    if is_dockerd "$pid"; then
        kill "$pid"
        for _ in $(seq 150); do [ -e "/proc/$pid" ] || break; sleep .2; done
        if [ -e "/proc/$pid" ]; then echo "dockerd ($pid) does not stop" >&2; return 1; fi
    fi
    rm -f "$dir/dockerd.pid"
    ! mountpoint -q "$dir/root" || umount "$dir/root"
    ! ip link show docker0 >/dev/null 2>&1 || ip link delete docker0
    iptables-restore <"$dir/iptables.before"
    cat "$dir/ip_forward.before" >/proc/sys/net/ipv4/ip_forward
}
is_dockerd() { [ "$(cat "/proc/$1/comm" 2>/dev/null)" = dockerd ]; }

if [ "${1:-}" = stop ]; then
    stop
    exit
fi

if has_compose && answers && has_image; then exit; fi
[ "$(id -u)" = 0 ] || no "not root: install and start a container engine with docker compose, then try again"
grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release ||
    no "not Debian 12: install and start a container engine with docker compose, then try again"
mirror=$(awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)
[ -n "$mirror" ] || mirror=$(awk '$1 == "deb" { for (i = 2; i <= NF; i++) if ($i ~ "://") { print $i; exit } }' /etc/apt/sources.list)
[ -n "$mirror" ] || no "apt has no mirror of Debian"
mkdir -p "$dir"
cd "$dir"
has_image || [ "$(df --output=avail -k . | tail -n 1)" -ge $space_kb ] || no "$dir has less than $space_kb KB to spare"

# Downloads have a deadline; installing has none, because a half-installed package is worse than none.
fetch=(timeout 300 apt-get -q -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30)
if ! type dockerd mmdebstrap iptables ip >/dev/null 2>&1; then
    install=(install -y --no-install-recommends docker.io iptables iproute2 mmdebstrap)
    "${fetch[@]}" update && "${fetch[@]}" --download-only "${install[@]}" ||
        no "cannot download the engine from Debian's mirror"
    apt-get -q -o DPkg::Lock::Timeout=400 "${install[@]}" || no "apt-get cannot install the engine"
fi

# Debian 12 has no compose 2: use two client plugins of Debian 13, which need only its C library.
if ! has_compose; then
    rm -rf apt
    mkdir -p apt/lists/partial apt/archives/partial apt/parts "$HOME/.docker/cli-plugins"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" >apt/sources.list
    fetch+=(-o "Dir::Etc::sourcelist=$dir/apt/sources.list" -o "Dir::Etc::sourceparts=$dir/apt/parts"
        -o "Dir::State::Lists=$dir/apt/lists" -o "Dir::Cache=$dir/apt" -o APT::Sandbox::User=root)
    (cd apt && "${fetch[@]}" update && "${fetch[@]}" download docker-compose docker-buildx) ||
        no "cannot download docker compose from Debian's mirror"
    for package in apt/*.deb; do dpkg-deb -x "$package" apt/x; done
    cp apt/x/usr/libexec/docker/cli-plugins/* "$HOME/.docker/cli-plugins/"
    rm -rf apt
    has_compose || no "docker compose does not run"
fi

if ! answers; then
    ! [ -s dockerd.pid ] || is_dockerd "$(cat dockerd.pid)" || rm dockerd.pid # left by an engine that was killed
    cat /proc/sys/net/ipv4/ip_forward >ip_forward.before
    iptables-save >iptables.before || no "iptables does not work"
    for table in filter nat; do # iptables-restore would not empty a missing table
        grep -q "^\*$table" iptables.before || case $table in
            filter) printf '*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n' ;;
            nat) printf '*nat\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n' ;;
        esac >>iptables.before
    done
    trap 'stop' EXIT # disarmed on success
    trap 'exit 1' INT TERM HUP
    nohup setsid dockerd --data-root "$dir/root" --exec-root "$dir/run" --pidfile "$dir/dockerd.pid" \
        >dockerd.log 2>&1 </dev/null &
    for _ in $(seq 120); do answers && break; sleep .5; done
    answers || no "the engine does not start: $(tail -n 1 dockerd.log)"
fi

if ! has_image; then
    echo "no registry: building $image from Debian's packages" >&2
    timeout 600 mmdebstrap -q --variant=minbase --include=ca-certificates,python3,python3-pip,python-is-python3 \
        --customize-hook='rm "$1"/usr/lib/python3*/EXTERNALLY-MANAGED' bookworm - "$mirror" |
        docker import --change 'ENV LANG=C.UTF-8' --change 'CMD ["python3"]' - "$image" >/dev/null ||
        no "cannot pull $image from a registry, or build it from Debian's mirror"
fi
trap - EXIT
