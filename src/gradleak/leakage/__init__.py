"""What an update reveals without a search; every attack may use these modules, and none of them knows an attack.

- `tokens`, `lengths`, `labels`: the private texts' words, lengths and classes, from single tensors.
- `perturbation`: noise, pruning and rounding, detected and measured.
- `layer_inputs`, `row_space`: the inputs of the first layer and their span in its gradient; whether there was dropout.
- `evidence`: all of the above about one update, before it is attacked.
- `recompute`, `proof`: activations and gradients of candidate texts, and the proof that an update is theirs.
"""
