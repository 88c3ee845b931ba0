#!/usr/bin/env python3
"""Start and stop the lab: containers that stand in for rented hosts, and a mirror of the vendors' sites.

State lies outside the checkout, in ${GPU_BOOTSTRAP_LAB:-${XDG_CACHE_HOME:-~/.cache}/gpu-bootstrap/lab}.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpulab import inventory
from gpulab import state as lab_state
from gpulab.base import Home, LabError, say
from gpulab.engine import Engine
from gpulab.hosts import STANDARD, Hosts, Spec, default_user
from gpulab.images import RECIPES, Images
from gpulab.mirror import CUDA13, TORCH_INDEX, Mirror, port


def images(args: argparse.Namespace, home: Home) -> None:
    """Build host images."""
    Images(home, Engine(home)).ensure(args.names or list(RECIPES), rebuild=args.rebuild)
    say("images are ready")


def up(args: argparse.Namespace, home: Home) -> None:
    """Start the standard hosts and write the inventory."""
    engine = Engine(home)
    mirrors, overrides = Mirror(home, engine).ensure(args.extras)
    hosts = Hosts(home, engine)
    for spec in STANDARD:
        hosts.ensure(spec, replace=args.replace)
    directory = inventory.write(home, mirrors, overrides)
    say("the lab is up")
    print(directory)


def mirror(args: argparse.Namespace, home: Home) -> None:
    """Build the artefacts and start the mirror."""
    mirrors, overrides = Mirror(home, Engine(home)).ensure(args.extras)
    inventory.write(home, mirrors, overrides)
    say("the mirror is up")
    for kind, url in mirrors.items():
        print(f"{kind:<10} {url}")


def host(args: argparse.Namespace, home: Home) -> None:
    """Start one more host."""
    hosts = Hosts(home, Engine(home))
    known = lab_state.load(home).hosts.get(args.name)
    spec = Spec(
        name=args.name,
        image=args.image,
        port=args.port or (known.port if known else 0),
        user=args.user or default_user(args.image),
        data=args.data,
        mounts=tuple(args.mount),
        tmpfs=tuple(args.tmpfs),
        inner_port=args.inner_port,
    )
    hosts.ensure(spec, replace=args.replace)
    print(f"ssh -F {home.run / 'ssh_config'} {spec.name}")


def remove(args: argparse.Namespace, home: Home) -> None:
    """Remove hosts by name."""
    Hosts(home, Engine(home)).remove(args.names)


def down(_args: argparse.Namespace, home: Home) -> None:
    """Remove all that this lab runs."""
    Hosts(home, Engine(home)).down()


def status(_args: argparse.Namespace, home: Home) -> None:
    """Print what runs."""
    engine = Engine(home)
    state = lab_state.load(home)
    print(f"state   {home.root}")
    print(f"engine  {engine.name}" + (f" with CONTAINERS_CONF={engine.conf}" if engine.conf else ""))
    if state.mirror_id:
        found = engine.status(state.mirror_id)
        print(f"mirror  {found} at http://127.0.0.1:{port()}" + "".join(f" +{extra}" for extra in state.mirror_extras))
    for row in sorted(state.hosts.values(), key=lambda item: item.port):
        found = engine.status(row.id)
        print(f"host    {row.name:<24} {found:<9} {row.image:<18} ssh -p {row.port} {row.user}@127.0.0.1")


def where(_args: argparse.Namespace, home: Home) -> None:
    """Print the path of the generated inventory."""
    path = home.run / "inventory"
    if not path.exists():
        raise LabError(f"{path} does not exist yet; run `lab.py up` first")
    print(path)


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    top = argparse.ArgumentParser(
        prog="lab.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    sub = commands.add_parser("images", help="build the host images that are missing or old")
    sub.add_argument("names", nargs="*", metavar="IMAGE", help=f"one or more of {', '.join(RECIPES)} (default: all)")
    sub.add_argument("--rebuild", action="store_true", help="build them even if they are there")
    sub.set_defaults(call=images)

    sub = commands.add_parser(
        "up", help="build what is missing, start mirror, lab-vm and lab-container, write the inventory"
    )
    sub.add_argument("--replace", action="store_true", help="start both hosts anew")
    extras(sub)
    sub.set_defaults(call=up)

    sub = commands.add_parser("mirror", help="build the artefacts that are missing and start the mirror")
    extras(sub)
    sub.set_defaults(call=mirror)

    sub = commands.add_parser("host", help="start one more host and register it for ssh")
    sub.add_argument("name", metavar="NAME")
    sub.add_argument("--image", required=True, choices=list(RECIPES))
    sub.add_argument(
        "--port", type=int, default=0, help="loopback port of its sshd (default: a free one from 22400 on)"
    )
    sub.add_argument(
        "--inner-port", type=int, default=22, help="port that its sshd listens on inside (images without init)"
    )
    sub.add_argument("--user", default="", help="login (default: deploy with sudo where there is systemd, else root)")
    sub.add_argument("--data", action="store_true", help="give it a volume of its own at /data")
    sub.add_argument("--mount", action="append", default=[], metavar="SRC:DST[:ro]", help="bind mount (repeatable)")
    sub.add_argument(
        "--tmpfs", action="append", default=[], metavar="PATH:SIZE", help="small disk, e.g. /tmp:16m (repeatable)"
    )
    sub.add_argument("--replace", action="store_true", help="remove one of the same name first")
    sub.set_defaults(call=host)

    sub = commands.add_parser("rm", help="remove hosts that this lab made")
    sub.add_argument("names", nargs="+", metavar="NAME")
    sub.set_defaults(call=remove)

    commands.add_parser("down", help="remove all hosts, the mirror and the network of this lab").set_defaults(call=down)
    commands.add_parser("status", help="show what runs").set_defaults(call=status)
    commands.add_parser("inventory", help="print the path of the generated inventory").set_defaults(call=where)
    return top


def extras(sub: argparse.ArgumentParser) -> None:
    """Add the options for artefacts that are built only on request."""
    sub.add_argument(
        "--with-torch-index",
        dest="extras",
        action="append_const",
        const=TORCH_INDEX,
        default=[],
        help="also the real torch 2.6.0 family as whl/cu124 (0.8 GB download)",
    )
    sub.add_argument(
        "--with-cuda13",
        dest="extras",
        action="append_const",
        const=CUDA13,
        default=[],
        help="also CUDA 13.2.1 and cuDNN 9.26 for a Debian 13 host (0.8 GB download)",
    )


def main(argv: list[str] | None = None) -> int:
    """Run one command; a `LabError` is told without a traceback."""
    args = parser().parse_args(argv)
    try:
        args.call(args, Home.from_environment())
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
