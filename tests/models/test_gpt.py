"""`gpt` of both frameworks has the same logits with the same weights."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from train_anywhere.files import ROOT

SHARED = """
import sys
import numpy as np
random = np.random.default_rng(0)
tokens = random.integers(0, 50, (3, 16)).astype(np.int32)
documents = np.sort(random.integers(-1, 3, (3, 16)), axis=1).astype(np.int32)
sizes = dict(vocabulary=50, length=16, layers=3, heads=4, kv_heads=2, width=32, hidden=None, checkpoint_activations=False)
"""

LIGHTNING = """
import torch
from src.models.lightning.gpt import GPT
torch.manual_seed(0)
network = GPT(**sizes)
with torch.no_grad():
    for parameter in network.parameters():
        parameter.mul_(2).add_(0.01 * torch.randn_like(parameter))
    logits = network(torch.tensor(tokens), torch.tensor(documents))
# in the order in which they are used; Keras' matrices are the other way round
weights = [p.detach().numpy() if "embedding" in name else p.detach().numpy().T for name, p in network.named_parameters()]
np.savez(sys.argv[1], logits=logits.numpy(), **{f"{number:03}": w for number, w in enumerate(weights)})
"""

KERAS = """
from src.models.keras.gpt import gpt
network = gpt(**sizes)
with np.load(sys.argv[1]) as given:
    weights = [given[name] for name in given.files if name != "logits"]
    for variable, value in zip(network.trainable_variables, weights, strict=True):
        variable.assign(value)
    logits = np.asarray(network({"tokens": tokens, "documents": documents}))
    np.savez(sys.argv[2], ours=logits, theirs=given["logits"])
"""


def python(program: str, *arguments: Path) -> None:
    """Run in a separate process, because the two frameworks are never imported together."""
    command = [sys.executable, "-c", SHARED + program, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_same_weights_give_the_same_logits(tmp_path: Path) -> None:
    weights, both = tmp_path / "weights.npz", tmp_path / "both.npz"
    python(LIGHTNING, weights)
    python(KERAS, weights, both)
    with np.load(both) as logits:
        assert np.abs(logits["ours"]).max() > 0.5
        np.testing.assert_allclose(logits["ours"], logits["theirs"], atol=1e-5)
