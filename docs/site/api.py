"""Pages of the Python functions, one per task, with text from their docstrings."""

from __future__ import annotations

from pathlib import Path

import simcluster

TASKS: dict[str, tuple[str, tuple[str, ...]]] = {  # a page: what it is for, and its names in simcluster
    "Scenarios": (
        "Load, change and check scenario files.",
        ("scenario", "Scenario", "load_cluster", "first_scenario", "scenario_schema", "list_names",
         "InputError"),
    ),
    "Simulate a step": (
        "Simulate one step and read its numbers.", ("simulate", "Result", "monte_carlo", "no_time_limit"),
    ),
    "Compare and search": (
        "Compare variants, sweep over values, find the fastest layout.",
        ("compare", "differences", "compare_replicas", "sweep", "plan"),
    ),
    "Diagnose": (
        "Find what slows a step, what does not fit, and which change pays.",
        ("diff", "replay_trace", "stragglers", "mitigations", "what_if_free", "sensitivity", "inflation", "check",
         "kernels", "job_memory", "largest_that_fits", "zero_stages"),
    ),
    "Pictures and pages": ("Draw, report, export.", ("plots", "report", "studio", "write_trace")),
    "Long runs": (
        "Simulate weeks of training, with failures and checkpoints.",
        ("train", "train_stages", "compare_policies", "replay_failures"),
    ),
    "Budget": (
        "Estimate cost and loss; compare packing rules; evaluate closed forms.",
        ("estimate_training", "compute_optimal", "compare_packing", "formulas"),
    ),
    "Trust": ("Compare simulations with measured runs.", ("validate_studies",)),
    "Parts": (
        "Simulate one part alone: a schedule, a collective, given pass times, or several jobs on a cluster.",
        ("simulate_schedules", "collective_times", "simulate_costs", "Costs", "simulate_jobs"),
    ),
}  # fmt: skip
_WITH_MEMBERS = ("formulas", "plots", "Result", "Scenario", "Costs")


def api_pages(root: Path) -> dict[str, str]:
    """Return one page per task, and an index; public names that no task has are on the page "Other"."""
    del root
    known = {name for _, names in TASKS.values() for name in names}
    other = tuple(sorted(set(simcluster.__all__) - known))
    tasks = {**TASKS, **({"Other": ("Other functions.", other)} if other else {})}
    tasks = {
        title: (about, tuple(name for name in names if name in simcluster.__all__))
        for title, (about, names) in tasks.items()
    }
    pages = {f"api/{_slug(title)}.md": _page(title, *task) for title, task in tasks.items()}
    return {"api/index.md": _index(tasks), **pages}


def _slug(title: str) -> str:
    return title.lower().replace(" ", "-")


def _index(tasks: dict[str, tuple[str, tuple[str, ...]]]) -> str:
    rows = [
        f"| [{title}]({_slug(title)}.md) | {about} | {', '.join(f'`{name}`' for name in names)} |"
        for title, (about, names) in tasks.items()
    ]
    text = ["# Python functions", "", str(simcluster.__doc__).strip(), "", "| task | use | `simcluster.` |"]
    return "\n".join([*text, "|---|---|---|", *rows]) + "\n"


def _page(title: str, about: str, names: tuple[str, ...]) -> str:
    parts = [f"# {title}\n\n{about}\n"]
    for name in names:
        home = simcluster._MODULE_OF_NAME[name]
        thing = home if name in ("formulas", "plots") else f"{home}.{name}"
        members = "true" if name in _WITH_MEMBERS else "false"
        parts.append(f"::: {thing}\n    options:\n      heading: simcluster.{name}\n      members: {members}\n")
    return "\n".join(parts)
