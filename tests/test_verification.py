"""``simcluster run --verify``: a folded run compared with one of every rank."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Tiny

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.planning.disturbances import UNDISTURBED
from simcluster.scenario.scenario import load
from simcluster.studies.whatif.folding_verification import reduce_replicas, verify_folding
from simcluster.symmetry.folding import FoldedJob, SymmetryFinder

SLOW = {"kind": "slow_gpu", "rank": 3, "factor": 1.5}


def job(tiny: Tiny, **changes: Any) -> Any:
    return tiny(**{"gpus": 8, "cluster": {"topology": "dgx_h100", "nodes": 1}, "parallel": {"tp": 2, "pp": 2},
                   "training": {"global_batch": 4}, **changes})  # fmt: skip


@pytest.mark.parametrize(("faults", "representatives"), [([], 2), ([SLOW], 8)])
@pytest.mark.parametrize(("engine", "by"), [("auto", "compiled"), ("compiled", "compiled"), ("simpy", "simpy")])
def test_equal_runs(tiny: Tiny, faults: list[Any], representatives: int, engine: str, by: str) -> None:
    found = verify_folding(job(tiny, faults=faults, engine=engine))
    assert (found.difference, found.ranks, found.total, found.engine) == ("", 8, 8, by)
    assert found.representatives == representatives
    assert found.spans > 100


def fold_without_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let folding overlook what is wrong with ranks."""
    folding = SymmetryFinder.fold_job

    def overlooking(self: SymmetryFinder, capacity: Any, slowness: Any, disturbances: Any = UNDISTURBED) -> FoldedJob:
        return folding(self, capacity, [1.0] * len(slowness))

    monkeypatch.setattr(SymmetryFinder, "fold_job", overlooking)


def test_the_first_op_that_differs_is_named(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    fold_without_faults(monkeypatch)
    found = verify_folding(job(tiny, faults=[SLOW]))
    assert found.representatives == 2
    assert found.difference.startswith("rank 0, ")
    assert " when folded, " in found.difference


def test_the_command_ends_with_status_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["run", "tiny_3d", "--verify", "--set", f"faults=[{json.dumps({**SLOW, 'rank': 1})}]"]
    assert main(command) == 0
    assert "compared 8 representatives with all of 8 ranks, both by the compiled engine: all 2,064 spans are equal" in (
        capsys.readouterr().out
    )
    fold_without_faults(monkeypatch)
    assert main([*command, "--json", "-"]) == 1
    said = capsys.readouterr()
    verified = json.loads(said.out)["verified"]
    assert verified["difference"] in said.err
    assert verified["difference"].startswith("rank ")


def test_a_large_job_is_verified_with_fewer_replicas() -> None:
    scenario = load("llama3_405b_1024xh100")
    fewer = reduce_replicas(scenario)
    assert (fewer.gpus, fewer.dp, fewer.microbatches) == (512, scenario.dp // 2, scenario.microbatches)
    assert reduce_replicas(fewer) is fewer


def test_one_replica_may_be_too_large() -> None:
    with pytest.raises(
        InputError,
        match=r"--verify simulates at most 512 ranks .* this job has 16,384 ranks, .* one replica has 2,048 ranks",
    ):
        reduce_replicas(load("llama3_405b_128k_16384xh100"))


@pytest.mark.parametrize("never", [{"collectives": {"detail": "steps"}}, {"engine": "reference"}])
def test_a_job_that_is_never_folded_is_rejected(tiny: Tiny, never: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="every rank of this job is simulated already"):
        verify_folding(job(tiny, **never))
