"""The command of a launch script that starts the training, with its options and how many processes it starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import listed
from simcluster.importers.arguments import Arguments, for_a_shell, from_words, with_given
from simcluster.importers.beside import Beside
from simcluster.importers.deepspeed import OF_THE_CONFIGURATION, added_to_megatron
from simcluster.importers.flat_settings import assumed_of_environment, attention_in
from simcluster.importers.framework_files import options_of_fields
from simcluster.importers.megatron_models import swift_command
from simcluster.importers.megatron_vocabulary import names_vocabulary
from simcluster.importers.option_values import FILES, MAPPED
from simcluster.importers.pre_training import require_options_of_megatron
from simcluster.importers.processes import processes_in, processes_of, seen_in_a_machine, started_by
from simcluster.importers.shell.script import read_script
from simcluster.importers.shell.state import State, joined
from simcluster.importers.shell.syntax import is_script
from simcluster.importers.trainer_scripts import refuse_trainer

__all__ = ["arguments_of_script", "is_script"]

_ALONE = re.compile(r"\$\{?(\w+|[@*])\}?")
_CALLS = re.compile(r"^#[ \t]*(?:sh|bash)[ \t]+\S+\.sh[ \t]+(\S.*)$", re.MULTILINE)
_PLACE = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")
_NUMBERED = re.compile(r"\$\{?(\d{1,3})\b")
_ARGUMENT = re.compile(r"\$\{?\d")
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_PASSED = re.compile(r"^[ \t]*(?:exec|srun|mpirun|mpiexec|torchrun|deepspeed|python\S*)[ \t].*\$\{?[@*]", re.MULTILINE)
_VOCABULARY = re.compile(
    r"^[ \t]*#.*\bvocab(?:ulary)?(?:[ _-]size)?[ :=]+(?:of |is )?(\d[\d,_]{3,8}\d)\b", re.MULTILINE | re.IGNORECASE
)
_DIGITS = re.compile(r"\d{1,7}")
_OUTPUT = re.compile(r"\$\((?!\()|`")
"""Of a command, which is not run."""
_USUAL = {
    "tensor-model-parallel-size": "TP TP_SIZE TENSOR_PARALLEL_SIZE TENSOR_MODEL_PARALLEL_SIZE",
    "pipeline-model-parallel-size": "PP PP_SIZE PIPELINE_PARALLEL_SIZE PIPELINE_MODEL_PARALLEL_SIZE",
    "context-parallel-size": "CP CP_SIZE CONTEXT_PARALLEL_SIZE",
    "expert-model-parallel-size": "EP EP_SIZE EXPERT_PARALLEL_SIZE EXPERT_MODEL_PARALLEL_SIZE",
    "micro-batch-size": "MBS MICRO_BATCH_SIZE",
    "global-batch-size": "GBS GLOBAL_BATCH_SIZE",
}
"""Variables by the names that they have in most scripts, and the options that they become."""
_MOST_NAMED = 4
_CONFIGURES = ("config-file", "config", "yaml-cfg", "model-config", "model-config-path")
"""Options that name a YAML file with more options, or with the sizes of the model."""
_OTHER_TOOLS = {
    "megatron-bridge": r"Megatron-Bridge|megatron\.bridge|run_recipe\.py", "torchtitan": r"torchtitan",
    "nemo": r"NeMo\b|nemo_run|megatron_gpt_pretraining\.py",
}  # fmt: skip


def arguments_of_script(
    text: str,
    source: str,
    *,
    fixed: Mapping[str, str],
    beside: Beside,
    gpus_per_node: int | None = None,
    gpus: int | None = None,
) -> Arguments:
    """Return the arguments of the training that a shell script starts; nothing of it is run.

    ``fixed`` are values of variables (and of ``1``, ``2``, ... for its arguments) that the user gives, ``beside`` the
    text of a file that lies with it; ``gpus`` are those of the job, where the user says how many.  Raises InputError
    for a script that starts no training.
    """
    example = {} if any(name.isdecimal() for name in fixed) else _example(text)
    state = State(source, {**example, **fixed}, beside, seen_in_a_machine(gpus, gpus_per_node))
    if example:
        state.assumed[f"its arguments are those of the example in its comments: {' '.join(example.values())[:200]}"] = (
            None
        )
    read_script(text, state)
    words, around = _training(text, state)
    before = ["", *words[:-1]]
    kept = [word for word, behind in zip(words, before, strict=True) if not _empty(word, behind, state)]
    found = with_given(from_words(kept, repeated=True), fixed)
    refuse_trainer(found, source)
    if len(kept) == len(words) and not state.missing:  # nothing else that may hold options
        require_options_of_megatron(found, source)
    state.assumed |= dict.fromkeys(state.assumed_unset())
    options = _filled(found.options, text, state)
    options |= attention_in(state.variables, options)
    launched, assumed = started_by(found.launcher, around, gpus_per_node)
    launched = (processes_in(state) if swift_command(found.launcher) else {}) | launched
    state.assumed |= dict.fromkeys(assumed)
    return replace(
        found,
        options=options,
        problems=(*_problems(options, text, state), *found.problems),
        launched=launched,
        assumed=(*state.assumed, *assumed_of_environment(state.variables)),
        unknown=tuple(state.unknown),
        machines_by_default=_machines_by_default(text, state, launched.get("nnodes", "")),
    )


def _machines_by_default(text: str, state: State, nodes: str) -> str:
    """The variable whose default the number of machines is: with another value of it there are other machines."""
    other = f"{nodes}1"
    for name in [name for name, value in state.defaults.items() if value == nodes]:
        again = State(state.source, {**state.fixed, name: other}, state.beside, state.gpus_per_node)
        try:
            words, around = _training(text, read_script(text, again))
        except InputError:
            continue
        launcher = from_words(words, repeated=True).launcher
        if processes_of(launcher, around, state.gpus_per_node).get("nnodes") == other:
            return name if not name.isdecimal() else f"argument {name}"
    return ""


def _training(text: str, state: State) -> tuple[list[str], list[str]]:
    """Return the words of the command with most options of a training, and those around it; InputError for none."""
    scored = [(_known(words), words, around) for words, around in state.commands]
    if not state.missing and not any(score for score, _, _ in scored):
        scored = [(_known(words), words, []) for words in _held(state)]
    most = max((score for score, _, _ in scored), default=0)
    if not most:
        why = f" ({state.stopped})" if state.stopped else ""
        what, remedy = _nothing(text, state)
        raise InputError(f"{state.source}: starts no training that can be read{why}: {what}; {remedy}")
    equal = [(words, around) for score, words, around in scored if score == most]
    if len({tuple(words) for words, _ in equal}) > 1:
        state.assumed[f"the first of {len(equal)} trainings that the script starts"] = None
    return equal[0]


def _nothing(text: str, state: State) -> tuple[str, str]:
    """Return why a script starts no training, and what would help."""
    words = [word for command, _ in state.commands for word in command]
    programs = dict.fromkeys(word for word in words if word.endswith(".py"))
    remedy = "give the script that runs pretrain_gpt.py, or set what it asks for with --arg NAME=VALUE"
    tool = next((kind for kind, names in _OTHER_TOOLS.items() if re.search(names, " ".join(words))), "")
    if state.stopped and state.unset:
        return _tested(state)
    if tool:
        remedy = f"its program is not Megatron-LM's: write simcluster import {tool}, with what that takes"
    if state.missing:
        put = "put that there" if len(state.missing) == 1 else "put them there"
        what = f"it goes on in {listed(state.missing)}, which is neither beside it nor in a folder around it"
        return what, f"{put}, or {remedy}"
    if not programs and not state.positional and _PASSED.search(text):
        what = "what it starts is in its own arguments, and none is given"
        return what, "give the script that calls it, or the arguments with --arg @='pretrain_gpt.py ...'"
    for command, _ in state.commands:
        if named := _configured(from_words(command, repeated=True).options):
            what = f"its options are in the file that --{named[0]} names ({named[1][:80]}), which is not there"
            return what, "import that file itself, with --gpus" if not tool else remedy
    what = "no command in it has options such as --num-layers"
    what += f" (it starts {', '.join(programs)[:200]})" if programs else ""
    if not tool and (printed := next((told for told in map(for_a_shell, words) if told.startswith("line")), "")):
        remedy = f"{printed.partition(';')[0]}: import the command that bash -x prints, or the run's log"
    return what, remedy


def _tested(state: State) -> tuple[str, str]:
    """Return what a script that ends itself has tested and nobody gives, and how it is given."""
    holders = {value.strip("${}"): f" ({name})" for name, value in state.variables.items() if isinstance(value, str)}
    names = [f"argument {name}{holders.get(name, '')}" if name.isdecimal() else name for name in state.unset]
    given = " ".join(f"--arg {name}=..." for name in list(state.unset)[:_MOST_NAMED])
    it, is_ = ("them", "are") if len(names) > 1 else ("it", "is")
    return f"it tests {', '.join(names[:_MOST_NAMED])}, which {is_} not given", f"give {it} with {given}"


def _filled(found: Mapping[str, tuple[str, ...]], text: str, state: State) -> dict[str, tuple[str, ...]]:
    """Return the options with what else the script says of them: a comment, a DeepSpeed configuration that it names."""
    options = dict(found)
    batch = " ".join(options.get("global-batch-size", ()))
    if "$" in batch:
        del options["global-batch-size"]
        asked = _asked(batch, state)
        gives = f" (--arg {asked}=... does)" if asked else ""
        state.assumed[f"the global batch is {batch[:60]}, which nobody gives{gives}"] = None
    if says := _vocabulary(options, text):
        options |= says
        state.assumed[f"a vocabulary of {says['vocab-size'][0]} tokens, as a comment in the script says"] = None
    if (named := _configured(options)) and (fields := state.text_named(named[1])):
        options = {**options_of_fields(fields, named[1]), **options}
    if name := " ".join(options.get("deepspeed-config", ())):
        config = state.text_named(name)
        if not config:
            state.assumed[f"what the DeepSpeed configuration {name[:60]} says is not known: it is not there"] = None
            return options
        added = added_to_megatron(config, name, state.source, options)
        state.assumed |= dict.fromkeys(added.assumed)
        state.unknown |= dict.fromkeys(added.unknown)
        overruled = {name: words for name, words in added.options.items() if name in OF_THE_CONFIGURATION}
        options = {**added.options, **options, **overruled}
    return options


def _configured(options: Mapping[str, tuple[str, ...]]) -> tuple[str, str] | None:
    """Return the option that names a YAML file with more options, and the file; None where none does."""
    found = ((name, " ".join(options.get(name, ()))) for name in _CONFIGURES)
    return next(((name, file) for name, file in found if "$" in file or file.endswith((".yaml", ".yml"))), None)


def _held(state: State) -> list[list[str]]:
    """Return the options that the variables of a script hold, which another script starts the training with."""
    held: dict[str, list[str]] = {}
    for name, value in state.variables.items():
        words = joined(value).split()
        first = next((place for place, word in enumerate(words) if word.startswith("--")), 0)
        words = [*(word for word in words[:first] if not _empty(word, "", state)), *words[first:]]
        if words and words[0].startswith("--") and _known(words):
            held[name] = words
    words = [word for each in held.values() for word in each]
    if "--num-layers" not in words:
        return []
    for option, names in _USUAL.items():
        name = next((name for name in names.split() if f"--{option}" not in words and name in state.variables), "")
        given = state.get(name)
        if isinstance(given, str) and _DIGITS.fullmatch(given):
            words += [f"--{option}", given]
            state.assumed[f"{name}={given} is {option}"] = None
    state.assumed[f"another script starts the training, with the options of {', '.join(held)} alone"] = None
    return [words]


def _vocabulary(options: Mapping[str, tuple[str, ...]], text: str) -> dict[str, tuple[str, ...]]:
    """Return the vocabulary that a comment says, where no option does and the tokenizer is not known by its name."""
    said = {number.replace(",", "").replace("_", "") for number in _VOCABULARY.findall(text[:100_000])}
    told = options.keys() & {"vocab-size", "padded-vocab-size", "pad-vocab-size-to"}
    return {} if told or len(said) != 1 or names_vocabulary(options) else {"vocab-size": tuple(said)}


def _asked(text: str, state: State, depth: int = 0) -> str:
    """The variable, or the number of the argument, that a value rests on and that nothing gives; empty for none."""
    for found in re.finditer(r"\$\{?\d+|[A-Za-z_]\w*", text):
        name = found[0].lstrip("${")
        value = state.get(name)
        if name.isdecimal() and value is None:
            return name
        if not name.isdecimal() and (value is None or (isinstance(value, str) and _OUTPUT.search(value))):
            return name
        if isinstance(value, str) and value.startswith("$") and depth < 8:
            inner = value.strip("${}")
            return inner if inner.isdecimal() else _asked(value, state, depth + 1) or inner
    return ""


def _problems(options: Mapping[str, tuple[str, ...]], text: str, state: State) -> list[str]:
    """Return what to say of a script whose options rest on arguments, files or commands that are not there."""
    found: list[str] = []
    values = {name: " ".join(options.get(name, ())) for name in MAPPED if name not in FILES}
    takes = max((int(number) for number in _NUMBERED.findall(_COMMENT.sub("", text))), default=0)
    if takes and any(map(_ARGUMENT.search, values.values())):
        which = f"{takes} arguments" if takes > 1 else "an argument"
        given = "not all that options rest on are" if state.positional else "none is"
        found.append(f"the script takes {which}, and {given} given: --arg @='...' gives all, --arg 1=... the first")
    deep = any(name.endswith("num-layers") or name.startswith("hybrid-") for name in options)
    sized = deep and {"hidden-size", "micro-batch-size"} <= options.keys()
    if state.missing and (not sized or any("$" in value for value in values.values())):
        missing = ", ".join(state.missing)
        found.append(f"the script goes on in what is neither beside it nor in a folder around it: {missing}")
    rests: dict[str, list[str]] = {}
    for name, value in values.items():
        asked = _asked(value, state) if "$((" in value else ""
        if asked and not asked.isdecimal() and isinstance(state.get(asked), str):
            rests.setdefault(asked, []).append(f"--{name}")
    return found + [
        f"{listed(names)} {'rests' if len(names) == 1 else 'rest'} on {asked}, which the script finds out where it "
        f"runs: --arg {asked}=... gives it"
        for asked, names in rests.items()
    ]


def _example(text: str) -> dict[str, str]:
    """The script's arguments by number in the first comment that calls it with as many as it takes; none otherwise."""
    takes = max((int(number) for number in _NUMBERED.findall(_COMMENT.sub("", text))), default=0)
    for words in _CALLS.findall(text[:20_000]):
        given = words.split()
        if 0 < takes <= len(given) and not _PLACE.search(words):
            return {str(number): word for number, word in enumerate(given, 1)}
    return {}


def _known(words: Sequence[str]) -> int:
    """Return how many options of a training the command has."""
    names = {word[2:].partition("=")[0].replace("_", "-") for word in words if word.startswith("--")}
    return len(names & MAPPED.keys()) or int("model" in names and bool(swift_command(words)))


def _empty(word: str, behind: str, state: State) -> bool:
    """Whether a word is a variable that nobody has set, which a shell leaves out; as an option's value it stays."""
    found = _ALONE.fullmatch(word)
    if not found:
        return False
    name = behind.lstrip("-").replace("_", "-")
    value = behind.startswith("--") and "=" not in behind and MAPPED.get(name) != "flag"
    if value and not re.search(r"ARGS|ARGUMENTS|OPTIONS|OPTS|FLAGS|CONFIGS?|EXTRA|CMD", found[1], re.IGNORECASE):
        return False
    state.unset[found[1]] = None
    return True
