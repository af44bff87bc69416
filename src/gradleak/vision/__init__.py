"""Learning to Invert's other half: images. Targets, a client, attacks, and the training of inverters.

    from gradleak.vision import ImageClient, load_image_target, load_images
    target = load_image_target("lenet")
    images = load_images("cifar10-sample").take(slice(0, 4))
    update = ImageClient(target).update(images.pixels[:1] / 255, [3])

Updates, defenses, knowledge and settings are the ones of text. An attack sees a target, updates and knowledge alone:
`vision.attacks` may import neither `client` nor `data` nor `gradleak.defenses` (checked by import-linter).
"""

from gradleak.vision.attacks import IMAGE_ATTACKS, ImageAttack, ImageReconstruction, find_image_attack
from gradleak.vision.client import ImageClient
from gradleak.vision.data import ImageSet, load_images
from gradleak.vision.target import ImageTarget, load_image_target

__all__ = [
    "IMAGE_ATTACKS",
    "ImageAttack",
    "ImageClient",
    "ImageReconstruction",
    "ImageSet",
    "ImageTarget",
    "find_image_attack",
    "load_image_target",
    "load_images",
]
