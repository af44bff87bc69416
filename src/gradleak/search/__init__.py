"""Moves on token sequences, and strategies that search with them. Used by the attacks; knows no model."""

from gradleak.search.annealing import Annealed, AnnealingTask, Schedule, TabuList, anneal
from gradleak.search.beam import beam_search
from gradleak.search.column_assignment import ColumnExchanges, ColumnFrame, ColumnGrid, GridFeatures, RowSurrogate
from gradleak.search.control import SearchControl
from gradleak.search.genetic import Evolution, cross_partially_matched, evolve, shuffle_indexes, tournament
from gradleak.search.local_search import refine
from gradleak.search.move_pairs import likely_pairs
from gradleak.search.moves import (
    LAMP_MOVES,
    Move,
    draw_orders,
    move_prefix,
    move_subsequence,
    move_token,
    rearrange,
    shuffle,
    swap,
)
from gradleak.search.neighbourhood import (
    all_block_shifts,
    all_replacements,
    all_shifts,
    all_swaps,
    block_shifts,
    in_parts,
    neighbour_orders,
    shifts,
)
from gradleak.search.permutation_encoding import decode, encode
from gradleak.search.score_cache import ScoreCache
from gradleak.search.surrogate import SequenceFeatures, Surrogate, SurrogatePrediction
from gradleak.search.surrogate_search import LearningSettings, LearningTask, PooledMoves, search_by_learning

__all__ = [
    "LAMP_MOVES",
    "Annealed",
    "AnnealingTask",
    "ColumnExchanges",
    "ColumnFrame",
    "ColumnGrid",
    "Evolution",
    "GridFeatures",
    "LearningSettings",
    "LearningTask",
    "Move",
    "PooledMoves",
    "RowSurrogate",
    "Schedule",
    "ScoreCache",
    "SearchControl",
    "SequenceFeatures",
    "Surrogate",
    "SurrogatePrediction",
    "TabuList",
    "all_block_shifts",
    "all_replacements",
    "all_shifts",
    "all_swaps",
    "anneal",
    "beam_search",
    "block_shifts",
    "cross_partially_matched",
    "decode",
    "draw_orders",
    "encode",
    "evolve",
    "in_parts",
    "likely_pairs",
    "move_prefix",
    "move_subsequence",
    "move_token",
    "neighbour_orders",
    "rearrange",
    "refine",
    "search_by_learning",
    "shifts",
    "shuffle",
    "shuffle_indexes",
    "swap",
    "tournament",
]
