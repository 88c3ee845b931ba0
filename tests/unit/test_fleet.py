"""Documents for the controller hold what the plays found, and no credential."""

from __future__ import annotations

from report import failure_text, plan_files, redact, report_inputs


def test_credentials_in_urls_are_redacted_at_any_depth() -> None:
    document = {
        "proxy": "http://me:s3cret@proxy:3128",
        "urls": [{"u": "https://t0ken@host/simple"}],
        "plain": "git@host",
        "n": 3,
    }
    assert redact(document) == {
        "proxy": "http://***@proxy:3128",
        "urls": [{"u": "https://***@host/simple"}],
        "plain": "git@host",
        "n": 3,
    }


def hosts(status: str = "apply", **more: object) -> dict[str, dict[str, object]]:
    plan = {"status": status, "prefetch": {"proxy": "http://a:b@c"}}
    return {"h": {"plan_probe_document": {"receipt": {"verdict": "ready"}}, "plan_document": plan, **more}}


def test_plan_files_are_named_by_host_and_redacted() -> None:
    files = plan_files(["h"], hosts())
    assert set(files) == {"h/probe.json", "h/plan.json"}
    assert files["h/plan.json"]["prefetch"]["proxy"] == "http://***@c"


def test_the_receipt_speaks_only_where_nothing_had_to_be_done() -> None:
    assert report_inputs(["h"], hosts("nothing"))["h"]["result"] == {"verdict": "ready"}
    assert report_inputs(["h"], hosts("apply"))["h"]["result"] == {}
    fresh = report_inputs(["h"], hosts("apply", verify_result={"verdict": "software only"}))
    assert fresh["h"]["result"] == {"verdict": "software only"}
    failed = report_inputs(["h"], hosts("apply", bootstrap_failure={"task": "t", "message": "m"}))
    assert failed["h"]["failure"] == {"task": "t", "message": "m"}


def test_a_failure_says_what_the_program_said() -> None:
    said = failure_text({"msg": "non-zero return code", "rc": 1, "stderr": "no route to http://u:p@mirror"})
    assert said == "non-zero return code: no route to http://***@mirror"
    assert failure_text({"msg": "The checksum differs."}) == "The checksum differs."
    assert failure_text({}) == "failed without a message"
