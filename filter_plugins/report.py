"""The reports: one document for each host, Markdown from it, and a table of the fleet.

Pure functions (but for `read_reports`). `report_document` puts together what probe, plan and proofs found (docs/report.schema.json);
`report_markdown` renders it; `fleet_summary` is what the terminal shows at the end. Each works with parts missing: a host
that was refused has no proofs, one in check mode neither, and one that could not be reached not even a probe.
The documents hold no time but that of the proof, so that a run which changes nothing writes nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
# Beside the verdicts of proofs.py: what a host is called that was not proved.
REFUSED, NOT_PROVED, UNREACHABLE = "refused", "not proved", "unreachable"
NOT_READY = "not ready"

SUMMARY = "summary"

# Paths of the plan that a person looks for, and what they are called.
PATHS = {
    "cuda_home": "CUDA_HOME, in every kind of shell",
    "cuda": "CUDA toolkit",
    "conda": "Miniconda",
    "environment": "environment of the stack",
    "hf_home": "HF_HOME: models and data sets of Hugging Face",
    "work_dir": "data disk",
    "downloads": "downloads",
    "uv_cache": "cache of uv",
    "tmp": "temporary files of installers",
    "state": "receipt and state",
}

Json = dict[str, Any]


# --- small helpers ---------------------------------------------------------------------------------------------------


def folder(host: str) -> str:
    """Return a folder name for a host: itself, unless it holds what doesn't belong into one."""
    safe = re.sub(r"[^\w.:@+-]", "_", host, flags=re.ASCII)
    safe = re.sub(r"^[.-]", "_", safe)[:200]
    if safe == host and host:
        return host
    return f"{safe or 'host'}-{hashlib.sha256(host.encode()).hexdigest()[:8]}"


def _data(result: Mapping[str, Any], name: str) -> Json:
    entry = ((result.get("measurements") or {}).get("measurements") or {}).get(name) or {}
    return dict(entry.get("data") or {})


def _size(count: object) -> str:
    if not isinstance(count, (int, float)) or count <= 0:
        return ""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.0f} {unit}"
    return f"{count:.0f} B"


def _squeeze(text: object) -> str:
    """Return a text on one line, without control characters: what hosts say goes into terminals and tables."""
    return re.sub(
        r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\s]+", " ", str(text if text is not None else "")
    ).strip()


# --- the document ----------------------------------------------------------------------------------------------------


def report_document(
    host: str,
    probe: Mapping[str, Any] | None,
    plan: Mapping[str, Any] | None,
    result: Mapping[str, Any] | None,
    failure: Mapping[str, Any] | None = None,
    phases: Iterable[Mapping[str, Any]] = (),
    previous: Mapping[str, Any] | None = None,
) -> Json:
    """Return the report of one host (docs/report.schema.json).

    `result` is `verify_result`, or the receipt of an earlier proof. `previous` is the report that is there already: when
    its proof is the one that still holds, it stays, since a receipt knows less than the report of the run that made it.
    """
    probe, plan, result, failure = probe or {}, plan or {}, result or {}, failure or {}
    receipt = _receipt(result)
    refusals, warnings = ([dict(note) for note in plan.get(key) or []] for key in ("refusals", "warnings"))
    if previous and receipt and not failure and "measurements" not in result and previous.get("receipt") == receipt:
        return {**previous, "refusals": refusals, "warnings": warnings}
    proofs = [_proof(proof) for proof in result.get("proofs") or []]
    verdict = _verdict(plan, result, failure)
    stack, gpus = plan.get("stack") or {}, _gpus(probe, plan, result)
    document: Json = {
        "schema_version": SCHEMA_VERSION,
        "host": host,
        "verdict": verdict,
        "simulated": bool(result.get("simulated")),
        "reason": "",
        "proved_at": str(receipt.get("proved_at") or (result.get("measurements") or {}).get("started_at") or ""),
        "system": _system(probe, plan),
        "gpus": gpus,
        "stack": {key: str(stack.get(key) or "") for key in ("name", "title", "chosen_by")},
        "versions": _versions(plan, result),
        "components": [
            {"name": name, **{key: str(entry.get(key) or "") for key in ("action", "found", "wanted", "why")}}
            for name, entry in (plan.get("components") or {}).items()
        ],
        "paths": _paths(plan),
        "start": _start(plan, verdict, bool(_failure(failure, proofs)), sum(gpu["count"] for gpu in gpus)),
        "proofs": proofs,
        "refusals": refusals,
        "warnings": warnings,
        "failure": _failure(failure, proofs),
        "phases": [dict(phase) for phase in phases],
        "receipt": receipt,
    }
    document["reason"] = _reason(document)
    return document


