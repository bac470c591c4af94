from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pytest

from garlicfarm.errors import (
    LocalProtocolError,
    StorageDamaged,
    StorageError,
    StorageInUse,
    StorageMissing,
    StorageVersion,
)
from garlicfarm.storage import DataDirectory


@pytest.fixture
def data(tmp_path: Path) -> Path:
    DataDirectory.create(tmp_path / "data", 7)
    return tmp_path / "data"


def test_create_then_open_gives_the_node_and_private_directories(data: Path) -> None:
    with DataDirectory.open(data) as opened:
        assert opened.node_id == 7
        assert opened.farm_directory("farm") == data / "farms" / "farm"
    assert [path.stat().st_mode & 0o777 for path in (data, data / "farms")] == [0o700, 0o700]


def test_create_over_a_node_refuses_and_changes_nothing(data: Path) -> None:
    before = (data / "node.json").read_bytes()
    with pytest.raises(StorageError, match="already"):
        DataDirectory.create(data, 8)
    assert (data / "node.json").read_bytes() == before


def test_create_in_a_directory_open_to_others_refuses_and_leaves_it_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(StorageError, match="chmod 700"):
        DataDirectory.create(tmp_path, 1)
    assert list(tmp_path.iterdir()) == []


def test_create_without_a_parent_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        DataDirectory.create(tmp_path / "missing" / "data", 1)


def test_create_after_an_interrupted_one_completes_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "farms").mkdir(parents=True)
    data.chmod(0o700)
    (data / "lock").touch()
    (data / "node.json.new").write_bytes(b'{"half')
    with pytest.raises(StorageMissing), DataDirectory.open(data):
        pass
    DataDirectory.create(data, 3)
    with DataDirectory.open(data) as opened:
        assert opened.node_id == 3


def test_open_without_a_node_says_what_to_do_and_makes_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageMissing, match=r"store is missing.*member remove ID.*node join") as caught,
        DataDirectory.open(tmp_path / "data"),
    ):
        pass
    assert "node init" not in str(caught.value), (
        "an empty voter under an old id can undo acknowledged entries"
    )
    assert list(tmp_path.iterdir()) == []


def test_open_while_held_by_another_process_is_in_use_until_that_dies(data: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from garlicfarm.storage import DataDirectory\n"
        "with DataDirectory.open(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(data)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StorageInUse, match="another process"), DataDirectory.open(data):
            pass
        with pytest.raises(StorageInUse):
            DataDirectory.create(data, 9)
        os.kill(holder.pid, signal.SIGKILL)
    with DataDirectory.open(data) as opened:
        assert opened.node_id == 7


def test_open_twice_in_one_process_is_in_use(data: Path) -> None:
    with DataDirectory.open(data), pytest.raises(StorageInUse), DataDirectory.open(data):
        pass


def test_any_flipped_bit_of_node_json_is_damage_and_stays(data: Path) -> None:
    path = data / "node.json"
    sound = path.read_bytes()
    for position in range(len(sound) * 8):
        flipped = bytearray(sound)
        flipped[position // 8] ^= 1 << position % 8
        path.write_bytes(flipped)
        with pytest.raises(StorageDamaged), DataDirectory.open(data):
            pass
        assert path.read_bytes() == flipped


def test_node_json_that_is_nested_is_damage(data: Path) -> None:
    (data / "node.json").write_text('{"new":' + "[" * 50_000)
    with pytest.raises(StorageDamaged), DataDirectory.open(data):
        pass


@pytest.mark.parametrize(("version", "age"), [(2, "newer "), (0, "older "), ("2", "")])
def test_another_format_version_is_named_with_the_direction(data: Path, version: object, age: str) -> None:
    node = {"id": 7, "made": "2031-01-01T00:00:00Z", "version": version}
    node["crc32"] = crc32(json.dumps(node, separators=(",", ":")).encode())
    (data / "node.json").write_text(json.dumps(node))
    said = (
        rf"format version {version}, .*knows 1\. Nothing was changed; use the {age}garlicfarm that wrote it$"
    )
    with pytest.raises(StorageVersion, match=said), DataDirectory.open(data):
        pass


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../lock", "x" * 65, "farm\n", "fä"])
def test_farm_directory_of_no_farms_name_is_refused(data: Path, name: str) -> None:
    with DataDirectory.open(data) as opened, pytest.raises(LocalProtocolError):
        opened.farm_directory(name)
