from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_images import auxiliary, private, search_of, small_target, smooth_images

from gradleak.defenses import Sign
from gradleak.errors import GradleakError
from gradleak.exchange import Knowledge, Update
from gradleak.vision.attacks import GiGip, Ig, ImageLti, Layerwise, find_image_attack
from gradleak.vision.client import ImageClient
from gradleak.vision.generator import Generator
from gradleak.vision.generator_storage import save_generator
from gradleak.vision.inverter_settings import ImageInverterSettings
from gradleak.vision.inverter_storage import choose_image_inverter, load_image_inverter, save_image_inverter
from gradleak.vision.inverter_training import InverterTraining, decibels, matched_error, reordered
from gradleak.vision.target import load_image_target

TINY = ImageInverterSettings(
    hidden=(32,), epochs=2, batch=16, rounds=1, copies=1, steps=12, width=8, refiner_epochs=1, refiner_batch=16, shift=1
)


def test_ig_comes_closer_than_grey() -> None:
    target = small_target()
    images, _, seen = private(target, 3)
    found, _ = Ig(steps=150).run(search_of(target, seen))
    assert decibels(found, images) > decibels(torch.full_like(images, 0.5), images) + 3


def test_ig_of_one_client_does_not_depend_on_the_others() -> None:
    target, client = small_target(), ImageClient(small_target())
    updates = [client.update(smooth_images(2)[n : n + 1], [n]) for n in range(2)]
    known = [Knowledge(batch_size=1, defenses=())] * 2
    together = Ig(steps=5).many(target, updates, known)[0]
    alone = Ig(steps=5).many(target, updates[:1], known[:1])[0]
    torch.testing.assert_close(together.images, alone.images, atol=1e-4, rtol=1e-3)
    assert together.labels == (0,)


def test_layerwise_finds_the_image_of_an_exact_gradient() -> None:
    target = small_target()
    images, _, seen = private(target, 2)
    found, _ = Layerwise().run(search_of(target, seen))
    assert decibels(found, images) > 40


def test_layerwise_refuses_a_defended_gradient() -> None:
    target = small_target()
    with pytest.raises(GradleakError, match="sent as it is"):
        Layerwise().run(search_of(target, private(target, 1, "sign")[2]))


def test_a_saved_update_gives_the_same_reconstruction(tmp_path: Path) -> None:
    target = small_target()
    update = ImageClient(target).update(smooth_images(1), [2])
    update.save(tmp_path / "update.safetensors")
    known = [Knowledge(batch_size=1)]
    first, again = (
        Ig(steps=3).many(small_target(), [one], known)[0]
        for one in (update, Update.load(tmp_path / "update.safetensors"))
    )
    assert torch.equal(first.images, again.images)


def test_own_weights_draw_what_shared_ones_draw() -> None:
    generator, codes = Generator(8), torch.randn(3, 128)
    drawn = generator.draw(generator.features(codes), generator.own_weights(3))
    torch.testing.assert_close(generator(codes), drawn, atol=1e-5, rtol=1e-4)