def _failure(failure: Mapping[str, Any], proofs: Iterable[Mapping[str, Any]]) -> Json | None:
    """Return the step that failed; none where it was the proofs, which say it better themselves."""
    if not failure or any(proof["status"] in ("fail", "unknown") for proof in proofs):
        return None
    return {"task": str(failure.get("task") or ""), "message": str(failure.get("message") or "")}


def _receipt(result: Mapping[str, Any]) -> Json:
    """Return the receipt that is on the host: a part of a fresh result, or the result itself."""
    if "measurements" in result:
        return dict(result.get("receipt") or {})
    return dict(result) if result.get("proved_at") else {}


def _verdict(plan: Mapping[str, Any], result: Mapping[str, Any], failure: Mapping[str, Any]) -> str:
    if not plan:
        return UNREACHABLE
    if plan.get("status") == "refused":
        return REFUSED
    if failure:
        return NOT_READY
    return str(result.get("verdict") or NOT_PROVED)


def _proof(proof: Mapping[str, Any]) -> Json:
    return {
        key: str(proof.get(key) or "")
        for key in ("name", "component", "status", "wanted", "found", "why", "code", "whose", "next_step")
    }


def _reason(document: Mapping[str, Any]) -> str:
    """Return the first thing that a person wants to know about a verdict."""
    if document["verdict"] == UNREACHABLE:
        return "the host could not be reached"
    if document["verdict"] == REFUSED:
        return _squeeze(next((f"{note['code']}: {note['cause']}" for note in document["refusals"]), ""))
    bad = next((p for p in document["proofs"] if p["status"] in ("fail", "unknown")), None)
    if bad and document["verdict"] == NOT_READY:
        return _squeeze(f"{bad['name']} {bad['code']}: {bad['why']}")
    if document["failure"]:
        return _squeeze(f"{document['failure']['task']}: {document['failure']['message']}")
    if document["verdict"] == NOT_PROVED:
        return "nothing was proved in this run"
    noted = next((p for p in document["proofs"] if p["code"]), None)
    if document["verdict"] == "ready, degraded" and noted:
        return _squeeze(f"{noted['name']} {noted['code']}: {noted['why']}")
    if document["verdict"] == "software only":
        if document["simulated"]:
            return "the GPU is simulated"
        skipped = next(
            (p["why"] for p in document["proofs"] if p["status"] == "skip" and p["why"] not in ("", "not chosen")), ""
        )
        return _squeeze(skipped or ("no work was done on a GPU" if document["gpus"] else "this host has no GPU"))
    return ""


def _system(probe: Mapping[str, Any], plan: Mapping[str, Any]) -> Json:
    kind, memory = plan.get("host_kind") or {}, probe.get("memory") or {}
    limits = [n for n in (memory.get("total_bytes"), memory.get("cgroup_limit_bytes")) if n]
    return {
        "kind": str(kind.get("value") or ""),
        "signs": [str(sign) for sign in kind.get("signs") or []],
        "os": str((probe.get("os") or {}).get("pretty_name") or ""),
        "kernel": str((probe.get("kernel") or {}).get("release") or ""),
        "machine": str(probe.get("machine") or ""),
        "cpus": _cpus(probe.get("cpus") or {}),
        "memory_bytes": min(limits) if limits else None,
    }


