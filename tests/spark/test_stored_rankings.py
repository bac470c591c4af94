"""Rankings in Parquet files: written, read and compacted, without a Java process."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

import pandas
import pyarrow
import pyarrow.parquet

from garlicfarm.durable_files import move_into_place
from garlicfarm.errors import ConfigError, GarlicFarmError
from garlicfarm_plugin_spark import directory
from garlicfarm_plugin_spark.compact import Merged, compact
from garlicfarm_plugin_spark.parquet import ParquetSink
from garlicfarm_plugin_spark.stored_rows import stored_farms
from tests.spark.script import many_entries
from tests.spark.stored import Batch, ranked, read_rankings, table_of, write, write_in_batches

pytestmark = pytest.mark.spark

LOG = many_entries(400)
ROWS = ranked(LOG)
INDEXES = [row["log_index"] for row in ROWS]


def names(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*.p*")}


def rows_of(directory: Path, columns: list[str], farm: str | None = None) -> list[dict[str, Any]]:
    return [
        row
        for each in stored_farms(directory, farm)
        for farm_id in sorted({file.farm_id for file in each.files()})
        for row in each.rows(farm_id, columns)
    ]


def indexes(directory: Path, farm: str | None = None) -> list[int]:
    return [row["log_index"] for row in rows_of(directory, [], farm)]


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_in_batches(tmp_path, ROWS, seed=1)
    columns = ["publisher", "holders", "changed", "scores", "ranking"]
    names = ("farm", "farm_id", "log_index", *columns)
    assert rows_of(tmp_path, columns) == [{name: row[name] for name in names} for row in ROWS]


def test_files_of_a_repeated_batch_are_those_that_are_there(tmp_path: Path) -> None:
    first = write(tmp_path, ROWS[:30])
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in first}
    assert write(tmp_path, ROWS[:30][::-1]) == first
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in first} == before
    assert names(tmp_path) == {*first}
    assert all(name.startswith("farm=farm/date=") for name in first)


def test_rows_of_another_cut_are_read_once(tmp_path: Path) -> None:
    """As where a second query with a new checkpoint reads the same log."""
    for seed in (1, 2):
        write_in_batches(tmp_path, ROWS, seed)
    assert indexes(tmp_path) == INDEXES
    pandas_rows = pandas.read_parquet(tmp_path)
    assert len(pandas_rows) > len(ROWS)
    assert len(pandas_rows.drop_duplicates(["farm_id", "log_index"])) == len(ROWS)


def test_file_that_was_being_written_at_a_kill_is_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, ROWS[:10])

    def die(part: Path, path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(directory, "move_into_place", die)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, ROWS[10:20])
    assert indexes(tmp_path) == INDEXES[:10]
    assert len(pandas.read_parquet(tmp_path)) == 10
    monkeypatch.undo()
    write(tmp_path, ROWS[10:20])
    assert indexes(tmp_path) == INDEXES[:20]
    assert not [name for name in names(tmp_path) if "/." in name]


def test_rows_of_a_farm_made_anew_under_its_name_are_its_own(tmp_path: Path) -> None:
    write(tmp_path, ROWS[:5])
    write(tmp_path, [{**row, "farm_id": "08" * 16} for row in ROWS[:5]])
    assert indexes(tmp_path) == INDEXES[:5] * 2
    assert list(compact(tmp_path))[-1].left == 2
    assert indexes(tmp_path) == INDEXES[:5] * 2


def test_rows_of_one_farm_are_read_without_the_others(tmp_path: Path) -> None:
    write(tmp_path, ROWS[:5])
    write(tmp_path, [{**row, "farm": "7", "farm_id": "08" * 16} for row in ROWS[5:8]])
    assert indexes(tmp_path, farm="7") == INDEXES[5:8]
    assert [row["farm"] for row in rows_of(tmp_path, [])] == ["7"] * 3 + ["farm"] * 5
    with pytest.raises(ConfigError, match="has no rankings of the farm barn"):
        indexes(tmp_path, farm="barn")


def test_directory_without_rankings_says_what_adds_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no rankings: `garlicfarm rank --sink parquet:"):
        indexes(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        indexes(tmp_path / "none")
    (tmp_path / "letter.txt").write_text("dear farm")
    with pytest.raises(ConfigError, match="has files that are not rankings"):
        indexes(tmp_path)
    (tmp_path / "_spark_metadata").mkdir()
    with pytest.raises(ConfigError, match="was written by an earlier version"):
        indexes(tmp_path)


def test_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "farm=farm").write_text("in the way")
    with pytest.raises(GarlicFarmError, match=r"farm=farm/date=.* cannot be written \(File exists\)"):
        write(tmp_path, ROWS[:1])


def test_compact_leaves_one_file_a_date_and_every_row(tmp_path: Path) -> None:
    write_in_batches(tmp_path, ROWS, seed=3)
    before = read_rankings(tmp_path, ["ranking"])
    count = len(names(tmp_path))
    done = list(compact(tmp_path))
    assert sum(each.files for each in done) >= count - 1  # the first date may have one file only
    assert {each.left for each in done} == {1}
    assert len(names(tmp_path)) == len(list(tmp_path.glob("farm=*/date=*")))
    assert read_rankings(tmp_path, ["ranking"]).equals(before)
    assert len(pandas.read_parquet(tmp_path)) == len(ROWS)
    assert list(compact(tmp_path)) == []


def test_compact_keeps_to_the_largest_size_in_memory(tmp_path: Path) -> None:
    rows = [{**row, "ranking": row["ranking"] + " " * 20_000} for row in ROWS[:90]]
    write_in_batches(tmp_path, rows, seed=4, most=5)
    done = list(compact(tmp_path, 300_000))[-1]
    assert 1 < done.left < done.files
    assert indexes(tmp_path) == [row["log_index"] for row in rows]
    tables = [pyarrow.parquet.ParquetFile(path).read(["ranking"]) for path in tmp_path.rglob("*.parquet")]
    assert max(each.nbytes for each in tables) <= 300_000


def test_compact_of_a_damaged_file_says_where(tmp_path: Path) -> None:
    write_in_batches(tmp_path, ROWS, seed=4, most=5)
    path = max(tmp_path.rglob("*.parquet"))
    with path.open("r+b") as file:
        file.write(bytes(1_000))  # before its footer
    with pytest.raises(GarlicFarmError, match=f"{path.parent} cannot be compacted: "):
        list(compact(tmp_path))


@pytest.mark.parametrize("step", range(3))
def test_compact_killed_at_any_step_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    write_in_batches(tmp_path, ROWS[:120], seed=5)

    def die(*given: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    def unlink_one(path: Path) -> None:
        os.unlink(path)
        die()

    where = ((directory, "move_into_place", die), (Path, "unlink", die), (Path, "unlink", unlink_one))[step]
    monkeypatch.setattr(*where)
    with pytest.raises(KeyboardInterrupt):
        list(compact(tmp_path))
    monkeypatch.undo()
    assert indexes(tmp_path) == INDEXES[:120]
    list(compact(tmp_path))
    assert indexes(tmp_path) == INDEXES[:120]
    assert len(pandas.read_parquet(tmp_path)) == 120


def test_compact_beside_a_writer_leaves_its_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_in_batches(tmp_path, ROWS[:100], seed=6)

    def move(part: Path, path: Path) -> None:
        monkeypatch.undo()
        move_into_place(part, path)
        write(tmp_path, ROWS[100:130])

    monkeypatch.setattr(directory, "move_into_place", move)
    list(compact(tmp_path))
    assert indexes(tmp_path) == INDEXES[:130]


def test_compact_beside_another_is_refused(tmp_path: Path) -> None:
    write_in_batches(tmp_path, ROWS[:100], seed=7)
    first = compact(tmp_path)
    assert isinstance(next(first), Merged)
    with pytest.raises(ConfigError, match="another `rank compact` is working in"):
        list(compact(tmp_path))
    list(first)
    assert list(compact(tmp_path)) == []


def test_compact_of_what_is_no_directory_of_rankings_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no rankings: `garlicfarm rank --sink"):
        list(compact(tmp_path))
    with pytest.raises(ConfigError, match=r"is not a directory of rankings \(No such file"):
        list(compact(tmp_path / "none"))


LATER = {"note": "mine", "weight": 7}
NOTES = {"log_index": [1], "farm_id": ["ab"], "note": ["mine"]}


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (None, "Parquet magic bytes not found"),
        (pyarrow.table(NOTES), "it has no column changed"),
        (pyarrow.table(NOTES).slice(0, 0), "it has no column changed"),
        (table_of(ROWS[:1]).drop_columns(["farm", "ranking"]), "it has no column ranking"),
        (
            table_of(ROWS[:1]).drop_columns("farm").set_column(1, "log_index", [["1"]]),
            "its footer names no single farm_id, log_index",
        ),
    ],
)
def test_file_that_is_no_ranking_is_refused_before_anything_is_changed(
    tmp_path: Path, table: pyarrow.Table | None, why: str
) -> None:
    write_in_batches(tmp_path, ROWS, seed=9)
    folder = max(tmp_path.glob("farm=*/date=*"))
    path = folder / "my-notes.parquet"
    if table is None:
        path.write_text("dear farm")
    else:
        pyarrow.parquet.write_table(table, path)
    (min(tmp_path.glob("farm=*/date=*")) / ".1-2-3.parquet.part").touch()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    for refusing in (compact, indexes):
        with pytest.raises(ConfigError) as raised:
            list(refusing(tmp_path))
        assert str(raised.value).startswith(f"{folder} has files that are not rankings: {path.name} ({why}")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_column_of_a_later_version_hides_no_row_and_outlives_compact(tmp_path: Path) -> None:
    """Two files have a column each that the others lack."""
    write_in_batches(tmp_path, ROWS, seed=9)
    folder = max(tmp_path.glob("farm=*/date=*"))
    for path, (name, said) in zip(sorted(folder.iterdir())[-2:], LATER.items(), strict=True):
        table = pyarrow.parquet.ParquetFile(path).read()
        pyarrow.parquet.write_table(table.append_column(name, [[said] * table.num_rows]), path)
    assert indexes(tmp_path) == INDEXES
    list(compact(tmp_path))
    assert indexes(tmp_path) == INDEXES
    (merged,) = folder.iterdir()
    for name, said in LATER.items():
        assert {*pyarrow.parquet.ParquetFile(merged).read()[name].to_pylist()} == {None, said}


def test_file_that_readers_pass_over_is_left_alone_by_compact(tmp_path: Path) -> None:
    write_in_batches(tmp_path, ROWS, seed=9)
    path = max(tmp_path.glob("farm=*/date=*")) / "_notes.parquet"
    pyarrow.parquet.write_table(pyarrow.table(NOTES), path)
    list(compact(tmp_path))
    assert path.exists()
    assert indexes(tmp_path) == INDEXES


def test_reader_that_meets_a_compaction_goes_on_after_its_newest_row(tmp_path: Path) -> None:
    """Files that were listed are gone when they are opened."""
    write_in_batches(tmp_path, ROWS[:100], seed=8)
    (farm,) = stored_farms(tmp_path)
    rows = farm.rows(ROWS[0]["farm_id"], [])
    first = next(rows)
    list(compact(tmp_path))
    assert [first["log_index"], *(row["log_index"] for row in rows)] == INDEXES[:100]


def test_reader_whose_files_vanish_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_in_batches(tmp_path, ROWS[:100], seed=8)
    (farm,) = stored_farms(tmp_path)
    listed = farm.files()
    shutil.rmtree(tmp_path / "farm=farm")
    monkeypatch.setattr("garlicfarm_plugin_spark.stored_rows.StoredFarm.files", lambda self, since: listed)
    with pytest.raises(ConfigError, match=r"cannot be read \(.*No such file"):
        list(farm.rows(ROWS[0]["farm_id"], []))


def test_file_with_a_group_of_rows_that_its_footer_does_not_describe_is_no_ranking(tmp_path: Path) -> None:
    (name,) = write(tmp_path, ROWS[5:9])
    path = tmp_path / name
    table = pyarrow.parquet.ParquetFile(path).read()
    with pyarrow.parquet.ParquetWriter(path, table.schema, write_statistics=["log_index"]) as writer:
        writer.write_table(table)
    with pytest.raises(ConfigError, match=f"{path.name} .its footer names no single farm_id"):
        rows_of(tmp_path, [])


def test_file_with_a_damaged_footer_is_named_in_one_line(tmp_path: Path) -> None:
    (name,) = write(tmp_path, ROWS[5:6])
    (tmp_path / name).write_bytes(b"PAR1" + b"x" * 100 + (50).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ConfigError) as raised:
        indexes(tmp_path)
    assert str(raised.value).startswith(f"{tmp_path / name} cannot be read (Couldn't deserialize thrift")
    assert "\n" not in str(raised.value)


def test_file_that_is_not_by_index_is_no_ranking(tmp_path: Path) -> None:
    (name,) = write(tmp_path, ROWS[5:8])
    path = tmp_path / name
    table = pyarrow.parquet.ParquetFile(path).read()
    pyarrow.parquet.write_table(table.take([0, 2, 1]), path)
    with pytest.raises(ConfigError, match="its rows are not in the order of their indexes"):
        indexes(tmp_path)


def sink(directory: Path, rows: Any) -> Any:
    return ParquetSink(None, str(directory), rows)  # type: ignore[arg-type]


def test_directory_keeps_to_the_rows_that_it_has(tmp_path: Path) -> None:
    """Of two rows at an index with another ``changed`` it would not be defined which counts."""
    sink(tmp_path, "changes")(Batch(ROWS), 0)
    sink(tmp_path, "changes")(Batch(ROWS[:9]), 1)
    for other in ("batches", "entries"):
        with pytest.raises(ConfigError) as raised:
            sink(tmp_path, other)
        assert str(raised.value) == (
            f"{tmp_path} has the rankings of --rows changes, not {other}: give that, or name another"
            " directory"
        )
    assert indexes(tmp_path) == INDEXES
    assert {*pandas.read_parquet(tmp_path)["log_index"]} == {*INDEXES}


@pytest.mark.parametrize(
    ("stored", "version"),
    [("changes 1\n", "1"), ("entries 12\n", "12"), ("changes\n", "unknown"), ("", "unknown")],
)
def test_directory_keeps_to_the_version_of_the_algorithm(tmp_path: Path, stored: str, version: str) -> None:
    """As after an upgrade, with a new checkpoint and the old directory."""
    (tmp_path / ".rows").write_text(stored)
    write(tmp_path, ROWS)
    with pytest.raises(ConfigError) as raised:
        sink(tmp_path, "changes")
    assert str(raised.value) == (
        f"{tmp_path} has rankings by version {version} of the common algorithm, and this program ranks by 2:"
        " name another directory"
    )
    assert indexes(tmp_path) == INDEXES
    assert (tmp_path / ".rows").read_text() == stored


def test_directory_of_the_version_before_has_the_rows_of_the_next_writer(tmp_path: Path) -> None:
    """It does not say which."""
    write(tmp_path, ROWS[:9])
    sink(tmp_path, "entries")
    with pytest.raises(ConfigError, match="has the rankings of --rows entries, not changes"):
        sink(tmp_path, "changes")


@pytest.mark.parametrize("error", [pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError, MemoryError])
def test_batch_that_arrow_cannot_store_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(*given: Any, **options: Any) -> None:
        raise error("too large\nfor this")

    monkeypatch.setattr("pyarrow.parquet.write_table", fail)
    with pytest.raises(GarlicFarmError) as raised:
        sink(tmp_path, "changes")(Batch(ROWS), 7)
    assert str(raised.value) == f"the rows of batch 7 cannot be stored in {tmp_path} (too large)"
