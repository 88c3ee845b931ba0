"""Inventory plugin: a plain file of the ssh commands that landlords show becomes an inventory.

`parse_rented_hosts` and `recognise` are pure functions of text; the Ansible class at the bottom only reads the file
and hands the result over.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import shlex
import stat
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseFileInventoryPlugin

DOCUMENTATION = r"""
name: rented_hosts
short_description: Reads a plain file of pasted ssh commands
version_added: "0.1.0"
author: gpu-bootstrap
description:
  - Landlords of GPU machines show an ssh command. This plugin reads a file of such commands, one host a line.
  - A line is C([NAME:] [ssh] [OPTIONS] [USER@]ADDRESS[:PORT] [KEY=VALUE ...]), with C(#) for comments and C([group]) for
    the group of the lines that follow. A backslash at the end of a line joins the next one to it.
  - A file is taken when it is called C(rented_hosts), C(rented_hosts.txt) or C(*.rented_hosts), or when its first lines
    look like pasted ssh commands. INI, YAML and JSON inventories, scripts, directories and host lists are left to
    their own plugins. C(group_vars) and C(host_vars) beside the file are read as always.
  - All lines that can't be read are reported together, with line numbers, and the run ends there. No other plugin gets
    the file, because the INI plugin takes some malformed lines for host names.
notes:
  - Sets C(ansible_host), C(ansible_port), C(ansible_user), C(ansible_ssh_private_key_file) (C(-i)) and, only for a line
    that has C(-J) or C(-o), C(ansible_ssh_common_args). What a line does not say stays unset.
  - A value in quotes is text, so C(cuda="12.4") stays a version. A value without quotes is a YAML scalar. A value that
    begins with C({) or C([) is YAML or JSON, in quotes or not. Values are data, templates belong into C(group_vars).
  - Port forwards, terminal requests and agent forwarding (C(-L), C(-R), C(-D), C(-N), C(-t), C(-A), ...) are dropped.
  - A host without a name is called after its address; hosts that share an address also get their ports.
  - Passwords are refused, and never repeated in a message. Host key checking can't be turned off from this file.
"""

EXAMPLES = r"""
# rented_hosts
ssh -p 34567 root@region-1.example.com
root@192.0.2.4:2222
ssh ubuntu@2001:db8::1 -i ~/.ssh/rented -J bastion
[2001:db8::2]:2222  ansible_user=root

[trainers]
trainer-1: ssh -p 20544 root@198.51.100.7 -L 8080:localhost:8080  stack=cu124 work_dir=/data
trainer-2: ssh -p 20545 root@198.51.100.7  rented_as='{"gpu": "RTX 4090", "count": 8}'

# ansible-inventory -i rented_hosts --list
# ansible-playbook bootstrap.yml -i rented_hosts --limit trainers
"""

FORM = "[name:] ssh [-p port] [-i key] [-J jump host] [user@]address [key=value ...]"
NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
GROUP = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*\$?")
LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?")
PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
HEADING = re.compile(r"\[([^\]]*)\]\s*(?:#.*)?")
PREFIX = re.compile(r"([^\s:@/\[\]'\"=]+):(?:\s+|(?=ssh\s)|$)")
PROMPT = re.compile(r"(?:[\w.-]+@[\w.-]+:\S*)?[$%>]\s+(?=\S*ssh\b)")
SETTING = re.compile(r"([A-Za-z0-9]+)(?:\s*=\s*|\s+)(.+)", re.DOTALL)
COMMAND = re.compile(rf"(?:{PREFIX.pattern})?(?:{PROMPT.pattern})?(?:\S*/)?(?:ssh|sshpass)\s+[^\s=]+(?:\s|$)")
LOGIN = re.compile(rf"(?:{PREFIX.pattern})?(?:ssh://)?[^\s@=]+@[^\s=]+(?:\s|$)")
SSH = re.compile(r"(?:\S*/)?ssh(?:\.exe)?")
# A host of such a name would take the place of the controller in every play that reports or delegates.
CONTROLLER_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
RESERVED_NAMES = CONTROLLER_NAMES | {"all", "ungrouped"}

# Options of ssh(1). Those that open ports or ask for a terminal make no difference to provisioning.
VALUE_OPTIONS = frozenset("BbcDEeFIiJLlmOoPpQRSWw")
DROPPED_OPTIONS = frozenset("AaCDfgKkLNnqRTtvXxYy")
COMMON_OPTIONS = {"b": "BindAddress", "B": "BindInterface", "c": "Ciphers", "m": "MACs"}
KEPT_SETTINGS = {
    name.lower(): name
    for name in (
        "AddressFamily", "BindAddress", "BindInterface", "CASignatureAlgorithms", "CertificateFile", "Ciphers",
        "HostKeyAlgorithms", "HostKeyAlias", "IdentitiesOnly", "IdentityAgent", "IPQoS", "KexAlgorithms", "MACs",
        "ProxyCommand", "ProxyJump", "PubkeyAcceptedAlgorithms", "PubkeyAcceptedKeyTypes", "PubkeyAuthentication",
        "StrictHostKeyChecking", "TCPKeepAlive", "UserKnownHostsFile",
    )
}  # fmt: skip
# Ansible and ansible.cfg decide these for every host, and ssh takes the first value that it is given.
DECIDED_SETTINGS = (
    "batchmode", "compression", "connectionattempts", "connecttimeout", "controlmaster", "controlpath", "controlpersist",
    "gssapiauthentication", "kbdinteractiveauthentication", "loglevel", "numberofpasswordprompts", "passwordauthentication",
    "preferredauthentications", "serveralivecountmax", "serveraliveinterval",
)  # fmt: skip
SESSION_SETTINGS = (
    "clearallforwardings", "dynamicforward", "exitonforwardfailure", "forwardagent", "forwardx11", "forwardx11trusted",
    "localforward", "remoteforward", "requesttty", "sendenv", "setenv",
)  # fmt: skip
DROPPED_SETTINGS = frozenset({*DECIDED_SETTINGS, *SESSION_SETTINGS})
# Addresses that give a terminal and nothing else. Source: RunPod's documentation, "Connect to a Pod with SSH".
TERMINAL_ONLY = {
    "ssh.runpod.io": "this address gives a terminal but runs no commands and copies no files;"
    " take the command shown under 'SSH over exposed TCP'",
}
KEY_CHECK_ADVICE = (
    "host key checking stays on. Remove this option, connect once by hand, compare the fingerprint with what the landlord"
    " shows and answer yes; or use -o StrictHostKeyChecking=accept-new, which records a new key and refuses a changed one"
)
LOGIN_ADVICE = (
    "a password doesn't belong into this file. Copy your public key to the host (ssh-copy-id) and name the private one"
    " with -i, or pass --ask-pass, or put ansible_password into a vaulted file under host_vars/"
)

# Characters that web pages and word processors put in the place of those that ssh wants.
LOOKALIKES = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
    **dict.fromkeys("\u201c\u201d\u201e\u201f\u300c\u300d", '"'),
    **dict.fromkeys("\u2018\u2019\u201a\u201b", "'"),
    "\u3001": ",",
    "\u3002": ".",
    **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},
}
SPACES = dict.fromkeys(
    map(ord, "\t\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"), " "
)
INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"))

SECRET_KEY = re.compile(r"(?i)(?:^|_)(?:pass|passwd|password|passphrase|token|secret)$")
MASKS = (
    (re.compile(r"(?i)sshpass\b.*"), "sshpass …"),
    (re.compile(r"([^\s:@/|,]+[:/|,])\S*@"), r"\1…@"),
    (
        re.compile(
            r"(?i)(?<![A-Za-z])((?:\w*_)?(?:pass(?:word|wd|phrase)?|pwd|token|secret)|密码|口令)(\s*[=:\uff1a\s]).*"
        ),
        r"\1\2…",
    ),
)
UNCHECKED = re.compile(
    r"(?i)stricthostkeychecking[\s=]+\"?(?:no|off|false)\b|nohostauthenticationforlocalhost[\s=]+\"?yes"
    r"|userknownhostsfile[\s=]+\"?(?:\S+\s+)*?(?:/dev/null|none)(?=[\s\"']|$)"
)


@dataclass(frozen=True)
class RentedHost:
    """One host of the file. `port` and `user` are None where the line doesn't say."""

    name: str
    line: int
    group: str | None
    address: str
    port: int | None
    user: str | None
    variables: dict[str, Any]
    dropped: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class RentedFile:
    """Everything that a file says: its groups in order, and its hosts in order."""

    groups: tuple[str, ...]
    hosts: tuple[RentedHost, ...]


@dataclass(frozen=True)
class Problem:
    """A line that can't be used: its number (0: the whole file), its text without secrets, what was found and wanted."""

    line: int
    text: str
    message: str


class RentedHostsError(ValueError):
    """The file can't be used. `problems` has one entry for each line at fault; the text tells them all."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        """Build the text from the problems, in the order of their lines."""
        self.problems = sorted(problems, key=lambda problem: problem.line)
        lines = [problem for problem in self.problems if problem.line]
        about = f"{len(lines)} line{'s' * (len(lines) > 1)} can't be used" if lines else "this file can't be used"
        text = [f"{source}: {about}, so no host was taken from it."]
        for problem in self.problems:
            text += [f"  line {problem.line}: {problem.text}"] if problem.line else []
            text += [f"    {problem.message}"]
        super().__init__("\n".join([*text, f"Expected on a line: {FORM}", "Details: docs/inventory.md"]))


class LineError(ValueError):
    """One line can't be used. `shown` is what may be repeated of the word at fault (None: all but what looks secret)."""

    def __init__(self, message: str, shown: str | None = None) -> None:
        """Keep the message and what may be shown."""
        super().__init__(message)
        self.shown = shown


@dataclass(frozen=True)
class Word:
    """A word of a line: its text without quotes, as it was written, and whether quotes were in it."""

    text: str
    raw: str
    quoted: bool


@dataclass
class Draft:
    """What has been read from one line so far."""

    line: int
    group: str | None
    text: str
    name: str | None = None
    address: str | None = None
    hostname: str | None = None
    port: int | None = None
    user: str | None = None
    key: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)

    def put(self, attribute: str, value: Any, what: str) -> None:
        """Set an attribute; a second, different value raises LineError."""
        present = getattr(self, attribute)
        if present is not None and present != value:
            raise LineError(f"found two {what}, {present} and {value}; expected one")
        setattr(self, attribute, value)

    def target(self) -> str:
        """Return the address that ssh connects to."""
        return self.hostname or self.address or ""

    def endpoint(self) -> tuple[str, str, int]:
        """Return user, address and port."""
        return (self.user or "", self.target().lower(), self.port or 22)

    def route(self) -> str:
        """Return how the address is reached. The same private address behind two jump hosts is two machines."""
        return self.settings.get("ProxyJump", "") or self.settings.get("ProxyCommand", "")


# YAML whose plain scalars are booleans, null, decimal numbers or text: no dates, no octal, no base 60.
_Values: Any = type("_Values", (yaml.SafeLoader,), {"yaml_implicit_resolvers": {}})
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF", "tTfFyYnNoO"),
    ("null", r"~|null|Null|NULL", "~nN"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?", "-+0123456789"),
):
    _Values.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first))


