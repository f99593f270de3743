"""The documents say what is so: citations, keys of results, words of the glossary and commands of CI."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simcluster import simulate
from simcluster.longrun.studies.periodic_work import periodic_work_answer
from simcluster.results.distribution import Distribution
from simcluster.results.timeline import COLUMNS
from simcluster.scenario.scenario import load
from simcluster.studies.whatif.folding_verification import verify_folding
from simcluster.studies.whatif.free_ops import what_if_free
from simcluster.studies.whatif.monte_carlo_study import monte_carlo

ROOT = Path(__file__).parent.parent
MODELLING, CONTRACT, GLOSSARY = "docs/MODELLING.md", "docs/CONTRACT.md", "docs/GLOSSARY.md"
CONTRIBUTING = "CONTRIBUTING.md"
_MARK = re.compile(r"(modelling|contract)\.md", re.IGNORECASE)
_SECTION = re.compile(r"[A-I]\.\d+")


def files() -> Iterator[Path]:
    for folder in ("simcluster", "tests", "notebooks"):
        yield from (path for path in sorted((ROOT / folder).rglob("*.py")) if path != Path(__file__))
    yield from (path for path in sorted((ROOT / "scenarios").rglob("*.yaml")))
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").glob("*.md"))


@cache
def citations() -> tuple[tuple[str, str, str], ...]:
    """(file, document, what stands behind it) of every citation."""
    found = []
    for path in files():
        text = re.sub(r"\s+", " ", path.read_text())
        for mark in _MARK.finditer(text):
            cited = re.match(r"[ ,:]*((?:[A-I]\.\d+(?:,| and| to|\.| )*)*)", text[mark.end() :])
            assert cited is not None
            found.append((path.relative_to(ROOT).as_posix(), mark[0], cited[1]))
    return tuple(found)


def sections(document: str) -> set[str]:
    """The numbers of a document's headings, and of the items that begin with one in bold."""
    text = (ROOT / document).read_text()
    headings = re.findall(r"^#+ ([A-I]\.\d+)\b", text, re.MULTILINE)
    return {*headings, *re.findall(r"^\* \*\*([A-I]\.\d+)\*\*", text, re.MULTILINE)}


def test_citations_are_spelled_as_the_files_are() -> None:
    assert len(citations()) > 80
    assert [each for each in citations() if each[1] not in ("MODELLING.md", "CONTRACT.md")] == []


def test_every_cited_section_exists() -> None:
    there = sections(MODELLING)
    assert {"A.1", "C.2", "D.7", "H.40", "I.5"} <= there
    own = [(file, text) for file, name, text in citations() if name == "MODELLING.md"]
    cited = {(section, file) for file, text in own for section in _SECTION.findall(text)}
    assert len({section for section, _ in cited}) > 25
    assert [each for each in sorted(cited) if each[0] not in there] == []


def test_the_documents_point_at_files_that_are_there() -> None:
    """`planning/stage_programs.py` is the package's."""
    for document in (MODELLING, CONTRACT, GLOSSARY, CONTRIBUTING):
        text = (ROOT / document).read_text()
        for name in re.findall(r"`(\w+/[\w/]*(?:\.py)?)`", text):
            assert (ROOT / "simcluster" / name).exists() or (ROOT / name).exists(), name


# --- the result JSON --------------------------------------------------------------------------------------------------


def described(heading: str) -> set[str]:
    """The names in the first column of the tables under a heading of the contract."""
    text = (ROOT / CONTRACT).read_text()
    part = re.split(r"^## ", text, flags=re.MULTILINE)
    own = next(each for each in part if each.startswith(heading))
    return {*re.findall(r"^\| `([^`]+)` \|", own, re.MULTILINE)}


def test_no_table_of_the_contract_has_a_key_twice() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", (ROOT / CONTRACT).read_text(), re.MULTILINE)
    rows = [re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE) for table in tables]
    assert len(rows) > 15
    assert [name for names in rows for name in names if names.count(name) > 1] == []


WHOLE = ("scenario", "fits_with.remedies[].set", "fits_with.closest", "notes[].set")
"""Objects that are described as one."""


def keys(value: object, before: str = "") -> Iterator[str]:
    """Every key, with dots and brackets; of an empty object or list the name alone."""
    if isinstance(value, Mapping) and value and before not in WHOLE:
        for name, inner in value.items():
            yield from keys(inner, f"{before}.{name}" if before else name)
    elif isinstance(value, list | tuple) and any(isinstance(inner, Mapping) for inner in value):
        for inner in value:
            yield from keys(inner, f"{before}[]")
    else:
        yield before


def undescribed(section: str, *documents: Any) -> list[str]:
    """Return the keys of JSON documents that a section of CONTRACT.md lacks, and those that it names in vain."""
    names = described(section)
    found = {key for each in documents for key in keys(json.loads(json.dumps(each, allow_nan=False)))}
    lacking = [key for key in found if not is_described(key, names)]
    return sorted([*lacking, *(name for name in names if not any(is_described(key, {name}) for key in found))])


