"""Pipeline schedules from files: a CSV file of torch.distributed.pipelining, or a Python function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.base.time_limit import TimeLimitExpired
from simcluster.documents.diagnostics import did_you_mean, join_or, quote_value, type_name
from simcluster.documents.input_files import decode_utf8, missing_file_hint, read_input_bytes
from simcluster.documents.trusted_text import ALLOW_PYTHON_VARIABLE, TrustedText, is_python_allowed
from simcluster.schedules import Action, Schedule, ScheduleFunction
from simcluster.schedules.specs import RowsSpec
from simcluster.schedules.torch_csv import from_csv


def is_csv(name: str) -> bool:
    """Return whether the name of a schedule is a path to a CSV file."""
    return name.endswith(".csv")


def read_csv_schedule(path: str | Path) -> tuple[Schedule, Mapping[str, int]]:
    """Read a torch.distributed.pipelining CSV file; return the schedule, and a count of each ignored action type.

    Raises InputError for a file that cannot be read and as ``torch_csv.from_csv``.
    """
    return from_csv(decode_utf8(read_input_bytes(path), str(path)), name=Path(path).name)


def load_schedule_function(name: str) -> ScheduleFunction:
    """Import a schedule function by name, FILE.py:FUNCTION; raise InputError if the file has errors.

    Only this function decides whether the code may run: the name is trusted text, or code is allowed; otherwise
    InputError.
    """
    import importlib.util

    file, _, function = name.rpartition(":")
    if not (isinstance(name, TrustedText) or is_python_allowed()):
        raise InputError(
            f"{name} is Python code named in a file, which may not run code by default; read {file}, then add "
            "--allow-python, or pass the code yourself: --pipeline.schedule FILE.py:FUNCTION (from Python: "
            f"allow_python=True, or {ALLOW_PYTHON_VARIABLE}=1 in the environment)"
        )
    if not Path(file).is_file():
        raise InputError(f"cannot read {file}: there is no such file{missing_file_hint(Path(file), '.py')}")
    spec = importlib.util.spec_from_file_location("simcluster_user_schedule", file)
    if spec is None or spec.loader is None:
        raise InputError(f"cannot import {file} as Python; write the schedule as FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    with _convert_user_errors(f"cannot run {file}"):
        spec.loader.exec_module(module)
    found = getattr(module, function, None)
    if not callable(found):
        own = [each for each, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        have = f"{did_you_mean(function, own)}; it has {join_or(own)}" if own else ""
        raise InputError(f"{file} has no function {function!r} to call with (stages, microbatches, chunks){have}")

    def call_user_function(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
        with _convert_user_errors(f"{name} failed"):
            made: object = found(num_stages, num_microbatches, num_chunks)
        if isinstance(made, list | tuple) and made and all(isinstance(row, str) for row in made):
            spec = RowsSpec(name="rows", rows=tuple(made), title=function)
            return spec.schedule_function()(num_stages, num_microbatches)
        if not isinstance(made, Schedule):
            raise InputError(
                f"{name} returned {type_name(made)}; it must return a simcluster.schedules.Schedule: write that, "
                'or a row of text for each stage, as simcluster schedule prints them: ["F0 F1 B0 B1", "F0 B0 F1 B1"]'
            )
        with _convert_user_errors(f"{name} returned an invalid schedule"):
            _check_actions(made, name)
        return made

    return call_user_function


def _check_actions(made: Schedule, name: str) -> None:
    if not isinstance(made.name, str):
        raise InputError(f"{name} returned a schedule whose name is {quote_value(made.name)}; make the name a text")
    for stage, row in enumerate(made.rows):
        for position, action in enumerate(row):
            if not (isinstance(action, Action) and isinstance(action.kind, str) and _are_whole_numbers(action[1:])):
                raise InputError(
                    f"{name}: stage {stage}, position {position}: {quote_value(action)} is not an action; write "
                    'Action("F", microbatch, chunk): its kind is a text, microbatch and chunk are whole numbers from 0'
                )
    hops = [part for route in made.routes for hop in route for part in hop]
    if not _are_whole_numbers((*hops, *made.route_of, *(place for pairs in made.fused for place in pairs))):
        raise InputError(
            f"{name}: routes, route_of and fused must be tuples of whole numbers from 0; make routes with loop_route"
        )


def _are_whole_numbers(values: Iterable[object]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)


@contextmanager
def _convert_user_errors(what: str) -> Iterator[None]:
    """Convert any exception of the user's code inside the block, including SystemExit, to InputError."""
    try:
        yield
    except (InputError, KeyboardInterrupt, TimeLimitExpired):
        raise
    except BaseException as problem:
        raise InputError(
            f"{what}: {type(problem).__name__}: {str(problem)[:300]}; it must return a schedule: fix the function, or "
            "use a built-in schedule (simcluster list schedules)"
        ) from problem