def clean(line: str) -> str:
    """Return the line with every kind of blank as a space and without characters that can't be seen."""
    return line.translate(SPACES).translate(INVISIBLE).strip()


def mask(text: str) -> str:
    """Return the text with everything that looks like a secret replaced by `…`."""
    for pattern, replacement in MASKS:
        text = pattern.sub(replacement, text)
    return text


def _describe(characters: str) -> str:
    parts = []
    for character in dict.fromkeys(characters):
        name = unicodedata.name(character, "control character").lower()
        wanted = f": write {LOOKALIKES[character]}" if character in LOOKALIKES else ": remove it"
        shown = f"'{character}' " if character.isprintable() else ""
        parts.append(f"{shown}(U+{ord(character):04X}, {name}){wanted}")
    return "; ".join(parts)


def split_words(line: str) -> list[Word]:
    """Split a line as a shell would, with `#` as a comment only at the start of a word.

    A `{` or `[` right behind `key=` reads on to its closing bracket, so that JSON needs no quotes around it.
    Raises LineError for quotes or brackets that stay open, and for characters that only look like those of a command.
    """
    words: list[Word] = []
    wrong: list[int] = []
    position, end = 0, len(line)
    while position < end:
        if line[position] == " ":
            position += 1
            continue
        if line[position] == "#":
            break
        start, text, quoted, quote, depth = position, "", False, "", 0
        while position < end and (quote or depth or line[position] != " "):
            character = line[position]
            following = line[position + 1 : position + 2]
            position += 1
            if quote:
                if character == quote:
                    quote = ""
                    text += character if depth else ""
                elif character == "\\" and quote == '"' and following and (depth or following in '"\\'):
                    text += character + following if depth else following
                    position += 1
                else:
                    text += character
                continue
            if character in LOOKALIKES or unicodedata.category(character) == "Cc":
                wrong.append(position - 1)
            if character in "\"'":
                quote = character
                quoted = quoted or not depth
                text += character if depth else ""
            elif depth:
                depth += (character in "{[") - (character in "}]")
                text += character
            elif character == "\\":
                if following.isalnum() or not following:
                    raise LineError(
                        f"found a backslash before '{following}'; write paths with / and put other text in quotes"
                    )
                text += following
                position += 1
            else:
                depth += character in "{[" and not quoted and PAIR.fullmatch(text) is not None
                text += character
        if wrong:
            continue
        if quote:
            raise LineError(f"found a quote ({quote}) that isn't closed")
        if depth:
            raise LineError("found a bracket that isn't closed")
        words.append(Word(text, line[start:position], quoted))
    if wrong:
        raise LineError(f"found {_describe(''.join(line[index] for index in wrong))}")
    return words


