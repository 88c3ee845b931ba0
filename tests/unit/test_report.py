"""Reports: one document for each host, whatever is known of it; Markdown is held by golden files."""

from __future__ import annotations

import copy
import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import plan_world
import planning
import proofs
from report import (
    fleet_summary,
    folder,
    read_reports,
    report_document,
    report_documents,
    report_files,
    report_markdown,
    report_path,
)
from save_documents import differs, place, text_of, write

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/unit/fixtures"
SCHEMA = json.loads((ROOT / "docs/report.schema.json").read_text(encoding="utf-8"))
EVIL = "<script>alert(1)</script> | \x1b[31m`x` [a](javascript:b)\nsecond line"


def load(name: str) -> dict[str, Any]:
    return dict(json.loads((FIXTURES / name).read_text(encoding="utf-8")))


def planned(probe: dict[str, Any], host: str = "trainer-1", **settings: Any) -> dict[str, Any]:
    return planning.plan(probe, {"stack": "cu124", **settings}, plan_world.data(), host)


def proved(plan: dict[str, Any], measurements: dict[str, Any]) -> dict[str, Any]:
    expected = {**plan["verify"]["expected"], "cuda_home": plan["verify"]["cuda_home"]}
    return proofs.conclude({"rc": 0, "stdout": json.dumps(measurements)}, expected)


def world(kind: str) -> dict[str, Any]:
    """What is known of a host of some kind: {probe, plan, result, failure}."""
    if kind == "ready":
        probe = plan_world.container(driver="550.163.01", gpu="NVIDIA A100-SXM4-80GB", capability="8.0", count=2)
        plan = planned(probe)
        return {"probe": probe, "plan": plan, "result": proved(plan, load("measurements/two_gpus.json")), "failure": {}}
    if kind in ("software_only", "not_ready", "simulated", "not_proved", "failed"):
        probe = plan_world.probe(gpus=[], driver={"loaded_version": None, "smi": None, "device_nodes": []})
        plan = planned(probe, work_dir="/data")
        measurements = load("measurements/no_gpu.json")
        result: dict[str, Any] = {}
        failure = {}
        if kind == "software_only":
            result = proved(plan, measurements)
        if kind == "not_ready":
            measurements["measurements"]["torch"]["data"].update(version="2.7.0", cuda=None)
            result = proved(plan, measurements)
            failure = {"task": "verify : receipt | Say what failed", "message": "trainer-1: not ready"}
        if kind == "simulated":
            measurements["measurements"]["simulated"]["data"]["marker"] = "/etc/gpu-bootstrap-simulated-gpu"
            result = proved(plan, measurements)
        if kind == "failed":
            failure = {
                "task": "cuda_toolkit : install | Run the installer",
                "message": "rc 1\nExtraction failed: no space left on device",
            }
        return {"probe": probe, "plan": plan, "result": result, "failure": failure}
    if kind == "refused":
        probe = plan_world.probe(
            os={
                "id": "debian",
                "version_id": "13",
                "codename": "trixie",
                "pretty_name": "Debian GNU/Linux 13 (trixie)",
            },
            glibc="2.41",
        )
        return {"probe": probe, "plan": planned(probe), "result": {}, "failure": {}}
    return {}


def document(kind: str, host: str = "trainer-1") -> dict[str, Any]:
    return report_documents({host: world(kind)})[0]


KINDS = {
    "ready": "ready",
    "software_only": "software only",
    "not_ready": "not ready",
    "simulated": "software only",
    "not_proved": "not proved",
    "failed": "not ready",
    "refused": "refused",
    "unreachable": "unreachable",
}


# --- the document ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "verdict"), KINDS.items())
def test_every_kind_of_host_has_a_report_that_follows_the_schema(kind: str, verdict: str) -> None:
    found = document(kind)
    jsonschema.validate(found, SCHEMA)
    assert found["verdict"] == verdict
    assert found["reason"] or verdict == "ready"


def test_a_document_that_is_no_report_is_rejected_by_the_schema() -> None:
    for broken in ({**document("ready"), "verdict": "green"}, {**document("ready"), "extra": 1}, {"schema_version": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, SCHEMA)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("software_only", "this host has no GPU"),
        ("simulated", "the GPU is simulated"),
        ("not_ready", "torch_build GB-TORCH-102: torch is a build without CUDA: torch 2.7.0 for the CPU"),
        ("failed", "cuda_toolkit : install | Run the installer: rc 1 Extraction failed: no space left on device"),
        ("unreachable", "the host could not be reached"),
        ("not_proved", "nothing was proved in this run"),
    ],
)
def test_the_first_reason_is_told(kind: str, reason: str) -> None:
    assert document(kind)["reason"] == reason


