"""`gradleak demo`: a minute that shows the whole thing, with nothing but what the package carries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from gradleak.cli import options as o
from gradleak.cli.drawing import Screen
from gradleak.cli.parsing import check_output
from gradleak.cli.plans import plan_simulation
from gradleak.cli.running import Outcome, carry_out
from gradleak.cli.scenario import ClientChoice, ModelChoice, TextChoice
from gradleak.cli.words import sizes

SENTENCE = "the doctor says my son is ill"
ATTACK = "lamp"
PRESET = "fast"
SETTINGS: dict[str, str] = {}

DemoText = Annotated[str, typer.Option(metavar="TEXT", help="The private sentence.", rich_help_panel=o.TEXT)]


def demo(text: DemoText = SENTENCE, seed: o.Seed = 0, json_file: o.JsonFile = None, quiet: o.Quiet = False) -> None:
    """Read a private sentence back from one gradient of the embedded model, in about a minute and without network."""
    check_output(json_file)
    screen = Screen(quiet)
    with one_thread():
        outcome = perform(text, seed, screen, json_file)
    for line in meaning(outcome):
        screen.line(line)


def perform(text: str, seed: int, screen: Screen, json_file: Path | None) -> Outcome:
    """Tell the story up to what was found."""
    from gradleak.attacks import find_attack

    built = find_attack(ATTACK).with_settings(PRESET, SETTINGS)
    target = ModelChoice(device="cpu").load(seed)
    client = ClientChoice.read(dropout=False, embeddings="frozen", fedavg=None, defenses=None)
    plan = plan_simulation(target, TextChoice([text]).read(), client, 1, built.assumes, seed)
    screen.line("A client of federated training has one private sentence:")
    screen.line(f"  {text}\n", "bold")
    screen.line(f"It trains {target.name}, a small BERT, on it and sends the server a gradient, no text:")
    screen.line(f"  {sizes(plan.first.update)}\n", "bold")
    screen.line("The server knows the model, the label and the length, and looks for text that gives this gradient")
    screen.line(f"({built.name}, {built.paper}):\n")
    return carry_out(plan, built, PRESET, seed, screen, json_file)[0]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one core: on so small a model threads wait for each other, much longer still on a busy machine.

    And it makes the demo the same everywhere: another number of threads rounds otherwise.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def meaning(outcome: Outcome) -> tuple[str, str]:
    """Return two lines on what the result says."""
    assert outcome.scores is not None  # the demo knows its own sentence
    share = outcome.scores.rouge1
    if outcome.scores.exact == 100:
        found = "it away word for word"
    elif share == 100:
        found = "away every word of it, if not their order"
    else:
        found = f"away {share:.0f} % of its words"
    first = f"The sentence never left the client, and yet the gradient gave {found}."
    if share < 30:
        first = f"Only {share:.0f} % of the words were read back this time; another seed or attack may do better."
    return first, "Audit your own training: gradleak attack TEXT --model DIR; try a defense: --defense noise:0.01"