def has_template(value: Any) -> bool:
    """Tell whether Ansible would evaluate a string in the value, at any depth."""
    if isinstance(value, dict):
        return any(has_template(part) for pair in value.items() for part in pair)
    if isinstance(value, list | set | tuple):
        return any(has_template(part) for part in value)
    return isinstance(value, str) and any(mark in value for mark in ("{{", "{%", "{#"))


def read_value(key: str, word: Word) -> Any:
    """Return the value of a `key=value` word: quoted text, a YAML scalar, or YAML/JSON behind `{` or `[`."""
    value = word.text.partition("=")[2]
    if has_template(value):
        raise LineError(
            f"found a template in {key}; values of this file are plain data, templates belong into group_vars/ or host_vars/"
        )
    if value[:1] in ("{", "["):
        odd = [character for character in re.sub(r'"[^"]*"', "", value) if character in LOOKALIKES]
        if odd:
            raise LineError(f"found {_describe(''.join(odd))}, in the value of {key}")
        try:
            return _Values(value).get_single_data()
        except (yaml.YAMLError, ValueError, TypeError) as error:
            problem = getattr(error, "problem", None) or "not a mapping or list"
            raise LineError(
                f"can't read the value of {key} as YAML or JSON ({problem}); expected for example {key}='{{\"count\": 8}}'"
            ) from None
    if word.quoted or not value:
        return value
    loader = _Values("")
    tag = loader.resolve(yaml.ScalarNode, value, (True, False))
    return loader.construct_object(yaml.ScalarNode(tag, value))