def _cpus(probed: Mapping[str, Any]) -> int | None:
    """Return the cores that a program may use at once."""
    counts = [count for count in (probed.get("visible"), probed.get("cgroup_quota")) if count]
    return max(1, int(min(counts))) if counts else None


def _gpus(probe: Mapping[str, Any], plan: Mapping[str, Any], result: Mapping[str, Any]) -> list[Json]:
    """Return the GPUs by model, as the proofs saw them, else as the plan found them."""
    measured = (_data(result, "driver").get("smi") or {}).get("gpus") or []
    seen = [
        {"name": g.get("name"), "memory_mib": g.get("memory_total"), "compute_capability": g.get("compute_cap")}
        for g in measured
    ]
    if not seen:
        listed = {g.get("name"): g for g in ((probe.get("driver") or {}).get("smi") or {}).get("gpus") or []}
        seen = [
            {**g, "memory_mib": (listed.get(g.get("name")) or {}).get("memory_mib")} for g in plan.get("gpus") or []
        ]
    models: dict[str, Json] = {}
    for gpu in seen:
        name = str(gpu.get("name") or "unknown")
        memory = str(gpu.get("memory_mib") or "")
        row = models.setdefault(
            name,
            {
                "name": name,
                "count": 0,
                "memory_mib": int(memory) if memory.isdigit() else None,
                "compute_capability": str(gpu.get("compute_capability") or ""),
            },
        )
        row["count"] += 1
    return list(models.values())


def _versions(plan: Mapping[str, Any], result: Mapping[str, Any]) -> list[Json]:
    """Return the combination of versions: what the stack wants, and what was measured or planned."""
    stack, components = plan.get("stack") or {}, plan.get("components") or {}
    driver, toolkit, cudnn, torch, python = (
        _data(result, name) for name in ("driver", "toolkit", "cudnn", "torch", "environment")
    )
    told = next((g.get("driver_version") for g in (driver.get("smi") or {}).get("gpus") or []), None)
    rows = [
        (
            "NVIDIA driver",
            "nvidia_driver",
            (components.get("nvidia_driver") or {}).get("wanted"),
            driver.get("loaded_version") or told,
        ),
        ("CUDA toolkit", "cuda_toolkit", stack.get("cuda"), toolkit.get("build") and f"nvcc {toolkit['build']}"),
        ("cuDNN", "cudnn", stack.get("cudnn"), cudnn.get("header_version")),
        ("Python", "miniconda", stack.get("python"), python.get("python")),
        (
            "torch",
            "pytorch_stack",
            f"{stack.get('torch')} (CUDA {stack.get('torch_cuda')})",
            torch.get("version") and f"{torch['version']} (CUDA {torch.get('cuda') or 'none'})",
        ),
    ]
    table = [
        {"what": what, "wanted": str(wanted or ""), "found": str(measured or components[component].get("found") or "")}
        for what, component, wanted, measured in rows
        if component in components
    ]
    if "pytorch_stack" in components:
        have = python.get("packages") or {}
        for name, version in (stack.get("packages") or {}).items():
            if name != "torch":
                table.append(
                    {
                        "what": name,
                        "wanted": str(version),
                        "found": str(have.get(re.sub(r"[-_.]+", "-", name).lower()) or ""),
                    }
                )
    return table


def _paths(plan: Mapping[str, Any]) -> Json:
    paths = {key: str(value) for key, value in (plan.get("paths") or {}).items() if value}
    home = str((plan.get("verify") or {}).get("cuda_home") or "")
    return {"cuda_home": home, **paths} if home and "shell_environment" in (plan.get("components") or {}) else paths


