"""Results of an attack on the screen: each batch, the mean scores, and the state at an interrupt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradleak.cli.output.highlight import legend, matched_tokens
from gradleak.cli.output.screen import SCORE_TITLES, Screen
from gradleak.cli.output.wording import plural, score_remarks

if TYPE_CHECKING:
    from rich.text import Text

    from gradleak.audit.run import BatchResult
    from gradleak.exchange import Progress


def show_batch(screen: Screen, result: BatchResult, number: int, count: int) -> None:
    """Print a batch: private texts, reconstructions, verdict and scores; if quiet the reconstructions alone."""
    found = result.reconstruction
    if screen.quiet:
        for index in result.order:
            screen.result("" if index is None else found.texts[index])
        return
    if count > 1:
        screen.line(f"batch {number} of {count}", "bold")
    rows = [*_texts(screen, result), *(("note", note) for note in found.notes)]
    if found.verified:
        rows.append(("verified", "every text shown was trained on" + (", and nothing else" * found.complete)))
    rows.append(("verdict", found.verdict))
    rows.extend(("not tested", line) for line in found.not_tested)
    rows.extend(("next", line) for line in found.next_steps)
    if result.scores is not None and count > 1:  # with a single batch the summary shows its scores
        scores = result.scores.as_dict()
        rows.append(("scores", "  ".join(f"{title} {scores[name]:.1f}" for name, title in SCORE_TITLES.items())))
    rows.append(("loss", f"{found.loss:.4g} after {found.seconds:.1f} s"))
    screen.facts(rows)
    screen.line()


def show_summary(screen: Screen, results: Sequence[BatchResult]) -> None:
    """Print the mean scores over all sentences, and the time; nothing if no private text is known."""
    from gradleak.audit.run import mean_scores

    if all(result.scores is None for result in results):
        return
    means = mean_scores(results)
    sentences = sum(len(result.references or ()) for result in results)
    scored = [name for name in SCORE_TITLES if means[name] is not None]
    screen.table(
        ["mean of", *(SCORE_TITLES[name] for name in scored), "seconds"],
        [[plural(sentences, "sentence"), *(f"{means[name]:.1f}" for name in scored), f"{means['seconds']:.1f}"]],
    )
    for remark in score_remarks(means):
        screen.line(remark)
    if screen.rich and not screen.quiet:
        screen.console.print(legend())


def show_interrupt(screen: Screen, last: Progress | None, done: int, count: int) -> None:
    """Print how far a run had come when Ctrl-C ended it."""
    screen.line(f"interrupted: {done} of {count} batches finished", "yellow")
    if last is not None and done < count:
        rows = [("so far", text) for text in last.texts]
        screen.facts([("step", f"{last.step} of {last.total}, loss {last.loss:.4g}"), *rows])


def _texts(screen: Screen, result: BatchResult) -> list[tuple[str, str | Text]]:
    """Return every private text with its reconstruction, then the reconstructions that match none."""
    references = result.references or ()
    rows: list[tuple[str, str | Text]] = []
    for place, index in enumerate(result.order):
        reference = references[place] if place < len(references) else None
        if reference is not None:
            rows.append(("private", reference))
        rows.append(("reconstruction", _reconstructed(screen, result, index, reference)))
    return rows


def _reconstructed(screen: Screen, result: BatchResult, index: int | None, reference: str | None) -> str | Text:
    found = result.reconstruction
    if index is None:
        return "(nothing)"
    if not screen.rich or reference is None:
        return found.texts[index]
    return matched_tokens(found.tokenizer, found.token_ids[index], [reference])
