"""Write the hashes into the lock files: for every pinned version, those of all files that pip may choose.

    .venv/bin/python tools/lock.py requirements*.lock

Change versions in the files by hand, then run this. Files for the interpreters and platforms below are taken from the
package index that pip is set up to use, and from the folders of `PIP_FIND_LINKS`, such as torch's CPU build.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pip._internal.models.index import PyPI
from pip._internal.network.session import PipSession
from pip._vendor.packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

INTERPRETERS = ("cp311", "cp312", "cp313")
PLATFORMS = re.compile(r"any|manylinux.*_(x86_64|aarch64)|macosx_.*_(arm64|universal2)")
LINK = re.compile(r"#sha256=([0-9a-f]{64})[^>]*>\s*([^<\s]+)\s*<")
SEPARATOR = " \\"
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\]+)(.*)$", re.MULTILINE)


def suits(name: str, version: str) -> bool:
    """Return whether a file is a wheel of this version for one of the interpreters and platforms."""
    try:
        _, found, _, tags = parse_wheel_filename(name)
    except ValueError:
        return False
    return found.public == version and any(
        PLATFORMS.fullmatch(tag.platform)
        and (tag.interpreter in (*INTERPRETERS, "py3", "py2.py3") or (tag.abi == "abi3" and _old(tag.interpreter)))
        for tag in tags
    )


def _old(interpreter: str) -> bool:
    return interpreter.startswith("cp3") and int(interpreter[3:]) <= 13


def is_source(name: str, version: str) -> bool:
    """Return whether a file is the source of this version."""
    try:
        return str(parse_sdist_filename(name)[1]) == version
    except ValueError:
        return False


def indexed(name: str) -> dict[str, str]:
    """Return the hash of every file of a package, as the index states it."""
    answer = PipSession(retries=3).get(
        f"{PyPI.simple_url}/{canonicalize_name(name)}/", headers={"Accept": "text/html"}, timeout=60
    )
    answer.raise_for_status()
    return {file: digest for digest, file in LINK.findall(answer.text)}


def local(name: str) -> dict[str, str]:
    """Return the hash of every file of a package in the folders of `PIP_FIND_LINKS`."""
    folders = [Path(part) for part in os.environ.get("PIP_FIND_LINKS", "").split() if Path(part).is_dir()]
    files = [file for folder in folders for file in folder.glob(f"{canonicalize_name(name)}-*.whl")]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def locked(pin: tuple[str, str, str]) -> str:
    """Return the lines of a pinned package."""
    name, version, marker = pin
    files = indexed(name) | local(name)
    hashes = {digest for file, digest in files.items() if suits(file, version)}
    hashes = hashes or {digest for file, digest in files.items() if is_source(file, version)}
    if not hashes:
        raise SystemExit(f"{name}=={version} has no file that suits")
    lines = [f"{name}=={version}{marker.rstrip(SEPARATOR)}", *(f"    --hash=sha256:{h}" for h in sorted(hashes))]
    return f"{SEPARATOR}\n".join(lines)


def main() -> None:
    """Write the hashes into the files that the arguments name."""
    for file in map(Path, sys.argv[1:]):
        text = file.read_text(encoding="utf-8")
        comments = [line for line in text.splitlines() if line.startswith("#")]
        with ThreadPoolExecutor(6) as pool:
            lines = pool.map(locked, PINNED.findall(text))
            file.write_text("\n".join([*comments, *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
