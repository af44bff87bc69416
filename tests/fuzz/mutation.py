"""Mutations of files: bytes, numbers, lines and structure changed at random, the way a fuzzer does."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

TOKENS = [
    b"\0", b"\xff", b"\x1b[31m", b"\xe2\x80\xae", b"-1", b"0", b"nan", b"inf", b"1e309", b"1e-320", b"9" * 25,
    b"9" * 5_000, b"[" * 300, b"{", b"}", b'"', b"'", b",", b"\t", b"\n", b"\r\n", b"null", b"true", b"=", b"..",
    b"/dev/zero", b"%n%s", b"\xef\xbb\xbf", b"\xc3\x28", b"A" * 10_000,
]  # fmt: skip


def flip(content: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice([1, 1, 2, 8, 64])):
        if content:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def cut(content: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(content) + 1)
    del content[start : start + chance.choice([1, 4, 64, len(content)])]


def repeat(content: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(content) + 1)
    content[start:start] = content[start : start + chance.choice([1, 8, 200])] * chance.choice([1, 2, 50])


def insert(content: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(content) + 1)
    content[start:start] = chance.choice(TOKENS)


def replace_number(content: bytearray, chance: random.Random) -> None:
    """Put something else in the place of a run of digits."""
    places = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
    if places:
        start = chance.choice(places)
        content[start : start + 1] = chance.choice(TOKENS)


def swap_lines(content: bytearray, chance: random.Random) -> None:
    lines = bytes(content).split(b"\n")
    chance.shuffle(lines)
    content[:] = b"\n".join(lines)


MUTATIONS: list[Callable[[bytearray, random.Random], None]] = [flip, cut, repeat, insert, replace_number, swap_lines]


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Return the content with one to four mutations."""
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 4])):
        chance.choice(MUTATIONS)(changed, chance)
    return bytes(changed)


def mutated_safetensors(content: bytes, chance: random.Random) -> bytes:
    """Mutate the bytes, or the JSON header alone with a length that fits it, so that the reader comes further."""
    if chance.random() < 0.4:
        return mutated(content, chance)
    size = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + size], content[8 + size :]
    if chance.random() < 0.5:
        header = mutated(header, chance)
    else:
        header = json.dumps(_changed(json.loads(header), chance)).encode()
    if chance.random() < 0.3:
        data = mutated(data, chance)
    return len(header).to_bytes(8, "little") + header + data


ODD_VALUES: list[object] = [
    None, True, -1, 0, 1, 10**9, 10**30, 1e300, float("nan"), float("inf"), "", "x", "\x1b[31m\u202e", "\ud800",
    "9" * 400, "A" * 10_000, [], [1], [[]], {}, {"x": 1},
]  # fmt: skip


def changed_json(value: object, chance: random.Random) -> object:
    """Return a JSON value in which one part, at any depth, is another, is missing, or is there twice."""
    if not value or not isinstance(value, dict | list) or chance.random() < 0.1:
        return chance.choice(ODD_VALUES)
    changed = value.copy()
    key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))  # type: ignore[arg-type]
    fate = chance.random()
    if fate < 0.1:
        del changed[key]
    elif fate < 0.15 and isinstance(changed, list):
        changed.insert(0, changed[key])
    else:
        changed[key] = changed_json(value[key], chance)
    return changed


def mutated_json(content: bytes, chance: random.Random) -> bytes:
    """Mutate the bytes of a file of JSON, or of lines of JSON, or a value in it, so that the reader comes further."""
    if chance.random() < 0.4:
        return mutated(content, chance)
    try:
        return json.dumps(changed_json(json.loads(content), chance)).encode()
    except ValueError:
        lines = content.splitlines()
        place = chance.randrange(len(lines))
        lines[place] = json.dumps(changed_json(json.loads(lines[place]), chance)).encode()
        return b"\n".join(lines)


def mutated_card(content: bytes, chance: random.Random) -> bytes:
    """Mutate a safetensors file, or the JSON card in its metadata."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    if "card" not in header["__metadata__"] or chance.random() < 0.4:
        return mutated_safetensors(content, chance)
    card = header["__metadata__"]["card"].encode()
    header["__metadata__"]["card"] = mutated_json(card, chance).decode(errors="replace")
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def _changed(header: dict[str, dict[str, object]], chance: random.Random) -> dict[str, dict[str, object]]:
    """Change one value of a header: a type, a shape, offsets, or a text of the metadata."""
    values: list[object] = [
        -1, 0, 2**63, [], [2**40], [0], "F8_E4M3", "C64", "BOOL", "I64", "F64", None, {}, "nan", "9" * 400, "1e-320",
        "difference", "\x1b[31m", "1000000000", "r=99999999999", "true",
    ]  # fmt: skip
    part = header[chance.choice(sorted(header))]
    part[chance.choice([*sorted(part), "kind", "steps", "learning_rate", "target.num_labels"])] = chance.choice(values)
    return header