def _start(plan: Mapping[str, Any], verdict: str, failed: bool, count: int) -> list[Json]:
    """Return what to type on this host."""
    if verdict in (REFUSED, UNREACHABLE, NOT_PROVED) or failed:
        return []
    paths, components = plan.get("paths") or {}, plan.get("components") or {}
    environment, name, conda = (str(paths.get(key) or "") for key in ("environment", "environment_name", "conda"))
    blocks = []
    if environment and {"miniconda", "pytorch_stack"} & set(components):
        blocks.append({"title": "Activate the environment", "lines": [f"source {conda}/bin/activate {name}"]})
        blocks.append(
            {"title": "Run one program in it, without activating", "lines": [f"{environment}/bin/python train.py"]}
        )
    packages = {str(package).lower() for package in (plan.get("stack") or {}).get("packages") or {}}
    if count and "pytorch_stack" in components:
        several = " --multi_gpu" if count > 1 else ""
        lines = [f"accelerate launch --num_processes={count}{several} train.py"] if "accelerate" in packages else []
        lines += (
            [f"deepspeed --num_gpus={count} train.py --deepspeed ds_config.json"] if "deepspeed" in packages else []
        )
        if lines:
            blocks.append(
                {
                    "title": f"Train on all {count} GPUs" if count > 1 else "Train on the GPU",
                    "lines": lines,
                }
            )
    if "cuda_toolkit" in components:
        blocks.append({"title": "Compile", "lines": ["nvcc --version", "nvcc program.cu -o program"]})
    return blocks


# --- Markdown --------------------------------------------------------------------------------------------------------


def _cell(text: object) -> str:
    """Return a text that stays inside one cell and means nothing to a Markdown or HTML reader."""
    squeezed = _squeeze(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\*\[\]|~]|(?<!\w)_|_(?!\w))", r"\\\1", squeezed)


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    titles = list(head)
    return [
        f"| {' | '.join(titles)} |",
        f"| {' | '.join('---' for _ in titles)} |",
        *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows),
    ]


def _rows(entries: Iterable[Mapping[str, Any]], *keys: str) -> list[list[object]]:
    return [[entry.get(key) for key in keys] for entry in entries]


def _fence(lines: Iterable[object], language: str = "sh") -> list[str]:
    body = [_squeeze(line) for line in lines]
    longest = max((len(run) for line in body for run in re.findall(r"`+", line)), default=0)
    mark = "`" * max(3, longest + 1)
    return [f"{mark}{language}", *body, mark]


def _notes(title: str, notes: Iterable[Mapping[str, Any]]) -> list[str]:
    listed = list(notes)
    if not listed:
        return []
    lines = [f"## {title}", ""]
    for note in listed:
        lines += [
            f"- **{_cell(note.get('code'))}** ({_cell(note.get('component'))}, {_cell(note.get('whose'))}): {_cell(note.get('cause'))}",
            f"  - found: {_cell(note.get('found'))}; wanted: {_cell(note.get('wanted'))}",
            f"  - next: {_cell(note.get('remedy'))}",
        ]
        if note.get("nearest"):
            lines.append(f"  - nearest that works: {_cell(note['nearest'])}")
    return [*lines, ""]


