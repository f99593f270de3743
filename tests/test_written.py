"""Every file that simcluster writes is written whole or not at all.

``python tests/killed_writers.py`` kills and starves every output at many more moments.
"""

from __future__ import annotations

import ast
import contextlib
import os
import random
import re
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from killed_writers import OLD, OUTPUTS, command, no_larger_than, others

import simcluster
from simcluster.base.atomic_files import PARTIAL, append_line, open_atomic, truncate_partial_line, write_text_atomic
from simcluster.base.errors import InputError
from simcluster.cli import main

PACKAGE = Path(simcluster.__file__).parent

OF_A_PATH = {
    "write_text", "write_bytes", "savefig", "to_csv", "to_parquet", "to_excel", "to_pickle", "to_feather", "tofile",
    "write_table", "touch", "NamedTemporaryFile", "mkstemp", "save_npz", "symlink_to", "hardlink_to",
}  # fmt: skip
"""Functions and methods that write to a file, whoever has them."""
OF_A_MODULE = {
    "os": {"open", "fdopen", "replace", "rename", "renames", "link", "symlink", "truncate", "mkfifo"},
    "shutil": {"copy", "copy2", "copyfile", "copytree", "move"}, "sqlite3": {"connect"},
    "np": {"save", "savez", "savez_compressed", "savetxt"}, "json": {"dump"}, "pickle": {"dump"},
    "gzip": {"open"}, "lzma": {"open"}, "bz2": {"open"},
}  # fmt: skip
_OWNERS = "|".join(sorted(OF_A_MODULE.keys() - {"np", "json"}))
WORDS = re.compile(rf"\bopen\(|\.({'|'.join(sorted(OF_A_PATH))})\(|\b({_OWNERS})\.|np\.save|json\.dump\(")
ALLOWED = {
    ("base/store.py", "connect"),  # of a database, which keeps itself whole
    ("interop/kineto/nsight.py", "connect"),  # which is only read
    ("documents/compressed_files.py", "open"),  # of gzip, to read
    ("cli/__init__.py", "open"), ("cli/terminal.py", "open"), ("cli/terminal.py", "fdopen"),  # of os.devnull
    ("interactive/command.py", "open"),  # of a browser
    ("cli/common.py", "to_csv"),  # this one and the next two get what ``open_atomic`` yields, those after them a buffer
    ("cli/common.py", "to_parquet"), ("interop/replay/trace_writer.py", "write_table"),
    ("show/figure_files.py", "savefig"), ("interactive/notebook/figures.py", "savefig"),
    ("longrun/studies/run_chunks.py", "savez_compressed"),
}  # fmt: skip


def _may_write(call: ast.Call) -> str | None:
    """The name of the function, where this call may write to a file of the system."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id if function.id == "open" else None  # others are imported from where they are looked at
    if not isinstance(function, ast.Attribute):
        return None
    owner, name = getattr(function.value, "id", ""), function.attr
    if owner in OF_A_MODULE:
        return name if name in OF_A_MODULE[owner] else None
    if name == "open":
        modes = [*call.args, *(word.value for word in call.keywords if word.arg == "mode")]
        texts = [each.value for each in modes if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        return name if any(set("wax+") & set(text) for text in texts) or len(texts) < len(modes) else None
    return name if name in OF_A_PATH and owner != "common" else None


def test_nothing_else_opens_a_file_for_writing() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        where = path.relative_to(PACKAGE).as_posix()
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if WORDS.search(text) else ():
            if isinstance(node, ast.Call) and (name := _may_write(node)) and where != "base/atomic_files.py":
                found.add((where, name))
    assert found == ALLOWED


def test_the_test_sees_what_writes() -> None:
    writers = (
        "open(a, 'w')", "path.open('ab')", "path.open(mode)", "path.write_text(b)", "os.replace(a, b)",
        "json.dump(a, b)", "figure.savefig(a)", "table.to_parquet(a)", "np.savez(a)",
        "sqlite3.connect(a)", "shutil.move(a, b)",
    )  # fmt: skip
    readers = "path.open('rb')", "path.open(newline='', encoding='utf-8')", "path.read_text()", "json.dumps(a)"
    assert all(_may_write(ast.parse(text, mode="eval").body) for text in writers)
    assert not any(_may_write(ast.parse(text, mode="eval").body) for text in readers)


@pytest.mark.parametrize("name", sorted(OUTPUTS.keys() - {"log.parquet", "new.yaml", "fabric.svg"}))  # these take long
def test_without_room_the_old_file_stays(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One message that says what, where and what would work, status 2, and nothing else is left."""
    output = tmp_path / name
    output.write_bytes(OLD)
    with no_larger_than(random.Random(name).randrange(1500)):
        status = main(command(output))
    said = capsys.readouterr().err
    assert (status, said.count("\n")) == (2, 1), said
    if name == "rows.csv":  # the rows that are finished come first, and stay
        assert "finished rows are safe: free some space" in said
    else:
        rule = "a file is written completely or not at all: the old file is unchanged"
        assert f"cannot write {output}: File too large; {rule}; raise the limit" in said
    assert output.read_bytes() == OLD
    assert others(output) == []


WRITING = """
import signal, sys
from simcluster.base.atomic_files import open_atomic
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where nohup runs the tests
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell runs them in the background
with open_atomic(sys.argv[1]) as file:
    print("begun", flush=True)
    for _ in range(1000):
        file.write(bytes(100_000))
print("done", flush=True)
"""


