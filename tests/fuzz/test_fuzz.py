"""What the fuzzer found once stays mended, and the fuzzer is able to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import run, targets

FINDINGS = sorted(run.FINDINGS.glob("*/*"))


@pytest.mark.parametrize("name", targets.TARGETS)
def test_seeds_of_a_target_raise_nothing(name: str) -> None:
    target = targets.TARGETS[name]
    seeds = target.seeds()
    assert len(seeds) > 2
    for seed in seeds:
        target.run(seed)


@pytest.mark.parametrize("path", FINDINGS, ids=[f"{path.parent.name}-{path.name}" for path in FINDINGS])
def test_finding_is_mended(path: Path) -> None:
    targets.TARGETS[path.parent.name].run(path.read_bytes())


def test_planted_defect_is_found_and_its_input_kept(tmp_path, capsys):
    for seed in targets.planted.seeds():
        targets.planted.run(seed)
    assert run.with_hypothesis(run.PLANTED, 600.0, 1, tmp_path) == run.FOUND
    (found,) = tmp_path.iterdir()
    with pytest.raises(IndexError, match="entry_size"):
        targets.planted.run(found.read_bytes())
    written = capsys.readouterr().out
    assert "IndexError" in written
    assert run.COUNT.search(written)


def test_target_without_a_defect_ends_when_its_time_is_over(tmp_path, capsys):
    tried, _, error = run.examples(lambda data: None, [b"seed"], 1, count=20)
    assert (tried, error) == (20, None)
    assert run.with_hypothesis("token", 0.0, 1, tmp_path) == 0
    assert list(tmp_path.iterdir()) == []
