"""Attacks on images, one file each: Inverting Gradients, GI-GIP, Learning to Invert, and layer-wise inversion."""

from gradleak.vision.attacks.base import (
    IMAGE_ATTACKS,
    ImageAttack,
    ImageReconstruction,
    Search,
    find_image_attack,
    register_image_attack,
)
from gradleak.vision.attacks.gi_gip import GiGip
from gradleak.vision.attacks.ig import Ig
from gradleak.vision.attacks.layerwise import Layerwise
from gradleak.vision.attacks.lti import ImageLti

__all__ = [
    "IMAGE_ATTACKS",
    "GiGip",
    "Ig",
    "ImageAttack",
    "ImageLti",
    "ImageReconstruction",
    "Layerwise",
    "Search",
    "find_image_attack",
    "register_image_attack",
]