def read_port(text: str) -> int:
    """Return a port, 1 to 65535."""
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        found = text if text.isdecimal() else "no number"
        raise LineError(f"found {found} as port; expected 1 to 65535", None if text.isdecimal() else "…")
    return int(text)


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def read_host(text: str) -> str:
    """Return a host name or an IP address; IPv6 in its short form."""
    address = _ip(text)
    if address:
        return str(address)
    labels = text.removesuffix(".").split(".")
    if all(label.isdigit() for label in labels) or not all(LABEL.fullmatch(label) for label in labels):
        raise LineError(f"found '{text}' as address; expected a host name, an IPv4 address, or an IPv6 address")
    return text


def read_target(text: str) -> tuple[str | None, str, int | None]:
    """Return user, address and port of `[ssh://][user@]address[:port]`; None for what it doesn't say."""
    body = text.removeprefix("ssh://").removesuffix("/")
    user, at, place = body.rpartition("@")
    if ":" in user:
        raise LineError(f"found a password before '@' (a name in front needs a blank behind its colon); {LOGIN_ADVICE}")
    if at and not USER.fullmatch(user):
        raise LineError("found an odd user before '@'; expected letters, digits, '.', '_', '-'")
    digits: str | None = None
    bracketed = re.fullmatch(r"\[([^\[\]]+)\](?::(.*))?", place)
    if bracketed:
        place = bracketed[1]
        if not isinstance(_ip(place), ipaddress.IPv6Address):
            raise LineError(f"found '[{place}]'; expected an IPv6 address in the brackets")
        digits = bracketed[2]
    elif ":" in place and not _ip(place):
        if place.count(":") > 1:
            shown = f"{user}{at}{':'.join(place.split(':')[:2])}:…"
            raise LineError(
                f"found more than one colon in {shown}; expected address:port, and an IPv6 address with a port as [address]:port",
                shown,
            )
        place, _, digits = place.partition(":")
    host = read_host(place)
    try:
        return user or None, host, None if digits is None else read_port(digits)
    except LineError as error:
        raise LineError(str(error), None if error.shown is None else f"{user}{at}{host}:…") from None


def _check_ssh_text(text: str) -> None:
    """Refuse ssh options, at any depth of a command, that turn host key checking off or hand over a password."""
    if re.search(r"\bsshpass\b", text):
        raise LineError(f"found sshpass; {LOGIN_ADVICE}", "…")
    found = UNCHECKED.search(text)
    if found:
        raise LineError(f"found {found[0]}; {KEY_CHECK_ADVICE}")


