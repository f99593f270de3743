"""The shape of the package: who may import whom, how long a file may be, what is public, and what starting costs."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import lines as budget
import pytest
from lines import SATELLITES

import simcluster
from simcluster.base.old_names import MOVED
from simcluster.base.satellites import DISPLAY_TABLES, PROVIDED, load_object
from simcluster.cli import COMMANDS, command_module_name
from simcluster.show.plot_registry import PICTURES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "simcluster"

MAX_LINES = 350  # a file over budget is split by idea; 300 is the aim
MAX_FUNCTION_LINES = 60  # 40 is the aim


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(module)))


@cache
def statements(module: str) -> tuple[ast.AST, ...]:
    """Every statement of a module, at any depth; most nodes are expressions, in which there is none."""
    todo: list[ast.AST] = [tree(module)]
    for node in todo:
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            below = getattr(node, name, ())
            todo += below if isinstance(below, list) else ()  # a lambda's body is an expression
    return tuple(todo)


@pytest.fixture(scope="module", autouse=True)
def _trees_are_let_go() -> Iterator[None]:
    """They are most of what a worker holds; the garbage collector would go through them for the rest of the suite."""
    yield
    for each in (tree, nodes, statements):
        each.cache_clear()


def at_the_top(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that run when the module is imported: none in functions, none for types alone."""
    todo = [node]
    while todo:
        for child in ast.iter_child_nodes(todo.pop()):
            if isinstance(child, ast.Import | ast.ImportFrom):
                yield child
            elif not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                continue  # an expression imports nothing
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            elif not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
                todo.append(child)


