#!/usr/bin/env bash
# Gives a bare Debian 12 machine what `docker compose` needs, root's doing: the engine, compose, and the
# image python:3.11-slim, which is made of this machine's Python where no registry can be reached.
#
#   tools/lab-engine.sh          does what is missing; where an engine answers, only the image
#   tools/lab-engine.sh stop     ends the engine that it started, and undoes what that did to the network
#
# Images stay in $GARLICFARM_ENGINE_DIR (/var/tmp/garlicfarm-engine); packages stay installed.
set -euo pipefail
dir=${GARLICFARM_ENGINE_DIR:-/var/tmp/garlicfarm-engine}
export DEBIAN_FRONTEND=noninteractive

if [ "$(id -u)" != 0 ]; then
    echo "not root: install and start a container engine with docker compose, then try again" >&2
    exit 1
fi

stop() {
    [ -s "$dir/dockerd.pid" ] || { echo "no engine of ours runs" >&2; return 0; }
    pid=$(cat "$dir/dockerd.pid")
    if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ]; then
        kill "$pid"
        for _ in $(seq 100); do [ -e "/proc/$pid" ] || break; sleep .2; done
        if [ -e "/proc/$pid" ]; then echo "dockerd ($pid) does not end" >&2; return 1; fi
    fi
    rm -f "$dir/dockerd.pid"
    ! mountpoint -q "$dir/root" || umount "$dir/root"
    ! ip link show docker0 >/dev/null 2>&1 || ip link delete docker0
    iptables-restore <"$dir/iptables.before"
    cat "$dir/ip_forward.before" >/proc/sys/net/ipv4/ip_forward
}

if [ "${1:-}" = stop ]; then
    stop
    exit
fi

if ! grep -q '^VERSION_CODENAME=bookworm' /etc/os-release; then
    docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1 && exit 0
    echo "not Debian 12: install and start a container engine with docker compose, then try again" >&2
    exit 1
fi
mirror=$(awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)
[ -n "$mirror" ] || mirror=$(awk '$1 == "deb" { for (i = 2; i <= NF; i++) if ($i ~ "://") { print $i; exit } }' /etc/apt/sources.list)
mkdir -p "$dir"
cd "$dir"

if ! type dockerd mmdebstrap iptables ip >/dev/null 2>&1; then
    apt-get update -q
    apt-get -o DPkg::Lock::Timeout=400 install -y -q --no-install-recommends \
        docker.io iptables iproute2 mmdebstrap
fi

# Debian 12 has no compose 2: two client plugins of Debian 13, which need no more than its C library.
if ! docker compose version >/dev/null 2>&1 || ! docker buildx version >/dev/null 2>&1; then
    mkdir -p apt/lists/partial apt/archives/partial apt/parts "$HOME/.docker/cli-plugins"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" >apt/sources.list
    apt=(apt-get -q -o "Dir::Etc::sourcelist=$dir/apt/sources.list" -o "Dir::Etc::sourceparts=$dir/apt/parts"
        -o "Dir::State::Lists=$dir/apt/lists" -o "Dir::Cache=$dir/apt" -o APT::Sandbox::User=root)
    "${apt[@]}" update
    "${apt[@]}" download docker-compose docker-buildx
    for package in ./*.deb; do dpkg-deb -x "$package" apt/x; done
    cp apt/x/usr/libexec/docker/cli-plugins/* "$HOME/.docker/cli-plugins/"
    rm -rf apt ./*.deb
fi

if ! docker info >/dev/null 2>&1; then
    cat /proc/sys/net/ipv4/ip_forward >ip_forward.before
    iptables-save >iptables.before
    for table in filter nat; do # a table that is not there would not be emptied
        grep -q "^\*$table" iptables.before || case $table in
            filter) printf '*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n' ;;
            nat) printf '*nat\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n' ;;
        esac >>iptables.before
    done
    nohup setsid dockerd --data-root "$dir/root" --exec-root "$dir/run" --pidfile "$dir/dockerd.pid" \
        >dockerd.log 2>&1 </dev/null &
    for _ in $(seq 120); do docker info >/dev/null 2>&1 && break; sleep .5; done
    docker info >/dev/null 2>&1 || { tail -n 20 dockerd.log >&2; echo "the engine does not start" >&2; exit 1; }
fi

docker image inspect python:3.11-slim >/dev/null 2>&1 && exit 0
timeout 60 docker pull -q python:3.11-slim 2>/dev/null && exit 0
echo "no registry: making python:3.11-slim of this machine's Python" >&2
libraries=ca-certificates,libbz2-1.0,libexpat1,libffi8,liblzma5,libncursesw6,libnsl2,libreadline8
libraries+=,libsqlite3-0,libssl3,libtirpc3,libuuid1,zlib1g
mmdebstrap -q --variant=minbase --include="$libraries" bookworm - "$mirror" | docker import - debian:bookworm-slim
prefix=$(python3.11 -c 'import sys; print(sys.base_prefix)')
local=context/root/usr/local
rm -rf context
mkdir -p $local/bin $local/lib
cp -a "$prefix/bin/python3.11" $local/bin/
ln -s python3.11 $local/bin/python3
ln -s python3.11 $local/bin/python
cp -a "$prefix"/lib/libpython3* $local/lib/ 2>/dev/null || true
tar -C "$prefix/lib" --exclude='python3.11/site-packages/*' --exclude=python3.11/test --exclude=__pycache__ \
    -cf - python3.11 | tar -C $local/lib -xf -
cat >context/Dockerfile <<'EOF'
FROM debian:bookworm-slim
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
COPY root/ /
RUN ldconfig && python3 -m ensurepip && ln -sf pip3.11 /usr/local/bin/pip \
    && python -c "import bz2, ctypes, lzma, readline, sqlite3, ssl"
CMD ["python3"]
EOF
DOCKER_BUILDKIT=1 docker build -q -t python:3.11-slim context
rm -rf context
