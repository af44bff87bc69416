"""Reports on studies: records merged to rows, as tables, data and plots.

summary         summarise: a study's file as an Overview
recorded_study  read the file, also while a run writes it
rows            cells of one configuration merged to a Row
utility_rows    trainings of one model and defense merged to a UtilityRow
image_rows      cells of one configuration of an image model merged to an ImageRow
conditions      the conditions of a row: names, order, words
intervals       bootstrap intervals of many groups at once
published       the papers' own figures
tables          an Overview as tables of text, with notes
export          an Overview as JSON, CSV and LaTeX
panels          the panels of a figure, and their points
plots           draw the panels with matplotlib
placing         positions of labels in a panel
"""