@cache
def imports(module: str, *, lazy: bool = True) -> frozenset[str]:
    """What a module imports: modules of the package by full name, others by their first word.

    Whoever reads a module reads what it imports inside functions and for types, too, so these count; ``lazy=False``
    leaves them out, which cost nothing when the module is imported.
    """
    found: set[str] = set()
    for node in statements(module) if lazy else at_the_top(tree(module)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            source = str(node.module)
            found.update(
                f"{source}.{alias.name}" if f"{source}.{alias.name}" in MODULES else source for alias in node.names
            )
    return frozenset(name if name.startswith("simcluster") else name.split(".")[0] for name in found)


@cache
def reached(module: str) -> frozenset[str]:
    """Everything that a module imports, directly or through others, importing packages on the way."""
    todo, found = [module], set[str]()
    while todo:
        for name in imports(todo.pop()):
            steps = [name]
            while "." in steps[-1] and name.startswith("simcluster"):
                steps.append(steps[-1].rpartition(".")[0])
            for step in steps:
                if step not in found and step != "simcluster":
                    found.add(step)
                    if step in MODULES:
                        todo.append(step)
    return frozenset(found)


def within(module: str, *parts: str) -> bool:
    """Is the module one of these, or inside one of these packages?  Names without ``simcluster.``."""
    return any(module == f"simcluster.{part}" or module.startswith(f"simcluster.{part}.") for part in parts)


# --- libraries behind fences ------------------------------------------------------------------------------------------

DRAWING = (
    "evidence.validation_plot", "longrun.pictures", "plots", "interactive.notebook.figures", "interactive.report",
    "rl.command",
)  # fmt: skip

FENCES = {
    "simpy": ("reference", "longrun.events"),
    "matplotlib": ("show", *DRAWING),
    "pandas": ("base.tables", "results", "interop", "studies", "show", "cli", "longrun", "evidence", "interactive"),
    "ruamel": ("documents.yaml_syntax",),
    "yaml": ("documents.yaml_syntax",),
    "networkx": ("topology", "studies.bench", "importers", "show"),
    "torch": ("evidence.calibration", "importers.torch_modules"),
    "scipy": ("evidence.calibration", "longrun", "scenario.run_times", "studies.whatif.sensitivities"),
}


@pytest.mark.parametrize("library", FENCES)
def test_libraries_stay_where_they_belong(library: str) -> None:
    users = [module for module in MODULES if library in imports(module)]
    assert users, f"nobody uses {library}: take it out of the dependencies"
    assert [module for module in users if not within(module, *FENCES[library])] == []


def test_heavy_libraries_are_imported_when_needed() -> None:
    """Drawing and tables cost half a second to import; a command that needs neither must not pay."""
    for module in MODULES:
        assert not imports(module, lazy=False) & {"matplotlib", "pandas"} or within(module, "show", *DRAWING), module


# --- directions -------------------------------------------------------------------------------------------------------

PLAN = (ROOT / "ARCHITECTURE.md").read_text()
FLOORS = {name: int(floor) for floor, name in re.findall(r"^\| (\d+) \| `(\w+)/` \|", PLAN, re.M)}
"""Packages, and the door, by the floor that ARCHITECTURE.md says they lie on."""
DOOR = {"", "__main__", "formulas", "plots"}  # the faces of the package, of the command, of formulas and of pictures


def summary_of(package: str) -> str:
    """Return the first sentence of a package's docstring."""
    return str(ast.get_docstring(tree(f"simcluster.{package}"))).split("\n\n")[0]


def test_every_package_stands_in_the_plan_with_what_it_says_of_itself() -> None:
    packages = {package_of(module) for module in MODULES} - DOOR
    assert packages == set(FLOORS)
    core = {package: floor for package, floor in FLOORS.items() if package not in SATELLITES}
    assert len(core) <= 19
    assert max(core.values()) <= 11
    for package in packages:
        assert f"| `{package}/` | {summary_of(package)} |\n" in PLAN, (
            "python tests/test_architecture.py writes them anew"
        )


def test_imports_go_down() -> None:
    """From a floor to those below; imports inside functions and for types, too."""
    for module in MODULES:
        if package_of(module) in FLOORS:
            up = [name for name in modules_of(module) if package_of(name) not in (package_of(module), *DOOR)
                  and FLOORS[package_of(name)] >= FLOORS[package_of(module)]]  # fmt: skip
            assert not up, module
            assert "simcluster" not in modules_of(module), module


def test_the_core_imports_no_satellite() -> None:
    """Nor do the faces, but for types."""
    for module in MODULES:
        if package_of(module) not in (*SATELLITES, *DOOR):
            assert not [name for name in imports(module) if within(name, *SATELLITES, "plots")], module


def test_tables_of_satellites_name_what_there_is() -> None:
    places = [*PROVIDED.values(), *(place for places in DISPLAY_TABLES.values() for place in places)]
    places += [f"{module}:{name}" for name, module in PICTURES.items()]
    assert all(load_object(place) is not None for place in places)
    assert all(callable(importlib.import_module(command_module_name(command)).run) for command in COMMANDS)


# What each may not reach by any way, where floors alone do not say so.  Planning meets no clock and no run; the player
# of events knows no model; numbers are made of tables.
PURE = (
    "model",
    "devices",
    "planning",
    "schedules",
    "collectives",
    "faults",
    "traffic",
    "topology",
    "symmetry",
)
NEVER = {
    **dict.fromkeys((*PURE, "scenario", "documents"), (
        "simpy", "matplotlib", "pandas", "simcluster.engine",
    )),
    **dict.fromkeys(("engine.events", "engine.run", "engine.explicit_program", "traffic.fairness"), (
        "simcluster.model.transformer", "simcluster.schedules", "simcluster.planning.stage_programs",
        "simcluster.devices",
    )),
    **dict.fromkeys(("results.step_time", "results.timeline", "results.memory_timeline"), (
        "simpy", "simcluster.scenario", "simcluster.schedules", "simcluster.devices",
    )),
    "reference": ("simcluster.symmetry", "simcluster.engine", "simcluster.scenario"),
}  # fmt: skip


@pytest.mark.parametrize("part", NEVER)
def test_one_way(part: str) -> None:
    members = [module for module in MODULES if within(module, part)]
    assert members, f"simcluster.{part} is gone: take it out of this list"
    for module in members:
        assert sorted(reached(module) & set(NEVER[part])) == [], module


READING_PATH = re.findall(r"^\| `((?:scenarios|simcluster)/\S+)` \|", PLAN, re.M)
ACCELERATORS = ("engine", "symmetry")


def test_reading_path_is_short() -> None:
    """What a newcomer reads, by ARCHITECTURE.md."""
    assert "simcluster/reference/step_simulation.py" in READING_PATH
    assert sum(len((ROOT / name).read_text().splitlines()) for name in READING_PATH) <= 2500


@pytest.mark.parametrize("name", [name for name in READING_PATH if name.endswith(".py")])
def test_reading_path_reaches_no_accelerator(name: str) -> None:
    """Imports inside functions and for types count, too."""
    module = name.removesuffix(".py").replace("/", ".")
    assert [each for each in sorted(reached(module)) if within(each, *ACCELERATORS)] == []


def test_simulating_reaches_accelerators() -> None:
    """The test above finds them where they are."""
    assert {package_of(each) for each in reached("simcluster.step.simulate")} >= {"engine", "symmetry"}


def test_nothing_imports_the_command_line_but_itself() -> None:
    for module in MODULES:
        if not within(module, "cli", "__main__", *SATELLITES):
            assert not [name for name in imports(module) if within(name, "cli")], module


def test_no_module_imports_itself_in_a_circle() -> None:
    """Not by imports inside functions or for types either (importing a package with its first module is no import)."""
    for module in MODULES:
        assert module not in beyond(module, modules_of), module


def test_no_package_imports_itself_in_a_circle() -> None:
    """Packages, and modules beside them, lie on floors: who is reached from a package never imports it."""
    for package in sorted({package_of(module) for module in MODULES} - {""}):
        assert package not in beyond(package, packages_of), package


def beyond(start: str, onwards: Callable[[str], frozenset[str]]) -> set[str]:
    """All that is reached by one import or more."""
    todo, found = [start], set[str]()
    while todo:
        new = onwards(todo.pop()) - found
        found |= new
        todo += sorted(new)
    return found


def modules_of(module: str) -> frozenset[str]:
    """Modules of the package that a module imports."""
    return frozenset(name for name in imports(module) if name in MODULES)


def package_of(module: str) -> str:
    """The first word behind ``simcluster``."""
    return module.split(".")[1] if "." in module else ""


@cache
def packages_of(package: str) -> frozenset[str]:
    """Packages that a package imports."""
    members = [module for module in MODULES if package_of(module) == package]
    return frozenset(package_of(name) for module in members for name in modules_of(module)) - {package, ""}


# --- budgets and habits -----------------------------------------------------------------------------------------------


def test_files_and_functions_are_short_enough_to_read() -> None:
    long = [module for module, path in MODULES.items() if len(path.read_text().splitlines()) > MAX_LINES]
    for module in MODULES:
        for node in statements(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= MAX_FUNCTION_LINES:
                    long.append(f"{module}.{node.name}")
    assert long == []


def test_the_package_does_not_grow() -> None:
    lines, files = budget.lines_by_folder(PACKAGE)
    assert lines.total() <= budget.MOST_LINES
    assert files.total() <= budget.MOST_FILES
    assert sum(lines[name] for name in lines if name not in SATELLITES) <= budget.MOST_CORE_LINES


@pytest.mark.parametrize(("command", "most"), [("schema", 20_400), ("run", 48_600)])
def test_a_command_can_be_read_alone(command: str, most: int) -> None:
    """Lines of all that a command's module imports, types and imports inside functions included."""
    found = [module for module in reached(f"simcluster.cli.{command}") if module in MODULES]
    assert sum(len(MODULES[module].read_text(encoding="utf-8").splitlines()) for module in found) <= most


def test_every_module_says_what_it_is_for() -> None:
    assert [module for module in MODULES if not ast.get_docstring(tree(module))] == []


def test_planning_neither_prints_nor_reads_files() -> None:
    for module in MODULES:
        if within(module, *PURE) and not within(module, "devices"):  # the catalogue is a file
            calls = {ast.unparse(node.func) for node in nodes(module) if isinstance(node, ast.Call)}
            assert not calls & {"print", "open", "input"}, module
            assert not imports(module) & {"random", "time", "datetime", "os", "sys", "subprocess", "logging"}, module


def test_no_public_class_has_the_name_of_another() -> None:
    names = [node.name for module in MODULES for node in tree(module).body if isinstance(node, ast.ClassDef)]
    public = Counter(name for name in names if not name.startswith("_"))
    assert [name for name, many in public.items() if many > 1] == []


def test_array_types_are_named_in_one_place() -> None:
    named = [module for module in MODULES for node in statements(module) if isinstance(node, ast.Assign | ast.AnnAssign)
             and node.value is not None and re.match(r"(npt?\.)?NDArray\[", ast.unparse(node.value))]  # fmt: skip
    assert set(named) <= {
        "simcluster.base.arrays",
        "simcluster.planning.rank_grid",
        "simcluster.symmetry.tree_symmetry",
        "simcluster.traffic.water_filling",
    }


def test_nothing_depends_on_the_order_of_a_set() -> None:
    """A set may be asked, not gone through: its order changes with the hash seed."""
    for module in MODULES:
        for node in nodes(module):
            if isinstance(node, ast.For | ast.comprehension):
                assert not isinstance(node.iter, ast.Set | ast.SetComp), f"{module}: {ast.unparse(node.iter)}"
                text = ast.unparse(node.iter)
                assert not text.startswith(("set(", "frozenset(")), f"{module}: {text}"


# --- the public surface -----------------------------------------------------------------------------------------------


def test_public_names() -> None:
    for name in simcluster.__all__:
        assert getattr(simcluster, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        simcluster.nothing  # noqa: B018


@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").glob("*.py")), ids=lambda path: path.stem)
def test_notebooks_import_public_names_only(notebook: Path) -> None:
    code = notebook.read_text()
    assert not re.findall(r"^\s*(?:from|import) simcluster\.", code, re.M)
    assert set(re.findall(r"\bsimcluster\.(\w+)", code)) <= {*simcluster.__all__, "__version__"}


def test_functions_stay_functions_whoever_imports_the_modules_of_that_name() -> None:
    import simcluster.compare  # type: ignore[import-not-found]
    import simcluster.simulate

    assert callable(simcluster.simulate)
    assert callable(simcluster.compare)


@pytest.mark.parametrize("old", MOVED)
def test_modules_are_found_by_their_old_names(old: str) -> None:
    """The very same modules, below them, too; these keep what they are called today."""
    module = importlib.import_module(f"simcluster.{MOVED[old]}")
    assert importlib.import_module(f"simcluster.{old}") is module
    assert module.__spec__ is not None
    assert module.__spec__.name == module.__name__ == f"simcluster.{MOVED[old]}"


def test_a_module_below_an_old_name_is_the_module_of_today() -> None:
    from simcluster.replay.written import write_recorded_trace as old  # type: ignore[import-not-found]

    from simcluster.interop.replay.trace_writer import write_recorded_trace

    assert old is write_recorded_trace


def run_python(*arguments: str) -> str:
    command = [sys.executable, "-X", "importtime", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stderr


def loaded(report: str) -> set[str]:
    """First words of all modules that Python imported."""
    return {line.rpartition("|")[2].strip().split(".")[0] for line in report.splitlines() if "|" in line}


HEAVY = {"pandas", "matplotlib", "numpy", "networkx", "pydantic", "simpy", "ruamel"}


@pytest.mark.parametrize("arguments", [("-c", "import simcluster"), ("-m", "simcluster", "--help")])
def test_starting_is_cheap(arguments: tuple[str, ...]) -> None:
    found = loaded(run_python(*arguments))
    assert "simcluster" in found
    assert found & HEAVY == set()


def test_a_run_without_pictures_imports_no_library_for_them() -> None:
    found = loaded(run_python("-m", "simcluster", "run", "scenarios/tiny_dp.yaml", "--json", "-"))
    assert "simpy" in found
    assert found & {"matplotlib", "pandas"} == set()


if __name__ == "__main__":
    row = re.compile(r"^(\| \d+ \| `(\w+)/` \|) .* \|$", re.MULTILINE)
    (ROOT / "ARCHITECTURE.md").write_text(row.sub(lambda found: f"{found[1]} {summary_of(found[2])} |", PLAN))
