"""`gradleak demo`: a moment that shows the whole thing, with nothing but what the package carries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradleak.audit.threads import one_thread
from gradleak.cli.options import shared as o
from gradleak.cli.options.parse import check_output
from gradleak.cli.options.scenario import ClientChoice, ModelChoice, TextChoice
from gradleak.cli.output.screen import Screen
from gradleak.cli.output.wording import plural, sizes
from gradleak.cli.plans import plan_simulation
from gradleak.cli.running import Outcome, carry_out

SENTENCES = (
    "the doctor says my son is ill",
    "my father lost all his money",
    "she never spoke about the war",
    "please call me when you get home",
)
ATTACK = "auto"

DemoTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--text",
        metavar="TEXT",
        help="A private sentence of your own; repeat for several.",
        show_default=False,
        rich_help_panel=o.TEXT,
    ),
]


def demo(text: DemoTexts = None, seed: o.Seed = 0, json_file: o.JsonFile = None, quiet: o.Quiet = False) -> None:
    """Read a private batch back from one gradient of the embedded model, in a few seconds and without network."""
    check_output(json_file)
    screen = Screen(quiet)
    with one_thread():
        outcome = perform(text or list(SENTENCES), seed, screen, json_file)
    for line in meaning(outcome):
        screen.line(line)


def perform(texts: list[str], seed: int, screen: Screen, json_file: Path | None) -> Outcome:
    """Tell the story up to what was found."""
    from gradleak.attacks import find_attack

    built = find_attack(ATTACK).with_settings()
    target = ModelChoice(device="cpu").load(seed)
    client = ClientChoice(dropout=True).read()
    plan = plan_simulation(target, TextChoice(texts).read(), client, len(texts), built.assumes, seed)
    screen.line(f"A client of federated training has {plural(len(texts), 'private sentence')}:")
    for text in texts:
        screen.line(f"  {text}", "bold")
    screen.line(f"\nIt trains {target.name}, a small BERT, on them in one batch, with dropout, and sends a gradient:")
    screen.line(f"  {sizes(plan.first.update)}\n", "bold")
    screen.line("The server knows the model, and nothing of the text. It looks at the gradient:\n")
    return carry_out(plan, built, built.default_preset(), seed, screen, json_file)[0]


def meaning(outcome: Outcome) -> tuple[str, str]:
    """Return two lines on what the result says."""
    assert outcome.scores is not None  # the demo knows its own sentences
    share = outcome.scores.rouge1
    if outcome.scores.exact == 100:
        found = "them away word for word"
    elif share == 100:
        found = "away every word of them, if not their order"
    else:
        found = f"away {share:.0f} % of their words"
    first = f"The sentences never left the client, and yet the gradient gave {found}."
    if share < 30:
        first = f"Only {share:.0f} % of the words were read back this time; another seed or attack may do better."
    return first, "Audit your own training: gradleak attack TEXT --model DIR; try a defense: --defense noise:0.01"
