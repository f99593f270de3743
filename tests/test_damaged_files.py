"""Files that are damaged, or made to take the machine: one message with status 2, and little memory."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from four_points import missing_points

from simcluster import InputError
from simcluster.cli import main
from simcluster.documents import compressed_files
from simcluster.documents.compressed_files import arrow_table_rows, read_maybe_gzip, read_parquet
from simcluster.documents.table_formulas import parse_formula
from simcluster.interop.kineto.nsight import NsightFile
from simcluster.interop.kineto.profile_reader import read_profile

BAD = Path(__file__).parent / "bad" / "readers"
COMMANDS = {".parquet": ["replay"], ".log": ["collective", "--platform", "dgx-h100", "--measured"],
            ".topology.yaml": ["topology"], ".study.yaml": ["validate"], ".jobs.yaml": ["share"],
            ".lengths.csv": ["packing", "--length", "2048", "--documents"],
            ".losses.csv": ["scaling", "--compute", "1e22", "--fit"],
            ".failures.jsonl": ["failures", "--gpus", "64", "--days", "30"],
            ".failures.csv": ["failures", "--gpus", "64", "--days", "30"],
            ".schedule.py": ["run", "tiny_3d", "--pipeline.schedule"],
            ".device.yaml": ["run", "tiny_3d", "--cluster.device"],
            ".calibration.jsonl": ["calibrate", "-o", "never.yaml", "--from"],
            ".sqlite": ["diff", "tiny_dp"]}  # fmt: skip
OF_A_FILE = {".schedule.py": ":f"}
"""What is named in a file, behind its name."""
MORE = {"last_stage_takes_nothing.parquet": ["--what-if", "last-stage=mean"]}
ANSWERED = (
    "infinite.study.yaml", "no_number.study.yaml", "ceil_of_infinity.study.yaml", "seconds_of_400_digits.study.yaml",
    "as_good_as_one_age.failures.csv",
)  # fmt: skip
"""Studies of which rows are refused, lives that no law follows from: the answer says so."""


@pytest.mark.parametrize("name", sorted(each.name for each in BAD.iterdir() if each.is_file()))
def test_every_input_that_failed_is_one_message(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    ending, command = next(item for item in COMMANDS.items() if name.endswith(item[0]))
    status = main([*command, f"{BAD / name}{OF_A_FILE.get(ending, '')}", *MORE.get(name, []), "--json", "-", "-q"])
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    if name in ANSWERED:
        json.loads(told.out, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
        return
    assert status == 2
    assert told.err.count("simcluster: error:") == 1
    assert missing_points(told.err) == [], told.err
    assert told.out == ""


def test_a_saved_result_with_a_list_for_a_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    assert main(["run", "tiny_dp", "--json", str(path), "-q"]) == 0
    values = json.loads(path.read_text())
    values["memory_bytes"]["gradients"] = []
    path.write_text(json.dumps(values))
    capsys.readouterr()
    assert main(["report", str(path), "-o", str(tmp_path / "r.html")]) == 2
    told = capsys.readouterr().err
    assert "memory_bytes.gradients, a list of 0 items, which is not a number" in told
    assert missing_points(told) == []


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits a hundredth of a percent of what they are, so that bombs are small."""
    monkeypatch.setattr(compressed_files, "FLOOR", 25_600)
    monkeypatch.setattr(compressed_files, "_MEMORY_FLOOR", 85_000)


def test_gzip_unpacks_to_what_a_file_of_its_size_may(strict: None, tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b" " * 25_600))
    assert len(read_maybe_gzip(path, 10**9)) == 25_600
    path.write_bytes(gzip.compress(b" " * 2_000_000))
    with pytest.raises(InputError, match=r"unpack to more than 39,\d+ bytes; .* 20 times a packed file's size.*gunzip"):
        read_maybe_gzip(path, 10**9)
    path.write_bytes(gzip.compress(b"[" + b"[]," * 8_000 + b"[]]"))
    with pytest.raises(InputError, match="JSON that needs about"):
        read_maybe_gzip(path, 10**9)
    path.write_bytes(b"[" + b"[]," * 8_000 + b"[]]")  # unpacked by whoever trusts it
    assert len(read_maybe_gzip(path, 10**9)) == 24_004
    with pytest.raises(InputError, match="larger than 1,000 bytes"):
        read_maybe_gzip(path, 1_000)


def test_rows_of_parquet_are_counted_before_they_are_read(strict: None, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    words = arrow.array(["a" * 500] * 20).dictionary_encode()
    parquet.write_table(arrow.table({"time": [0.0] * 20, "cause": words}), path)
    rows = arrow_table_rows(read_parquet(path))
    assert rows == [{"time": 0.0, "cause": "a" * 500}] * 20
    assert rows[0]["cause"] is rows[-1]["cause"], "equal text is there once"
    parquet.write_table(arrow.table({"time": [0.0] * 100_000}), path)
    with pytest.raises(InputError, match=r"unpack to 100,000 rows of 1 columns"):
        read_parquet(path)
    parquet.write_table(arrow.table({"time": [[0.0]] * 2}), path)
    with pytest.raises(InputError, match="column time holds lists"):
        read_parquet(path)


def test_a_view_that_never_ends_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    base.execute(
        "CREATE VIEW ThreadNames AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
        "SELECT x AS nameId, x AS globalTid FROM n"
    )
    base.commit()
    base.close()
    with NsightFile(path) as export, pytest.raises(InputError, match="interrupted"):
        export.read_rows("ThreadNames", ("nameId", "globalTid"))


EVENT = {"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": 1, "tid": 7, "args": {"stream": 7, "correlation": 1}}


def changed(**values: Any) -> Any:
    return {"traceEvents": [{**EVENT, **values}]}


PROFILES: dict[str, Any] = {
    "event": {"traceEvents": [EVENT, 7]},
    "events": {"traceEvents": {}},
    "args": changed(args="x"),
    "tid": changed(tid=[1]),
    "category": changed(cat={}),
    "stream": changed(args={"stream": "x"}),
    "correlation": changed(args={"correlation": None}),
    "far": changed(args={"correlation": 10**30}),
    "group": changed(args={"Group size": 2**62, "Global rank start": 0, "Global rank stride": 1}),
    "spread": {**changed(), "distributedInfo": 7},
    "ranks": {**changed(), "distributedInfo": {"world_size": 2**62}},
    "config": {**changed(), "distributedInfo": {"pg_config": [1]}},
    "members": {**changed(), "distributedInfo": {"pg_config": [{"ranks": 7}]}},
    "begin": {**changed(), "baseTimeNanoseconds": "x"},
}


@pytest.mark.parametrize("name", PROFILES)
def test_a_strange_value_of_a_profile_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(PROFILES[name]))
    with pytest.raises(InputError, match=r"rank0\.json"):
        read_profile(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a * a", "gives inf, which is not finite"),
        ("ceil(a * a)", "is not finite in this row"),
        ("ceil(a * a - a * a)", "is not finite in this row"),
        ("b / 3", "too large for a number"),
    ],
)
def test_a_formula_that_overflows_is_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_formula(text).evaluate({"a": 1e308, "b": 10**400})


def test_ceil_takes_one_number() -> None:
    with pytest.raises(InputError, match=r"ceil\(a\)"):
        parse_formula("ceil(a, b)")
