from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from small_images import smooth_images

from gradleak.errors import GradleakError
from gradleak.vision.lpips import CONVOLUTIONS, WIDTHS, Lpips, find_lpips_weights, read_checkpoint
from gradleak.vision.metrics import best_order, image_scores, peak_signal_to_noise, structural_similarity


def test_psnr_is_that_of_the_formula_after_clamping() -> None:
    truth = torch.full((1, 3, 16, 16), 0.5)
    assert float(peak_signal_to_noise(truth + 0.1, truth)) == pytest.approx(20.0, abs=1e-3)
    bright = torch.ones(1, 3, 16, 16)
    assert float(peak_signal_to_noise(bright + 5, bright)) == pytest.approx(120.0)


def test_ssim_is_the_slow_sum_over_windows() -> None:
    one, two = smooth_images(1, 3)[0].double(), smooth_images(1, 4)[0].double()
    bell = np.exp(-((np.arange(11) - 5) ** 2) / (2 * 1.5**2))
    window = np.outer(bell, bell) / bell.sum() ** 2
    values = []
    for channel in range(3):
        for row in range(16 - 10):
            for column in range(16 - 10):
                a = one[channel, row : row + 11, column : column + 11].numpy()
                b = two[channel, row : row + 11, column : column + 11].numpy()
                means = (window * a).sum(), (window * b).sum()
                spread = (window * a * a).sum() - means[0] ** 2, (window * b * b).sum() - means[1] ** 2
                shared = (window * a * b).sum() - means[0] * means[1]
                top = (2 * means[0] * means[1] + 1e-4) * (2 * shared + 9e-4)
                values.append(top / ((means[0] ** 2 + means[1] ** 2 + 1e-4) * (sum(spread) + 9e-4)))
    assert float(structural_similarity(one[None], two[None])) == pytest.approx(np.mean(values), abs=1e-9)


def test_images_of_a_batch_are_scored_in_the_order_that_fits() -> None:
    truth = smooth_images(3)
    assert torch.equal(best_order(truth[[2, 0, 1]], truth), truth)


def test_small_images_have_no_ssim() -> None:
    assert set(image_scores(torch.rand(1, 3, 8, 8), torch.rand(1, 3, 8, 8))) == {"mse", "psnr"}


def checkpoint(path: Path, tree: object) -> Path:
    path.write_bytes(pickle.dumps(tree))
    return path


def small_tree() -> dict[str, dict[str, dict[str, np.ndarray]]]:
    stream = np.random.default_rng(0)
    widths = [width for width, count in WIDTHS for _ in range(count)]
    inside = [3, *widths]
    convs = {
        f"Conv_{n}": {
            "kernel": stream.normal(0, 0.05, (3, 3, inside[n] // 8 or 3, widths[n] // 8)).astype(np.float32),
            "bias": np.zeros(widths[n] // 8, np.float32),
        }
        for n in range(CONVOLUTIONS)
    }
    tree = {"VGG16_0": convs}
    for n, (width, _) in enumerate(WIDTHS):
        tree[f"NetLinLayer_{n}"] = {"Conv_0": {"kernel": np.ones((1, 1, width // 8, 1), np.float32)}}
    return tree


def test_lpips_of_equal_images_is_zero_and_grows_with_noise(tmp_path: Path) -> None:
    distance = Lpips(read_checkpoint(checkpoint(tmp_path / "vgg16.ckpt", small_tree())))
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert torch.equal(distance(images, images), torch.zeros(2))
    assert (distance(images + 0.3 * noise, images) > distance(images + 0.01 * noise, images)).all()


def test_a_checkpoint_that_names_code_is_refused_and_not_run(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "ran",))

    with pytest.raises(GradleakError, match="no weights of LPIPS"):
        read_checkpoint(checkpoint(tmp_path / "vgg16.ckpt", {"VGG16_0": Harmful()}))
    assert not (tmp_path / "ran").exists()


def test_lpips_weights_are_none_where_they_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADLEAK_LPIPS", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_lpips_weights() is None


def test_a_missing_file_that_the_environment_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADLEAK_LPIPS", "/nowhere/vgg.safetensors")
    with pytest.raises(GradleakError, match="no file"):
        find_lpips_weights()
