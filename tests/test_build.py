"""hatch_build.py: which modules are compiled, that they are used, and that old ones are not."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from simcluster.base import compilation, pointers
from simcluster.base.errors import InputError
from simcluster.base.progress import listen_to_notes
from simcluster.engine import events

ROOT = Path(__file__).parent.parent
HOOK = SimpleNamespace(**runpy.run_path(str(ROOT / "hatch_build.py")))
COMPILER = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cl").split()[0]
HAS_COMPILER = shutil.which(COMPILER) and subprocess.run([COMPILER, "--version"], capture_output=True).returncode == 0

MODULE = """
import cython

def twice(x: cython.double) -> cython.double:
    return 2 * x if cython.compiled else -1.0
"""


def make_tree(root: Path) -> Path:
    """A package like simcluster with one module to compile and one that is not."""
    package = root / "simcluster" / "engine"
    package.mkdir(parents=True)
    for name in ("simcluster/__init__.py", "simcluster/engine/__init__.py", "simcluster/engine/other.py"):
        (root / name).write_text("")
    (package / "fast.py").write_text(MODULE)
    (package / "fast.pxd").write_text("cpdef double twice(double x)\n")
    return package / "fast.py"


def run_python(code: str, *paths: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, env=environment, text=True, check=True, capture_output=True).stdout


def test_the_modules_compiled_are_those_with_a_pxd_file() -> None:
    found = [path.relative_to(ROOT) for path in HOOK.sources()]
    assert Path("simcluster/base/pointers.py") in found
    assert {path.with_suffix(".pxd") for path in HOOK.sources()} == {*(ROOT / "simcluster").rglob("*.pxd")}


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")
def test_this_suite_runs_compiled_modules_that_are_current() -> None:
    assert HOOK.outdated() == []
    assert compilation.is_compiled(pointers.__file__)
    code = "import sys; from simcluster import *; from simcluster.studies.sweep import step_tables; print(*sys.modules)"
    loaded = set(run_python(code, ROOT).split())
    assert "simcluster.engine.events" in loaded
    assert not loaded & {f"simcluster.engine.{part}" for part in events.PARTS}, "plain Python, in place of events"


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")
def test_what_changed_is_compiled_in_place(tmp_path: Path) -> None:
    source = make_tree(tmp_path)
    assert HOOK.rebuild(tmp_path) == [source]
    assert HOOK.rebuild(tmp_path) == []
    assert not list(tmp_path.rglob("*.c"))
    assert run_python("from simcluster.engine.fast import twice; print(twice(2))", tmp_path) == "4.0\n"
    os.utime(source, (newer := HOOK.compiled(source).stat().st_mtime + 1, newer))
    assert HOOK.outdated(tmp_path) == [source]
    (part := source.with_name("part.py")).write_text("from __future__ import annotations\nTHREE = 3\n")
    source.write_text('from __future__ import annotations\nPARTS = ("part",)\nSIX = 2 * THREE\n' + MODULE)
    assert HOOK.rebuild(tmp_path) == [source]
    assert run_python("from simcluster.engine.fast import SIX; print(SIX)", tmp_path) == "6\n"
    os.utime(part, (newer := HOOK.compiled(source).stat().st_mtime + 1, newer))
    assert HOOK.outdated(tmp_path) == [source]
    source.with_suffix(".pxd").unlink()
    assert HOOK.rebuild(tmp_path) == []
    assert not HOOK.compiled(source).exists(), "its source may be gone, too"


def test_without_a_compiler_nothing_compiled_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_tree(tmp_path)
    HOOK.compiled(source).write_text("")
    os.utime(HOOK.compiled(source), (0, 0))
    monkeypatch.setenv("CC", "/bin/false")
    with pytest.raises(Exception, match="false"):
        HOOK.rebuild(tmp_path)
    assert not HOOK.compiled(source).exists()


@pytest.mark.parametrize("version", ["standard", "editable"])
def test_installing_goes_on_without_a_compiler_with_one_warning(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no compiler")

    for name in ("rebuild", "compile_modules"):
        monkeypatch.setitem(HOOK.CustomBuildHook.initialize.__globals__, name, fail)
    warnings: list[str] = []
    hook = HOOK.CustomBuildHook.__new__(HOOK.CustomBuildHook)
    monkeypatch.setattr(HOOK.CustomBuildHook, "app", SimpleNamespace(display_warning=warnings.append), raising=False)
    data: dict[str, Any] = {"force_include": {}}
    hook.initialize(version, data)
    hook.finalize(version, data, "")
    assert data == {"force_include": {}}
    assert len(warnings) == 1
    assert "not compiled" in warnings[0]


def test_a_compiled_module_older_than_its_source_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compilation.warn_if_not_compiled.cache_clear()
    source = make_tree(tmp_path)
    compiled = HOOK.compiled(source)
    compiled.write_text("")
    os.utime(source, (newer := compiled.stat().st_mtime + 1, newer))
    module = ModuleType("simcluster.engine.fast")
    module.__file__ = str(compiled)
    monkeypatch.setitem(sys.modules, "simcluster.engine.fast", module)
    with pytest.raises(InputError, match=r"simcluster\.engine\.fast: older than the source file.*hatch_build\.py"):
        compilation.warn_if_not_compiled()
    os.utime(source, (0, 0))
    assert compilation.list_stale_modules() == []
    source.unlink()
    assert compilation.list_stale_modules() == ["simcluster.engine.fast"]


def test_plain_python_is_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointers, "__file__", "pointers.py")
    compilation.warn_if_not_compiled.cache_clear()
    notes: list[str] = []
    with listen_to_notes(notes.append):
        compilation.warn_if_not_compiled()
        compilation.warn_if_not_compiled()
    compilation.warn_if_not_compiled.cache_clear()
    assert notes == [compilation.SLOW]


def test_the_package_runs_as_plain_python() -> None:
    code = (
        "import uncompiled, numpy; from simcluster.base import pointers as p; print(p.__file__, *p.ints(numpy.ones(2)))"
    )
    assert run_python(code, ROOT / "tests", ROOT) == f"{ROOT}/simcluster/base/pointers.py 1.0 1.0\n"
