"""A real nginx on loopback, which passes WebSockets on, as a reverse proxy of a node."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from garlicfarm.credentials.certificates import make_certificate
from garlicfarm.lab.processes import free_ports

CONFIGURATION = """\
daemon off;
master_process off;
pid {directory}/pid;
error_log {directory}/error.log;
worker_rlimit_nofile 1024;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {directory}/nginx.crt;
        ssl_certificate_key {directory}/nginx.key;
        ssl_protocols TLSv1.2 TLSv1.3;
        proxy_ssl_protocols TLSv1.3;
        {locations}
    }}
}}
"""
# What the README of the transport says.
LOCATION = """
        location = {path} {{
            proxy_pass {upstream};
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection upgrade;
            proxy_read_timeout 1h;
        }}
"""


@contextmanager
def nginx(directory: Path, upstreams: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Serve ``upstreams`` (path → URL) over TLS; yields nginx's port and its pin."""
    directory.mkdir()
    pin = make_certificate(directory / "nginx.crt", directory / "nginx.key", "127.0.0.1")
    (port,) = free_ports(1)
    locations = "".join(LOCATION.format(path=path, upstream=upstream) for path, upstream in upstreams.items())
    file = directory / "nginx.conf"
    file.write_text(CONFIGURATION.format(directory=directory, port=port, locations=locations))
    with subprocess.Popen(["nginx", "-p", str(directory), "-e", "stderr", "-c", str(file)]) as process:
        try:
            _wait_for(port, process)
            yield port, pin
        finally:
            process.terminate()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError(f"nginx ended with {process.returncode}")