def test_a_refusal_is_the_reason_with_its_code() -> None:
    assert document("refused")["reason"].startswith("GB-OS-002: ")
    assert document("refused")["start"] == []


def test_versions_are_those_that_were_measured() -> None:
    rows = {row["what"]: (row["wanted"], row["found"]) for row in document("software_only")["versions"]}
    assert rows["CUDA toolkit"] == ("12.4.1", "nvcc 12.4.131")
    assert rows["torch"] == ("2.6.0 (CUDA 12.4)", "2.6.0+cu124 (CUDA 12.4)")
    assert rows["huggingface-hub"] == ("0.30.2", "0.30.2")
    assert rows["NVIDIA driver"] == ("none", "none")


def test_start_commands_are_those_of_this_host() -> None:
    one = "\n".join(line for block in document("ready")["start"] for line in block["lines"])
    assert "source /opt/miniconda3/bin/activate cu124" in one
    assert "accelerate launch --num_processes=2 --multi_gpu train.py" in one
    other = "\n".join(line for block in document("software_only")["start"] for line in block["lines"])
    assert "/data/miniconda3/envs/cu124/bin/python train.py" in other
    assert "accelerate" not in other


def test_components_that_were_not_chosen_are_not_spoken_of() -> None:
    probe = plan_world.probe()
    found = report_document("h", probe, planned(probe, components=["cuda_toolkit"]), {})
    assert [row["what"] for row in found["versions"]] == ["CUDA toolkit"]
    assert "activate" not in json.dumps(found["start"])
    assert "cuda_home" not in found["paths"]


# --- a proof that still holds ----------------------------------------------------------------------------------------


def again(before: dict[str, Any]) -> dict[str, Any]:
    """The same host in a later run that finds nothing to do: what is known of the proof is its receipt."""
    return {
        **before,
        "plan": {**before["plan"], "status": "nothing"},
        "result": copy.deepcopy(before["result"]["receipt"]),
    }


@pytest.mark.parametrize("kind", ["ready", "software_only", "simulated"])
def test_the_report_of_a_proof_that_holds_stays_as_it_is(kind: str) -> None:
    before = world(kind)
    first = report_files({"h": before})
    second = report_files({"h": again(before)}, previous=[json.loads(text_of(first["h/report.json"]))])
    assert {name: text_of(content) for name, content in second.items()} == {
        name: text_of(content) for name, content in first.items() if name != "h/measurements.json"
    }


def test_without_the_earlier_report_the_receipt_still_gives_one() -> None:
    found = report_documents({"h": again(world("ready"))})[0]
    jsonschema.validate(found, SCHEMA)
    assert found["verdict"] == "ready"
    assert {proof["status"] for proof in found["proofs"]} == {"pass"}


@pytest.mark.parametrize(
    "change", [{"boot_id": "other"}, {"verdict": "ready, degraded"}, {"proved_at": "2027-01-01T00:00:00Z"}]
)
def test_a_report_of_another_proof_is_replaced(change: dict[str, str]) -> None:
    before = world("ready")
    first = report_documents({"h": before})[0]
    later = again(before)
    later["result"].update(change)
    assert report_documents({"h": later}, [first])[0] != first


def test_new_warnings_reach_a_report_that_stays() -> None:
    before = world("ready")
    first = report_documents({"h": before})[0]
    later = again(before)
    later["plan"]["warnings"] = [
        {
            "code": "GB-X-001",
            "component": "host",
            "cause": "c",
            "remedy": "r",
            "found": "f",
            "wanted": "w",
            "whose": "yours",
        }
    ]
    assert report_documents({"h": later}, [first])[0]["warnings"][0]["code"] == "GB-X-001"


def test_a_failure_replaces_the_report_of_an_earlier_proof() -> None:
    before = world("ready")
    first = report_documents({"h": before})[0]
    later = {**again(before), "failure": {"task": "t", "message": "m"}}
    assert report_documents({"h": later}, [first])[0]["verdict"] == "not ready"


# --- Markdown --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ready", "not_ready", "failed", "refused", "unreachable"])
def test_markdown_is_as_its_golden_file(kind: str) -> None:
    """Set UPDATE_GOLDEN=1 to make the saved documents and the golden files anew, and read the difference."""
    saved, golden = FIXTURES / f"golden/{kind}.json", FIXTURES / f"golden/{kind}.md"
    if os.environ.get("UPDATE_GOLDEN"):
        write(saved, text_of(document(kind)))
        write(golden, report_markdown(document(kind)))
    jsonschema.validate(load(f"golden/{kind}.json"), SCHEMA)
    assert report_markdown(load(f"golden/{kind}.json")) == golden.read_text(encoding="utf-8")


