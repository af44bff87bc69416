"""`gradleak demo`: an attack in a few seconds, with the embedded model and sentences."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradleak.audit.threads import one_thread
from gradleak.cli.commands.attack import run_and_report
from gradleak.cli.options.attack import ChosenAttack
from gradleak.cli.options.parse import check_output
from gradleak.cli.options.scenario import ClientChoice, ModelChoice, TextChoice
from gradleak.cli.options.shared import TEXT, JsonFile, Quiet, Seed
from gradleak.cli.output.screen import Screen
from gradleak.cli.output.wording import plural, sizes
from gradleak.cli.planning import plan_simulation

if TYPE_CHECKING:
    from gradleak.audit.run import BatchResult
    from gradleak.targets import Target

SENTENCES = (
    "the doctor says my son is ill",
    "my father lost all his money",
    "she never spoke about the war",
    "please call me when you get home",
)
ATTACK = "auto"
REAL_DECODER, EMBEDDED_DECODER = "smollm2", "the embedded language model"
REAL_LORA, EMBEDDED_LORA = "r=8", "r=8"
"""Adapters of the demo."""

DemoLora = Annotated[
    bool,
    typer.Option("--lora", help="A language model whose LoRA adapters alone are sent; needs the peft extra."),
]
DemoTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--text",
        metavar="TEXT",
        help="A private sentence of your own; repeat for several.",
        show_default=False,
        rich_help_panel=TEXT,
    ),
]


def demo(
    text: DemoTexts = None,
    lora: DemoLora = False,
    seed: Seed = 0,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Read a private batch back from one gradient of the embedded model, in a few seconds and without network."""
    check_output(json_file)
    screen = Screen(quiet, json_file)
    with one_thread():
        if lora:
            result = perform_lora((text or list(SENTENCES))[:1], seed, screen, json_file)
        else:
            result = perform(text or list(SENTENCES), seed, screen, json_file)
    for line in meaning(result):
        screen.line(line)


def perform(texts: list[str], seed: int, screen: Screen, json_file: Path | None) -> BatchResult:
    """Simulate a client, explain on the screen what happens, and return the result of the attack."""
    target = ModelChoice(device="cpu").load(seed)
    what = f"It trains {target.name}, a small BERT, on them in one batch, with dropout, and sends a gradient:"
    return _attacked(target, texts, ClientChoice(dropout=True), what, (seed, screen, json_file))


def perform_lora(texts: list[str], seed: int, screen: Screen, json_file: Path | None) -> BatchResult:
    """Do the same with a language model of which the client trains and sends LoRA adapters alone."""
    target = adapted_decoder(seed)
    modules = len(target.adapters)
    what = f"It trains LoRA adapters on {modules} matrices of {target.name}, and sends their gradient, nothing else:"
    return _attacked(target, texts, ClientChoice(), what, (seed, screen, json_file))


def adapted_decoder(seed: int) -> Target:
    """Return SmolLM2 with adapters if it is installed, else the embedded language model with adapters."""
    from gradleak.assets import asset_path
    from gradleak.assets.models import load_embedded_prior
    from gradleak.targets import Target, family_of
    from gradleak.targets.adapters import Lora
    from gradleak.targets.adapters.fresh import with_lora
    from gradleak.targets.reading import read_tokenizer
    from gradleak.targets.registry import MODELS

    entry = MODELS[REAL_DECODER]
    if entry.package and find_spec(entry.package) and find_spec("gguf") and find_spec("accelerate"):
        return ModelChoice(model=REAL_DECODER, task="causal-lm", lora=REAL_LORA, device="cpu").load(seed)
    model = load_embedded_prior()
    target = Target(
        model,
        read_tokenizer(asset_path("tiny")),
        family_of("gpt2"),
        name=EMBEDDED_DECODER,
        task="causal-lm",
        seed=seed,
    )
    return with_lora(target, Lora.parse(EMBEDDED_LORA))


def _attacked(
    target: Target, texts: list[str], choice: ClientChoice, what: str, run: tuple[int, Screen, Path | None]
) -> BatchResult:
    from gradleak.attacks import find_attack

    seed, screen, json_file = run
    attack = find_attack(ATTACK).with_settings()
    chosen = ChosenAttack(attack, attack.default_preset(), seed)
    plan, description = plan_simulation(
        chosen, target, TextChoice(texts).read(), choice.read(), len(texts), attack.assumes
    )
    screen.line(f"A client of federated training has {plural(len(texts), 'private sentence')}:")
    for text in texts:
        screen.line(f"  {text}", "bold")
    screen.line(f"\n{what}")
    screen.line(f"  {sizes(plan.first().update)}\n", "bold")
    screen.line("The server knows the model, and nothing of the text. It looks at the gradient:\n")
    return run_and_report(plan, description, screen, json_file)[0]


def meaning(result: BatchResult) -> tuple[str, str]:
    """Return two lines that interpret the result."""
    assert result.scores is not None  # the demo's sentences are known
    share = result.scores.rouge1
    if result.scores.exact == 100:
        found = "them away word for word"
    elif share == 100:
        found = "away every word of them, if not their order"
    else:
        found = f"away {share:.0f} % of their words"
    first = f"The sentences never left the client, and yet the gradient gave {found}."
    if share < 30:
        first = f"Only {share:.0f} % of the words were read back this time; another seed or attack may do better."
    return first, "Audit your own training: gradleak attack TEXT --model DIR; try a defense: --defense noise:0.01"
