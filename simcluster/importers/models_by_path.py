"""The model that a recipe names by its place on Hugging Face: one known here, or that of a config.json beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers.beside import Beside
from simcluster.importers.hugging_face import (
    USUAL_LENGTH,
    assumptions_of_config,
    keys_of_config,
    model_at_usual_length,
    parse_config,
)
from simcluster.importers.model_classes import model_called, no_decoder
from simcluster.importers.published_models import model_sizes, published_model


@dataclass(frozen=True)
class NamedModel:
    """A model by its name: its section of a scenario, what is assumed of it, and keys of its config that are not known.

    ``name`` is empty for one that has none, and whose fields have to say it.  ``length`` is what is assumed of the
    length of sequences where nothing states it.
    """

    name: str = ""
    section: Mapping[str, Any] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    length: str = ""


def model_published(name: str) -> NamedModel:
    """Return a model that is known here by its name, with sequences of ``USUAL_LENGTH`` at most; none for no name."""
    if not name:
        return NamedModel()
    section, length = published_model(name), min(model_sizes(name)["sequence_length"], USUAL_LENGTH)
    section |= {} if "preset" in section else {"sequence_length": length}
    return NamedModel(name, section, length=f"sequences of {length} tokens")


def model_named(name: str, source: str, beside: Beside) -> NamedModel:
    """The model by its name on Hugging Face, none where none is named.

    InputError for one that is not known here, where no config.json says its sizes: in a folder of that name beside the
    file, or in the file's own.
    """
    if not name or (found := model_called(name)):
        return model_published(found if name else "")
    what = f"{source}: the model {name[:60]!r} of the recipe"
    if against := no_decoder(name.rstrip("/").rpartition("/")[2]):
        raise InputError(f"{what} {against}")
    if (text := beside(f"{name}/config.json")) is None:
        raise InputError(
            f"{what} is not known here: only its name is said, not its sizes; put its config.json beside the file, or "
            f"in a folder {name[:60]} there (one that is known is named as on Hugging Face: Qwen/Qwen3-8B)"
        )
    config = parse_config(text, f"{name[:60]}/config.json")
    try:
        section, length = model_at_usual_length(config)
        unknown = keys_of_config(config, sequence_length=section["sequence_length"])[2]
        assumed = assumptions_of_config(config)
    except InputError as problem:
        raise InputError(f"{what} is that of the config.json beside it: {problem}") from None
    said = f"the model {name[:60]} is that of the config.json beside the file"
    return NamedModel(name, section, (said, *assumed), tuple(f"{key} of config.json" for key in unknown), length)
