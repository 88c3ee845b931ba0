#!@PREFIX@/bin/python
"""The conda command of the gpu-bootstrap lab: a STAND-IN, not conda.

It has conda's command line, files and messages as far as roles meet them, over a real solver and installer
(py-rattler). Channels without a `channel_alias` are answered by the one that came with the installer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

VERSION = "@CONDA_VERSION@"
PREFIX = Path(sys.prefix)
HOME = Path.home()
TERMS = ("https://repo.anaconda.com/pkgs/main", "https://repo.anaconda.com/pkgs/r")
CHANNELS_PAGE = "https://www.anaconda.com/docs/tools/working-with-conda/channels"
BLOCK_BEGIN, BLOCK_END = "# >>> conda initialize >>>", "# <<< conda initialize <<<"


class CondaError(Exception):
    """An error as conda names it."""

    def __init__(self, name: str, text: str) -> None:
        """Keep conda's exception name."""
        super().__init__(text)
        self.name = name


# --- configuration ----------------------------------------------------------------------------------------------------


def parse_condarc(text: str) -> dict[str, Any]:
    """Read the YAML subset that condarc files are written in: scalars, block lists, flow lists."""
    found: dict[str, Any] = {}
    key = ""
    for raw in text.splitlines():
        line = raw.split(" #")[0].rstrip()
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        item = re.match(r"\s*-\s+(.*)", line)
        if item and key:
            if not isinstance(found[key], list):
                found[key] = []
            found[key].append(item[1].strip().strip("'\""))
        elif ":" in line and not line[0].isspace():
            key, _, value = line.partition(":")
            key, value = key.strip(), value.strip()
            if value.startswith("["):
                found[key] = [part.strip().strip("'\"") for part in value.strip("[]").split(",") if part.strip()]
            else:
                found[key] = value.strip("'\"")
    return found


def render_condarc(values: dict[str, Any]) -> str:
    """Write what `parse_condarc` reads."""
    text = ""
    for key, value in values.items():
        if isinstance(value, list):
            text += f"{key}:\n" + "".join(f"  - {item}\n" for item in value) if value else f"{key}: []\n"
        else:
            text += f"{key}: {value}\n"
    return text


def sources() -> list[Path]:
    """Configuration files, least specific first."""
    places = [Path("/etc/conda/.condarc"), Path("/etc/conda/condarc"), PREFIX / ".condarc", HOME / ".condarc"]
    if os.environ.get("CONDARC"):
        places.append(Path(os.environ["CONDARC"]))
    return [place for place in places if place.is_file()]


def settings() -> dict[str, Any]:
    """All files merged: lists of a more specific file come first, scalars replace."""
    merged: dict[str, Any] = {}
    for place in sources():
        for key, value in parse_condarc(place.read_text()).items():
            old = merged.get(key, [])
            if isinstance(value, list) and isinstance(old, list):
                merged[key] = value + [item for item in old if item not in value]
            else:
                merged[key] = value
    if os.environ.get("CONDA_CHANNELS"):
        merged["channels"] = os.environ["CONDA_CHANNELS"].split(",")
    return merged


def truthy(value: object) -> bool:
    """Tell what condarc files call true."""
    return str(value).lower() in ("true", "yes", "on", "1", "y")


def directories(key: str, variable: str, default: Path) -> list[Path]:
    """`envs_dirs` or `pkgs_dirs`: variable, configuration, default."""
    if os.environ.get(variable):
        return [Path(part).expanduser() for part in os.environ[variable].split(os.pathsep)]
    found = settings().get(key) or []
    return [*(Path(str(part)).expanduser() for part in found), default]


# --- channels and terms -----------------------------------------------------------------------------------------------


def channel_names(args: argparse.Namespace) -> list[str]:
    """Names as given: `-c` first, then the configuration unless `--override-channels`."""
    configured = settings().get("channels") or ["defaults"]
    names = list(args.channel)
    if not getattr(args, "override_channels", False):
        names += [name for name in configured if name not in names]
    if not names:
        raise CondaError(
            "ArgumentError", "At least one -c / --channel flag must be supplied when using --override-channels."
        )
    return names


