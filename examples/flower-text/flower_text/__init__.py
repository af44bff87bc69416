"""A Flower app that fine-tunes small text models on shipped samples, with gradleak's audit around its strategy."""
