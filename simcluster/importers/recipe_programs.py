"""What a recipe's file in Python starts or makes, and what to say of one that takes its recipe from another file."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import listed
from simcluster.importers.model_classes import no_decoder
from simcluster.importers.python_arguments import not_given
from simcluster.importers.python_config import PythonConfigs
from simcluster.importers.python_modules import files_of
from simcluster.importers.python_values import Built

_GPUS = re.compile(r"_(\d{1,6})gpus?_")  # kimi_k2_pretrain_512gpu_h100_bf16_config
_STARTED = re.compile(r"\b(?:torchrun|ft_launcher|torch\.distributed\.run)\b[^\n]*")
_SCRIPT = "the script"
_OF_MODELS = ("Model", "Module", "Config", "Provider")


def what_is_started(
    configs: PythonConfigs, function: str, pattern: re.Pattern[str], started: list[Any], starts: Collection[str]
) -> tuple[str, Any]:
    """What the function returns, or, of a program, what that starts with one of ``starts``, which goes to
    ``started``."""
    recipes = any(pattern.search(name) and configs.is_whole(name) for name in configs.functions)
    if not function and (configs.is_program() or not recipes):
        configs.run_as_script()
        if started:
            return _SCRIPT, started[0]
        if configs.arguments.missing and not recipes and not any(pattern.search(name) for name in configs.functions):
            raise InputError(f"{configs.source}: starts what is said to it; {not_given([*configs.arguments.missing])}")
        configs.undecided.clear()  # of what is not taken
        configs.arguments.missing.clear()
    function = function or the_recipe(configs, pattern, starts)
    found = configs.read(function)
    return function, started[0] if started and not isinstance(found, Built) else found


def the_recipe(configs: PythonConfigs, pattern: re.Pattern[str], starts: Collection[str] = ()) -> str:
    """The one function of pre-training in a file, or the one that starts a training; InputError where there are
    several or none."""
    made = [name for name in configs.functions if pattern.search(name) and not name.startswith("_")]
    made = made or configs.calling(starts)
    if len(made) != 1:
        source = configs.source
        whole = [name for name in configs.functions if configs.is_whole(name)][:20]
        raise InputError(
            f"{source}: has {'several recipes' if made else 'no recipe of pre-training'}; name one behind a colon, as "
            f"in {source}:{(made or whole or ['NAME'])[0]}"
            + (f" (it has {listed(made or whole)})" if made or whole else "")
            + _imports_no_decoder(configs)
        )
    return made[0]


def _imports_no_decoder(configs: PythonConfigs) -> str:
    """That a file imports a model which is no decoder, where it does."""
    for name in configs.imported_as(_OF_MODELS):
        if against := no_decoder(f"{configs.module_of(name)}.{name}"):
            return f"; {name}, which it imports, {against}"
    return ""


def told_gpus(function: str, text: str) -> int | None:
    """The number of GPUs that a recipe's name says, or the commands in a script's own words that start it; None where
    nothing does, or they say several."""
    if told := _GPUS.search(function):
        return int(told[1])
    commands = _STARTED.findall(text.replace("\\\n", " ")) if function == _SCRIPT else []
    said = [(re.search(r"--nproc[-_]per[-_]node[= ](\d{1,4})\b", each), each) for each in commands]
    nodes = [(found, re.search(r"--nnodes[= ](\S+)", each)) for found, each in said if found]
    sizes = {int(each[1]) * (int(of[1]) if of and of[1].isdecimal() else 1) for each, of in nodes}
    unknown = any(of and not of[1].isdecimal() for _, of in nodes)
    return sizes.pop() if len(sizes) == 1 and not unknown else None


def of_another_file(what: str, called: str, module: str) -> InputError:
    """What to say of a recipe that a file takes from another one, which is not there."""
    if against := no_decoder(f"{module}.{called}"):
        return InputError(f"{what}, whose model {against}")
    if not module:
        return InputError(f"{what}, which it does not say")
    return InputError(f"{what} {not_beside(module)}")


def not_beside(module: str) -> str:
    """That a module is not there, and where its file would be looked for."""
    path, *_ = files_of(module)
    or_so = f"{path} or {path.removesuffix('.py')}/__init__.py"
    return f"of {module}, which is not beside it; put {or_so}, with what it imports, there or in a folder around it"
