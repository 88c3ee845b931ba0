"""What a lab host needs from the machine it runs on, so that apt, pip and uv work inside.

Read from the machine's own configuration at run time: Debian mirror, apt options, extra certificate authorities,
package index settings, proxy. Nothing of it is written in this repository.
"""

from __future__ import annotations

import configparser
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

COMPONENTS = "main contrib non-free non-free-firmware"
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
RELEASES = ("bookworm", "trixie", "bullseye", "forky", "sid", "stable", "oldstable", "testing", "unstable")
LOCAL_CA_DIRS = (Path("/usr/local/share/ca-certificates"), Path("/etc/pki/ca-trust/source/anchors"))
APT_OPTIONS = (
    "Acquire::http::Proxy",
    "Acquire::https::Proxy",
    "Acquire::Check-Valid-Until",
    "Acquire::Check-Date",
)


@dataclass(frozen=True)
class AptSource:
    """One URI and suite of an apt configuration."""

    uri: str
    suite: str
    components: tuple[str, ...]


def parse_one_line(text: str) -> list[AptSource]:
    """Parse the one-line format (`deb [options] uri suite component…`)."""
    found = []
    for raw in text.splitlines():
        line = re.sub(r"\[[^\]]*\]", " ", raw.split("#", 1)[0]).split()
        if len(line) >= 3 and line[0] == "deb":
            found.append(AptSource(line[1].rstrip("/"), line[2], tuple(line[3:])))
    return found


def parse_deb822(text: str) -> list[AptSource]:
    """Parse the deb822 format (stanzas with Types, URIs, Suites, Components)."""
    found = []
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, list[str]] = {}
        key = ""
        for line in stanza.splitlines():
            if line.startswith("#") or not line.strip():
                continue
            if line[0].isspace() and key:
                fields[key] += line.split()
            elif ":" in line:
                name, _, value = line.partition(":")
                key = name.strip().lower()
                fields[key] = value.split()
        if "deb" not in fields.get("types", []) or fields.get("enabled") == ["no"]:
            continue
        found += [
            AptSource(uri.rstrip("/"), suite, tuple(fields.get("components", [])))
            for uri in fields.get("uris", [])
            for suite in fields.get("suites", [])
        ]
    return found


def read_apt_sources(root: Path = Path("/etc/apt")) -> list[AptSource]:
    """Read all sources of this machine."""
    found: list[AptSource] = []
    main = root / "sources.list"
    if main.is_file():
        found += parse_one_line(main.read_text())
    for file in sorted((root / "sources.list.d").glob("*")):
        if file.suffix == ".list":
            found += parse_one_line(file.read_text())
        elif file.suffix == ".sources":
            found += parse_deb822(file.read_text())
    return found


def debian_lines(sources: Iterable[AptSource], release: str) -> list[str]:
    """Render the apt lines of `release` from the mirrors this machine uses.

    Returns:
        Lines for the release, its updates and its security suite; [] when the machine has no Debian source,
        which leaves the choice to mmdebstrap.

    """
    main = security = ""
    for source in sources:
        base = source.suite.split("-")[0].split("/")[0]
        if base not in RELEASES or "main" not in source.components:
            continue
        if "security" in source.suite:
            security = security or source.uri
        elif source.suite in (base, f"{base}-updates"):
            main = main or source.uri
    if not main:
        return []
    lines = [f"deb {main} {release} {COMPONENTS}", f"deb {main} {release}-updates {COMPONENTS}"]
    if security:
        lines.append(f"deb {security} {release}-security {COMPONENTS}")
    return lines


def apt_options() -> list[str]:
    """Return this machine's apt options that fetching depends on, as apt.conf lines."""
    try:
        done = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError:
        return []
    wanted = tuple(f"{name} " for name in APT_OPTIONS)
    return [line for line in done.stdout.splitlines() if line.startswith(wanted) and not line.endswith('"";')]


def split_pem(text: str) -> list[str]:
    """Split a PEM bundle into single certificates."""
    return [
        block + "\n"
        for block in re.findall(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", text, flags=re.DOTALL)
    ]


def extra_certificates(env: Mapping[str, str] = os.environ, dirs: Iterable[Path] = LOCAL_CA_DIRS) -> list[str]:
    """Return the certificate authorities that this machine trusts beyond its distribution's."""
    files = [
        file for directory in dirs if directory.is_dir() for file in sorted(directory.rglob("*")) if file.is_file()
    ]
    named = env.get("SSL_CERT_FILE", "")
    if named and named != BUNDLE and not named.startswith("/etc/ssl/") and Path(named).is_file():
        files.append(Path(named))
    found: list[str] = []
    for file in files:
        found += [block for block in split_pem(file.read_text(errors="replace")) if block not in found]
    return found


def read_pip_settings(files: Iterable[Path], env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return index-url, trusted-host and cert of this machine's pip configuration, as far as a container can use them."""
    found: dict[str, str] = {}
    for file in files:
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        if file.is_file():
            parser.read_string(file.read_text())
        for key in ("index-url", "trusted-host", "cert"):
            value = parser.get("global", key, fallback="")
            if value:
                found[key] = value
    for key, name in (("index-url", "PIP_INDEX_URL"), ("trusted-host", "PIP_TRUSTED_HOST"), ("cert", "PIP_CERT")):
        if env.get(name):
            found[key] = env[name]
    if not found.get("index-url", "https://").startswith(("http://", "https://")):
        del found["index-url"]
    if "cert" in found:
        found["cert"] = BUNDLE  # the container's own bundle, which holds the extra authorities
    return found


def pip_files() -> list[Path]:
    """Return pip's configuration files, least specific first."""
    return [
        Path("/etc/xdg/pip/pip.conf"),
        Path("/etc/pip.conf"),
        Path.home() / ".pip/pip.conf",
        Path.home() / ".config/pip/pip.conf",
    ]


def uv_index(env: Mapping[str, str] = os.environ) -> str:
    """Return the default index that this machine gives to uv, '' when it gives none."""
    if env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL"):
        return env.get("UV_DEFAULT_INDEX") or env["UV_INDEX_URL"]
    for file in (Path("/etc/uv/uv.toml"), Path.home() / ".config/uv/uv.toml"):
        match = re.search(r'(?m)^index-url\s*=\s*"([^"]+)"', file.read_text()) if file.is_file() else None
        if match:
            return match[1]
    return ""


def host_files(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the files, by path inside a lab host, that hand this machine's settings on."""
    files = {
        f"usr/local/share/ca-certificates/lab-host-{number:02}.crt": block
        for number, block in enumerate(extra_certificates(env))
    }
    options = apt_options()
    if options:
        files["etc/apt/apt.conf.d/90lab-host"] = "\n".join(options) + "\n"
    pip = read_pip_settings(pip_files(), env)
    if pip:
        files["etc/pip.conf"] = "[global]\n" + "".join(f"{key} = {value}\n" for key, value in sorted(pip.items()))
    index = uv_index(env) or pip.get("index-url", "")
    files["etc/uv/uv.toml"] = "system-certs = true\n" + (f'index-url = "{index}"\n' if index else "")
    proxies = {
        name: env[name]
        for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
        if env.get(name) and "127.0.0.1" not in env[name] and "localhost" not in env[name]
    }
    if proxies:
        files["etc/environment"] = "".join(f'{name}="{value}"\n' for name, value in sorted(proxies.items()))
    return files