def _keep(draft: Draft, name: str, value: str) -> None:
    if name == "ProxyJump" and re.search(r"[^\s,@/:]+:[^\s,@]+@", value.replace("ssh://", "")):
        raise LineError(f"found a password in the jump host; {LOGIN_ADVICE}")
    if name == "ProxyJump" and not re.fullmatch(r"[\w.@:/\[\],%+-]+", value, re.ASCII):
        raise LineError(f"found '{value}' as jump host; expected [user@]host[:port], several separated by commas")
    if draft.settings.get(name, value) != value:
        raise LineError(f"found two values of {name}; expected one")
    draft.settings[name] = value
    if {"ProxyJump", "ProxyCommand"} <= draft.settings.keys():
        raise LineError("found a jump host (-J) and a ProxyCommand; ssh takes one of them")


def _read_key(draft: Draft, value: str) -> None:
    if not value or re.search(r"[$<>`*]", value):
        raise LineError(
            f"found '{value}' as key file; expected a path (~ works; variables and placeholders are not filled in)"
        )
    draft.put("key", value, "key files")


def _read_setting(draft: Draft, value: str) -> None:
    """Read the value of `-o`."""
    match = SETTING.fullmatch(value.strip())
    if not match:
        raise LineError(f"found -o {value or 'with nothing behind it'}; expected -o Name=value")
    name, setting = match[1], match[2]
    _check_ssh_text(f"{name}={setting}")
    if name.lower() in ("port", "user", "identityfile", "hostname"):
        _read_option(draft, {"port": "p", "user": "l", "identityfile": "i", "hostname": ""}[name.lower()], setting)
    elif name.lower() in DROPPED_SETTINGS:
        draft.dropped.append(f"-o {name}")
    elif name.lower() in KEPT_SETTINGS:
        _keep(draft, KEPT_SETTINGS[name.lower()], setting)
    else:
        raise LineError(
            f"found -o {name}, which isn't taken from this file; put it into ~/.ssh/config, where ssh finds it"
        )


def _read_option(draft: Draft, option: str, value: str) -> None:
    """Read one option of ssh with its value ('' for those without one)."""
    if option == "p":
        draft.put("port", read_port(value), "ports")
    elif option == "l":
        if not USER.fullmatch(value):
            raise LineError("found an odd user behind -l; expected letters, digits, '.', '_', '-'", "-l …")
        draft.put("user", value, "users")
    elif option == "i":
        _read_key(draft, value)
    elif option == "":
        draft.put("hostname", read_host(value), "host names")
    elif option == "J":
        _keep(draft, "ProxyJump", value)
    elif option == "o":
        _read_setting(draft, value)
    elif option in "46":
        _keep(draft, "AddressFamily", "inet6" if option == "6" else "inet")
    elif option in COMMON_OPTIONS:
        _keep(draft, COMMON_OPTIONS[option], value)
    elif option in DROPPED_OPTIONS:
        draft.dropped.append(f"-{option}")
    else:
        raise LineError(
            f"found -{option}, which isn't taken from this file; expected -p, -l, -i, -J or -o, and the rest in ~/.ssh/config"
        )


def _read_options(draft: Draft, words: list[Word], index: int) -> int:
    """Read a word of options such as `-p22`, `-Nf`, or `-p` with the word behind it; return the index of the next word."""
    letters = words[index].text[1:]
    index += 1
    for position, option in enumerate(letters):
        if option not in VALUE_OPTIONS:
            _read_option(draft, option, "")
            continue
        value, shown = letters[position + 1 :], words[index - 1].raw
        if not value:
            if index == len(words):
                raise LineError(f"found -{option} with nothing behind it")
            value, shown = words[index].text, f"{shown} {words[index].raw}"
            index += 1
        try:
            _read_option(draft, option, value)
        except LineError as error:
            raise LineError(str(error), shown if error.shown is None else error.shown) from None
        break
    return index


def _read_pair(draft: Draft, word: Word) -> None:
    key = word.text.partition("=")[0]
    if SECRET_KEY.search(key):
        raise LineError(
            f"found {key}; secrets don't belong into this file, but into a vaulted file under host_vars/ or group_vars/",
            f"{key}=…",
        )
    value = read_value(key, word)
    if key in draft.variables:
        raise LineError(f"found {key} twice; expected one value")
    if key in ("ansible_host_key_checking", "ansible_ssh_host_key_checking") and value is not True:
        raise LineError(f"found {key}; {KEY_CHECK_ADVICE}")
    if key.startswith("ansible_") and isinstance(value, str):
        _check_ssh_text(value)
    draft.variables[key] = read_port(str(value)) if key == "ansible_port" else value


