"""Extraction of the training command from a launch script, with its options and process counts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import join_or
from simcluster.importers import launch_arguments
from simcluster.importers.deepspeed import CONFIG_OPTIONS, options_from_deepspeed
from simcluster.importers.flat_settings import attention_backend_option, environment_assumptions
from simcluster.importers.framework_files import read_fields_as_options
from simcluster.importers.import_result import FileReader
from simcluster.importers.megatron_named_models import swift_subcommand
from simcluster.importers.megatron_options import FILE_OPTIONS, MAPPED
from simcluster.importers.pre_training_checks import check_megatron_options
from simcluster.importers.process_counts import count_processes_with_note, count_visible_gpus, swift_process_counts
from simcluster.importers.shell.script_reader import read_script
from simcluster.importers.shell.script_state import ScriptState
from simcluster.importers.shell.shell_parser import is_shell_script
from simcluster.importers.trainer_scripts import refuse_trainer_command

__all__ = ["is_shell_script", "parse_launch_script"]

_SINGLE_VARIABLE = re.compile(r"\$\{?(\w+|[@*])\}?")
_OPTIONAL_VARIABLE = re.compile(r"ARGS|ARGUMENTS|OPTIONS|OPTS|FLAGS|CONFIGS?|EXTRA|CMD", re.IGNORECASE)
_POSITIONAL = re.compile(r"\$\{?(\d{1,3})\b")
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_PASSES_ARGUMENTS = re.compile(
    r"^[ \t]*(?:exec|srun|mpirun|mpiexec|torchrun|deepspeed|python\S*)[ \t].*\$\{?[@*]", re.MULTILINE
)
_CONFIG_OPTIONS = ("config-file", "config", "yaml-cfg", "model-config", "model-config-path")
"""Options that name a YAML file with more options or model sizes."""
_OTHER_TOOLS = {
    "megatron-bridge": r"Megatron-Bridge|megatron\.bridge|run_recipe\.py", "torchtitan": r"torchtitan",
    "nemo": r"NeMo\b|nemo_run|megatron_gpt_pretraining\.py",
}  # fmt: skip


def parse_launch_script(
    text: str, source: str, *, user_values: Mapping[str, str], read_file: FileReader, gpus_per_node: int | None = None,
    gpus: int | None = None,
) -> launch_arguments.LaunchArguments:  # fmt: skip
    """Return the training command that a shell script starts, found without running the script.

    ``user_values`` holds the user's values of variables (and of ``1``, ``2``, ... for script arguments), ``read_file``
    returns the text of a file next to the script, ``gpus`` is the job's GPU count if the user gives it. Raises
    InputError for a script that starts no training.
    """
    state = read_script(text, ScriptState(source, user_values, read_file, count_visible_gpus(gpus, gpus_per_node)))
    words, around = _find_training_command(text, state)
    kept = [word for before, word in pairwise(["", *words]) if not _is_unset_variable_word(word, before, state)]
    found = launch_arguments.override_options(launch_arguments.parse_command_words(kept, repeated=True), user_values)
    refuse_trainer_command(found, source)
    if len(kept) == len(words) and not state.missing_files:  # nothing unknown may hold options
        check_megatron_options(found, source)
    state.assumed |= dict.fromkeys(state.unset_variable_assumption())
    options = _add_options_from_files(found.options, state)
    options |= attention_backend_option(state.variables, options)
    launched, assumed = count_processes_with_note(found.launcher, around, gpus_per_node)
    launched = (swift_process_counts(state) if swift_subcommand(found.launcher) else {}) | launched
    return replace(
        found, options=options, launched=launched,
        problems=(*_list_script_problems(options, text, state), *found.problems),
        assumed=(*state.assumed, *assumed, *environment_assumptions(state.variables)), unknown=tuple(state.unknown),
    )  # fmt: skip


def _find_training_command(text: str, state: ScriptState) -> tuple[list[str], list[str]]:
    """Return the command with the most training options, and the words that wrap the command, such as srun's."""
    scored = [(_count_known_options(words), words, around) for words, around in state.commands]
    most = max((score for score, _, _ in scored), default=0)
    if not most:
        why = f" ({state.stop_reason})" if state.stop_reason else ""
        raise InputError(f"{state.source}: starts no readable training{why}: {_explain_no_training(text, state)}")
    equal = [(words, around) for score, words, around in scored if score == most]
    if len({tuple(words) for words, _ in equal}) > 1:
        state.assumed[f"of {len(equal)} trainings that the script starts, only the first is imported"] = None
    return equal[0]


def _count_known_options(words: Sequence[str]) -> int:
    """Return how many of a command's options the importer maps to the scenario."""
    names = {word[2:].partition("=")[0].replace("_", "-") for word in words if word.startswith("--")}
    return len(names & MAPPED.keys()) or int("model" in names and bool(swift_subcommand(words)))


def _is_unset_variable_word(word: str, before: str, state: ScriptState) -> bool:
    """Return whether a word is an unset variable that bash would drop; False if it may be an option's value."""
    found = _SINGLE_VARIABLE.fullmatch(word)
    is_value = before.startswith("--") and "=" not in before
    is_value = is_value and MAPPED.get(before.lstrip("-").replace("_", "-")) != "flag"
    if not found or (is_value and not _OPTIONAL_VARIABLE.search(found[1])):
        return False
    state.unset_variables[found[1]] = None
    return True


