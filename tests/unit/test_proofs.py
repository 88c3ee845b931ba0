"""What the proofs accept, and the broken measurement that each must reject."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from proofs import (
    CHECKS,
    DEGRADED,
    FAILURES,
    NOT_READY,
    READY,
    SOFTWARE_ONLY,
    WORK,
    conclude,
    cudnn_number,
    judge,
    receipt,
    runs_on,
    same_receipt,
    verdict_of,
    verdict_text,
)

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/unit/fixtures/measurements"
BROKEN: list[dict[str, Any]] = json.loads((FIXTURES / "broken.json").read_text(encoding="utf-8"))["cases"]
ALL = sorted(json.loads((FIXTURES / "expected.json").read_text(encoding="utf-8"))["components"])


def measured(name: str) -> dict[str, Any]:
    return dict(json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8")))


def wanted(base: str = "two_gpus", **changes: Any) -> dict[str, Any]:
    document = measured("expected")
    if base == "no_gpu":
        document["gpus"] = []
    return {**document, **changes}


def alter(document: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """Apply `set` and `delete` of a case of broken.json below `measurements`."""
    altered = copy.deepcopy(document)
    for path, value in [*(case.get("set") or {}).items(), *((path, None) for path in case.get("delete") or [])]:
        place: Any = altered["measurements"]
        *way, last = path.split("/") if not path.startswith("/") else [path]
        for part in way:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if path in (case.get("delete") or []):
            del place[last]
        else:
            place[int(last) if isinstance(place, list) else last] = value
    return altered


def proof(result: dict[str, Any], name: str) -> dict[str, Any]:
    return next(dict(one) for one in result["proofs"] if one["name"] == name)


def schema(name: str) -> Any:
    return json.loads((ROOT / f"docs/{name}.schema.json").read_text(encoding="utf-8"))


# --- what is accepted ------------------------------------------------------------------------------------------------


def test_a_host_whose_cards_did_the_work_is_ready() -> None:
    result = judge(measured("two_gpus"), wanted())
    assert result["verdict"] == READY
    assert {one["status"] for one in result["proofs"]} == {"pass"}


def test_a_host_without_gpus_is_software_only_and_says_why() -> None:
    result = judge(measured("no_gpu"), wanted("no_gpu"))
    assert result["verdict"] == SOFTWARE_ONLY
    skipped = {one["name"]: one["why"] for one in result["proofs"] if one["status"] == "skip"}
    assert set(skipped) == {check.name for check in CHECKS if check.gpu}
    assert set(skipped.values()) == {"this host has no GPU"}


def test_gpus_that_the_probe_did_not_see_are_proved_as_well() -> None:
    broken = alter(measured("two_gpus"), {"set": {"gpu_product/data/gpus": {}}})
    assert judge(broken, wanted(gpus=[]))["verdict"] == NOT_READY


@pytest.mark.parametrize("name", ["two_gpus", "no_gpu"])
def test_results_follow_their_schema(name: str) -> None:
    jsonschema.validate(measured(name), schema("measurements"))
    jsonschema.validate(judge(measured(name), wanted(name)), schema("proofs"))


# --- what is rejected ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case["name"])
def test_broken_measurement_is_rejected(case: dict[str, Any]) -> None:
    result = judge(alter(measured(case["base"]), case), wanted(case["base"], **(case.get("expected") or {})))
    found = proof(result, case["proof"])
    assert (found["status"], found["code"]) == (case["status"], case["code"])
    assert result["verdict"] == case["verdict"]
    assert found["whose"] == case.get("whose", found["whose"])
    assert found["why"] and found["next_step"] and found["whose"] in ("yours", "landlord's", "ours")
    assert case.get("says", "") in json.dumps(found, ensure_ascii=False)
    jsonschema.validate(result, schema("proofs"))
    assert found["code"] in verdict_text(result, "trainer")


def test_every_check_has_a_broken_fixture() -> None:
    assert {case["proof"] for case in BROKEN} == {check.name for check in CHECKS}


def test_every_check_rejects_what_could_not_be_measured_or_is_known_to_be_wrong() -> None:
    bad = {case["proof"] for case in BROKEN if case["status"] in ("fail", "unknown")}
    assert bad == {check.name for check in CHECKS}


def test_every_code_has_a_broken_fixture() -> None:
    assert {case["code"] for case in BROKEN} == set(FAILURES)


def test_broken_fixtures_differ_from_their_base() -> None:
    for case in BROKEN:
        changed = alter(measured(case["base"]), case) != measured(case["base"])
        assert changed or case.get("expected"), case["name"]


@pytest.mark.parametrize("base", ["two_gpus", "no_gpu"])
def test_a_missing_measurement_is_never_a_pass(base: str) -> None:
    whole = measured(base)
    for name in whole["measurements"]:
        result = judge(alter(whole, {"delete": [name]}), wanted(base))
        if name not in ("host", "libcuda") and not (base == "no_gpu" and name in ("driver", "simulated")):
            assert result["verdict"] == NOT_READY, name
            assert any(one["status"] == "unknown" for one in result["proofs"]), name


def test_garbage_in_place_of_data_is_never_a_pass() -> None:
    whole = measured("two_gpus")
    for name in whole["measurements"]:
        for garbage in (
            {},
            {"ok": True, "data": {}},
            {"ok": True, "data": {"gpus": 3, "smi": 5, "kinds": [], "marker": []}},
        ):
            result = judge(alter(whole, {"set": {name: garbage}}), wanted())
            if name not in ("host", "libcuda") and not (name == "simulated" and garbage.get("data") is not None):
                assert result["verdict"] == NOT_READY, (name, garbage)


# --- skips -----------------------------------------------------------------------------------------------------------


def test_components_that_were_not_chosen_are_skipped_and_do_not_stand_in_the_way() -> None:
    result = judge(measured("two_gpus"), wanted(components=["miniconda", "pytorch_stack"]))
    assert result["verdict"] == READY
    assert proof(result, "cudnn") == {
        "name": "cudnn",
        "component": "cudnn",
        "status": "skip",
        "wanted": "",
        "found": "",
        "why": "not chosen",
        "code": "",
        "whose": "",
        "next_step": "",
    }


def test_a_host_with_gpus_on_which_no_work_was_chosen_is_not_called_ready() -> None:
    result = judge(measured("two_gpus"), wanted(components=["shell_environment", "nvidia_driver"]))
    assert result["verdict"] == SOFTWARE_ONLY
    assert all(proof(result, name)["status"] == "skip" for name in WORK)


@pytest.mark.parametrize(
    "sign",
    [
        {"simulated/data/marker": "/etc/gpu-bootstrap-simulated-gpu"},
        {"simulated/data/variables": ["GPU_BOOTSTRAP_SIMULATED_GPU"]},
    ],
)
def test_a_simulated_gpu_never_makes_a_host_ready(sign: dict[str, Any]) -> None:
    result = judge(alter(measured("two_gpus"), {"set": sign}), wanted())
    assert result["verdict"] == SOFTWARE_ONLY
    assert result["simulated"] is True
    assert "simulated" in proof(result, "real_gpu")["why"]
    assert {one["status"] for one in result["proofs"] if one["name"] in (*WORK, "cuda")} == {"skip"}
    assert "software only (simulated GPU)" in verdict_text(result, "trainer")


def test_a_simulated_gpu_does_not_hide_a_failure() -> None:
    broken = alter(measured("two_gpus"), {"set": {"simulated/data/marker": "/etc/x", "driver/data/smi/rc": 9}})
    assert judge(broken, wanted())["verdict"] == NOT_READY


@pytest.mark.parametrize("why", ["this host has no GPU", "whatever"])
def test_one_skip_for_another_reason_than_the_choice_prevents_ready(why: str) -> None:
    proofs = judge(measured("two_gpus"), wanted())["proofs"]
    assert verdict_of(proofs) == READY
    assert (
        verdict_of([{**one, "status": "skip", "why": why} if one["name"] == "lora_step" else one for one in proofs])
        == SOFTWARE_ONLY
    )


def test_no_proof_at_all_is_not_ready() -> None:
    assert verdict_of([]) == NOT_READY


# --- requests that make no sense -------------------------------------------------------------------------------------


def test_a_document_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="schema_version"):
        judge({"measurements": {}}, wanted())
    with pytest.raises(ValueError, match="str"):
        judge("measurements", wanted())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "key", ["driver_min", "cuda", "cudnn", "cuda_home", "python", "torch", "torch_cuda", "packages"]
)
def test_an_expectation_that_is_missing_is_named(key: str) -> None:
    expected = wanted()
    del expected[key]
    with pytest.raises(ValueError, match=f"expected.{key}"):
        judge(measured("two_gpus"), expected)


def test_no_component_is_refused() -> None:
    with pytest.raises(ValueError, match="components"):
        judge(measured("no_gpu"), wanted(components=[]))


# --- receipts --------------------------------------------------------------------------------------------------------


def test_the_receipt_names_what_was_proved_for_which_state() -> None:
    result = judge(measured("two_gpus"), wanted())
    left = receipt(result, measured("two_gpus"), wanted())
    assert left["verdict"] == READY
    assert left["boot_id"] == measured("two_gpus")["measurements"]["host"]["data"]["boot_id"]
    assert left["driver_version"] == "550.163.01"
    assert left["gpu_uuids"] == ["GPU-00000000-1111-2222-3333-444455556666", "GPU-00000001-1111-2222-3333-444455556666"]
    assert left["components"] == ALL
    assert left["lock_sha256"] == "ab" * 32
    assert left["proofs"][0] == {"name": "driver", "status": "pass"}
    assert left["simulated"] is False


def test_a_host_that_is_not_ready_leaves_no_receipt() -> None:
    broken = alter(measured("no_gpu"), {"delete": ["torch"]})
    assert receipt(judge(broken, wanted("no_gpu")), broken, wanted("no_gpu")) == {}


def test_a_simulation_is_named_in_the_receipt() -> None:
    played = alter(measured("two_gpus"), {"set": {"simulated/data/marker": "/etc/gpu-bootstrap-simulated-gpu"}})
    assert receipt(judge(played, wanted()), played, wanted())["simulated"] is True


def test_receipts_are_the_same_whenever_the_proof_was_made() -> None:
    left = receipt(judge(measured("no_gpu"), wanted("no_gpu")), measured("no_gpu"), wanted("no_gpu"))
    assert same_receipt(left, {**left, "proved_at": "2026-12-02T00:00:00Z"})
    assert not same_receipt(left, {**left, "boot_id": "another"})
    assert not same_receipt({}, left)


def answer(document: dict[str, Any]) -> dict[str, Any]:
    return {"rc": 0, "stdout": json.dumps(document), "stderr": ""}


def test_a_receipt_that_proves_the_same_keeps_its_time() -> None:
    first = conclude(answer(measured("no_gpu")), wanted("no_gpu"))
    assert first["receipt_is_new"] is True
    again = conclude(
        answer({**measured("no_gpu"), "started_at": "2027-01-01T00:00:00Z"}),
        wanted("no_gpu"),
        json.dumps(first["receipt"]),
    )
    assert again["receipt_is_new"] is False
    assert again["receipt"] == first["receipt"]
    assert again["measurements"]["started_at"] == "2027-01-01T00:00:00Z"


@pytest.mark.parametrize("old", ["", "no json", "[]", '{"schema_version": 1}'])
def test_an_old_receipt_that_says_something_else_is_replaced(old: str) -> None:
    result = conclude(answer(measured("no_gpu")), wanted("no_gpu"), old)
    assert result["receipt_is_new"] is True
    assert result["receipt"]["verdict"] == SOFTWARE_ONLY


@pytest.mark.parametrize(
    "failed",
    [
        {"rc": 1, "stdout": "", "stderr": "Traceback\nSyntaxError: invalid syntax"},
        {"rc": None, "msg": "SyntaxError: timed out"},
        {"rc": 0, "stdout": "SyntaxError"},
    ],
)
def test_programs_that_print_no_document_prove_nothing(failed: dict[str, Any]) -> None:
    result = conclude(failed, wanted("no_gpu"), '{"verdict": "ready"}')
    assert result["verdict"] == NOT_READY
    assert result["receipt"] == {}
    assert result["receipt_is_new"] is False
    assert "SyntaxError" in proof(result, "torch_build")["found"]


# --- small rules -----------------------------------------------------------------------------------------------------


def test_degraded_comes_from_a_remark_only() -> None:
    noted = alter(measured("two_gpus"), {"set": {"environment/data/unmet": ["a 1 wants b>2, found 1"]}})
    assert judge(noted, wanted())["verdict"] == DEGRADED


@pytest.mark.parametrize(
    ("version", "number"), [("9.1.0.70", 90100), ("9.10.2.21", 91002), ("8.9.7.29", 8907), ("9.26.0.51", 92600)]
)
def test_cudnn_numbers(version: str, number: int) -> None:
    assert cudnn_number(version) == number


@pytest.mark.parametrize(
    ("listed", "card", "runs"),
    [
        (["sm_80", "sm_90"], "8.6", True),
        (["sm_86"], "8.0", False),
        (["sm_90"], "10.0", False),
        (["compute_90"], "12.0", True),
        (["sm_90a"], "9.0", True),
        (["sm_90a"], "9.1", False),
        (["sm_100"], "10.3", True),
        ([], "8.0", False),
        (["ptx", "sm_80"], "8.0", True),
    ],
)
def test_which_code_runs_on_which_card(listed: list[str], card: str, runs: bool) -> None:
    assert runs_on(listed, card) is runs


def test_codes_do_not_collide_with_those_of_the_plan() -> None:
    assert all(int(code.rsplit("-", 1)[1]) > 100 for code in FAILURES)
