"""A client of FLARE: trains on its own texts, and sends weights. Nothing here knows of the audit."""

from __future__ import annotations

import nvflare.client as flare
import torch

from gradleak.assets import asset_path
from gradleak.targets.reading import read_tokenizer
from text_model import RATE, TinyClassifier, labelled_texts


def main() -> None:
    """Train a few steps of AdamW in every round."""
    flare.init()
    model, tokenizer = TinyClassifier().eval(), read_tokenizer(asset_path("tiny"))  # eval: no dropout
    while flare.is_running():
        received = flare.receive()
        model.load_state_dict({name: torch.as_tensor(value) for name, value in received.params.items()})
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
        rows = labelled_texts(flare.get_site_name(), received.current_round)
        for text, label in rows:
            tokens = tokenizer([text], return_tensors="pt")
            optimizer.zero_grad()
            model(tokens["input_ids"], labels=torch.tensor([label])).loss.backward()
            optimizer.step()
        flare.send(flare.FLModel(params=model.state_dict(), meta={"NUM_STEPS_CURRENT_ROUND": len(rows)}))


if __name__ == "__main__":
    main()
