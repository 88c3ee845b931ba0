"""The inventory plugin: its parser as a function, and Ansible reading files of all kinds with the plugin enabled."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rented_hosts import RentedHost, RentedHostsError, parse_rented_hosts, recognise

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "inventories/example"
BIN = Path(sys.executable).parent
# What no message may repeat. It stands wherever a landlord's page or a user's habit puts a password.
HIDDEN = "uW3xYx5q2z"


def only(line: str) -> RentedHost:
    (host,) = parse_rented_hosts(line).hosts
    return host


def refusal(text: str) -> str:
    with pytest.raises(RentedHostsError) as caught:
        parse_rented_hosts(text, "site/rented_hosts")
    return str(caught.value)


def names(text: str) -> list[str]:
    return [host.name for host in parse_rented_hosts(text).hosts]


@pytest.mark.parametrize(
    ("line", "address", "port", "user"),
    [
        ("ssh -p 34567 root@region-1.example.com", "region-1.example.com", 34567, "root"),
        ("ssh root@region-1.example.com -p 34567", "region-1.example.com", 34567, "root"),
        ("ssh -p34567 -l root region-1.example.com", "region-1.example.com", 34567, "root"),
        ("ssh -o Port=34567 -oUser=root region-1.example.com", "region-1.example.com", 34567, "root"),
        ("ssh -o 'port 34567' root@region-1.example.com", "region-1.example.com", 34567, "root"),
        ("root@192.0.2.4:2222", "192.0.2.4", 2222, "root"),
        ("192.0.2.4:2222", "192.0.2.4", 2222, None),
        ("192.0.2.4", "192.0.2.4", None, None),
        ("gpu.example.com:22", "gpu.example.com", 22, None),
        ("ssh gpu", "gpu", None, None),
        ("ssh root@host:2222", "host", 2222, "root"),
        ("ssh://root@host:22", "host", 22, "root"),
        ("ssh ssh://root@host:22/", "host", 22, "root"),
        ("ssh ubuntu@2001:db8::1", "2001:db8::1", None, "ubuntu"),
        ("2001:db8::1", "2001:db8::1", None, None),
        ("[2001:db8::1]", "2001:db8::1", None, None),
        ("[2001:db8::1]:2222", "2001:db8::1", 2222, None),
        ("root@[2001:DB8:0:0::1]:2222", "2001:db8::1", 2222, "root"),
        ("ssh root@fe80::1%eth0", "fe80::1%eth0", None, "root"),
        ("ssh abc-64410d12@gateway.example.com", "gateway.example.com", None, "abc-64410d12"),
        ("ssh root@domain@gateway.example.com", "gateway.example.com", None, "root@domain"),
        ("$ ssh root@host", "host", None, "root"),
        ("me@laptop:~$ ssh root@host", "host", None, "root"),
        ("/usr/bin/ssh root@host", "host", None, "root"),
        ("ssh -o HostName=192.0.2.4 gpu", "192.0.2.4", None, None),
    ],
)
def test_address_port_and_user_are_read_from_every_form(
    line: str, address: str, port: int | None, user: str | None
) -> None:
    host = only(line)
    assert (host.address, host.port, host.user) == (address, port, user)
    assert host.variables["ansible_host"] == address
    assert host.variables.get("ansible_port") == port
    assert host.variables.get("ansible_user") == user


def test_what_the_line_does_not_say_stays_unset() -> None:
    assert only("ssh gpu").variables == {"ansible_host": "gpu"}


def test_key_and_jump_host_are_kept() -> None:
    host = only("ssh ubuntu@2001:db8::1 -i ~/.ssh/k -J ops@bastion:2200,inner")
    assert host.variables["ansible_ssh_private_key_file"] == "~/.ssh/k"
    assert host.variables["ansible_ssh_common_args"] == "-o ProxyJump=ops@bastion:2200,inner"


def test_proxy_command_keeps_its_blanks_and_tokens() -> None:
    host = only('ssh -o "ProxyCommand=cloudflared access ssh --hostname %h" root@host')
    assert host.variables["ansible_ssh_common_args"] == "-o 'ProxyCommand=cloudflared access ssh --hostname %h'"


def test_port_forwards_and_terminal_requests_are_dropped() -> None:
    host = only("ssh -CNg -L 6006:127.0.0.1:6006 -D1080 -R 1:localhost:2 -tt -A -o RequestTTY=yes root@host -p 42151")
    assert host.variables == {"ansible_host": "host", "ansible_port": 42151, "ansible_user": "root"}
    assert host.dropped == ("-C", "-N", "-g", "-L", "-D", "-R", "-t", "-t", "-A", "-o RequestTTY")


def test_settings_of_ansible_cfg_are_not_set_a_second_time() -> None:
    assert (
        "ansible_ssh_common_args" not in only("ssh -o ServerAliveInterval=60 -o ConnectTimeout=5 root@host").variables
    )


def test_values_have_types() -> None:
    line = (
        "ssh root@host cuda=\"12.4\" python='3.11' bare=12.4 count=8 on=true off=no nothing=null empty= day=2026-12-01"
        ' at=22:30 octal=010 stack=cu124 url=http://127.0.0.1:7890 note="a # b" components=[cuda_toolkit,verify]'
    )
    values = only(line).variables
    assert {key: value for key, value in values.items() if not key.startswith("ansible_")} == {
        "cuda": "12.4", "python": "3.11", "bare": 12.4, "count": 8, "on": True, "off": False, "nothing": None, "empty": "",
        "day": "2026-12-01", "at": "22:30", "octal": "010", "stack": "cu124", "url": "http://127.0.0.1:7890", "note": "a # b",
        "components": ["cuda_toolkit", "verify"],
    }  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        '\'{"gpu": "RTX 4090", "count": 8}\'',
        '{"gpu": "RTX 4090", "count": 8}',
        "{gpu: RTX 4090, count: 8}",
        '"{\\"gpu\\": \\"RTX 4090\\", \\"count\\": 8}"',
        "'{gpu: RTX 4090, count: 8}'",
    ],
)
def test_mappings_are_read_with_and_without_quotes(value: str) -> None:
    host = only(f"ssh root@host rented_as={value} stack=auto  # rented until Friday")
    assert host.variables["rented_as"] == {"gpu": "RTX 4090", "count": 8}
    assert host.variables["stack"] == "auto"


def test_comments_start_only_at_a_word() -> None:
    host = only("ssh -i ~/.ssh/k#1 root@host # the red one, isn't it")
    assert host.variables["ansible_ssh_private_key_file"] == "~/.ssh/k#1"


def test_groups_names_and_line_numbers_are_kept() -> None:
    content = parse_rented_hosts(
        "ssh root@first\n\n[trainers]  # big\n# none\ntrainer-1: ssh root@second\n[empty]\n[trainers]\nssh root@third"
    )
    assert content.groups == ("trainers", "empty")
    assert [(host.name, host.group, host.line) for host in content.hosts] == [
        ("first", None, 1),
        ("trainer-1", "trainers", 5),
        ("third", "trainers", 8),
    ]


def test_a_backslash_joins_lines_as_in_a_shell() -> None:
    content = parse_rented_hosts("ssh -p 2222 \\\n  -i ~/.ssh/k \\\n  root@host\nssh root@other")
    assert [(host.address, host.port, host.line) for host in content.hosts] == [("host", 2222, 1), ("other", None, 4)]


def test_invisible_characters_and_windows_line_ends_do_not_matter() -> None:
    (first, second) = parse_rented_hosts("\ufeffssh\u00a0-p\u30002222 root@host\u200b\r\nssh\troot@other\r\n").hosts
    assert (first.address, first.port, second.address) == ("host", 2222, "other")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("ssh \uff0dp 2222 root@host", "'\uff0d' (U+FF0D, fullwidth hyphen-minus): write -"),
        ("ssh \u2013p 2222 root@host", "'\u2013' (U+2013, en dash): write -"),
        ("trainer-1\uff1assh root@host", "'\uff1a' (U+FF1A, fullwidth colon): write :"),
        ("ssh root\uff20host", "(U+FF20, fullwidth commercial at): write @"),
        ("ssh root@host\uff0cssh root@other", "(U+FF0C, fullwidth comma): write ,"),
        ("ssh root@host note=\u201cx\u201d", '(U+201C, left double quotation mark): write "'),
        ("ssh root@host rented_as='{\u201cgpu\u201d: 1}'", "(U+201D, right double quotation mark)"),
        ("ssh root@host \x1b[0m", "(U+001B, control character): remove it"),
    ],
)
def test_characters_of_web_pages_are_named_with_what_to_write(line: str, named: str) -> None:
    assert named in refusal(line)


def test_chinese_text_is_welcome_in_comments_and_quotes() -> None:
    host = only('ssh root@host note="深圳\uff0c八卡"  # 到期\uff1a周五')
    assert host.variables["note"] == "深圳\uff0c八卡"


def test_a_host_is_called_after_its_address() -> None:
    assert names("root@192.0.2.4:2222\nssh Region-1.Example.com\nssh root@2001:db8::1") == [
        "192.0.2.4",
        "region-1.example.com",
        "2001-db8--1",
    ]


def test_hosts_of_one_address_get_their_ports_in_any_order() -> None:
    lines = ["ssh -p 1001 root@shared", "ssh -p 1002 root@shared", "ssh root@shared", "ssh -p 1001 user@shared"]
    expected = ["shared-1001-root", "shared-1002", "shared-22", "shared-1001-user"]
    assert names("\n".join(lines)) == expected
    assert names("\n".join(lines[::-1])) == expected[::-1]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("ssh -p 2201 root@localhost", "localhost-2201"),
        ("root@127.0.0.1:2201", "127.0.0.1-2201"),
        ("ssh root@::1", "ip6--1-22"),
    ],
)
def test_a_tunnel_never_takes_the_name_of_the_controller(line: str, name: str) -> None:
    assert names(line) == [name]


def test_a_given_name_goes_before_a_derived_one() -> None:
    assert names("ssh root@shared\nshared: ssh root@other") == ["shared-22", "shared"]


@pytest.mark.parametrize("name", ["localhost", "all", "ungrouped", "-x", "a/b", "trainer!", "登录指令", "*"])
def test_names_that_ansible_or_a_file_system_would_misread_are_refused(name: str) -> None:
    assert "line 1" in refusal(f"{name}: ssh root@host")


def test_one_address_behind_two_jump_hosts_is_two_hosts_with_connections_of_their_own() -> None:
    first, second = parse_rented_hosts("a: ssh -J one root@10.0.0.5\nb: ssh -J two root@10.0.0.5").hosts
    paths = {host.variables["ansible_control_path"] for host in (first, second)}
    assert len(paths) == 2
    assert all(path.startswith("%(directory)s/") for path in paths)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ssh root@host\nssh -p 22 root@HOST", "the same host as in line 1"),
        ("a: ssh root@host\nb: root@host:22", "the same host as in line 1"),
        ("a: ssh root@host\na: ssh root@other", "the name 'a' a second time, after line 1"),
        ("[a]\na: ssh root@host", "'a' as name of a host and of a group"),
    ],
)
def test_doubles_are_refused_with_both_lines(text: str, expected: str) -> None:
    message = refusal(text)
    assert expected in message
    assert f"line {len(text.splitlines())}: " in message


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ssh -p 0 root@host", "found 0 as port; expected 1 to 65535"),
        ("root@host:99999", "found 99999 as port"),
        ("root@host:", "found no number as port"),
        ("ssh -p root@host", "found no number as port"),
        ("ssh -p", "found -p with nothing behind it"),
        ("ssh", "found no address"),
        ("trainer-1:", "found no address"),
        ("ssh -p 1 root@host -p 2", "two ports, 1 and 2"),
        ("ssh -l ubuntu root@host", "two users, ubuntu and root"),
        ("ssh -i a -i b root@host", "two key files"),
        ("ssh root@192.0.2.400", "expected a host name, an IPv4 address"),
        ("ssh root@<ip>", "expected a host name"),
        ("root@2001:db8::1:22022", "an IPv6 address with a port as [address]:port"),
        ("root@[192.0.2.4]:22", "expected an IPv6 address in the brackets"),
        ("ssh root@host nvidia-smi", "a command for the host isn't run from here"),
        ("ssh root@host stack cu124", "isn't key=value"),
        ("gpu", "a host name alone needs 'ssh' in front"),
        ("trainer-1 ssh root@host", "a name in front of the command needs a colon"),
        ("gpu1 ansible_host=192.0.2.4", "such as hosts.ini"),
        ("stack=cu124 root@host", "found neither"),
        ("ssh -F config root@host", "found -F, which isn't taken from this file"),
        ("ssh -o LocalCommand=x root@host", "found -o LocalCommand, which isn't taken from this file"),
        ("ssh -o root@host", "expected -o Name=value"),
        ("ssh -J a -o ProxyCommand=b root@host", "ssh takes one of them"),
        ("ssh -J 'a b' root@host", "as jump host"),
        ("ssh -i $HOME/.ssh/k root@host", "~ works; variables and placeholders are not filled in"),
        ("ssh -i C:\\Users\\me\\k root@host", "write paths with /"),
        ("ssh -i 'k root@host", "a quote (') that isn't closed"),
        ("ssh root@host a={x: 1", "a bracket that isn't closed"),
        ("ssh root@host a='{x: [1}'", "can't read the value of a as YAML or JSON"),
        ("ssh root@host a={[1]: 2}", "can't read the value of a as YAML or JSON"),
        ("ssh root@host a=1 a=2", "found a twice"),
        ("ssh root@host ansible_host=other", "ansible_host, which the command says already"),
        ("ssh root@host ansible_port=0", "found 0 as port"),
        ("ssh root@host home={{ lookup('env', 'HOME') }}", "templates belong into group_vars/"),
        ("ssh root@host home='{{ x }}'", "templates belong into group_vars/"),
        ('ssh root@host a={"b": ["\\u007b\\u007b x }}"]}', "templates belong into group_vars/"),
        ("ssh -o 'ProxyCommand={{ x }}' root@host", "templates belong into group_vars/"),
        ("ssh -i '{{ x }}' root@host", "templates belong into group_vars/"),
        ("[bad-name]", "found 'bad-name' as group"),
    ],
)
def test_a_malformed_line_is_told_with_file_number_text_and_what_was_expected(line: str, expected: str) -> None:
    message = refusal(f"# comment\nssh root@good.example.com\n{line}")
    assert message.startswith("site/rented_hosts: 1 line can't be used")
    assert "\n  line 3: " in message
    assert expected in message
    assert "Expected on a line: [name:] ssh" in message


def test_all_malformed_lines_are_told_at_once_and_in_order() -> None:
    message = refusal("ssh -p 0 root@a\nssh root@b\nroot@c:99999\nssh root@b")
    assert message.startswith("site/rented_hosts: 3 lines can't be used")
    assert message.index("line 1:") < message.index("line 3:") < message.index("line 4:")


@pytest.mark.parametrize(
    ("heading", "advice"), [("[trainers:vars]", "group_vars/trainers.yml"), ("[all:children]", "second inventory")]
)
def test_sections_of_ini_inventories_point_to_what_to_use(heading: str, advice: str) -> None:
    message = refusal(f"ssh root@host\n{heading}\nx=1\ny=2")
    assert "1 line can't be used" in message
    assert advice in message


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "[group]\n", "\ufeff\r\n"])
def test_a_file_without_hosts_says_what_belongs_into_it(text: str) -> None:
    message = refusal(text)
    assert "found no host in it" in message
    assert "ssh -p 34567 root@region-1.example.com" in message


@pytest.mark.parametrize(
    "line",
    [
        "ssh -o StrictHostKeyChecking=no root@host",
        "ssh -o 'stricthostkeychecking off' root@host",
        "ssh -oUserKnownHostsFile=/dev/null root@host",
        "ssh -o 'UserKnownHostsFile=~/.ssh/k /dev/null' root@host",
        "ssh -o NoHostAuthenticationForLocalhost=yes root@host",
        "ssh -o 'ProxyCommand=ssh -o StrictHostKeyChecking=no -W %h:%p bastion' root@host",
        "ssh root@host ansible_ssh_common_args='-o StrictHostKeyChecking=no'",
        "ssh root@host ansible_ssh_extra_args=-oUserKnownHostsFile=/dev/null",
        "ssh root@host ansible_host_key_checking=false",
        "ssh root@host ansible_ssh_host_key_checking=no",
    ],
)
def test_host_key_checking_can_not_be_turned_off(line: str) -> None:
    message = refusal(line)
    assert "host key checking stays on" in message
    assert "connect once by hand" in message


def test_recording_a_new_key_is_not_turning_the_check_off() -> None:
    host = only("ssh -o StrictHostKeyChecking=accept-new root@host")
    assert host.variables["ansible_ssh_common_args"] == "-o StrictHostKeyChecking=accept-new"


@pytest.mark.parametrize(
    "line",
    [
        f"ssh root:{HIDDEN}@host",
        f"root:{HIDDEN}@host:22",
        f"root/{HIDDEN}@host",
        f"ssh://root:{HIDDEN}@host:22",
        f"trainer-1:root:{HIDDEN}@host",
        f"sshpass -p {HIDDEN} ssh root@host",
        f"trainer-1: sshpass -p{HIDDEN} ssh root@host",
        f"/usr/bin/sshpass -p {HIDDEN} ssh root@host",
        f"ssh -p 22 root@host {HIDDEN}",
        f"ssh -p 22 root@host  password: {HIDDEN}",
        f"ssh -J ops:{HIDDEN}@bastion root@host",
        f"ssh -o 'ProxyCommand=sshpass -p {HIDDEN} ssh -W %h:%p bastion' root@host",
        f"ssh root@host ansible_ssh_common_args='-o ProxyCommand=\"sshpass -p {HIDDEN} ssh x\"'",
        f"ssh root@host ansible_password={HIDDEN}",
        f"ssh root@host ansible_ssh_pass='{HIDDEN}'",
        f"ssh root@host ansible_become_password={HIDDEN}",
        f"ssh root@host hf_token={HIDDEN}",
        f"ssh root@host HF_TOKEN='{HIDDEN}",
        f"192.0.2.4:22:root:{HIDDEN}",
        f"root@192.0.2.4:{HIDDEN}",
        f"{HIDDEN}",
        f"密码\uff1a{HIDDEN}",
        f"密码: {HIDDEN}",
        f"password {HIDDEN}",
        f"password: {HIDDEN}",
        f"ssh root@host -l '{HIDDEN} x'",
    ],
)
def test_a_password_is_refused_and_never_repeated(line: str) -> None:
    message = refusal(f"ssh root@good.example.com\n{line}")
    assert "line 2: " in message
    assert HIDDEN not in message


def test_an_address_that_only_gives_a_terminal_is_warned_of() -> None:
    (warning,) = only("ssh abc-64410d12@ssh.runpod.io -i ~/.ssh/id_ed25519").warnings
    assert "SSH over exposed TCP" in warning


PASTED = b"# my hosts\n[gpu]\nssh -p 34567 root@region-1.example.com\n"
INI = b"[gpu]\ngpu1 ansible_host=192.0.2.4 ansible_ssh_common_args='-o ProxyCommand=\"ssh -W %h:%p root@bastion\"'\n"


@pytest.mark.parametrize(
    ("name", "data", "ours"),
    [
        ("rented_hosts", PASTED, True),
        ("rented_hosts", b"", True),
        ("rented_hosts", b"nonsense\n", True),
        ("rented_hosts.txt", b"", True),
        ("lab.rented_hosts", b"", True),
        ("machines", PASTED, True),
        ("machines.txt", PASTED, True),
        ("machines", b"trainer-1: ssh root@host\n", True),
        ("machines", b"$ ssh root@host\r\n", True),
        ("machines", b"sshpass -p x ssh root@host\n", True),
        ("machines", b"root@192.0.2.4:2222\nubuntu@192.0.2.5\n", True),
        ("machines", b"gpu1\nnot even close\nssh -p 22 root@host\n", True),
        ("rented_hosts", b"#!/bin/sh\necho {}\n", False),
        ("machines", INI, False),
        ("machines", b"192.0.2.4:2222\n", False),
        ("machines", b"ssh ansible_host=192.0.2.4\n", False),
        ("machines", b"root@192.0.2.4 stack=cu124\n[all:vars]\nx=1\n", False),
        ("machines", b"", False),
        ("machines", b"all:\n  hosts:\n    gpu1:\n      note: ssh -p 22 root@host\n", False),
        ("machines", b'{"all": {"hosts": {"gpu1": {}}}}', False),
        ("machines", b"\x7fELF\0\0ssh -p 22 root@host\n", False),
        ("hosts.yml", b"trainer-1: ssh root@host\n", False),
        ("hosts.ini", PASTED, False),
        ("inventory.py", PASTED, False),
    ],
)
def test_only_files_of_pasted_commands_are_taken(name: str, data: bytes, ours: bool) -> None:
    assert recognise(name, data) is ours


def test_an_executable_file_is_left_to_the_script_plugin_unless_it_has_our_name() -> None:
    assert not recognise("machines", PASTED, executable=True)
    assert recognise("rented_hosts", PASTED, executable=True)


def run(program: str, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    executable = BIN / program if (BIN / program).exists() else shutil.which(program)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    return subprocess.run(
        [str(executable), *map(str, arguments)],
        cwd=ROOT,
        env={**clean, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def inventory(*sources: str | Path) -> dict[str, Any]:
    done = run("ansible-inventory", *(word for source in sources for word in ("-i", source)), "--list")
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    listed: dict[str, Any] = json.loads(done.stdout)
    return listed


def hostvars(listed: dict[str, Any], host: str) -> dict[str, Any]:
    # Some versions of Ansible add this empty fact to every host.
    return {key: value for key, value in listed["_meta"]["hostvars"][host].items() if key != "ansible_local"}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_ansible_reads_pasted_commands_with_the_variables_beside_them(tmp_path: Path) -> None:
    source = write(
        tmp_path / "rented_hosts",
        "ssh -p 34567 root@region-1.example.com\n[trainers]\ntrainer-1: ssh root@192.0.2.4 count=8 cuda='12.4'\n[idle]\n",
    )
    write(tmp_path / "group_vars/all.yml", "work_dir: /data\nplace: '{{ inventory_hostname }}'\n")
    write(tmp_path / "group_vars/trainers.yml", "stack: cu124\n")
    write(tmp_path / "host_vars/region-1.example.com.yml", "stack: cu128\n")
    listed = inventory(source)
    assert listed["trainers"]["hosts"] == ["trainer-1"]
    assert listed["ungrouped"]["hosts"] == ["region-1.example.com"]
    assert "idle" in listed["all"]["children"]
    assert hostvars(listed, "trainer-1") == {
        "ansible_host": "192.0.2.4", "ansible_user": "root", "count": 8, "cuda": "12.4", "place": "{{ inventory_hostname }}", "stack": "cu124", "work_dir": "/data",
    }  # fmt: skip
    assert hostvars(listed, "region-1.example.com")["stack"] == "cu128"
    assert inventory(tmp_path)["_meta"]["hostvars"] == listed["_meta"]["hostvars"]


def test_ansible_reads_other_inventories_as_always(tmp_path: Path) -> None:
    ini = write(tmp_path / "ini", "[gpu]\ngpu1 ansible_host=192.0.2.4 ansible_port=22\n[gpu:vars]\nstack=cu124\n")
    document = write(tmp_path / "hosts.yml", "gpu:\n  hosts:\n    gpu2: {ansible_host: 192.0.2.5}\n")
    listing = write(tmp_path / "list.json", json.dumps({"gpu": {"hosts": {"gpu3": {"stack": "cu128"}}}}))
    script = write(
        tmp_path / "script.sh", '#!/bin/sh\necho \'{"gpu": {"hosts": ["gpu4"]}, "_meta": {"hostvars": {}}}\'\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    listed = inventory(ini, document, listing, script, "gpu5,")
    assert sorted(listed["gpu"]["hosts"]) == ["gpu1", "gpu2", "gpu3", "gpu4"]
    assert listed["ungrouped"]["hosts"] == ["gpu5"]
    assert hostvars(listed, "gpu1") == {"ansible_host": "192.0.2.4", "ansible_port": 22, "stack": "cu124"}


def test_ansible_reads_a_directory_with_files_of_several_kinds(tmp_path: Path) -> None:
    write(tmp_path / "rented_hosts", "[gpu]\ntrainer-1: ssh root@192.0.2.4\n")
    write(tmp_path / "more.yml", "fast:\n  hosts:\n    trainer-1:\n")
    write(tmp_path / "group_vars/fast.yml", "stack: cu128\n")
    listed = inventory(tmp_path)
    assert listed["gpu"]["hosts"] == listed["fast"]["hosts"] == ["trainer-1"]
    assert hostvars(listed, "trainer-1")["stack"] == "cu128"


def test_ansible_stops_at_malformed_lines_that_ini_would_take_for_hosts(tmp_path: Path) -> None:
    source = write(tmp_path / "rented_hosts", f"root@192.0.2.4:99999\nroot:{HIDDEN}@192.0.2.5\n")
    done = run("ansible-inventory", "-i", source, "--list")
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"{source}: 2 lines can't be used" in done.stderr
    assert "found 99999 as port" in done.stderr
    assert "ini" not in done.stderr.replace(str(source), "")
    assert HIDDEN not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"", "found no host in it"), ("ssh root@host # 深圳".encode("gbk"), "first in line 1; save the file as UTF-8")],
)
def test_ansible_stops_at_files_without_readable_hosts(tmp_path: Path, data: bytes, expected: str) -> None:
    source = tmp_path / "rented_hosts"
    source.write_bytes(data)
    done = run("ansible-inventory", "-i", source, "--list")
    assert done.returncode == 1
    assert expected in done.stderr


def test_ansible_stops_when_two_files_give_one_name_to_two_hosts(tmp_path: Path) -> None:
    first = write(tmp_path / "a.rented_hosts", "ssh -p 1001 root@shared\n")
    second = write(tmp_path / "b.rented_hosts", "ssh -p 1002 root@shared\n")
    done = run("ansible-inventory", "-i", first, "-i", second, "--list")
    assert done.returncode == 1
    assert "which another inventory gives to shared" in done.stderr


def test_ssh_is_called_as_the_line_says(tmp_path: Path) -> None:
    source = write(
        tmp_path / "rented_hosts",
        "a: ssh ubuntu@2001:db8::1 -p 2222 -i ~/.ssh/k -J ops@bastion\nb: ssh -o 'ProxyCommand=relay --to %h' root@host\n",
    )
    fake = write(
        tmp_path / "ssh", f'#!/bin/sh\nfor word in "$@"; do echo "$word"; done > {tmp_path}/called.$$\nexit 255\n'
    )
    fake.chmod(0o755)
    run(
        "ansible", "-i", source, "all", "-m", "ansible.builtin.raw", "-a", "true",
        HOME=str(tmp_path), ANSIBLE_SSH_EXECUTABLE=str(fake), ANSIBLE_SSH_RETRIES="0",
    )  # fmt: skip
    calls = [path.read_text().splitlines() for path in tmp_path.glob("called.*")]
    a = next(words for words in calls if "2001:db8::1" in words)
    b = next(words for words in calls if "host" in words)
    assert {"Port=2222", f'IdentityFile="{tmp_path}/.ssh/k"', 'User="ubuntu"', "ProxyJump=ops@bastion"} <= set(a)
    assert "ProxyCommand=relay --to %h" in b
    assert not any("StrictHostKeyChecking" in word for word in [*a, *b])


def test_ansible_doc_describes_the_plugin() -> None:
    done = run("ansible-doc", "-t", "inventory", "rented_hosts", "--json")
    assert done.returncode == 0
    assert "WARNING" not in done.stderr
    plugin = json.loads(done.stdout)["rented_hosts"]
    assert plugin["doc"]["short_description"]
    assert {host.name for host in parse_rented_hosts(plugin["examples"]).hosts} >= {"trainer-1", "trainer-2"}


def test_the_examples_are_read_and_say_the_same_in_both_forms() -> None:
    pasted, document = inventory(EXAMPLE / "rented_hosts"), inventory(EXAMPLE / "hosts.yml")
    assert sorted(pasted["_meta"]["hostvars"]) == ["server-1", "trainer-1", "trainer-2"]
    for host in pasted["_meta"]["hostvars"]:
        assert hostvars(pasted, host) == hostvars(document, host)
    assert {group: pasted[group] for group in ("trainers", "servers")} == {
        group: document[group] for group in ("trainers", "servers")
    }
    assert hostvars(pasted, "trainer-1")["rented_as"]["gpu"] == "RTX 4090"


def test_the_example_for_china_names_mirrors_of_every_kind() -> None:
    hosts = parse_rented_hosts((EXAMPLE / "china/rented_hosts").read_text()).hosts
    assert {host.group for host in hosts} == {path.stem for path in (EXAMPLE / "china/group_vars").iterdir()} - {"all"}
    mirrors = yaml.safe_load((EXAMPLE / "china/group_vars/all.yml").read_text())["mirrors"]
    assert set(mirrors) == {"nvidia", "miniconda", "pytorch", "pypi", "conda", "huggingface"}
    assert all(url.startswith("https://") for url in mirrors.values())