def report_markdown(document: Mapping[str, Any]) -> str:
    """Render a report for people."""
    system, stack = document["system"], document["stack"]
    simulated = " (simulated GPU)" if document["simulated"] else ""
    lines = [f"# {_cell(document['host'])}: {document['verdict']}{simulated}", ""]
    if document["reason"]:
        lines += [_cell(document["reason"]), ""]
    facts = [
        (
            "host",
            ", ".join(
                filter(
                    None,
                    [
                        system["kind"],
                        system["os"],
                        system["kernel"] and f"kernel {system['kernel']}",
                        system["machine"],
                    ],
                )
            ),
        ),
        ("why that kind", "; ".join(system["signs"])),
        (
            "CPU and memory",
            ", ".join(filter(None, [system["cpus"] and f"{system['cpus']} cores", _size(system["memory_bytes"])])),
        ),
        (
            "GPUs",
            ", ".join(_gpu_text(gpu) for gpu in document["gpus"])
            or ("none" if document["verdict"] != UNREACHABLE else ""),
        ),
        (
            "stack",
            " ".join(filter(None, [stack["name"], stack["title"] and f"({stack['title']})"]))
            + (f", chosen by {stack['chosen_by']}" if stack["chosen_by"] else ""),
        ),
        ("time of the proofs", document["proved_at"]),
    ]
    lines += [*_table(("", ""), [fact for fact in facts if fact[1]]), ""]
    if document["failure"]:
        lines += [
            "## What failed",
            "",
            f"Task: {_cell(document['failure']['task'])}",
            "",
            *_fence(document["failure"]["message"].strip().splitlines()[:40], "text"),
            "",
        ]
    lines += _notes("Refused", document["refusals"])
    bad = [p for p in document["proofs"] if p["code"]]
    if bad:
        lines += ["## What the proofs found", ""]
        for proof in bad:
            lines += [
                f"- **{_cell(proof['name'])}** {_word(proof)} ({_cell(proof['code'])}, {_cell(proof['whose'])}): {_cell(proof['why'])}",
                f"  - found: {_cell(proof['found'])}; wanted: {_cell(proof['wanted'])}",
                f"  - next: {_cell(proof['next_step'])}",
            ]
        lines.append("")
    if document["versions"]:
        lines += [
            "## Version combination",
            "",
            *_table(("what", "stack", "found"), _rows(document["versions"], "what", "wanted", "found")),
            "",
        ]
    if document["start"]:
        lines += ["## Start", ""]
        for block in document["start"]:
            lines += [f"{_cell(block['title'])}:", "", *_fence(block["lines"]), ""]
    if document["paths"]:
        rows = [(words, document["paths"][key]) for key, words in PATHS.items() if document["paths"].get(key)]
        lines += ["## Paths", "", *_table(("what", "where"), rows), ""]
    if document["components"]:
        columns = ("name", "action", "found", "wanted", "why")
        lines += ["## Components", "", "Found before anything was changed, and what was done about it.", ""]
        lines += [*_table(("component", *columns[1:]), _rows(document["components"], *columns)), ""]
    if document["proofs"]:
        shown = [{**proof, "found": proof["found"] or proof["why"]} for proof in document["proofs"]]
        columns = ("name", "status", "found", "wanted", "code")
        lines += ["## Proofs", "", *_table(("proof", *columns[1:]), _rows(shown, *columns)), ""]
    lines += _notes("Warnings", document["warnings"])
    if document["phases"]:
        lines += ["## Time", "", *_table(("phase", "seconds"), _rows(document["phases"], "name", "seconds")), ""]
    return "\n".join(lines).rstrip() + "\n"


def _word(proof: Mapping[str, Any]) -> str:
    return {"fail": "failed", "unknown": "could not be known", "pass": "passed with a remark"}.get(
        str(proof["status"]), str(proof["status"])
    )


def _gpu_text(gpu: Mapping[str, Any]) -> str:
    more = ", ".join(
        filter(
            None,
            [
                gpu["memory_mib"] and f"{gpu['memory_mib']} MiB",
                gpu["compute_capability"] and f"compute capability {gpu['compute_capability']}",
            ],
        )
    )
    return f"{gpu['count']} x {gpu['name']}" + (f" ({more})" if more else "")


# --- files and the fleet ---------------------------------------------------------------------------------------------


def report_documents(hosts: Mapping[str, Mapping[str, Any]], previous: Iterable[Mapping[str, Any]] = ()) -> list[Json]:
    """Return the reports of all hosts; `hosts` is host -> {probe, plan, result, failure, phases}, parts may be missing."""
    known = {
        str(document.get("host")): document
        for document in previous
        if isinstance(document, Mapping) and document.get("schema_version") == SCHEMA_VERSION
    }
    return [
        report_document(
            str(host),
            parts.get("probe"),
            parts.get("plan"),
            parts.get("result"),
            parts.get("failure"),
            parts.get("phases") or (),
            known.get(str(host)),
        )
        for host, parts in hosts.items()
    ]


