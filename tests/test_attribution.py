"""Why one step is longer than another: causes sum to the difference, and each is what was changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Tiny
from hypothesis import given, settings
from test_fold import documents

import simcluster
from simcluster import plots
from simcluster.cli import main
from simcluster.results.result import Result
from simcluster.results.step_account import CAUSES
from simcluster.results.step_account import attribute_difference as attribute_accounts
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate


def attribute(base: Result, other: Result) -> dict[str, float]:
    return attribute_accounts(base.account, other.account)


def changed(causes: dict[str, float]) -> dict[str, float]:
    return {cause: seconds for cause, seconds in causes.items() if abs(seconds) > 1e-12}


@settings(max_examples=8)
@given(first=documents(), second=documents())
def test_causes_sum_to_the_difference(tiny: Tiny, first: dict[str, Any], second: dict[str, Any]) -> None:
    base, other = simulate(tiny(**first)), simulate(tiny(**second))
    causes = attribute(base, other)
    difference = other.step_time - base.step_time
    assert tuple(causes) == CAUSES
    assert sum(causes.values()) == pytest.approx(difference, rel=0, abs=1e-12)
    back = attribute(other, base)
    for cause, seconds in causes.items():
        assert back[cause] == pytest.approx(-seconds, rel=1e-9, abs=1e-12)
    for axis in ("tp", "cp", "ep", "pp", "dp"):
        exposed = [run.times.breakdown[f"exposed_{axis}"] for run in (base, other)]
        parts = sum(causes[f"{axis}_{reason}"] for reason in ("traffic", "hiding", "contention"))
        assert parts == pytest.approx(exposed[1] - exposed[0], rel=0, abs=1e-12)
    assert changed(attribute(base, base)) == {}


def run(tiny: Tiny, *, overlap: bool = False, bandwidth: float = 5, **sections: Any) -> Result:
    return simulate(
        tiny(
            cluster={"topology": "flat", "gpus": 4, "link": {"line_rate": f"{bandwidth} GB/s", "source": ""}},
            model={"layers": 8, "hidden_size": 512},
            overlap={"grad_reduce": overlap, "bucket_size": "1 MB"},
            **sections,
        )
    )


def test_slower_links_are_traffic(tiny: Tiny) -> None:
    plan = {"parallel": {"dp": 4}}
    causes = changed(attribute(run(tiny, **plan), run(tiny, bandwidth=2.5, **plan)))
    assert list(causes) == ["dp_traffic"]
    assert causes["dp_traffic"] > 0


def test_overlap_is_hiding(tiny: Tiny) -> None:
    plan = {"parallel": {"dp": 4}}
    causes = changed(attribute(run(tiny, **plan), run(tiny, overlap=True, **plan)))
    assert set(causes) == {"dp_hiding", "dp_traffic"}
    assert causes["dp_hiding"] < 0 < causes["dp_traffic"]  # several buckets pay more latency than one block


def test_two_axes_on_one_port_contend(tiny: Tiny) -> None:
    plan = {"parallel": {"tp": 2, "dp": 2}}
    causes = attribute(run(tiny, **plan), run(tiny, overlap=True, **plan))
    assert causes["tp_contention"] > 0
    assert causes["tp_traffic"] == pytest.approx(0, abs=1e-12)
    assert not any(causes[cause] for cause in ("interference", "cp_contention", "ep_contention", "pp_contention"))


def test_a_straggler_is_waiting(tiny: Tiny) -> None:
    def scenario(factor: float) -> Scenario:
        faults = [{"kind": "slow_gpu", "rank": 0, "factor": factor}]
        return tiny(cluster={"topology": "flat", "gpus": 4}, parallel={"dp": 4}, faults=faults)

    causes = changed(attribute(simulate(scenario(1.0)), simulate(scenario(2.0))))
    assert causes["straggler_wait"] > 0
    # the others are done before the slow one has updated its parameters: they wait for it to the end of the step
    assert set(causes) == {"forward", "backward", "optimizer", "straggler_wait"}


def test_compute_beside_communication_is_interference(tiny: Tiny) -> None:
    """Kernels that take half as long again beside gradients: not 'forward' or 'backward', which are as they were."""
    sections = {"parallel": {"dp": 4}, "overlap": {"grad_reduce": True, "bucket_size": "1 MB"}}

    def scenario(interference: Any) -> Scenario:
        overlap = {**sections["overlap"], "interference": interference}
        return tiny(cluster={"topology": "flat", "gpus": 4}, parallel=sections["parallel"], overlap=overlap)

    base, slowed = simulate(scenario("none")), simulate(scenario({"kind": "factor", "compute": 0.5}))
    causes = changed(attribute(base, slowed))
    assert causes["interference"] > 0
    assert not set(causes) & {"forward", "backward", "recompute", "optimizer"}
    assert sum(causes.values()) == pytest.approx(slowed.step_time - base.step_time, rel=0, abs=1e-12)
    path = slowed.critical_path
    assert path.seconds == slowed.step_time


def test_the_table_has_a_row_a_variant(tiny: Tiny) -> None:
    results = [run(tiny, parallel={"dp": 4}), run(tiny, parallel={"tp": 2, "dp": 2})]
    table = simcluster.differences(results, ["dp", "tp"])
    assert list(table.index) == ["dp", "tp"]
    assert (table.loc["dp"] == 0).all()
    assert table.loc["tp"].sum() == pytest.approx(results[1].step_time - results[0].step_time, abs=1e-12)
    with pytest.raises(simcluster.InputError, match="nothing to compare"):
        simcluster.differences([])


# --- pictures and commands --------------------------------------------------------------------------------------------


def test_pictures(tiny: Tiny, tmp_path: Path) -> None:
    results = [run(tiny, parallel={"dp": 4}), run(tiny, parallel={"tp": 2, "dp": 2}, overlap=True)]
    table = simcluster.differences(results, ["dp", "tp"])
    times = dict(zip(["dp", "tp"], [result.step_time for result in results], strict=True))
    figures = {
        "waterfall": plots.waterfall(times, table),
        "overlap": plots.overlap([("tp", results[1])]),
        "overlaps": plots.overlap(list(zip(["dp", "tp"], results, strict=True))),
        "critical": plots.critical_path(results[1]),
    }
    for name, figure in figures.items():
        plots.save_figure(figure, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    bars = figures["waterfall"].axes[0].patches
    first, *between, last = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars]
    assert first[1] == pytest.approx(times["dp"])
    assert last[1] == pytest.approx(times["tp"])
    level = first[1]
    for start, end in between:  # each begins where the one before ended
        assert start == pytest.approx(level)
        level = end
    assert level == pytest.approx(times["tp"])


def test_nothing_to_draw(tiny: Tiny) -> None:
    alone = simulate(tiny())
    with pytest.raises(simcluster.InputError, match="no rank of this step communicates"):
        plots.overlap([("alone", alone)])
    with pytest.raises(simcluster.InputError, match="at least two scenarios"):
        plots.waterfall({"a": 1.0}, simcluster.differences([alone], ["a"]))
    assert plots.critical_path(alone).axes


def test_compare_attributes_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(tmp_path / name) for name in ("w.png", "o.png")]
    arguments = ["compare", "tiny_3d", "--vary", "overlap.tensor=false,true"]
    assert main([*arguments, "--waterfall", names[0], "--overlap", names[1]]) == 0
    shown = capsys.readouterr().out
    assert "causes of the difference from" in shown
    assert "causes of the change in exposed communication from" in shown
    assert "tp hiding" in shown
    assert all(Path(name).stat().st_size > 10_000 for name in names)
    assert main(["compare", "tiny_3d", "--waterfall", names[0]]) == 2
    assert "at least two scenarios" in capsys.readouterr().err


def test_run_explains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(tmp_path / name) for name in ("c.png", "o.svg", "r.json")]
    options = ["--explain", "--critical", names[0], "--overlap", names[1], "--json", names[2]]
    assert main(["run", "tiny_3d", *options]) == 0
    shown = capsys.readouterr().out
    for words in ("where the step time went", "on the wire", "critical path of the step", "without", "represents"):
        assert words in shown
    assert Path(names[0]).stat().st_size > 10_000
    assert Path(names[1]).read_text().startswith("<?xml")
    found = json.loads(Path(names[2]).read_text())
    free = found["step_time_if_free_s"]
    assert list(free)[-1] == "communication"
    assert all(seconds <= found["step_time_s"] for seconds in free.values())
    assert sum(found["critical_path_s"].values()) == pytest.approx(found["step_time_s"], rel=1e-12)
