"""What is shown of a study: summaries, intervals, the papers' own figures, plots."""
