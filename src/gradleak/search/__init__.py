"""Moves on token sequences, shared by attacks."""

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
from gradleak.search.neighbourhood import neighbour_orders

__all__ = [
    "LAMP_MOVES",
    "Move",
    "draw_orders",
    "move_prefix",
    "move_subsequence",
    "move_token",
    "neighbour_orders",
    "rearrange",
    "shuffle",
    "swap",
]
