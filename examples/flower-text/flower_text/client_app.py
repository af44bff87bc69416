"""A client: trains on its own texts, and sends weights. Nothing here knows of the audit."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_text.task import build_model, round_texts, set_weights, train, weights_of

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Train on the texts of this round, and reply with the weights."""
    config = context.run_config
    kind, batch, steps = str(config["kind"]), int(config["batch"]), int(config["steps"])
    number = int(message.content["config"]["server-round"])
    texts, labels = round_texts(int(context.node_config["partition-id"]), number, batch * steps)
    model = build_model(kind)
    set_weights(model, kind, message.content["arrays"].to_torch_state_dict())
    loss = train(model, kind, texts, labels, batch)
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(texts)})
    content = RecordDict({"arrays": ArrayRecord(weights_of(model, kind)), "metrics": metrics})
    return Message(content=content, reply_to=message)
