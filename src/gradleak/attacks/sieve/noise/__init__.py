"""Read sentences from an update whose first layer noise hides: maximise the likelihood of the whole gradient."""