def _explain_no_training(text: str, state: ScriptState) -> str:
    words = [word for command, _ in state.commands for word in command]
    if state.stop_reason and state.unset_variables:  # it tests variables that are not given
        owners = {value.strip("${}"): f" ({name})" for name, value in state.variables.items() if isinstance(value, str)}
        unset = list(state.unset_variables)[:4]
        names = [f"argument {name}{owners.get(name, '')}" if name.isdecimal() else name for name in unset]
        it, is_ = ("them", "are") if len(names) > 1 else ("it", "is")
        given = " ".join(f"--arg {name}=..." for name in unset)
        return f"it tests {', '.join(names)}, which {is_} not given; set {it} with {given}"
    tool = next((kind for kind, names in _OTHER_TOOLS.items() if re.search(names, " ".join(words))), "")
    remedy = "give the script that runs pretrain_gpt.py, or set its variables with --arg NAME=VALUE"
    if tool:
        remedy = f"its program is not Megatron-LM's: use simcluster import {tool}"
    if state.missing_files:
        them = "it" if len(state.missing_files) == 1 else "them"
        missing = f"it reads {join_or(state.missing_files)}, which is neither next to it nor under a parent folder"
        return f"{missing}; put {them} there, or {remedy}"
    programs = dict.fromkeys(word for word in words if word.endswith(".py"))
    if not programs and not state.positional_arguments and _PASSES_ARGUMENTS.search(text):
        given = "give the script that calls it, or its arguments with --arg @='pretrain_gpt.py ...'"
        return f"it starts the program named by its arguments, and no arguments are given; {given}"
    for command, _ in state.commands:
        if named := _find_options_file(launch_arguments.parse_command_words(command, repeated=True).options):
            what = f"its options are in the file named by --{named[0]} ({named[1][:80]}), which is missing"
            return f"{what}; {remedy if tool else 'import that file, with --gpus'}"
    told = next((each for each in map(launch_arguments.explain_unexpanded_value, words) if each.startswith("line")), "")
    if told and not tool:
        remedy = f"{told.partition(';')[0]}: import the command that bash -x prints, or the run's log"
    starts = f" (it starts {', '.join(programs)[:200]})" if programs else ""
    return f"no command has options such as --num-layers{starts}; {remedy}"


def _add_options_from_files(found: Mapping[str, tuple[str, ...]], state: ScriptState) -> dict[str, tuple[str, ...]]:
    """Add the options set in the YAML file and the DeepSpeed configuration that the command's options name."""
    options = dict(found)
    batch = " ".join(options.get("global-batch-size", ()))
    if "$" in batch:
        del options["global-batch-size"]
        state.assumed[f"the global batch is {batch[:60]}, which is not set (--arg NAME=VALUE sets a variable)"] = None
    if (named := _find_options_file(options)) and (fields := state.find_file_text(named[1])):
        options = {**read_fields_as_options(fields, named[1]), **options}
    name = " ".join(options.get("deepspeed-config", ()))
    if config := state.find_file_text(name) if name else None:
        added = options_from_deepspeed(config, name, state.source, options)
        state.assumed |= dict.fromkeys(added.assumed)
        state.unknown |= dict.fromkeys(added.unknown)
        overruled = {key: words for key, words in added.options.items() if key in CONFIG_OPTIONS}
        return {**added.options, **options, **overruled}
    if name:
        where = "it is missing, or the script creates it from a template (the run's log contains it)"
        state.assumed[f"the DeepSpeed configuration {name[:60]} is not read: {where}"] = None
    return options


def _find_options_file(options: Mapping[str, tuple[str, ...]]) -> tuple[str, str] | None:
    """Return the option whose value is a YAML file of options, and that file's name; None if no option has one."""
    found = ((name, " ".join(options.get(name, ()))) for name in _CONFIG_OPTIONS)
    return next(((name, file) for name, file in found if "$" in file or file.endswith((".yaml", ".yml"))), None)


def _list_script_problems(options: Mapping[str, tuple[str, ...]], text: str, state: ScriptState) -> list[str]:
    found: list[str] = []
    values = [" ".join(options.get(name, ())) for name in MAPPED if name not in FILE_OPTIONS]
    takes = max((int(number) for number in _POSITIONAL.findall(_COMMENT.sub("", text))), default=0)
    if takes and any(map(_POSITIONAL.search, values)):
        which = f"{takes} arguments" if takes > 1 else "an argument"
        given = "not all that its options need are" if state.positional_arguments else "none is"
        found.append(f"the script takes {which}, and {given} given; set all by --arg @='...', one by --arg 1=...")
    deep = any(name.endswith("num-layers") or name.startswith("hybrid-") for name in options)
    sized = deep and {"hidden-size", "micro-batch-size"} <= options.keys()
    if state.missing_files and (not sized or any("$" in value for value in values)):
        missing = ", ".join(state.missing_files)
        found.append(f"it reads files that are neither next to it nor under a parent folder; put them there: {missing}")
    return found
