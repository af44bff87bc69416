from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_images import small_target, smooth_images

from gradleak.errors import GradleakError
from gradleak.vision.client import ImageClient
from gradleak.vision.data import load_images
from gradleak.vision.target import load_image_target


def picture(path: Path, size: tuple[int, int] = (16, 16), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, 5).save(path)


def test_the_sample_is_the_start_of_the_test_split() -> None:
    sample = load_images("cifar10-sample")
    assert sample.pixels.shape == (128, 3, 32, 32)
    assert sample.labels is not None
    assert sample.labels[:8].tolist() == [3, 8, 8, 0, 6, 6, 1, 6]
    assert sample.pixels.float().mean(dim=(0, 2, 3)).div(255).tolist() == pytest.approx([0.49, 0.48, 0.45], abs=0.03)


def test_folders_are_classes(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "1.png")
    picture(tmp_path / "dog" / "1.png")
    picture(tmp_path / "dog" / "2.png")
    found = load_images(str(tmp_path))
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1, 1]
    assert found.label_names == ("cat", "dog")


def test_arrays_are_read_by_the_name_of_the_split(tmp_path: Path) -> None:
    pixels = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    np.savez(tmp_path / "a.npz", test=pixels, test_labels=np.array([1, 0]))
    found = load_images(f"{tmp_path / 'a.npz'}:test")
    assert torch.equal(found.pixels, torch.from_numpy(pixels).permute(0, 3, 1, 2))
    with pytest.raises(GradleakError, match="did you mean 'test'"):
        load_images(f"{tmp_path / 'a.npz'}:tset")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match="no images"):
        load_images(str(tmp_path))


def test_images_of_several_sizes_are_refused(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    picture(tmp_path / "b.png", (16, 20))
    with pytest.raises(GradleakError, match="16 × 20"):
        load_images(str(tmp_path))


@pytest.mark.parametrize("mode", ["L", "RGBA"])
def test_images_of_another_mode_are_refused(tmp_path: Path, mode: str) -> None:
    picture(tmp_path / "a.png", mode=mode)
    with pytest.raises(GradleakError, match=f"mode {mode}"):
        load_images(str(tmp_path))


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("nothing")
    with pytest.raises(GradleakError, match="cannot be read as an image"):
        load_images(str(tmp_path))


def test_a_misspelt_dataset_has_a_nearest_name() -> None:
    with pytest.raises(GradleakError, match="did you mean 'cifar10-sample'"):
        load_images("cifar10-sampel")


def test_images_of_another_size_than_the_models_are_refused() -> None:
    with pytest.raises(GradleakError, match="32 × 32 pixels, and the model takes 16 × 16"):
        load_images("cifar10-sample").check(16, 10)


def test_a_client_refuses_what_does_not_fit() -> None:
    client = ImageClient(small_target())
    with pytest.raises(GradleakError, match="takes images of 3 × 16 × 16"):
        client.update(torch.rand(1, 3, 8, 8), [0])
    with pytest.raises(GradleakError, match="label 4 is not one of 4"):
        client.update(smooth_images(1), [4])
    with pytest.raises(GradleakError, match="1 images and 2 labels"):
        client.update(smooth_images(1), [0, 1])


def test_dpsgd_clips_each_image() -> None:
    from gradleak.defenses import parse_defense

    client = ImageClient(small_target(), defenses=[parse_defense("dpsgd:0.1,0")])
    update = client.update(smooth_images(2), [0, 1])
    norm = sum(float(tensor.square().sum()) for tensor in update.tensors.values()) ** 0.5
    assert norm <= 0.1 + 1e-6


def test_unknown_models_have_a_nearest_name() -> None:
    with pytest.raises(GradleakError, match="lenet"):
        load_image_target("lennet")
