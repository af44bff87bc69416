"""A FLARE job in the simulator: FedAvg of a small text classifier, audited by the server and by each client.

python job.py --directory audit              the server attacks what arrives, each client its own update
python job.py --refuse-above rougeL=20       clients blank an update that gives their text away
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

from gradleak.flare import AuditAggregator, TextLeakageFilter
from text_model import PROTOCOL, TinyClassifier

NAME = "flare-text"
HERE = Path(__file__).resolve().parent


def main() -> None:
    """Run two clients for two rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path("audit"), help="where the audits write")
    parser.add_argument("--workspace", type=Path, default=Path("workspace"), help="where FLARE works")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--budget", default="30s", help="time for the attack on one update")
    parser.add_argument("--refuse-above", help="scores above which a client blanks its update, as rougeL=20")
    given = parser.parse_args()
    folder = given.directory.resolve()
    shared = {"target": "tiny", "protocol": PROTOCOL, "num_labels": 2, "budget": given.budget}
    recipe = FedAvgRecipe(
        name=NAME,
        model=TinyClassifier(),
        min_clients=2,
        num_rounds=given.rounds,
        train_script=str(HERE / "client.py"),
        aggregator=AuditAggregator(**shared, directory=str(folder / "server"), clients=2, wait="60s"),
    )
    own = TextLeakageFilter(
        **shared,
        texts="text_model:own_texts",
        refuse_above=given.refuse_above,
        directory=str(folder / "clients"),
    )
    recipe.add_client_output_filter(own, tasks=["train"])
    allow_components(given.workspace / NAME)
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(given.workspace.resolve())))


def allow_components(workspace: Path) -> None:
    """Let jobs build gradleak's classes at a site, as its administrator does in local/resources.json."""
    names = [f"{kind.__module__}.{kind.__name__}" for kind in (AuditAggregator, TextLeakageFilter)]
    local = workspace / "local"
    local.mkdir(parents=True, exist_ok=True)
    policy = {"format_version": 2, "class_allow_list": [*DEFAULT_CLASS_ALLOW_LIST, *names, "text_model.TinyClassifier"]}
    (local / "resources.json.default").write_text(json.dumps(policy), encoding="utf-8")


if __name__ == "__main__":
    main()
