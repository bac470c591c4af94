"""A server of WebHDFS, by which Hadoop reaches file systems over HTTP, for a directory of this machine.

The client is Hadoop's own. So Spark meets a file system in a network, whose server may be away, or refuse.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PREFIX = "/webhdfs/v1"
CHANGING = {"CREATE", "DELETE", "MKDIRS", "RENAME"}
DEFAULTS = {
    "blockSize": 1 << 27,
    "bytesPerChecksum": 512,
    "checksumType": 2,
    "defaultStoragePolicyId": 0,
    "encryptDataTransfer": False,
    "fileBufferSize": 4096,
    "keyProviderUri": "",
    "replication": 1,
    "snapshotTrashRootEnabled": False,
    "trashInterval": 0,
    "writePacketSize": 1 << 16,
}
EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"


class Refused(Exception):
    """Answered with the name of a class of Java's exceptions."""


class WebHdfs:
    """Serves ``root`` at ``uri`` while it runs; it can be started again at the same address."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.refusal: str | None = None
        """The exception that answers whatever would change something; None: it is done."""
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    @property
    def uri(self) -> str:
        return f"webhdfs://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), partial(_Handler, self))
        self._server.block_on_close = False  # threads of connections that are kept, and end with the client's
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,)).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def runs(self) -> bool:
        return self._server is not None


@contextmanager
def web_hdfs(root: Path) -> Iterator[WebHdfs]:
    root.mkdir()
    served = WebHdfs(root)
    served.start()
    try:
        yield served
    finally:
        served.stop()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, served: WebHdfs, *args: Any) -> None:
        self.served = served
        super().__init__(*args)

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    do_PUT = do_DELETE = do_POST = do_GET

    def _answer(self) -> None:
        if not self.served.runs:  # a connection from before
            self.close_connection = True
            return
        url = urlsplit(self.path)
        query = {name.lower(): values[0] for name, values in parse_qs(url.query).items()}
        path = self.served.root / unquote(url.path).removeprefix(PREFIX).lstrip("/")
        operation = query["op"]
        data = self._body()
        try:
            if self.served.refusal and operation in CHANGING:
                raise Refused(self.served.refusal)
            if operation in ("OPEN", "CREATE") and "data" not in query:
                self._send(307, b"", Location=f"http://{self.headers['Host']}{self.path}&data=true")
                return
            self._send(*getattr(self, f"_{operation.lower()}")(path, query, data))
        except FileNotFoundError:
            self._refuse(404, "java.io.FileNotFoundException", path)
        except Refused as refused:
            self._refuse(403, str(refused), path)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def _send(self, status: int, body: bytes | dict[str, Any] | bool, **headers: str) -> None:
        if isinstance(body, bool):
            body = {"boolean": body}
        if isinstance(body, dict):
            body = json.dumps(body).encode()  # no Content-Type: PySpark's Hadoop lacks what parses one
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: int, name: str, path: Path) -> None:
        said = {
            "exception": name.rpartition(".")[2],
            "javaClassName": name,
            "message": f"refused: {path.name}",
        }
        self._send(status, {"RemoteException": said})

    def _getfilestatus(self, path: Path, query: dict[str, str], data: bytes) -> tuple[int, Any]:
        return 200, {"FileStatus": _status(path, "")}

    _getfilelinkstatus = _getfilestatus

    def _liststatus(self, path: Path, query: dict[str, str], data: bytes) -> tuple[int, Any]:
        found = [(each, each.name) for each in sorted(path.iterdir())] if path.is_dir() else [(path, "")]
        return 200, {"FileStatuses": {"FileStatus": [_status(*each) for each in found]}}

    def _gethomedirectory(self, path: Path, query: dict[str, str], data: bytes) -> tuple[int, Any]:
        return 200, {"Path": "/user/barn"}

    def _getserverdefaults(self, path: Path, query: dict[str, str], data: bytes) -> tuple[int, Any]:
        return 200, {"FsServerDefaults": DEFAULTS}

    def _open(self, path: Path, query: dict[str, str], data: bytes) -> tuple[int, Any]:
        offset = int(query.get("offset", 0))
        content = path.read_bytes()[offset:]
        return 200, content[: int(query["length"])] if "length" in query else content

    def _mkdirs(self, path: Path, query: dict[str, str], data: bytes) -> tuple[int, Any]:
        path.mkdir(parents=True, exist_ok=True)
        return 200, True

    def _create(self, path: Path, query: dict[str, str], data: bytes) -> tuple[int, Any]:
        if path.exists() and query.get("overwrite") != "true":
            raise Refused(EXISTS)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return 201, b""

    def _rename(self, path: Path, query: dict[str, str], data: bytes) -> tuple[int, Any]:
        to = self.served.root / query["destination"].lstrip("/")
        options = query.get("renameoptions", "")
        if to.exists() and "overwrite" not in options.lower():
            if options:
                raise Refused(EXISTS)
            return 200, False
        os.replace(path, to)
        return 200, b"" if options else True

    def _delete(self, path: Path, query: dict[str, str], data: bytes) -> tuple[int, Any]:
        is_there = path.exists()
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        return 200, is_there


def _status(path: Path, suffix: str) -> dict[str, Any]:
    found = path.stat()
    return {
        "accessTime": 0,
        "blockSize": 1 << 27,
        "childrenNum": 0,
        "fileId": found.st_ino,
        "group": "barn",
        "length": 0 if path.is_dir() else found.st_size,
        "modificationTime": int(found.st_mtime * 1000),
        "owner": "barn",
        "pathSuffix": suffix,
        "permission": "755",
        "replication": 0 if path.is_dir() else 1,
        "storagePolicy": 0,
        "type": "DIRECTORY" if path.is_dir() else "FILE",
    }