def test_gi_gip_lowers_the_distance(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_generator(Generator(8), tmp_path / "g.safetensors", "untrained")
    target = load_image_target("lenet", num_labels=4)
    stream = torch.Generator().manual_seed(0)
    images = torch.rand(1, 3, 32, 32, generator=stream)
    update = ImageClient(target).update(images, [1])
    losses = [
        GiGip(generator=str(tmp_path / "g.safetensors"), steps=steps, weight_steps=steps, starts=1)
        .many(target, [update], [Knowledge(batch_size=1)])[0]
        .loss
        for steps in (1, 20)
    ]
    assert losses[1] < losses[0]


def test_gi_gip_says_where_a_generator_comes_from(tmp_path: Path) -> None:
    target = small_target()
    with pytest.raises(GradleakError, match="train-generator"):
        GiGip(generator=str(tmp_path / "none")).run(search_of(target, private(target, 1)[2]))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an inverter that was trained under sign compression."""
    folder = tmp_path_factory.mktemp("inverter")
    training = InverterTraining(small_target(), auxiliary(60), [Sign()], TINY, report=lambda line: None)
    save_image_inverter(training.run(), folder)
    return folder


def test_rounds_come_closer_than_the_inverter_alone(trained: Path) -> None:
    target = small_target()
    inverter = load_image_inverter(trained, target)
    images, _, seen = private(target, 8, "sign")
    alone, corrected = (decibels(inverter.read(target, seen, rounds), images) for rounds in (0, 1))
    assert corrected > alone + 1


def test_lti_reads_with_the_inverter_of_the_defense(trained: Path) -> None:
    target = small_target()
    update = ImageClient(target, defenses=()).update(smooth_images(1), [2])
    known = [Knowledge(batch_size=1, defenses=("sign",))]
    found = ImageLti(inverter=str(trained)).many(target, [update], known)[0]
    assert found.images.shape == (1, 3, 16, 16)
    assert any("trained under sign" in note for note in found.notes)


@pytest.mark.parametrize(
    ("model_seed", "images", "defenses", "message"),
    [
        (2, 1, ("sign",), "other weights"),
        (1, 2, ("sign",), "batches of 2"),
        (1, 1, ("noise:0.1",), "there is: sign"),
    ],
)
def test_an_inverter_that_does_not_fit_is_refused(
    trained: Path, model_seed: int, images: int, defenses: tuple[str, ...], message: str
) -> None:
    target = load_image_target("lenet", size=16, num_labels=4, seed=model_seed)
    with pytest.raises(GradleakError, match=message):
        choose_image_inverter(trained, target, images, defenses)


def test_a_damaged_inverter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image-inverter.safetensors").write_bytes(b"nonsense")
    with pytest.raises(GradleakError, match="damaged"):
        choose_image_inverter(tmp_path, small_target(), 1, ())


def test_batches_are_compared_in_their_best_order() -> None:
    truth = smooth_images(6).view(2, 3, 3, 16, 16)
    mixed = truth[:, [1, 2, 0]]
    assert float(matched_error(mixed, truth).max()) == 0
    assert torch.equal(reordered(mixed, truth), mixed)


def test_an_inverter_of_batches_is_trained(tmp_path: Path) -> None:
    target, settings = small_target(), replace(TINY, images=2, epochs=1, steps=2)
    inverter = InverterTraining(target, auxiliary(40), (), settings, report=lambda line: None).run()
    update = ImageClient(target).update(smooth_images(2), [0, 3])
    save_image_inverter(inverter, tmp_path)
    known = [Knowledge(batch_size=2, labels=(0, 3), defenses=())]
    found = ImageLti(inverter=str(tmp_path)).many(target, [update], known)[0]
    assert found.images.shape == (2, 3, 16, 16)


def test_a_batch_needs_its_labels() -> None:
    target = small_target()
    update = ImageClient(target).update(smooth_images(2), [0, 3])
    with pytest.raises(GradleakError, match="--know labels"):
        Ig(steps=1).many(target, [update], [Knowledge(batch_size=2)])


def test_an_update_that_lacks_a_tensor_is_refused() -> None:
    target = small_target()
    update = ImageClient(target).update(smooth_images(1), [0])
    part = update.with_tensors({n: t for n, t in update.tensors.items() if n != "conv1.weight"})
    with pytest.raises(GradleakError, match=r"lacks the tensor 'conv1\.weight'"):
        Ig(steps=1).many(target, [part], [Knowledge(batch_size=1)])


def test_an_update_of_other_weights_is_refused() -> None:
    update = ImageClient(load_image_target("lenet", size=16, num_labels=4, seed=7)).update(smooth_images(1), [0])
    with pytest.raises(GradleakError, match="other weights"):
        Ig(steps=1).many(small_target(), [update], [Knowledge(batch_size=1)])


def test_a_misspelt_attack_or_setting_has_a_nearest_name() -> None:
    with pytest.raises(GradleakError, match="gi-gip"):
        find_image_attack("gigip")
    with pytest.raises(GradleakError, match="did you mean 'steps'"):
        Ig.with_settings(None, {"step": "3"})