def _begun(path: Path) -> subprocess.Popen[str]:
    found = subprocess.Popen([sys.executable, "-c", WRITING, str(path)], stdout=subprocess.PIPE, text=True)
    assert found.stdout is not None
    assert found.stdout.readline() == "begun\n"
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_killed_writer_leaves_the_old_file(number: signal.Signals, tmp_path: Path) -> None:
    """Only what is killed outright leaves a part, and the next writer of the file takes that away."""
    path = tmp_path / "large"
    path.write_bytes(OLD)
    process = _begun(path)
    process.send_signal(number)
    assert process.wait() == -number or number == signal.SIGINT
    assert process.stdout is not None
    process.stdout.close()
    assert path.read_bytes() == OLD
    assert len(others(path)) == (number == signal.SIGKILL)
    assert all(re.fullmatch(rf"\.large\.\w{{8}}\.{process.pid}-0\{PARTIAL}", each) for each in others(path))
    write_text_atomic(path, "new")
    assert (path.read_text(), others(path)) == ("new", [])


def test_two_writers_of_a_file(tmp_path: Path) -> None:
    """Neither takes the other's part for what a killed one left; the last one wins."""
    path = tmp_path / "a"
    with open_atomic(path) as first:
        first.write(b"first")
        with open_atomic(path) as second:
            second.write(b"second")
            assert len(others(path)) == 2
        assert path.read_bytes() == b"second"
        write_text_atomic(path, "third")
        assert len(others(path)) == 1
    assert (path.read_bytes(), others(path)) == (b"first", [])


def test_what_the_old_file_was(tmp_path: Path) -> None:
    """Its mode is kept, a link is written through, one that leads nowhere makes what it names."""
    old, link, nowhere = tmp_path / "old", tmp_path / "link", tmp_path / "nowhere"
    old.write_bytes(OLD)
    old.chmod(0o640)
    link.symlink_to(old)
    nowhere.symlink_to("made")
    write_text_atomic(link, "new")
    write_text_atomic(nowhere, "new")
    assert link.is_symlink()
    assert nowhere.is_symlink()
    assert old.read_text() == (tmp_path / "made").read_text() == "new"
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    mask = os.umask(0o027)
    try:
        write_text_atomic(tmp_path / "fresh", "new")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o640


def test_a_pipe_is_written_as_it_comes(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_text_atomic(pipe, "into it")
    reader.join(30)
    write_text_atomic(os.devnull, "and away")
    assert read == [b"into it"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(InputError, match=r"^cannot write /dev/full: No space left on device; free some space"):
        write_text_atomic("/dev/full", "no")


@pytest.mark.parametrize("output", ["/dev/stdout", "said"])
def test_a_file_that_is_our_own_output(output: str, tmp_path: Path) -> None:
    """``... --json /dev/stdout > said``: the file stays the one that the shell has opened."""
    code = "import sys, simcluster.base.atomic_files as f; print('a'); f.write_text_atomic(sys.argv[1],'b'); print('c')"
    with (tmp_path / "said").open("w") as said:
        subprocess.run([sys.executable, "-c", code, output], stdout=said, check=True, cwd=tmp_path)
    assert (tmp_path / "said").read_text() == "a\nbc\n"


def test_what_the_system_refuses(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "there").write_bytes(OLD)
    (tmp_path / "circle").symlink_to("circle")
    cases = {
        "none/a": "No such file or directory; .*no file was created; create its folder first",
        "there/a": "Not a directory; create its folder first", "folder": "Is a directory; name a file in it",
        "a" * 300: "File name too long; choose a shorter name", "circle": "Too many levels of symbolic links; name a",
    }  # fmt: skip
    for name, said in cases.items():
        with pytest.raises(InputError, match=f"^cannot write {tmp_path / name}: {said}"):
            write_text_atomic(tmp_path / name, "")
    with pytest.raises(InputError, match=r"there: File exists; .*the old file is unchanged; choose another name"):
        write_text_atomic(tmp_path / "there", "", must_be_new=True)
    write_text_atomic(tmp_path / ("a" * 255), "long")
    write_text_atomic(tmp_path / "fresh", "new", must_be_new=True)
    with contextlib.suppress(ZeroDivisionError), open_atomic(tmp_path / "there") as file:
        assert file.write(b"new") / 0
    assert (tmp_path / "there").read_bytes() == OLD
    assert not [each for each in tmp_path.iterdir() if each.suffix == PARTIAL]


def test_a_file_that_grows_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "table"
    append_line(path, "one")
    with no_larger_than(6), pytest.raises(InputError, match="File too large; earlier lines are complete"):
        append_line(path, "three")
    truncate_partial_line(path)
    append_line(path, "two")
    assert path.read_text() == "one\ntwo\n"


def test_standard_output_without_room(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with Path("/dev/full").open("w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        assert main(["list", "devices"]) == 2
    said = "simcluster: error: standard output cannot be written (No space left on device); free some space\n"
    assert capsys.readouterr().err == said


def test_byte_code_that_a_full_disk_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def cut(_: str) -> None:
        raise EOFError("marshal data too short")

    monkeypatch.setattr("importlib.import_module", cut)
    assert main(["list", "devices"]) == 2
    assert "are truncated, as after a full disk: delete the folders __pycache__ in" in capsys.readouterr().err
