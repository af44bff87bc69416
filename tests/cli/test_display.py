"""What a terminal shows that a pipe does not, and the other way round."""

from __future__ import annotations

import io

import pytest
from command_line import TEXT
from rich.console import Console
from rich.text import Text

from gradleak.cli.output import live
from gradleak.cli.output.highlight import ELSEWHERE, RIGHT, matched_tokens, pieces
from gradleak.cli.output.live import LiveWatch, PlainWatch, RunShare, clock, progress_line, time_left
from gradleak.cli.output.screen import Screen
from gradleak.exchange import Progress
from gradleak.targets import Target


def styled(text: Text) -> dict[str, str]:
    return {text.plain[span.start : span.end].strip(): str(span.style) for span in text.spans}


def test_right_tokens_are_told_from_tokens_at_another_place(bert: Target) -> None:
    ids = bert.tokenizer("the dog cat on red")["input_ids"]
    text = matched_tokens(bert.tokenizer, ids, [TEXT])
    assert text.plain == "the dog cat on red"
    assert styled(text) == {"the": RIGHT, "cat": ELSEWHERE, "on": RIGHT} | {
        word: "" for word in styled(text) if word in ("dog", "red")
    }


def test_the_reference_with_most_tokens_in_common_counts(bert: Target) -> None:
    ids = bert.tokenizer("a dog ran")["input_ids"]
    assert styled(matched_tokens(bert.tokenizer, ids, [TEXT, "a dog ran"]))["dog"] == RIGHT


def test_pieces_make_up_the_text_even_if_the_tokenizer_rewrites_it() -> None:
    class Rewriting:
        """Takes back the space in front of a full stop."""

        def decode(self, ids: list[int]) -> str:
            return " ".join("ab."[i] for i in ids).replace(" .", ".") if len(ids) < 3 else "A b."

    assert pieces(Rewriting(), [0, 1]) == ["a", " b"]
    assert pieces(Rewriting(), [0, 1, 2]) == ["a", " b", " ."]


def test_a_pipe_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(live.time, "monotonic", lambda: now)
    lines: list[str] = []
    watch = PlainWatch(lines.append)
    with watch.group("tag", None) as listener:
        for step in range(1, 101):  # ten seconds
            now = step / 10
            listener(Progress(step, 100, 0.5, ("a cat", "a dog"), now))
    assert len(lines) == 6
    assert lines[0] == "tag …", "something is said at once"
    assert lines[1] == "step 20/100  loss 0.5  0:08 left  a cat | a dog"
    assert watch.last is not None
    assert watch.last.step == 100


def test_a_terminal_gets_a_panel_that_goes_away(bert: Target) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    watch = LiveWatch(console, bert.tokenizer)
    with watch.group("tag, batch 1 of 1", [TEXT]) as listener:
        listener(Progress(1, 4, 0.5, ("the dog sat",), 2.0))
    drawn = screen.getvalue()
    for part in ("tag, batch 1 of 1", "step 1/4", "loss 0.5", "0:06 left", "sat"):
        assert part in drawn
    assert drawn.rstrip().endswith("\x1b[2K")  # erased


def test_the_time_left_is_that_of_the_run() -> None:
    halfway = Progress(5, 10, 0.5, (), seconds=10.0)
    assert RunShare().seconds_left(halfway) == 10.0
    last = RunShare(done=8, size=2, count=10, seconds=80.0)
    assert last.seconds_left(halfway) == 10.0
    assert RunShare(done=0, size=2, count=10).seconds_left(halfway) == 10.0 + 20.0 / 2 * 8
    assert RunShare(done=4, size=2, count=10, seconds=100.0).seconds_left(halfway) == 10.0 + 120.0 / 6 * 4


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61.4, "1:01"), (3_725, "1:02:05"), (float("inf"), "?")])
def test_time_left_is_readable(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_an_estimate_says_when_it_is_unknown() -> None:
    assert time_left(None) == "time left unknown"
    assert time_left(61) == "about 1:01 left"


def screen_of(file: io.StringIO, *, rich: bool = False, quiet: bool = False) -> Screen:
    screen = Screen(quiet)
    screen.console = Console(file=file, force_terminal=rich, width=100, markup=False, highlight=False)
    screen.rich = rich
    return screen


@pytest.mark.parametrize(("quiet", "lines"), [(False, ["20 of 100", "40 of 100"]), (True, [])])
def test_any_computation_gets_a_line_now_and_then_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, quiet: bool, lines: list[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(live.time, "monotonic", lambda: now)
    file = io.StringIO()
    with progress_line(screen_of(file, quiet=quiet)) as show:
        for step in range(1, 50):
            now = step / 10
            show(step, 100, f"{step} of 100")
    assert file.getvalue().splitlines() == lines


def test_any_computation_gets_a_bar_on_a_terminal_that_goes_away() -> None:
    file = io.StringIO()
    with progress_line(screen_of(file, rich=True)) as show:
        show(1, 4, "1 of 4 examples")
    assert "1 of 4 examples" in file.getvalue()
    assert file.getvalue().rstrip().endswith("\x1b[2K")  # erased