def _read_address(draft: Draft, words: list[Word], index: int, is_command: bool) -> None:
    text = words[index].text
    if not is_command and "@" not in text and not re.search(r":\d+$|^\[.*\]|^ssh://", text) and not _ip(text):
        hint = "a host name alone needs 'ssh' in front"
        if any(SSH.fullmatch(word.text) for word in words):
            hint = "a name in front of the command needs a colon and a blank behind it"
        elif any(word.text.startswith("ansible_host=") for word in words):
            hint = "for an INI inventory give the file another name, such as hosts.ini"
        raise LineError(f"found neither an ssh command nor user@address nor address:port ({hint})", "…")
    user, draft.address, port = read_target(text)
    if user is not None:
        draft.put("user", user, "users")
    if port is not None:
        draft.put("port", port, "ports")


def read_line(text: str, line: int = 0, group: str | None = None) -> Draft:
    """Read one line that holds a host. Raises LineError."""
    draft = Draft(line, group, text)
    prefix = PREFIX.match(text)
    start = prefix.end() if prefix else 0
    start += match.end() if (match := PROMPT.match(text[start:])) else 0
    words = split_words(text[start:])
    index = 0
    try:
        if prefix:
            draft.name = prefix[1]
            if not NAME.fullmatch(draft.name) or draft.name in RESERVED_NAMES:
                raise LineError(
                    f"found '{draft.name}' as name; expected letters, digits, '.', '_', '-', and none of {', '.join(sorted(RESERVED_NAMES))}"
                )
        if words and words[0].text.rpartition("/")[2] == "sshpass":
            raise LineError(f"found sshpass; {LOGIN_ADVICE}", "sshpass …")
        is_command = bool(words and SSH.fullmatch(words[0].text))
        index = int(is_command)
        while index < len(words):
            word = words[index]
            if draft.address is not None and PAIR.match(word.text):
                _read_pair(draft, word)
            elif word.text.startswith("-") and word.text != "-" and not word.quoted:
                index = _read_options(draft, words, index)
                continue
            elif draft.address is not None:
                raise LineError(
                    "found a word behind the address that isn't key=value; a command for the host isn't run from here",
                    "…",
                )
            else:
                _read_address(draft, words, index, is_command)
            index += 1
        if draft.address is None:
            raise LineError("found no address")
    except LineError as error:
        parts = [word.raw for word in words[:index]]
        parts += [error.shown if error.shown is not None else word.raw for word in words[index : index + 1]]
        parts += ["…"] if index + 1 < len(words) and parts[-1] != "…" else []
        raise LineError(str(error), " ".join([*([text[: prefix.end()].strip()] if prefix else []), *parts])) from None
    for key, value in (
        ("ansible_host", draft.target()),
        ("ansible_port", draft.port),
        ("ansible_user", draft.user),
        ("ansible_ssh_private_key_file", draft.key),
    ):
        if key in draft.variables and value is not None:
            raise LineError(f"found {key}, which the command says already; expected one of them")
    given: list[Any] = [*draft.variables.values(), draft.key, *draft.settings.values()]
    if has_template(given):
        raise LineError("found a template; this file is plain data, templates belong into group_vars/ or host_vars/")
    return draft


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that isn't blank or a comment; a backslash at the end joins the next line."""
    pending, first = "", 0
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        cleaned = clean(line)
        if not pending:
            first = number
            if cleaned.startswith("#"):
                continue
        pending = f"{pending} {cleaned}".strip()
        if pending.endswith("\\"):
            pending = pending[:-1].rstrip() or " "
            continue
        if pending.strip():
            yield first, pending
        pending = ""
    if pending.strip():
        yield first, pending


def _derived_names(draft: Draft) -> list[str]:
    """Return names made of the address, of address and port, and of address, port and user."""
    address = (draft.address or "").lower().rstrip(".")
    ip = _ip(address)
    if isinstance(ip, ipaddress.IPv6Address):
        address = re.sub(r"[:%]", "-", f"ip6{address}" if address.startswith(":") else address).rstrip("-")
    with_port = f"{address}-{draft.port or 22}"
    user = re.sub(r"[^A-Za-z0-9_]+", "-", draft.user or "").strip("-")
    # A loopback address is a tunnel to somewhere: its port says where, and the bare name is the controller's.
    is_tunnel = address == "localhost" or (ip is not None and ip.is_loopback)
    return [with_port if is_tunnel else address, with_port, f"{with_port}-{user}" if user else with_port]