def test_a_simulation_is_in_the_title() -> None:
    assert report_markdown(document("simulated")).startswith("# trainer-1: software only (simulated GPU)\n")


def test_what_a_host_says_stays_text() -> None:
    parts = world("ready")
    parts["result"]["measurements"]["measurements"]["driver"]["data"]["smi"]["gpus"][0]["name"] = EVIL
    parts["result"]["proofs"][0]["found"] = EVIL
    parts["plan"]["host_kind"]["signs"] = [EVIL]
    parts["plan"]["paths"]["environment"] = "/x```\n# no"
    found = report_documents({EVIL: parts})[0]
    text = report_markdown(found)
    assert "<script" not in text
    assert "\x1b" not in text
    assert "[a](" not in text
    assert not re.search(r"^(second line|# no)", text, re.MULTILINE)
    rows = [line for line in text.splitlines() if line.startswith("| driver |")]
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == 6
    assert "\x1b" not in fleet_summary([found])
    assert len(fleet_summary([found]).splitlines()) == 2


# --- files and the fleet ---------------------------------------------------------------------------------------------


def test_the_fleet_is_a_table_of_host_verdict_stack_reason_and_report() -> None:
    hosts = {f"{kind}-host": world(kind) for kind in ("ready", "refused", "simulated", "unreachable")}
    lines = fleet_summary(report_documents(hosts), "/somewhere/reports").splitlines()
    assert re.split(r"\s{2,}", lines[0]) == ["host", "verdict", "stack", "reason", "report"]
    assert re.split(r"\s{2,}", lines[1]) == [
        "ready-host",
        "ready",
        "cu124",
        "-",
        "/somewhere/reports/ready-host/report.md",
    ]
    assert "refused" in lines[2] and "GB-OS-002" in lines[2]
    assert "software only (simulated GPU)" in lines[3]
    assert "unreachable" in lines[4]


def test_files_are_named_by_host() -> None:
    files = report_files({"a": world("ready"), "b": world("refused")})
    assert sorted(files) == [
        "a/measurements.json",
        "a/report.json",
        "a/report.md",
        "b/report.json",
        "b/report.md",
        "summary",
    ]
    assert files["summary"].startswith("host ")


@pytest.mark.parametrize("host", ["trainer-1", "10.0.0.7", "gpu_3.example.com", "2001:db8::1", "root@h"])
def test_ordinary_names_are_folders_as_they_are(host: str) -> None:
    assert folder(host) == host


@pytest.mark.parametrize("host", ["../etc", "a/b", "..", ".hidden", "a b", "", "x" * 300, "h\n"])
def test_names_that_do_not_belong_into_a_path_are_made_safe_and_stay_different(host: str) -> None:
    made = folder(host)
    assert re.fullmatch(r"[\w:@+-][\w.:@+-]{0,219}", made)
    assert made != folder(host + "x")
    assert report_path(host, "/r/") == f"/r/{made}/report.json"


def test_reports_that_are_there_are_read_and_broken_ones_are_as_none(tmp_path: Path) -> None:
    for host, text in (("a", text_of(document("ready", "a"))), ("b", "{broken"), ("c", "[]")):
        write(place(tmp_path, f"{host}/report.json"), text)
    assert read_reports(["a", "b", "c", "d"], str(tmp_path)) == [json.loads(text_of(document("ready", "a")))]


# --- save_documents --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", ".", "a/..", "x\0y"])
def test_paths_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="leads out"):
        place(tmp_path, name)


def test_links_that_lead_out_are_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/h").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="over a link"):
        place(tmp_path / "root", "h/report.json")


def test_documents_are_put_in_place_as_a_whole(tmp_path: Path) -> None:
    target = place(tmp_path / "reports", "h/report.json")
    assert differs(target, "one")
    write(target, "one")
    assert not differs(target, "one")
    write(target, "two")
    assert target.read_text(encoding="utf-8") == "two"
    assert [path.name for path in target.parent.iterdir()] == ["report.json"]
    assert target.stat().st_mode & 0o777 == 0o644


def test_a_write_that_fails_leaves_the_old_document(tmp_path: Path) -> None:
    target = place(tmp_path, "report.json")
    write(target, "old")
    with pytest.raises(UnicodeEncodeError):
        write(target, "\ud800")
    assert target.read_text(encoding="utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_text_is_written_as_it_is_and_anything_else_as_json() -> None:
    assert text_of("# ä\n") == "# ä\n"
    assert json.loads(text_of({"a": [1, True, None, 1.5, "ü"]})) == {"a": [1, True, None, 1.5, "ü"]}
    with pytest.raises(ValueError, match="JSON"):
        text_of({"a": float("nan")})