def default_urls() -> list[str]:
    """What `defaults` stands for: Anaconda's channels unless `default_channels` names a mirror."""
    return [str(url).rstrip("/") for url in settings().get("default_channels") or TERMS]


def channel_urls(names: Iterable[str]) -> list[str]:
    """Canonical URLs of channels; a bare name goes through `channel_alias`."""
    alias = str(settings().get("channel_alias") or "https://conda.anaconda.org").rstrip("/")
    urls: list[str] = []
    for name in names:
        if name == "defaults":
            urls += default_urls()
        elif name in ("main", "pkgs/main", "r", "pkgs/r"):
            urls.append(f"https://repo.anaconda.com/pkgs/{name.rsplit('/', 1)[-1]}")
        elif "://" in name:
            urls.append(name.rstrip("/"))
        else:
            urls.append(f"{alias}/{name}")
    return list(dict.fromkeys(urls))


def fetch_url(url: str) -> str:
    """Where packages of a channel really come from: the two public sites are answered by the installer's own channel."""
    if url.startswith(("https://conda.anaconda.org/", "https://repo.anaconda.com/")):
        return (PREFIX / "standin-channel").as_uri()
    return url


def terms_files() -> list[Path]:
    """Places where acceptance is kept: of the system, of this installation, of the user."""
    return [
        Path("/etc/conda/tos/accepted.json"),
        PREFIX / "conda-meta/tos/accepted.json",
        HOME / ".conda/tos/accepted.json",
    ]


def accepted() -> dict[str, bool]:
    """Channel URL -> accepted (true) or rejected (false)."""
    answers: dict[str, bool] = {}
    for place in terms_files():
        if place.is_file():
            answers.update(json.loads(place.read_text()))
    return answers


def check_terms(urls: Iterable[str]) -> None:
    """Refuse channels whose terms nobody has accepted, in the words of conda's plugin."""
    if truthy(os.environ.get("CONDA_PLUGINS_AUTO_ACCEPT_TOS", "")):
        return
    answers = accepted()
    open_ones = [url for url in urls if url in TERMS and not answers.get(url)]
    if open_ones:
        raise CondaError(
            "CondaToSNonInteractiveError",
            "Terms of Service have not been accepted for the following channels. "
            "Please accept or remove them before proceeding:\n"
            + "".join(f"    - {url}\n" for url in open_ones)
            + "\nTo accept these channels' Terms of Service, run the following commands:\n"
            + "".join(f"    conda tos accept --override-channels --channel {url}\n" for url in open_ones)
            + "\nFor information on safely removing channels from your conda configuration,\n"
            + f"please see the official documentation:\n\n    {CHANNELS_PAGE}",
        )


