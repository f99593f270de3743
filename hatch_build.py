"""Hatchling's build hook: compile the modules of the package that have a .pxd file, with Cython and a C compiler.

The command ``python hatch_build.py`` compiles in place the modules whose source has changed. Where compiling fails the
package is installed without compiled modules: it gives the same results, slowly.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import time
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # as a command, the hook is not needed
    BuildHookInterface = object

ROOT = Path(__file__).parent
FLAGS = ["-O2", "-ffp-contract=off", "-g0"]
"""Flags of gcc and clang. -O1, with or without more passes, compiles in two thirds of the time, and its code is a tenth
slower. Without contraction, no product is fused with a sum, so plain Python gives the same bits."""
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "infer_types": True,  # variables have the types of the declared values that they get
    "auto_pickle": False,  # nothing is pickled, and nobody asks for signatures: a third less to compile
    "binding": False,
    "warn.unreachable": False,  # what only plain Python runs
}


def sources(root: Path = ROOT) -> list[Path]:
    """Return the modules to compile: those with a .pxd file next to them."""
    modules = (path.with_suffix(".py") for path in (root / "simcluster").rglob("*.pxd"))
    return sorted(path for path in modules if path.exists())


def compiled(source: Path) -> Path:
    """Return the path of a module's compiled form in place, for the Python that runs this."""
    return source.with_suffix(EXTENSION_SUFFIXES[0])


def parts(source: Path) -> list[Path]:
    """Return the modules of the same folder that are compiled as one with a module, and the module itself, the last."""
    found = re.search(r"^PARTS = (\(.*?\))", source.read_text(), re.MULTILINE | re.DOTALL)
    return [*(source.with_name(f"{name}.py") for name in (ast.literal_eval(found[1]) if found else ())), source]


def outdated(root: Path = ROOT) -> list[Path]:
    """Return the modules without a compiled form that is newer than their sources, all .pxd files and this file."""
    found = sources(root)
    shared = max(path.stat().st_mtime for path in (Path(__file__), *(each.with_suffix(".pxd") for each in found)))
    newest = {each: max(shared, *(part.stat().st_mtime for part in parts(each))) for each in found}
    return [each for each in found if not compiled(each).exists() or compiled(each).stat().st_mtime < newest[each]]


def compile_modules(modules: list[Path], into: Path, root: Path = ROOT) -> None:
    """Compile modules into a folder that mirrors the source tree, on all cores."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    flags = [] if sys.platform == "win32" else FLAGS
    names = [".".join(path.relative_to(root).with_suffix("").parts) for path in modules]
    before = Path.cwd()
    os.chdir(root)  # Cython and setuptools name intermediate files by relative paths
    try:
        with TemporaryDirectory() as scratch:
            extensions = cythonize(
                [
                    Extension(name, [written(path, root, Path(scratch))], extra_compile_args=flags)
                    for name, path in zip(names, modules, strict=True)
                ],
                compiler_directives=DIRECTIVES,
                build_dir=scratch,
                nthreads=min(cores, len(modules)) if len(modules) > 1 else 0,
                force=True,
                quiet=True,
            )
            command = build_ext(Distribution({"name": "simcluster", "ext_modules": extensions}))
            command.build_temp, command.build_lib = scratch, str(into)
            command.parallel = cores
            command.ensure_finalized()
            command.run()
    finally:
        os.chdir(before)


def written(module: Path, root: Path, scratch: Path) -> str:
    """Return the file to compile for a module: its own, or one in ``scratch`` that has the text of all its parts."""
    if len(texts := [path.read_text() for path in parts(module)]) == 1:
        return str(module.relative_to(root))
    future = "from __future__ import annotations\n"
    joined = scratch / module.name
    joined.write_text(future + "".join(text.replace(future, "") for text in texts))
    return str(joined)


def rebuild(root: Path = ROOT) -> list[Path]:
    """Compile in place the outdated modules and return them; all or none of the package is compiled.

    Compiled modules whose source is gone are removed.
    """
    for each in (root / "simcluster").rglob(f"*{EXTENSION_SUFFIXES[0]}"):
        if not each.with_name(each.name.removesuffix(EXTENSION_SUFFIXES[0]) + ".pxd").exists():
            each.unlink()
    todo, begun = outdated(root), time.time()
    if todo:
        try:
            compile_modules(todo, root, root)
            for each in todo:  # what changed meanwhile is outdated
                os.utime(compiled(each), (begun, begun))
        except BaseException:
            for each in sources(root):
                compiled(each).unlink(missing_ok=True)
            raise
    return todo


class CustomBuildHook(BuildHookInterface):
    """Compile the modules for a wheel, or in place for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the compiled modules to the wheel, and the wheel's platform to its name."""
        try:
            if version == "editable":
                rebuild()
                return
            self.folder = TemporaryDirectory()
            compile_modules(sources(), Path(self.folder.name))
        except (Exception, SystemExit) as problem:
            self.app.display_warning(
                f"simcluster: its modules are not compiled, so large steps are slow ({type(problem).__name__}); "
                "install a C compiler, such as gcc, and install simcluster again"
            )
            return
        for source in sources():
            target = compiled(source).relative_to(ROOT)
            build_data["force_include"][str(Path(self.folder.name) / target)] = str(target)
        build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder of the compiled modules."""
        if version != "editable":
            self.folder.cleanup()


if __name__ == "__main__":
    for each in rebuild():
        print(f"compiled {each.relative_to(ROOT)}")
