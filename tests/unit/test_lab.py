"""The lab's pure parts: what it reads from this machine, what it writes for ssh and ansible, what it packs."""

from __future__ import annotations

import hashlib
import importlib.util
import ipaddress
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from gpulab import (
    conda,
    cuda,
    cudnn,
    engine,
    fetch,
    handon,
    hosts,
    images,
    inventory,
    mirror,
    selfextract,
    ssh,
    store,
    wheels,
)
from gpulab import state as lab_state
from gpulab.base import Home, LabError, cache_key, run, wait_for, write_text

LAB = Path(__file__).resolve().parents[2] / "lab"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n"


def host(name: str = "lab-vm", port: int = 22201, user: str = "deploy", **more: object) -> lab_state.Host:
    values = {"id": f"id-{name}", "image": "debian12-systemd", "spec": "", "host_key": f"ssh-ed25519 AAAA{name}"}
    return lab_state.Host(name=name, port=port, user=user, **{**values, **more})  # type: ignore[arg-type]


@pytest.fixture
def conda_cli() -> ModuleType:
    spec = importlib.util.spec_from_file_location("conda_cli", LAB / "standins/conda/conda_cli.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- what this machine hands on ---------------------------------------------------------------------------------------

DEB822 = """\
Types: deb deb-src
# where the snapshot came from
URIs: http://mirror.example/debian/
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main

Types: deb
URIs: https://node.example/node_20.x
Suites: nodistro
Components: main

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: trixie
Components: main
"""


def test_deb822_sources_are_read_with_comments_and_disabled_stanzas() -> None:
    found = handon.parse_deb822(DEB822)
    assert [(source.uri, source.suite) for source in found] == [
        ("http://mirror.example/debian", "bookworm"),
        ("http://mirror.example/debian", "bookworm-updates"),
        ("http://mirror.example/debian-security", "bookworm-security"),
        ("https://node.example/node_20.x", "nodistro"),
    ]


def test_one_line_sources_are_read_without_options_comments_and_source_packages() -> None:
    text = "# deb http://no.example/debian bookworm main\ndeb [arch=amd64 signed-by=/k.gpg] http://m.example/debian trixie main contrib # x\ndeb-src http://m.example/debian trixie main\n"
    assert handon.parse_one_line(text) == [handon.AptSource("http://m.example/debian", "trixie", ("main", "contrib"))]


@pytest.mark.parametrize("release", ["bookworm", "trixie"])
def test_apt_lines_of_any_release_come_from_this_machines_mirrors(release: str) -> None:
    lines = handon.debian_lines(handon.parse_deb822(DEB822), release)
    assert lines == [
        f"deb http://mirror.example/debian {release} main contrib non-free non-free-firmware",
        f"deb http://mirror.example/debian {release}-updates main contrib non-free non-free-firmware",
        f"deb http://mirror.example/debian-security {release}-security main contrib non-free non-free-firmware",
    ]


def test_a_machine_without_debian_sources_leaves_the_mirror_to_mmdebstrap() -> None:
    ubuntu = handon.parse_one_line("deb http://archive.example/ubuntu noble main universe\n")
    assert handon.debian_lines(ubuntu, "bookworm") == []


def test_sources_are_read_from_both_kinds_of_files(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("deb http://a.example/debian bookworm main\n")
    (tmp_path / "sources.list.d/b.sources").write_text(DEB822)
    (tmp_path / "sources.list.d/c.list.save").write_text("deb http://c.example/debian bookworm main\n")
    assert {source.uri for source in handon.read_apt_sources(tmp_path)} >= {
        "http://a.example/debian",
        "http://mirror.example/debian",
    }
    assert all("c.example" not in source.uri for source in handon.read_apt_sources(tmp_path))


def test_each_extra_certificate_becomes_one_file_once(tmp_path: Path) -> None:
    (tmp_path / "a.crt").write_text(CERTIFICATE.format("AAA") + CERTIFICATE.format("BBB"))
    (tmp_path / "b.crt").write_text(CERTIFICATE.format("AAA"))
    assert handon.extra_certificates({}, [tmp_path, tmp_path / "absent"]) == [
        CERTIFICATE.format("AAA"),
        CERTIFICATE.format("BBB"),
    ]


def test_a_named_bundle_counts_unless_it_is_the_systems(tmp_path: Path) -> None:
    bundle = tmp_path / "own.pem"
    bundle.write_text(CERTIFICATE.format("OWN"))
    assert handon.extra_certificates({"SSL_CERT_FILE": str(bundle)}, []) == [CERTIFICATE.format("OWN")]
    assert handon.extra_certificates({"SSL_CERT_FILE": handon.BUNDLE}, []) == []


def test_pip_settings_keep_the_index_and_drop_what_a_container_cannot_use(tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_text("[global]\nindex-url = https://mirror.example/simple\nfind-links = /opt/wheels\n")
    (tmp_path / "b.conf").write_text("[global]\ncert = /home/me/ca.pem\nextra-index-url = file:///opt/simple\n")
    found = handon.read_pip_settings([tmp_path / "a.conf", tmp_path / "b.conf", tmp_path / "absent"], {})
    assert found == {"index-url": "https://mirror.example/simple", "cert": handon.BUNDLE}


def test_a_local_index_is_not_handed_on(tmp_path: Path) -> None:
    assert handon.read_pip_settings([], {"PIP_INDEX_URL": "file:///opt/simple"}) == {}


def test_host_files_name_no_index_when_this_machine_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handon, "pip_files", list)
    monkeypatch.setattr(handon, "uv_index", lambda _env: "")
    files = handon.host_files({})
    assert files["etc/uv/uv.toml"] == "system-certs = true\n"
    assert "etc/pip.conf" not in files
    assert "etc/environment" not in files


def test_a_proxy_on_loopback_is_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "etc/environment" not in handon.host_files({"http_proxy": "http://127.0.0.1:3128"})
    assert (
        'https_proxy="http://proxy.example:3128"'
        in handon.host_files({"https_proxy": "http://proxy.example:3128"})["etc/environment"]
    )


# --- ssh and inventory ------------------------------------------------------------------------------------------------


def test_ssh_config_serves_names_and_pasted_lines_and_stays_strict(tmp_path: Path) -> None:
    (tmp_path / "id_ed25519").write_text("")
    config = tmp_path / "ssh_config"
    config.write_text(ssh.render_config([host(), host("lab-container", 22202, "root")], tmp_path))
    for arguments, port, user in (
        (["lab-vm"], "22201", "deploy"),
        (["lab-container"], "22202", "root"),
        (["-p", "22202", "root@127.0.0.1"], "22202", "root"),
    ):
        told = subprocess.run(
            ["ssh", "-G", "-F", str(config), *arguments], capture_output=True, text=True, check=True
        ).stdout
        rows = dict(line.split(" ", 1) for line in told.splitlines())
        assert (rows["hostname"], rows["port"], rows["user"]) == ("127.0.0.1", port, user)
        assert rows["stricthostkeychecking"] == "true"
        assert rows["identitiesonly"] == "yes"
        assert rows["userknownhostsfile"] == str(tmp_path / "known_hosts")
        assert rows["identityfile"] == str(tmp_path / "id_ed25519")


def test_other_hosts_are_untouched_by_the_ssh_config(tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text(ssh.render_config([host()], tmp_path))
    told = subprocess.run(
        ["ssh", "-G", "-F", str(config), "other.example"], capture_output=True, text=True, check=True
    ).stdout
    assert str(tmp_path) not in told


def test_known_hosts_has_one_entry_for_each_port_and_none_without_a_key() -> None:
    text = ssh.render_known_hosts([host(), host("lab-container", 22202), host("new", 22300, host_key="")])
    assert text == "[127.0.0.1]:22202 ssh-ed25519 AAAAlab-container\n[127.0.0.1]:22201 ssh-ed25519 AAAAlab-vm\n"


def test_rented_hosts_are_lines_as_a_landlord_shows_them() -> None:
    text = inventory.render_rented_hosts([host(volumes=["v"]), host("lab-container", 22202, "root")])
    assert text.splitlines()[1:] == [
        "lab-vm: ssh -p 22201 deploy@127.0.0.1 work_dir=/data",
        "lab-container: ssh -p 22202 root@127.0.0.1",
    ]


def test_group_vars_are_yaml_with_versions_as_strings(tmp_path: Path) -> None:
    pins = {"cuda.run": {"sha256": "0" * 64, "size": 5}}
    values = yaml.safe_load(inventory.render_group_vars(tmp_path, {"nvidia": "http://m"}, pins))
    assert values["mirrors"] == {"nvidia": "http://m"}
    assert values["artifact_overrides"] == pins
    assert values["ansible_ssh_common_args"] == f'-F "{tmp_path}/ssh_config"'
    assert "StrictHostKeyChecking" not in str(values)


def test_only_standard_hosts_go_into_the_inventory(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with lab_state.update(home) as state:
        state.hosts = {"lab-vm": host(in_inventory=True), "t-other": host("t-other", 22301)}
    directory = inventory.write(home, {}, {})
    assert "t-other" not in (directory / "rented_hosts").read_text()


# --- hosts and engine -------------------------------------------------------------------------------------------------


def test_a_systemd_host_survives_a_reboot_and_a_plain_one_gets_its_port_inside() -> None:
    machine = hosts.run_arguments(hosts.STANDARD[0], "podman", "/home")
    container = hosts.run_arguments(hosts.STANDARD[1], "podman", "/home")
    assert {"--systemd=always", "--restart=always"} <= set(machine)
    assert "gpu-bootstrap-lab-vm-data:/data" in machine
    assert "LAB_SSH_PORT=22202" in container
    assert "127.0.0.1:22202:22202" in container
    assert not {"--privileged", "--restart=always"} & set(container)


def test_docker_boots_systemd_without_privileges() -> None:
    args = hosts.run_arguments(hosts.STANDARD[0], "docker", "/home")
    assert "--privileged" not in args
    assert "--systemd=always" not in args
    assert "--cgroupns=host" in args


def test_a_small_disk_and_a_bind_mount_are_passed_on() -> None:
    spec = hosts.Spec("t", "debian12-plain", 22400, "root", mounts=("/a:/b:ro",), tmpfs=("/tmp:16m",))
    args = hosts.run_arguments(spec, "podman", "/home")
    assert "/tmp:size=16m,mode=1777,exec" in args
    assert "/a:/b:ro" in args


def test_a_changed_specification_changes_its_key_and_the_inventory_flag_does_not() -> None:
    one = hosts.Spec("t", "debian12-plain", 22400, "root")
    assert one.key != hosts.Spec("t", "debian12-plain", 22401, "root").key
    assert one.key == hosts.Spec("t", "debian12-plain", 22400, "root", in_inventory=True).key


def test_the_mirror_is_outside_the_range_of_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAB_SUBNET", raising=False)
    assert ipaddress.ip_address(hosts.mirror_address()) in hosts.subnet()
    assert ipaddress.ip_address(hosts.mirror_address()) not in ipaddress.ip_network(hosts.host_range())


def test_a_wrong_subnet_is_refused_with_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_SUBNET", "10.1.1")
    with pytest.raises(LabError, match=r"10\.1\.1.*wanted something like"):
        hosts.subnet()


def test_the_engine_says_what_to_install_when_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="wanted podman or docker"):
        engine.Engine(Home(tmp_path), {})


def test_a_running_lab_is_not_taken_over_by_the_other_engine(tmp_path: Path) -> None:
    with lab_state.update(Home(tmp_path)) as state:
        state.engine, state.hosts = "podman", {"lab-vm": host()}
    with pytest.raises(LabError, match="runs on podman"):
        engine.Engine(Home(tmp_path), {"LAB_ENGINE": "docker"})


@pytest.mark.parametrize(
    ("looks", "alive", "lost"),
    [
        ("running running", "1 1", True),
        ("stopping stopping", "1 1", True),
        ("running running", "0 0", False),
        ("running exited", "1 1", False),
        ("running running", "1 0", False),
        ("exited exited", "1 1", False),
    ],
    ids=["killed", "killed-and-stopped", "alive", "just-ended", "just-rebooted", "stopped"],
)
def test_a_container_whose_processes_were_killed_is_told_from_one_that_runs_stops_or_reboots(
    looks: str, alive: str, lost: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A podman of our own answers `inspect` and `exec` in turn, as podman 4.3 does after its conmon was killed."""
    (tmp_path / "inspect").write_text("\n".join(looks.split()))
    (tmp_path / "exec").write_text("\n".join(alive.split()))
    program = tmp_path / "podman"
    program.write_text(
        "#!/bin/sh\n"
        f'next() {{ head -n1 "{tmp_path}/$1"; sed -i 1d "{tmp_path}/$1"; }}\n'
        'case "$1" in\n'
        "  exec) exit $(next exec) ;;\n"
        '  *) printf \'[{"Id":"1","Name":"t","Image":"i","State":{"Status":"%s"}}]\' "$(next inspect)" ;;\n'
        "esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert engine.Engine(Home(tmp_path), {}).lost("t", pause=0) is lost


def test_settings_for_restricted_machines_hold_both_limits_and_the_runtime() -> None:
    text = engine.restricted_conf(20000)
    assert 'default_ulimits = ["nofile=20000:20000", "nproc=30000:30000"]' in text
    assert 'runtime = "runc"' in text


def test_state_of_a_newer_checkout_is_read(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with lab_state.update(home) as state:
        state.hosts = {"lab-vm": host()}
    raw = json.loads((home.run / "lab.json").read_text())
    raw["later"], raw["hosts"]["lab-vm"]["later"] = 1, 2
    (home.run / "lab.json").write_text(json.dumps(raw))
    assert lab_state.load(home).hosts["lab-vm"] == host()


def test_a_failed_change_of_the_state_is_not_saved(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with pytest.raises(RuntimeError), lab_state.update(home) as state:
        state.mirror_id = "half"
        raise RuntimeError
    assert lab_state.load(home).mirror_id == ""


def test_every_image_recipe_has_its_files() -> None:
    for recipe in images.RECIPES.values():
        assert (images.IMAGES_DIR / f"{recipe.containerfile}.Containerfile").is_file()
        assert all((images.IMAGES_DIR / name).is_file() for name in recipe.extra)


def test_no_image_brings_a_compiler_or_drops_package_lists() -> None:
    for file in images.IMAGES_DIR.glob("*.Containerfile"):
        words = file.read_text().split()
        assert not {"gcc", "g++", "build-essential", "EXTERNALLY-MANAGED"} & set(words)
        assert "/var/lib/apt/lists" not in file.read_text()


# --- keys, waits, files -----------------------------------------------------------------------------------------------


def test_a_cache_key_follows_content_and_names(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    first = cache_key(tmp_path, {"v": 1})
    assert first == cache_key(tmp_path, {"v": 1})
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/x.pyc").write_text("x")
    assert first == cache_key(tmp_path, {"v": 1})
    (tmp_path / "a").write_text("2")
    changed = cache_key(tmp_path, {"v": 1})
    (tmp_path / "a").rename(tmp_path / "b")
    assert len({first, changed, cache_key(tmp_path, {"v": 1}), cache_key(tmp_path, {"v": 2})}) == 4


def test_waiting_ends(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="in vain for a miracle"):
        wait_for("a miracle", lambda: False, timeout=0.05, pause=0.01)


def test_a_command_that_hangs_is_ended_and_a_failed_one_shows_its_last_lines() -> None:
    with pytest.raises(LabError, match="did not end within"):
        run(["sleep", "5"], timeout=0.1)
    with pytest.raises(LabError, match=r"ended with 3:\n  \| why"):
        run(["sh", "-c", "echo why >&2; exit 3"], timeout=5)


def test_an_unchanged_file_is_not_written_again(tmp_path: Path) -> None:
    assert write_text(tmp_path / "x", "one")
    before = (tmp_path / "x").stat().st_ino
    assert not write_text(tmp_path / "x", "one")
    assert (tmp_path / "x").stat().st_ino == before


def test_the_state_lies_where_the_variables_say() -> None:
    assert Home.from_environment({"GPU_BOOTSTRAP_LAB": "/x/lab"}).root == Path("/x/lab")
    assert Home.from_environment({"XDG_CACHE_HOME": "/c"}).root == Path("/c/gpu-bootstrap/lab")


def test_an_artefact_is_built_once_for_its_key_and_a_broken_build_leaves_nothing(tmp_path: Path) -> None:
    home, built = Home(tmp_path), []

    def build(target: Path) -> None:
        built.append(target)
        target.write_text("x")

    first = store.ensure(home, store.Artefact("/a/b/file.run", "k1", build))
    assert store.ensure(home, store.Artefact("/a/b/file.run", "k1", build)) == first
    assert len(built) == 1
    assert (first.sha256, first.size) == (hashlib.sha256(b"x").hexdigest(), 1)

    def broken(target: Path) -> None:
        target.write_text("half")
        raise LabError("no network")

    with pytest.raises(LabError):
        store.ensure(home, store.Artefact("/a/b/file.run", "k2", broken))
    assert sorted(path.name for path in (home.cache / "artefacts").iterdir()) == ["file.run@k1"]


# --- installers -------------------------------------------------------------------------------------------------------


def make_installer(folder: Path, extra: str = "") -> Path:
    tree = folder / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub/file").write_text("content")
    (tree / "link").symlink_to("sub/file")
    (tree / "cuda-installer").write_text(f'#!/bin/sh\necho "args: $*"\ncat link\n{extra}\n')
    (tree / "cuda-installer").chmod(0o755)
    target = folder / "cuda.run"
    selfextract.build((LAB / "standins/cuda/header.sh").read_text(), tree, target, {"VERSION": "1.2.3", "NVCC": "1.2"})
    return target


def test_a_runfile_unpacks_below_tmpdir_hands_flags_on_and_cleans_up(tmp_path: Path) -> None:
    target = make_installer(tmp_path, "exit 7")
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        ["sh", str(target), "--silent", f"--tmpdir={tmp_path}/tmp"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 7
    assert done.stdout == f"args: --silent --tmpdir={tmp_path}/tmp\ncontent"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_cut_or_changed_runfile_refuses_itself(tmp_path: Path) -> None:
    target = make_installer(tmp_path)
    whole = target.read_bytes()
    assert subprocess.run(["sh", str(target), "--check"], check=False, capture_output=True).returncode == 0
    for broken in (whole[:-10], whole[:-1] + bytes([whole[-1] ^ 1])):
        target.write_bytes(broken)
        done = subprocess.run(["sh", str(target), "--silent"], check=False, capture_output=True, text=True)
        assert done.returncode == 2
        assert "Error in checksums" in done.stderr


def test_the_same_tree_gives_the_same_installer(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = make_installer(tmp_path / "a"), make_installer(tmp_path / "b")
    assert one.read_bytes() == two.read_bytes()


def test_the_stand_ins_say_that_they_are(tmp_path: Path) -> None:
    for file in ("cuda/header.sh", "cuda/cuda-installer", "conda/header.sh", "conda/conda_cli.py"):
        assert "stand-in" in "\n".join((LAB / "standins" / file).read_text().splitlines()[:4]).lower(), file


def test_release_names_are_the_vendors() -> None:
    assert cuda.RELEASES["12.4.1"].file == "cuda_12.4.1_550.54.15_linux.run"
    assert cuda.RELEASES["13.2.1"].major_minor == "13.2"
    assert cudnn.artefact("9.1.0.70").file == "cudnn-linux-x86_64-9.1.0.70_cuda12-archive.tar.xz"
    assert conda.conda_version(conda.DEFAULT) == ("26.5.3", "26.5.3-1")
    with pytest.raises(LabError, match="wanted one like"):
        conda.conda_version("Miniconda3-latest-Linux-x86_64.sh")


def test_the_cudnn_archive_keeps_links_and_leaves_big_libraries_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "nvidia_cudnn_cu12-9.1.0.70-py3-none-manylinux2014_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, size in (("libcudnn.so.9", 10), ("libcudnn_adv.so.9", 200), ("libcudnn_graph.so.9", 200)):
            archive.writestr(f"nvidia/cudnn/lib/{name}", b"x" * size)
        archive.writestr("nvidia/cudnn/include/cudnn.h", "#define CUDNN_MAJOR 9\n")
        archive.writestr("nvidia_cudnn_cu12-9.1.0.70.dist-info/License.txt", "terms")
    monkeypatch.setattr(cudnn, "BIG", 100)
    release = cudnn.Release("9.1.0.70", "12", ("libcudnn_graph",))
    cudnn.repack(wheel, release, tmp_path / "out.tar.xz")
    with tarfile.open(tmp_path / "out.tar.xz") as tar:
        found = {member.name.removeprefix(f"{release.folder}/"): member for member in tar.getmembers()}
    assert set(found) == {
        "LICENSE", "include/cudnn.h", "lib/libcudnn.so", "lib/libcudnn.so.9", "lib/libcudnn.so.9.1.0",
        "lib/libcudnn_graph.so", "lib/libcudnn_graph.so.9", "lib/libcudnn_graph.so.9.1.0",
    }  # fmt: skip
    assert found["lib/libcudnn.so"].linkname == "libcudnn.so.9"
    assert found["lib/libcudnn.so.9"].linkname == "libcudnn.so.9.1.0"


# --- wheels -----------------------------------------------------------------------------------------------------------


def test_tiny_wheels_install_and_answer_like_their_build(tmp_path: Path) -> None:
    wanted = {"2.6.0+cu124": "12.4", "2.5.1+cu121": "12.1", "2.6.0": "None"}
    for tiny in wheels.tiny_set():
        if tiny.name == "torch" and tiny.version in wanted:
            target = tmp_path / tiny.file
            wheels.make(tiny, target)
            code = "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())"
            done = subprocess.run(
                [sys.executable, "-S", "-c", code],
                env={**os.environ, "PYTHONPATH": str(target)},
                capture_output=True,
                text=True,
                check=True,
            )
            assert done.stdout.split() == [tiny.version, wanted[tiny.version], "False"]


def test_tiny_wheels_label_themselves_and_are_reproducible(tmp_path: Path) -> None:
    for tiny in wheels.tiny_set():
        wheels.make(tiny, tmp_path / "one.whl")
        wheels.make(tiny, tmp_path / "two.whl")
        assert (tmp_path / "one.whl").read_bytes() == (tmp_path / "two.whl").read_bytes()
        assert b"tiny stand-in" in wheels.metadata(tmp_path / "one.whl")


def test_the_trial_of_a_replaced_torch_has_its_parts() -> None:
    rows = {(tiny.index, tiny.name, tiny.version): tiny.requires for tiny in wheels.tiny_set()}
    assert rows["simple", "xform", "0.1"] == ("torch==2.6.0",)
    assert rows["simple", "xform", "0.2"] == ("torch>=2.5",)
    assert {("cu124", "torch", "2.5.1+cu124"), ("simple", "torch", "2.5.1"), ("simple", "torch", "2.6.0")} <= set(rows)


def test_a_repacked_wheel_has_a_local_version_and_a_true_record(tmp_path: Path) -> None:
    source = tmp_path / "demo-1.0-cp311-cp311-manylinux1_x86_64.whl"
    wheels.make(wheels.Tiny("demo", "1.0", "simple", ("dep",)), source)
    name = wheels.repacked_name(source.name, "cu124")
    assert name == "demo-1.0+cu124-cp311-cp311-linux_x86_64.whl"
    wheels.repack(source, tmp_path / name, "cu124")
    with zipfile.ZipFile(tmp_path / name) as archive:
        assert archive.testzip() is None
        names = set(archive.namelist())
        rows = [row.split(",") for row in archive.read("demo-1.0+cu124.dist-info/RECORD").decode().splitlines()]
        for file, digest, size in rows:
            content = archive.read(file)
            if digest:
                assert len(content) == int(size)
                assert wheels.record({file: content}, "x").decode().splitlines()[0] == f"{file},{digest},{size}"
    assert {row[0] for row in rows} == names
    assert b"\nVersion: 1.0+cu124\n" in wheels.metadata(tmp_path / name)
    assert b"Requires-Dist: dep" in wheels.metadata(tmp_path / name)


def test_an_index_page_carries_hashes_of_file_and_metadata(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    wheel = tmp_path / "demo/demo-1.0+cu124-py3-none-any.whl"
    wheels.make(wheels.Tiny("demo", "1.0+cu124", "cu124"), wheel)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    wheels.write_index(tmp_path, {wheel.name: digest})
    page = (tmp_path / "demo/index.html").read_text()
    described = hashlib.sha256(wheels.metadata(wheel)).hexdigest()
    assert f'href="demo-1.0%2Bcu124-py3-none-any.whl#sha256={digest}"' in page
    assert f'data-core-metadata="sha256={described}"' in page
    assert (tmp_path / "demo" / f"{wheel.name}.metadata").read_bytes() == wheels.metadata(wheel)
    assert '<a href="demo/">demo</a>' in (tmp_path / "index.html").read_text()


def test_parts_of_a_wheel_are_unpacked_with_their_modes(tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        tool = zipfile.ZipInfo("nvidia/cu13/bin/nvcc")
        tool.external_attr = 0o100755 << 16
        archive.writestr(tool, "x")
        archive.writestr("nvidia/cu13/include/__init__.py", "")
        archive.writestr("nvidia/cu13/include/a.h", "")
    assert (
        fetch.members(wheel, tmp_path / "out", {"nvidia/cu13/bin": "bin", "nvidia/cu13/include": "targets/include"})
        == 2
    )
    assert os.access(tmp_path / "out/bin/nvcc", os.X_OK)
    assert not (tmp_path / "out/targets/include/__init__.py").exists()


def test_only_files_of_the_vendors_get_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAB_SUBNET", raising=False)
    rows = [
        store.Stored(path, Path(path), "0" * 64, 1)
        for path in ("/compute/cuda/1/a.run", "/miniconda/M.sh", "/whl/cu124/torch/t.whl")
    ]
    assert set(mirror.overrides(rows)) == {"a.run", "M.sh"}
    assert set(mirror.mirrors([])) == {"nvidia", "miniconda", "conda"}
    assert mirror.mirrors([mirror.TORCH_INDEX])["pytorch"].endswith("/whl")


def test_the_torch_index_names_its_wheels_as_the_vendors_index_does() -> None:
    assert (
        mirror.torch_artefact("torch==2.6.0").url_path
        == "/whl/cu124/torch/torch-2.6.0+cu124-cp311-cp311-linux_x86_64.whl"
    )


# --- the conda stand-in -----------------------------------------------------------------------------------------------


def test_condarc_is_read_in_block_and_flow_form_and_written_back(conda_cli: ModuleType) -> None:
    text = "channels:\n  - conda-forge\n  - defaults # comment\nauto_activate: false\ndefault_channels: [https://m/pkgs/main]\n"
    values = conda_cli.parse_condarc(text)
    assert values == {
        "channels": ["conda-forge", "defaults"],
        "auto_activate": "false",
        "default_channels": ["https://m/pkgs/main"],
    }
    assert conda_cli.parse_condarc(conda_cli.render_condarc(values)) == values


def conda_home(conda_cli: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch, condarc: str = "") -> None:
    monkeypatch.setattr(conda_cli, "PREFIX", folder / "prefix")
    monkeypatch.setattr(conda_cli, "HOME", folder)
    monkeypatch.setattr(conda_cli, "terms_files", lambda: [folder / "a.json", folder / "b.json", folder / "c.json"])
    for name in ("CONDARC", "CONDA_CHANNELS", "CONDA_PLUGINS_AUTO_ACCEPT_TOS", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    (folder / ".condarc").write_text(condarc)


def test_default_channels_are_refused_until_their_terms_are_accepted(
    conda_cli: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conda_home(conda_cli, tmp_path, monkeypatch)
    urls = conda_cli.channel_urls(["defaults"])
    with pytest.raises(conda_cli.CondaError, match="Terms of Service have not been accepted") as caught:
        conda_cli.check_terms(urls)
    assert caught.value.name == "CondaToSNonInteractiveError"
    assert "conda tos accept --override-channels --channel https://repo.anaconda.com/pkgs/main" in str(caught.value)
    args = conda_cli.parser().parse_args(
        ["tos", "accept", "--override-channels", *(word for url in urls for word in ("--channel", url))]
    )
    assert args.call(args) == 0
    conda_cli.check_terms(urls)


@pytest.mark.parametrize(
    "condarc", ["channels:\n  - conda-forge\n", "default_channels:\n  - https://mirror.example/pkgs/main\n"]
)
def test_conda_forge_and_mirrored_defaults_have_no_terms(
    conda_cli: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, condarc: str
) -> None:
    conda_home(conda_cli, tmp_path, monkeypatch, condarc)
    args = conda_cli.parser().parse_args(["create", "-n", "x", "python=3.11"])
    conda_cli.check_terms(conda_cli.channel_urls(conda_cli.channel_names(args)))


def test_a_channel_alias_sends_names_to_the_mirror(
    conda_cli: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conda_home(conda_cli, tmp_path, monkeypatch, "channel_alias: http://10.0.0.1/conda/\n")
    assert conda_cli.channel_urls(["conda-forge"]) == ["http://10.0.0.1/conda/conda-forge"]
    assert conda_cli.fetch_url("http://10.0.0.1/conda/conda-forge") == "http://10.0.0.1/conda/conda-forge"
    assert conda_cli.fetch_url("https://conda.anaconda.org/conda-forge").startswith("file://")


def test_conda_config_adds_each_channel_once(
    conda_cli: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conda_home(conda_cli, tmp_path, monkeypatch)
    for _ in range(2):
        args = conda_cli.parser().parse_args(
            ["config", "--add", "channels", "conda-forge", "--set", "auto_activate", "false"]
        )
        assert args.call(args) == 0
    assert conda_cli.settings() == {"channels": ["conda-forge"], "auto_activate": "false"}


def test_activation_code_runs_the_scripts_of_the_environment(
    conda_cli: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conda_home(conda_cli, tmp_path, monkeypatch)
    path = tmp_path / "prefix/envs/cu124"
    (path / "conda-meta").mkdir(parents=True)
    (path / "etc/conda/activate.d").mkdir(parents=True)
    (path / "etc/conda/activate.d/cuda.sh").write_text("export CUDA_HOME=/usr/local/cuda\n")
    code = (
        "\n".join(conda_cli.shell_enter(path, 1, ["/usr/bin", "/bin"]))
        + '\necho "$CONDA_DEFAULT_ENV $CUDA_HOME ${PATH%%:*}"'
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cu124", "/usr/local/cuda", f"{path}/bin"]
