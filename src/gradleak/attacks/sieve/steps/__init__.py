"""Several steps of Adam: the gradient of one step from the others."""
