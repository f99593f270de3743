"""README, the pages of docs, pictures and the notebooks against what the program says now.

  python tests/documents                            what is stale; exit status 1 if anything is
  python tests/documents --regenerate               write figures and outputs, draw pictures, run the notebooks
  python tests/documents --regenerate notebooks     only some of: readme pictures notebooks
  python tests/documents --scores DIR               score all studies anew with the tables in DIR (ten minutes); writes
                                                    scores.json and the intervals of `run`; then --regenerate
  python tests/documents --commands                 run every command of README and docs (minutes)

growth.png and the table of benchmarks are measured, not computed: tests/benchmarks has their commands.
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from documents import accepted, commands, figures, notebooks, pictures, played, readme, scores

PARTS = ("readme", "pictures", "notebooks")


def stale(parts: list[str]) -> list[str]:
    """All that differs from a fresh run, by document."""
    found = []
    if "readme" in parts:
        found += [f"README.md, docs: {what}" for what in figures.all_stale()]
        found += [f"{page.name}: {what}" for page in played.PAGES for what in played.stale(page)]
    if "pictures" in parts:
        found += [f"{name}.png: {what}" for name in pictures.DRAWN for what in pictures.stale(name)]
        found += [f"{name}.png: {what}" for name, study in pictures.PLAYED.items() for what in study.stale()]
    if "notebooks" in parts:
        for source in notebooks.SOURCES:
            fresh = notebooks.executed(source, paint=False)
            found += [f"{source.stem}.ipynb: {what}" for what in notebooks.stale(source, fresh)]
    return found


def regenerate(parts: list[str]) -> None:
    """Write what is asked for."""
    if "readme" in parts:
        readme.write(figures.all_renewed(readme.text()))
        print("wrote README.md and docs", flush=True)
        for page in played.PAGES:
            page.write_text(played.renewed(page), encoding="utf-8")
            print(f"played {page.name}", flush=True)
    for name in pictures.DRAWN if "pictures" in parts else ():
        pictures.draw(name)
        print(f"drew {name}.png: {pictures.command_of(name)}", flush=True)
    for name, study in pictures.PLAYED.items() if "pictures" in parts else ():
        study.draw()
        print(f"drew {name}.png: {study.COMMAND}", flush=True)
    for source in notebooks.SOURCES if "notebooks" in parts else ():
        notebooks.store(source)
        print(f"ran {source.stem}.ipynb", flush=True)


def run_commands() -> int:
    """Run the commands of README and the pages for good; says which failed."""
    failed = 0
    for page in played.PAGES:
        played.printed(page, every=True)
        print(f"0  {page.name}", flush=True)
    for command in dict.fromkeys([*readme.commands(), *readme.in_tables()]):
        if accepted.wants(command) is None:
            with tempfile.TemporaryDirectory() as folder:
                done = commands.run_in(Path(folder), command, paint=True)
            failed += done.status != 0
            print(f"{done.status}  {command}  {done.errors.strip() if done.status else ''}", flush=True)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser("documents", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--regenerate", action="store_true")
    parser.add_argument("--scores", metavar="DIR")
    parser.add_argument("--commands", action="store_true")
    parser.add_argument("--accepted", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    parts = args.parts or list(PARTS)
    if args.accepted:
        drawn = {pictures.command_of(name) for name in pictures.DRAWN}  # run whenever pictures are looked at
        asked = [each for each in (*readme.commands(), *readme.in_tables()) if each not in drawn]
        print(json.dumps({each: accepted.outcome(each) for each in dict.fromkeys(asked)}))
        return 0
    if args.commands:
        return run_commands()
    if args.scores:
        scores.score_all(str(Path(args.scores).resolve()))
        print(f"wrote {scores.FILE.name} and {scores.RESIDUALS.name}; now --regenerate")
        return 0
    if args.regenerate:
        regenerate(parts)
        return 0
    found = stale(parts)
    print(
        "\n".join(
            [*found, f"{len(found)} stale; python tests/documents --regenerate"] if found else ["nothing is stale"]
        )
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