def _name_hosts(drafts: list[Draft], groups: list[str]) -> Iterator[Problem]:
    """Give every host a name of its own. The names don't depend on the order of the lines."""
    taken: dict[str, int] = {}
    seen: dict[tuple[tuple[str, str, int], str], int] = {}
    for draft in drafts:
        same = seen.setdefault((draft.endpoint(), draft.route()), draft.line)
        if same != draft.line:
            yield Problem(draft.line, draft.text, f"found the same host as in line {same}; expected each host once")
        elif draft.name in groups:
            yield Problem(
                draft.line,
                draft.text,
                f"found '{draft.name}' as name of a host and of a group; expected different names",
            )
        elif draft.name and draft.name in taken:
            yield Problem(
                draft.line,
                draft.text,
                f"found the name '{draft.name}' a second time, after line {taken[draft.name]}; expected each name once",
            )
        elif draft.name:
            taken[draft.name] = draft.line
    unnamed = [draft for draft in drafts if not draft.name and seen[draft.endpoint(), draft.route()] == draft.line]
    counts = Counter(level for draft in unnamed for level in enumerate(_derived_names(draft)))
    for draft in unnamed:
        for level, name in enumerate(_derived_names(draft)):
            if counts[level, name] == 1 and name not in {*taken, *groups, *RESERVED_NAMES}:
                draft.name = name
                taken[name] = draft.line
                break
        else:
            yield Problem(
                draft.line,
                draft.text,
                "found no name of its own for this host; put one in front, as in 'trainer-1: ssh ...'",
            )


def _finish(draft: Draft, is_ambiguous: bool) -> RentedHost:
    variables: dict[str, Any] = {"ansible_host": draft.target()}
    if draft.port is not None:
        variables["ansible_port"] = draft.port
    if draft.user is not None:
        variables["ansible_user"] = draft.user
    if draft.key is not None:
        variables["ansible_ssh_private_key_file"] = draft.key
    if draft.settings:
        variables["ansible_ssh_common_args"] = " ".join(
            f"-o {shlex.quote(f'{name}={value}')}" for name, value in draft.settings.items()
        )
    if is_ambiguous:
        # Ansible names the master connection after user, address and port only, so it would reuse that of the other host.
        name = hashlib.sha256(repr((draft.endpoint(), draft.route())).encode()).hexdigest()[:10]
        variables["ansible_control_path"] = f"%(directory)s/{name}"
    warning = TERMINAL_ONLY.get(draft.target().lower())
    return RentedHost(
        name=draft.name or "",
        line=draft.line,
        group=draft.group,
        address=draft.target(),
        port=draft.port,
        user=draft.user,
        variables=variables | draft.variables,
        dropped=tuple(draft.dropped),
        warnings=(f"{draft.name}: {draft.target()}: {warning}.",) if warning else (),
    )


def read_heading(content: str) -> str:
    """Return the group of a `[group]` heading. Raises LineError."""
    name, colon, kind = content.strip().partition(":")
    if colon:
        advice = (
            f"put variables of a group into group_vars/{name or 'GROUP'}.yml beside this file"
            if kind == "vars"
            else "put groups of groups into a second inventory"
        )
        raise LineError(
            f"found a section of an INI inventory; {advice}, or write the whole inventory as INI (hosts.ini)"
        )
    if not GROUP.fullmatch(name):
        raise LineError(f"found '{name}' as group; expected a letter or '_', then letters, digits and '_'")
    return name


def parse_rented_hosts(text: str, source: str = "rented_hosts") -> RentedFile:
    """Return the groups and hosts of the text of a file; `source` is its name in messages.

    Raises RentedHostsError with all lines at fault, or when there is no host in the text.
    """
    problems: list[Problem] = []
    drafts: list[Draft] = []
    groups: list[str] = []
    group: str | None = None
    skipping = False
    for number, line in logical_lines(text):
        try:
            heading = HEADING.fullmatch(line)
            if heading and not _ip(heading[1]):
                skipping = ":" in heading[1]
                group = read_heading(heading[1])
                groups += [group] if group not in groups else []
            elif not skipping:
                drafts.append(read_line(line, number, group))
        except LineError as error:
            problems.append(Problem(number, mask(line if error.shown is None else error.shown), str(error)))
    problems += _name_hosts(drafts, groups)
    if not problems and not drafts:
        problems.append(
            Problem(
                0,
                "",
                "found no host in it; expected one ssh command a line, such as: ssh -p 34567 root@region-1.example.com",
            )
        )
    if problems:
        raise RentedHostsError(source, problems)
    endpoints = Counter(draft.endpoint() for draft in drafts)
    return RentedFile(tuple(groups), tuple(_finish(draft, endpoints[draft.endpoint()] > 1) for draft in drafts))