def report_files(
    hosts: Mapping[str, Mapping[str, Any]], root: str = "reports", previous: Iterable[Mapping[str, Any]] = ()
) -> Json:
    """Return what is written: path below the directory of reports -> document or text.

    The last one, SUMMARY, is shown at the end of the run and not written.
    """
    files: Json = {}
    documents = report_documents(hosts, previous)
    for document in documents:
        place = folder(document["host"])
        files[f"{place}/report.json"] = document
        files[f"{place}/report.md"] = report_markdown(document)
        measurements = (hosts[document["host"]].get("result") or {}).get("measurements")
        if measurements:
            files[f"{place}/measurements.json"] = measurements
    files[SUMMARY] = fleet_summary(documents, root)
    return files


def read_reports(hosts: Iterable[str], root: str) -> list[Json]:
    """Read the reports that are there already, the only files that this module touches; a broken one is as none."""
    found = []
    for host in hosts:
        try:
            loaded = json.loads(Path(report_path(host, root)).expanduser().read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(loaded, dict):
            found.append(loaded)
    return found


def report_files_over(hosts: Mapping[str, Mapping[str, Any]], root: str) -> Json:
    """Return what is written into a directory where earlier reports may be."""
    return report_files(hosts, root, read_reports(hosts, root))


def report_path(host: str, root: str, name: str = "report.json") -> str:
    """Return where a document of a host is."""
    return f"{root.rstrip('/')}/{folder(str(host))}/{name}"


def fleet_summary(documents: Iterable[Mapping[str, Any]], root: str = "reports") -> str:
    """Return the table that ends a run: host, verdict, stack, first reason, path of the report."""
    rows = [("host", "verdict", "stack", "reason", "report")]
    for document in documents:
        verdict = document["verdict"] + (" (simulated GPU)" if document["simulated"] else "")
        rows.append(
            (
                _squeeze(document["host"]),
                verdict,
                document["stack"]["name"] or "-",
                _clip(document["reason"]) or "-",
                report_path(document["host"], root, "report.md"),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)), row[4]]) for row in rows
    )


def _clip(text: str, most: int = 100) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


# --- what the plays left on each host ---

# user:password@ or token@ in a URL, as people write them for proxies and private mirrors.
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def redact(value: Any) -> Any:
    """Return a copy without the credentials that URLs may carry."""
    if isinstance(value, str):
        return _USERINFO.sub("***", value)
    if isinstance(value, Mapping):
        return {str(key): redact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(item) for item in value]
    return value


def plan_files(hosts: Iterable[str], hostvars: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the documents that planning leaves: "<host>/probe.json" and "<host>/plan.json"."""
    files: dict[str, Any] = {}
    for host in hosts:
        files[f"{folder(host)}/probe.json"] = redact(hostvars[host]["plan_probe_document"])
        files[f"{folder(host)}/plan.json"] = redact(hostvars[host]["plan_document"])
    return files


def report_inputs(hosts: Iterable[str], hostvars: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the role `report` takes: host -> {probe, plan, result, failure}.

    The result is this run's, else the receipt of the last proof where nothing had to be done.
    """
    inputs: dict[str, Any] = {}
    for host in hosts:
        known = hostvars[host]
        probe, plan = known["plan_probe_document"], known["plan_document"]
        result = known.get("verify_result") or (probe.get("receipt") if plan["status"] == "nothing" else None)
        inputs[host] = {
            "probe": redact(probe),
            "plan": redact(plan),
            "result": redact(result or {}),
            "failure": redact(known.get("bootstrap_failure") or {}),
        }
    return inputs


def failure_text(result: Mapping[str, Any]) -> str:
    """Return one readable message of a failed task: its sentence, and the end of what a program said."""
    parts = [str(result.get("msg") or "failed without a message")]
    said = str(result.get("stderr") or result.get("stdout") or "").strip()
    if said and said not in parts[0] and result.get("rc") not in (None, 0):
        parts.append(said[-800:])
    return str(redact(": ".join(parts)))


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "plan_files": plan_files,
            "report_inputs": report_inputs,
            "failure_text": failure_text,
            "report_document": report_document,
            "report_documents": report_documents,
            "report_files": report_files_over,
            "report_markdown": report_markdown,
            "report_path": report_path,
            "fleet_summary": fleet_summary,
        }