def do_terms(args: argparse.Namespace) -> int:
    """`conda tos [view|accept|reject|info]`."""
    if args.action == "info":
        print(f"conda tos (stand-in)\n  search paths: {', '.join(str(place) for place in terms_files())}")
        return 0
    names = list(args.channel)
    if not args.override_channels:
        names += settings().get("channels") or ["defaults"]
    urls = channel_urls(names)
    if args.action in ("accept", "reject"):
        place = terms_files()[0 if args.system else 1 if args.site else 2]
        answers = json.loads(place.read_text()) if place.is_file() else {}
        for url in urls:
            if url in TERMS:
                answers[url] = args.action == "accept"
                print(f"{args.action}ed Terms of Service for {url}")
            else:
                print(f"Terms of Service not found for {url}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(answers, indent=1, sort_keys=True))
        return 0
    answers = accepted()
    if args.json:
        print(json.dumps({url: {"tos_accepted": answers.get(url)} for url in urls if url in TERMS}))
        return 0
    for url in urls:
        state = {True: "accepted", False: "rejected", None: "-"}[answers.get(url)] if url in TERMS else "no terms"
        print(f"{url}\t{state}")
    return 0


# --- environments -----------------------------------------------------------------------------------------------------


def is_environment(path: Path) -> bool:
    """Tell conda's way: there is a conda-meta directory."""
    return (path / "conda-meta").is_dir()


def environments() -> list[Path]:
    """Base, those in the environment directories, those in the user's list."""
    found = [PREFIX]
    for folder in directories("envs_dirs", "CONDA_ENVS_DIRS", PREFIX / "envs"):
        if folder.is_dir():
            found += sorted(path for path in folder.iterdir() if is_environment(path))
    listed = HOME / ".conda/environments.txt"
    if listed.is_file():
        found += [Path(line) for line in listed.read_text().splitlines() if line and is_environment(Path(line))]
    return list(dict.fromkeys(found))


def target(args: argparse.Namespace) -> Path:
    """The prefix that `-p`, `-n` or the active environment names."""
    if args.prefix:
        return Path(args.prefix).expanduser().absolute()
    if args.name in ("base", "root"):
        return PREFIX
    if args.name:
        folders = directories("envs_dirs", "CONDA_ENVS_DIRS", PREFIX / "envs")
        places = [folder / str(args.name) for folder in folders]
        return next((place for place in places if is_environment(place)), places[0])
    return Path(os.environ.get("CONDA_PREFIX") or PREFIX)


def must_exist(path: Path) -> Path:
    """Return an environment or raise as conda does."""
    if not is_environment(path):
        raise CondaError("EnvironmentLocationNotFound", f"Not a conda environment: {path}")
    return path


def display_name(path: Path) -> str:
    """Short name of an environment, '' when it has none."""
    if path == PREFIX:
        return "base"
    return path.name if path.parent in directories("envs_dirs", "CONDA_ENVS_DIRS", PREFIX / "envs") else ""


def records(path: Path) -> list[dict[str, Any]]:
    """Installed packages, as conda-meta tells."""
    rows = [json.loads(file.read_text()) for file in sorted((path / "conda-meta").glob("*.json"))]
    for row in rows:
        if str(row.get("channel", "")).startswith((PREFIX / "standin-channel").as_uri()):
            row["channel"] = "conda-forge"
    return rows


def register(path: Path) -> None:
    """Add an environment to the user's list."""
    listed = HOME / ".conda/environments.txt"
    listed.parent.mkdir(parents=True, exist_ok=True)
    known = listed.read_text().splitlines() if listed.is_file() else []
    if str(path) not in known:
        listed.write_text("\n".join([*known, str(path)]) + "\n")


def confirm(args: argparse.Namespace) -> None:
    """Ask as conda does unless told not to; without anybody to answer, stop."""
    if (
        args.yes
        or args.json
        or truthy(settings().get("always_yes", ""))
        or truthy(os.environ.get("CONDA_ALWAYS_YES", ""))
    ):
        return
    print("Proceed ([y]/n)? ", end="", flush=True)
    answer = sys.stdin.readline()
    if not answer or answer.strip().lower() not in ("", "y", "yes"):
        raise CondaError("CondaSystemExit", "Exiting.")


def transact(args: argparse.Namespace, path: Path, specs: list[str]) -> int:
    """Solve and install with the real thing."""
    urls = channel_urls(channel_names(args))
    check_terms(urls)
    rattler: Any = importlib.import_module("rattler")
    meta = sorted((path / "conda-meta").glob("*.json")) if is_environment(path) else []
    have = [] if path == PREFIX else [rattler.PrefixRecord.from_path(file) for file in meta]
    wanted = [re.sub(r"^([A-Za-z0-9_.-]+)=(?=[\w.]+$)", r"\1==", spec) if "=" not in spec else spec for spec in specs]

    async def work() -> tuple[set[tuple[str, str, str]], list[Any]]:
        solved = await rattler.solve(
            [rattler.Channel(fetch_url(url)) for url in urls],
            [re.sub(r"^([^=<>! ]+)=([^=].*)$", r"\1 =\2", spec) for spec in wanted],
            platforms=["linux-64", "noarch"],
            locked_packages=have,
            virtual_packages=rattler.VirtualPackage.detect(),
        )
        after = {(r.name.normalized, str(r.version), str(r.build)) for r in solved}
        return after - {(r.name.normalized, str(r.version), str(r.build)) for r in have}, solved

    try:
        fresh, solved = asyncio.run(work())
    except Exception as error:
        raise CondaError("LibMambaUnsatisfiableError", f"Encountered problems while solving:\n{error}") from error
    if not fresh and is_environment(path):
        done = "All requested packages already installed."
        print(json.dumps({"message": done, "success": True}) if args.json else f"\n# {done}\n")
        return 0
    if not args.json:
        print(f"\n## Package Plan (stand-in) ##\n\n  environment location: {path}\n\n  added / updated specs:")
        print("".join(f"    - {spec}\n" for spec in specs))
        print("".join(f"  {name:<18} {version}-{build}\n" for name, version, build in sorted(fresh)))
    if args.dry_run:
        print(json.dumps({"dry_run": True, "success": True})) if args.json else print("DryRunExit: Dry run. Exiting.")
        return 0
    confirm(args)
    cache = directories("pkgs_dirs", "CONDA_PKGS_DIRS", PREFIX / "pkgs")[0]
    cache.mkdir(parents=True, exist_ok=True)

    async def install() -> None:
        await rattler.install(solved, target_prefix=path, installed_packages=have, show_progress=False, cache_dir=cache)

    try:
        (path / "conda-meta").mkdir(parents=True, exist_ok=True)
        asyncio.run(install())
    except Exception as error:
        raise CondaError("CondaError", f"could not install into {path}: {error}") from error
    with (path / "conda-meta" / "history").open("a") as history:
        command = " ".join(sys.argv[1:])
        history.write(f"==> stand-in <==\n# cmd: conda {command}\n# update specs: {json.dumps(specs)}\n")
    register(path)
    if args.json:
        link = [{"name": name, "version": version, "build_string": build} for name, version, build in sorted(fresh)]
        print(json.dumps({"success": True, "prefix": str(path), "actions": {"LINK": link, "PREFIX": str(path)}}))
    else:
        print(
            "Executing transaction: done\n#\n# To activate this environment, use\n#\n#     $ conda activate "
            + (display_name(path) or str(path))
        )
    return 0


# --- activation -------------------------------------------------------------------------------------------------------


def own_variables(path: Path) -> dict[str, str]:
    """Variables set by `conda env config vars set`."""
    state = path / "conda-meta" / "state"
    values: dict[str, str] = json.loads(state.read_text()).get("env_vars", {}) if state.is_file() else {}
    return values


def scripts(path: Path, folder: str) -> list[Path]:
    """Scripts of an environment that shells source."""
    return sorted((path / "etc/conda" / folder).glob("*.sh"))


def resolve(word: str) -> Path:
    """The environment that `conda activate WORD` means."""
    args = argparse.Namespace(prefix=word if "/" in word else "", name="" if "/" in word else word)
    path = target(args)
    if not is_environment(path):
        raise CondaError("EnvironmentNameNotFound", f"Could not find conda environment: {word}")
    return path


def shell_deactivate(level: int, current: str) -> list[str]:
    """Shell lines that undo the active environment."""
    lines = [f". {shlex.quote(str(script))}" for script in reversed(scripts(Path(current), "deactivate.d"))]
    path = [part for part in os.environ.get("PATH", "").split(":") if part != f"{current}/bin"]
    lines += [f"export PATH={shlex.quote(':'.join(path))}"]
    lines += [f"unset {name}" for name in own_variables(Path(current))]
    if level > 1:
        before = os.environ.get(f"CONDA_PREFIX_{level - 1}", "")
        return [*lines, f"unset CONDA_PREFIX_{level - 1}", *shell_enter(Path(before), level - 1, path)]
    return [*lines, "unset CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_PROMPT_MODIFIER", "export CONDA_SHLVL=0", *prompt("")]


def shell_enter(path: Path, level: int, search: list[str]) -> list[str]:
    """Shell lines that make an environment the active one."""
    name = display_name(path) or str(path)
    lines = [f"export PATH={shlex.quote(':'.join([f'{path}/bin', *search]))}"]
    values = {"CONDA_PREFIX": str(path), "CONDA_SHLVL": str(level), "CONDA_DEFAULT_ENV": name}
    values |= {"CONDA_PROMPT_MODIFIER": f"({name}) ", "CONDA_EXE": f"{PREFIX}/bin/conda", **own_variables(path)}
    values["CONDA_PYTHON_EXE"] = f"{PREFIX}/bin/python"
    lines += [f"export {key}={shlex.quote(value)}" for key, value in values.items()]
    lines += prompt(f"({name}) ")
    return lines + [f". {shlex.quote(str(script))}" for script in scripts(path, "activate.d")]


def prompt(modifier: str) -> list[str]:
    """Shell lines for PS1, none when there is no prompt."""
    shown = os.environ.get("PS1", "")
    if not shown:
        return []
    bare = shown.removeprefix(os.environ.get("CONDA_PROMPT_MODIFIER", ""))
    return [f"PS1={shlex.quote(modifier + bare)}"]


def do_shell(words: list[str]) -> int:
    """`conda shell.SHELL hook|activate|deactivate|reactivate`: prints code for a shell to evaluate."""
    action = words[0] if words else ""
    current, level = os.environ.get("CONDA_PREFIX", ""), int(os.environ.get("CONDA_SHLVL") or 0)
    search = [part for part in os.environ.get("PATH", "").split(":") if part and part != f"{current}/bin"]
    if action == "hook":
        print((PREFIX / "etc/profile.d/conda.sh").read_text())
        if truthy(settings().get("auto_activate_base", settings().get("auto_activate", "true"))):
            print("conda activate base")
        return 0
    lines: list[str] = []
    if action == "deactivate":
        lines = shell_deactivate(level, current) if current else []
    elif action in ("activate", "reactivate"):
        word = next((item for item in words[1:] if not item.startswith("-")), current or "base")
        path = resolve(word)
        if current and str(path) != current:
            lines += [f". {shlex.quote(str(script))}" for script in reversed(scripts(Path(current), "deactivate.d"))]
            lines += [f"export CONDA_PREFIX_{level}={shlex.quote(current)}"]
            level += 1
        lines += shell_enter(path, max(level, 1), search)
    else:
        raise CondaError("ArgumentError", f"invalid choice: {action!r}")
    print("\n".join(lines))
    return 0


def do_run(args: argparse.Namespace) -> int:
    """`conda run`: activation scripts and variables of the environment, then the command; its exit code."""
    path = must_exist(target(args))
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise CondaError("ArgumentError", "conda run needs a command")
    for name in ("CONDA_PREFIX", "CONDA_SHLVL"):
        os.environ.pop(name, None)
    search = [part for part in os.environ.get("PATH", "").split(":") if part]
    code = "\n".join([*shell_enter(path, 1, search), 'exec "$@"'])
    shell = shutil.which("bash") or "/bin/sh"
    sys.stdout.flush()
    done = subprocess.run([shell, "-c", code, "conda-run", *command], cwd=args.cwd, check=False)
    if done.returncode:
        print(
            f"ERROR conda.cli.main_run:execute: `conda run {shlex.join(command)}` failed. (See above for error)",
            file=sys.stderr,
        )
    return done.returncode


def do_init(args: argparse.Namespace) -> int:
    """`conda init`: one marked block in ~/.bashrc."""
    file = HOME / ".bashrc"
    body = (
        f"{BLOCK_BEGIN}\n# !! Contents within this block are managed by 'conda init' !!\n"
        f"__conda_setup=\"$('{PREFIX}/bin/conda' 'shell.bash' 'hook' 2> /dev/null)\"\n"
        'if [ $? -eq 0 ]; then\n    eval "$__conda_setup"\nelse\n'
        f'    if [ -f "{PREFIX}/etc/profile.d/conda.sh" ]; then\n        . "{PREFIX}/etc/profile.d/conda.sh"\n'
        f'    else\n        export PATH="{PREFIX}/bin:$PATH"\n    fi\nfi\nunset __conda_setup\n{BLOCK_END}\n'
    )
    old = file.read_text() if file.is_file() else ""
    pattern = re.compile(re.escape(BLOCK_BEGIN) + ".*?" + re.escape(BLOCK_END) + "\n?", re.DOTALL)
    bare = pattern.sub("", old)
    new = bare if args.reverse else pattern.sub(lambda _match: body, old) if pattern.search(old) else f"{old}\n{body}"
    print(f"{'no change' if new == old else 'modified'}      {file}")
    if new != old and not args.dry_run:
        file.write_text(new)
    return 0


# --- commands that only tell or write settings ------------------------------------------------------------------------


def do_list(args: argparse.Namespace) -> int:
    """`conda list`."""
    path = must_exist(target(args))
    rows = [row for row in records(path) if not args.regex or re.search(args.regex, row["name"])]
    if args.json:
        keys = ("name", "version", "build_string", "channel")
        found = [
            dict(zip(keys, (r["name"], r["version"], r["build"], r.get("channel", "")), strict=True)) for r in rows
        ]
        print(json.dumps(found, indent=2))
        return 0
    print(
        f"# packages in environment at {path}:\n#\n# Name                    Version                   Build  Channel"
    )
    for row in rows:
        print(f"{row['name']:<25} {row['version']:<15} {row['build']:>15}  {row.get('channel', '')}")
    return 0


def do_info(args: argparse.Namespace) -> int:
    """`conda info`."""
    if args.base:
        print(PREFIX)
        return 0
    facts = {
        "conda_version": VERSION,
        "stand_in": "gpu-bootstrap lab stand-in, not conda",
        "active_prefix": os.environ.get("CONDA_PREFIX"),
        "root_prefix": str(PREFIX),
        "conda_prefix": str(PREFIX),
        "root_writable": os.access(PREFIX, os.W_OK),
        "envs": [str(path) for path in environments()],
        "envs_dirs": [str(path) for path in directories("envs_dirs", "CONDA_ENVS_DIRS", PREFIX / "envs")],
        "pkgs_dirs": [str(path) for path in directories("pkgs_dirs", "CONDA_PKGS_DIRS", PREFIX / "pkgs")],
        "channels": channel_urls(settings().get("channels") or ["defaults"]),
        "config_files": [str(path) for path in sources()],
        "platform": "linux-64",
        "python_version": ".".join(str(part) for part in sys.version_info[:3]),
    }
    if args.json:
        print(json.dumps(facts, indent=2))
    elif args.envs:
        do_env_list(args)
    else:
        print("\n" + "\n".join(f"{key.replace('_', ' '):>20} : {value}" for key, value in facts.items()))
    return 0


def do_env_list(args: argparse.Namespace) -> int:
    """`conda env list`."""
    found = environments()
    if args.json:
        print(json.dumps({"envs": [str(path) for path in found]}, indent=2))
        return 0
    print("\n# conda environments:\n#")
    active = os.environ.get("CONDA_PREFIX", "")
    for path in found:
        print(f"{display_name(path):<20} {'*' if str(path) == active else ' '} {path}")
    return 0


def do_env(args: argparse.Namespace) -> int:
    """`conda env list|remove|config vars`."""
    if args.action == "list":
        return do_env_list(args)
    path = must_exist(target(args))
    if args.action == "remove":
        if path == PREFIX:
            raise CondaError("CondaEnvironmentError", "cannot remove the base environment")
        confirm(args)
        shutil.rmtree(path)
        return 0
    state = path / "conda-meta" / "state"
    values = own_variables(path)
    words = args.words[1:] if args.words[:1] == ["vars"] else args.words
    verb, rest = (words[0], words[1:]) if words else ("list", [])
    if verb == "set":
        values |= {name.upper(): value for name, _, value in (word.partition("=") for word in rest)}
    elif verb == "unset":
        values = {name: value for name, value in values.items() if name not in {word.upper() for word in rest}}
    else:
        print("\n".join(f"{name} = {value}" for name, value in values.items()))
        return 0
    state.write_text(json.dumps({"version": 1, "env_vars": values}))
    return 0


def config_file(args: argparse.Namespace) -> Path:
    """The file that `conda config` writes."""
    if args.file:
        return Path(args.file)
    if args.system:
        return PREFIX / ".condarc"
    if args.env:
        return Path(os.environ.get("CONDA_PREFIX") or PREFIX) / ".condarc"
    return HOME / ".condarc"


def do_config(args: argparse.Namespace) -> int:
    """`conda config`: set, add, append, remove, show."""
    place = config_file(args)
    values = parse_condarc(place.read_text()) if place.is_file() else {}
    before = render_condarc(values)

    def items(key: str) -> list[str]:
        found = values.get(key, [])
        values[key] = found = list(found) if isinstance(found, list) else [str(found)]
        return found

    for key, value in args.set:
        values[key] = value
    for key, value in [*args.add, *args.prepend]:
        if value in items(key):
            print(f"Warning: '{value}' already in '{key}' list, moving to the top", file=sys.stderr)
            items(key).remove(value)
        values[key] = [value, *items(key)]
    for key, value in args.append:
        values[key] = [item for item in items(key) if item != value] + [value]
    for key, value in args.remove:
        if value not in items(key):
            raise CondaError("CondaKeyError", f"'{key}': '{value}' is not in the list of {place}")
        values[key] = [item for item in items(key) if item != value]
    for key in args.remove_key:
        if key not in values:
            raise CondaError("CondaKeyError", f"'{key}': key is not in {place}")
        del values[key]
    if render_condarc(values) != before:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(render_condarc(values))
    if args.get is not None:
        for key in args.get or values:
            for item in values[key] if isinstance(values.get(key), list) else [values.get(key, "")]:
                print(f"--set {key} {item}" if not isinstance(values.get(key), list) else f"--add {key} '{item}'")
    elif args.show is not None or args.show_sources:
        shown = {
            "channels": ["defaults"],
            "default_channels": list(TERMS),
            "channel_alias": "https://conda.anaconda.org",
        } | settings()
        if args.show:
            shown = {key: shown.get(key) for key in args.show}
        print(json.dumps(shown, indent=2) if args.json else render_condarc(shown), end="")
    return 0


def do_clean(args: argparse.Namespace) -> int:
    """`conda clean`: empties the package cache."""
    for folder in directories("pkgs_dirs", "CONDA_PKGS_DIRS", PREFIX / "pkgs"):
        if folder.is_dir():
            for path in folder.iterdir():
                with contextlib.suppress(OSError):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
    print(json.dumps({"success": True}) if args.json else "Cleaned (stand-in).")
    return 0


def do_packages(args: argparse.Namespace) -> int:
    """`conda create|install|update`."""
    path = target(args)
    if args.verb != "create":
        return transact(args, must_exist(path), args.specs)
    if not (args.prefix or args.name):
        raise CondaError("ArgumentError", "one of the arguments -n/--name -p/--prefix is required")
    if path == PREFIX:
        raise CondaError("CondaValueError", "The target prefix is the base prefix. Aborting.")
    if is_environment(path):
        if not args.json:
            print(f"WARNING: A conda environment already exists at '{path}'")
        check_terms(channel_urls(channel_names(args)))
        confirm(args)
        shutil.rmtree(path)
    return transact(args, path, args.specs)


# --- command line -----------------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """The part of conda's command line that the stand-in knows; the rest is refused loudly."""
    top = argparse.ArgumentParser(prog="conda", description=__doc__)
    top.add_argument("-V", "--version", action="version", version=f"conda {VERSION}")
    verbs = top.add_subparsers(dest="verb", required=True)

    def common(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
        where = sub.add_mutually_exclusive_group()
        where.add_argument("-n", "--name", default="")
        where.add_argument("-p", "--prefix", default="")
        for flags in (
            ("-y", "--yes"),
            ("--json",),
            ("-q", "--quiet"),
            ("-d", "--dry-run"),
            ("-v", "--verbose"),
            ("--debug",),
        ):
            sub.add_argument(*flags, action="store_true")
        sub.add_argument("-c", "--channel", action="append", default=[])
        for flag in ("--override-channels", "-O"):
            sub.add_argument(flag, dest="override_channels", action="store_true")
        return sub

    for verb in ("create", "install", "update"):
        sub = common(verbs.add_parser(verb))
        sub.add_argument("specs", nargs="*")
        sub.add_argument("--solver", choices=["classic", "libmamba", "rattler"])
        for flag in (
            "--strict-channel-priority",
            "--no-channel-priority",
            "--no-default-packages",
            "--offline",
            "--all",
        ):
            sub.add_argument(flag, action="store_true")
        sub.add_argument("--file", action="append", default=[])
        sub.set_defaults(call=do_packages)
    sub = common(verbs.add_parser("list"))
    sub.add_argument("regex", nargs="?", default="")
    sub.set_defaults(call=do_list)
    sub = common(verbs.add_parser("env"))
    sub.add_argument("action", choices=["list", "remove", "config"])
    sub.add_argument("words", nargs="*")
    sub.set_defaults(call=do_env)
    sub = common(verbs.add_parser("info"))
    sub.add_argument("--base", action="store_true")
    sub.add_argument("-e", "--envs", action="store_true")
    sub.set_defaults(call=do_info)
    sub = verbs.add_parser("config")
    for flag in ("--set", "--add", "--prepend", "--append", "--remove"):
        sub.add_argument(flag, nargs=2, action="append", default=[], metavar=("KEY", "VALUE"))
    sub.add_argument("--remove-key", action="append", default=[])
    sub.add_argument("--show", nargs="*")
    sub.add_argument("--get", nargs="*")
    for flag in ("--show-sources", "--json", "--system", "--env"):
        sub.add_argument(flag, action="store_true")
    sub.add_argument("--file", default="")
    sub.set_defaults(call=do_config)
    sub = verbs.add_parser("run")
    sub.add_argument("-n", "--name", default="")
    sub.add_argument("-p", "--prefix", default="")
    sub.add_argument("--cwd", default=None)
    for flag in ("--no-capture-output", "--live-stream", "-v", "--no-stdin", "--dev", "--debug-wrapper-scripts"):
        sub.add_argument(flag, action="store_true")
    sub.add_argument("command", nargs=argparse.REMAINDER)
    sub.set_defaults(call=do_run)
    sub = verbs.add_parser("init")
    sub.add_argument("shells", nargs="*")
    for flag in ("--all", "--reverse", "-d", "--dry-run", "-q", "-v"):
        sub.add_argument(flag, action="store_true")
    sub.set_defaults(call=do_init)
    sub = common(verbs.add_parser("clean"))
    for flag in ("-a", "--all", "--packages", "--tarballs", "--index-cache"):
        sub.add_argument(flag, action="store_true")
    sub.set_defaults(call=do_clean)
    sub = common(verbs.add_parser("tos"))
    sub.add_argument(
        "action", nargs="?", default="list", choices=["list", "view", "accept", "reject", "info", "interactive"]
    )
    for flag in ("--system", "--site", "--user"):
        sub.add_argument(flag, action="store_true")
    sub.set_defaults(call=do_terms)
    return top


@contextlib.contextmanager
def told(as_json: bool) -> Iterator[None]:
    """Show errors as conda does and leave with 1."""
    try:
        yield
    except CondaError as error:
        text = f"{error.name}: {error}"
        if as_json:
            print(
                json.dumps(
                    {"error": text, "exception_name": error.name, "message": str(error), "success": False}, indent=2
                )
            )
        else:
            print(f"\n{text}\n", file=sys.stderr)
        leave(1)


def leave(code: int) -> NoReturn:
    """End at once: py-rattler 0.28 can abort in the interpreter's shutdown."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> NoReturn:
    """Dispatch one command."""
    words = sys.argv[1:]
    with told("--json" in words):
        if words and words[0].startswith("shell."):
            leave(do_shell(words[1:]))
        if words and words[0] in ("activate", "deactivate"):
            raise CondaError("CondaError", f"Run 'conda init' before 'conda {words[0]}'")
        args = parser().parse_args(words)
        leave(int(args.call(args)))


if __name__ == "__main__":
    main()
