"""What the job leaves on a host that had neither curl nor certificates."""

from __future__ import annotations

import json

DOWNLOADS = "/var/cache/gpu-bootstrap/downloads"
STATE = "/var/lib/gpu-bootstrap/prefetch"


def test_the_files_are_whole(host) -> None:
    checked = json.loads(host.file(f"{STATE}/checked.json").content_string)
    assert len(checked) == 2
    for path, row in checked.items():
        assert host.file(path).sha256sum == row["sha256"]


def test_nothing_is_left_under_a_working_name(host) -> None:
    assert host.check_output(f"find {DOWNLOADS} -name '*.part'") == ""


def test_a_file_that_was_never_right_has_no_final_name(host) -> None:
    assert not host.file(f"{DOWNLOADS}/altered").exists


def test_a_wrong_file_was_replaced_and_a_killed_job_resumed(host) -> None:
    assert host.file(f"{DOWNLOADS}/replaced").sha256sum == host.file(f"{DOWNLOADS}/slow").sha256sum
    log = host.file("/var/lib/gpu-bootstrap/side-effect/log").content_string
    assert "from byte 0" in log
    assert any("slow: try 1" in line and "from byte 0" not in line for line in log.splitlines()), log


def test_a_site_that_lacks_the_file_is_asked_once(host) -> None:
    log = host.file(f"{STATE}/log").content_string
    assert log.count("/missing from byte") == 1


def test_no_job_is_left_behind(host) -> None:
    assert host.run("pgrep -f prefetch.py").stdout == ""


def test_the_manifest_is_for_root_alone(host) -> None:
    assert host.file(f"{STATE}/manifest.json").mode == 0o600
