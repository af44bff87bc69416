"""One file per architecture family; importing this package registers them all."""

from gradleak.targets.families import albert, bert, distilbert, gpt2, llama, lstm, roberta, textcnn

__all__ = ["albert", "bert", "distilbert", "gpt2", "llama", "lstm", "roberta", "textcnn"]
