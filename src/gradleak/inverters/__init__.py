"""The networks of Learning to Invert: features of a gradient in, tokens out; trained by `gradleak.inversion`."""