def is_described(key: str, names: set[str]) -> bool:
    if key in names or any(name.startswith((f"{key}.", f"{key}[]")) for name in names):
        return True
    parts = key.split(".")
    return any(
        len(other) == len(parts) and all(one in (own, "*") for one, own in zip(other, parts, strict=True))
        for other in (name.split(".") for name in names)
    )


@cache
def results() -> tuple[Mapping[str, Any], ...]:
    """Results that between them have every key: one that does not fit, one with copies and chance."""
    batch = {"training.global_batch": 8}
    wide = {"model.layers": 8, "model.hidden_size": 16384, "model.ffn_hidden_size": 65536}
    full = simulate(load("tiny_3d", {**batch, **wide}))
    jitter = {"kind": "jitter", "factor": {"kind": "normal", "sigma": 0.1}}
    moving = load("tiny_3d", {**batch, "memory.offload.activations": 0.9, "faults": [jitter], "replicas": 3})
    run = {"days": "1 d", "checkpoint": {"stall": "1 s", "every": "80 steps"}, "validation": {"every": 1000}}
    loaded = simulate(load("tiny_dp", {"data.loader.batch": "1 s", "run": run}))
    result = simulate(moving)
    chance: Distribution = monte_carlo(moving)
    found = what_if_free(result)
    free = {each.kind: each.step_time for each in found}
    longer = {each.kind: each.note for each in found if each.note}
    asked = {"step_time_if_free_s": free, "longer_if_free": longer, "step_time_distribution_s": chance.to_dict()}
    more = {"loader": loaded.to_dict()["loader"], **periodic_work_answer(loaded)[1]}
    verified = {"verified": verify_folding(load("tiny_3d", batch)).to_dict()}
    return full.to_dict(), {**result.to_dict(), **asked, **more, **verified}


def test_every_key_of_a_result_is_described() -> None:
    assert [fits["fits"] for fits in results()] == [False, True]
    names = described("Result JSON")
    assert [key for result in results() for key in keys(result) if not is_described(key, names)] == []


def test_the_contract_describes_nothing_that_no_result_has() -> None:
    found = {key for result in results() for key in keys(result)}
    found |= {key.partition(".")[0] for key in found}
    assert [name for name in described("Result JSON") if not any(is_described(key, {name}) for key in found)] == []


def test_a_key_that_is_not_described_is_noticed() -> None:
    names = described("Result JSON")
    assert not is_described("goodput", names)
    assert not is_described("breakdown_s.exposed_xp", names)
    assert not is_described("overlap[].colour", names)


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_of_the_timeline_is_described(name: str) -> None:
    assert name in described("Timeline")


# --- the words, and how to take part ----------------------------------------------------------------------------------


def entries() -> list[str]:
    return re.findall(r"^\*\*([^*]+)\*\*: ", (ROOT / GLOSSARY).read_text(), re.MULTILINE)


@cache
def said() -> str:
    """What the package says, in names and docstrings: lower case, one blank between words."""
    text = " ".join(path.read_text() for path in sorted((ROOT / "simcluster").rglob("*.py")))
    return re.sub(r"[\s_]+", " ", text).lower()


def is_said(word: str) -> bool:
    return re.search(rf"\b{re.escape(word.lower())}", said()) is not None


def test_the_glossary_is_a_short_list_in_alphabetical_order() -> None:
    assert 50 <= len(entries()) <= 75
    assert entries() == sorted(set(entries()), key=str.lower)
    assert entries() == re.findall(r"^\*\*(.*?)\*\*", (ROOT / GLOSSARY).read_text(), re.MULTILINE)


def test_the_package_uses_the_words_of_the_glossary() -> None:
    assert [word for word in entries() if not is_said(word)] == []
    assert not is_said("superscalar")


def test_readme_names_every_document() -> None:
    text = (ROOT / "README.md").read_text()
    assert [name for name in (MODELLING, CONTRACT, GLOSSARY, CONTRIBUTING) if f"]({name})" not in text] == []


def test_ci_runs_what_contributors_are_told_to_run() -> None:
    """Every command, in that order; CI may say it more quietly."""
    (block,) = re.findall(r"^```bash\n(.*?)^```", (ROOT / CONTRIBUTING).read_text(), re.DOTALL | re.MULTILINE)
    told = [line.partition("  #")[0].strip() for line in block.splitlines()]
    runs = (ROOT / ".ci" / "run").read_text().replace(" --quiet", "").splitlines()
    run = [line.partition("  #")[0].strip() for line in runs]
    assert len(told) == 8
    assert [line for line in run if line in told] == told


def test_github_runs_what_ci_runs() -> None:
    from simcluster.documents.yaml_documents import read_document

    jobs = read_document(ROOT / ".github" / "workflows" / "ci.yml").data["jobs"]
    assert [step["run"] for step in jobs["checks"]["steps"] if "run" in step] == [".ci/run"]


def test_links_of_the_documents_lead_to_files() -> None:
    """The site's own build holds their anchors, too."""
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "examples" / "README.md"):
        links = re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", path.read_text())
        assert [link for link in links if not (path.parent / link).exists()] == [], path.name