def decode(data: bytes, source: str) -> str:
    """Return the bytes of a file as text. Raises RentedHostsError when they are not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"found bytes that are not UTF-8, first in line {line}; save the file as UTF-8"
        raise RentedHostsError(source, [Problem(0, "", message)]) from None


def is_named_rented_hosts(file_name: str) -> bool:
    """Tell whether a file is ours by its name alone."""
    return file_name in ("rented_hosts", "rented_hosts.txt") or file_name.endswith(".rented_hosts")


def recognise(file_name: str, data: bytes, executable: bool = False) -> bool:
    """Tell whether a file is ours: by its name, or because its first lines look like pasted ssh commands."""
    if data.startswith(b"#!"):
        return False
    if is_named_rented_hosts(file_name):
        return True
    if executable or Path(file_name).suffix.lower() not in ("", ".txt", ".hosts", ".list", ".ssh") or b"\0" in data:
        return False
    # Indented lines are those of a YAML document, or the rest of a command that goes over two lines.
    text = re.sub(r"(?m)^[ \t].*$", "", data.decode("utf-8-sig", errors="replace"))
    lines = [line for _, line in logical_lines(text)]
    hosts = [line for line in lines if not HEADING.fullmatch(line)][:10]
    # A command is certain. An INI inventory may have user@address as a host name, but then with sections of its own.
    if any(COMMAND.match(line) for line in hosts):
        return True
    sections = any(heading and ":" in heading[1] for heading in map(HEADING.fullmatch, lines))
    return bool(hosts) and not sections and all(LOGIN.match(line) for line in hosts)


class InventoryModule(BaseFileInventoryPlugin):  # type: ignore[misc]  # ansible has no types
    """Hands the hosts of a file of pasted ssh commands to Ansible."""

    NAME = "rented_hosts"
    # Otherwise every string is listed as unsafe, and what reads `ansible-inventory --list` stumbles over it. The parser has
    # refused all templates, so there is nothing left to evaluate.
    trusted_by_default = True

    def verify_file(self, path: str) -> bool:
        """Tell whether the file is one of ours. Pipes are left alone: reading would empty them."""
        try:
            status = Path(path).stat()
            if not stat.S_ISREG(status.st_mode):
                return False
            return recognise(Path(path).name, Path(path).read_bytes(), os.access(path, os.X_OK))
        except (OSError, ValueError):
            return False

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """Add the groups and hosts of the file to the inventory."""
        super().parse(inventory, loader, path, cache)
        try:
            data = Path(path).read_bytes()
            if data.startswith(b"$ANSIBLE_VAULT"):
                data = str(loader.get_text_file_contents(path)).encode()
            content = parse_rented_hosts(decode(data, path), path)
            self._refuse_overlap(content, path)
        except RentedHostsError as error:
            # An exception here would make Ansible try the other plugins, and INI takes a malformed line of one word for
            # a host name: the run would go on with a host that doesn't exist. Nothing but an exit keeps it from that.
            self.display.error(str(error))
            raise SystemExit(1) from None
        except OSError as error:
            raise AnsibleParserError(f"{path}: can't be read: {error.strerror}") from error
        for group in content.groups:
            self.inventory.add_group(group)
        for host in content.hosts:
            self.inventory.add_host(host.name, group=host.group or "ungrouped")
            for key, value in host.variables.items():
                self.inventory.set_variable(host.name, key, value)
            for warning in host.warnings:
                self.display.warning(warning)
            if host.dropped:
                self.display.vv(f"{path} line {host.line}: not needed here, dropped: {', '.join(host.dropped)}")

    def _refuse_overlap(self, content: RentedFile, path: str) -> None:
        """Refuse a name that another inventory source has given to another address."""
        problems = []
        for host in content.hosts:
            present = self.inventory.hosts.get(host.name)
            known = present.get_vars() if present else {}
            if "ansible_host" in known and (known["ansible_host"], known.get("ansible_port")) != (
                host.address,
                host.port,
            ):
                message = f"found the name '{host.name}', which another inventory gives to {known['ansible_host']}; put another name in front"
                problems.append(Problem(host.line, host.address, message))
        if problems:
            raise RentedHostsError(path, problems)
