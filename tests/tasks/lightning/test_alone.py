"""Each task file trains with Lightning only, in a folder that has nothing else."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TASKS = Path(__file__).resolve().parents[3] / "src" / "tasks" / "lightning"

PROGRAM = """
import copy
import lightning.pytorch as pl, torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
{program}
optimizer = lambda network: torch.optim.AdamW(network.parameters(), 0.01)
module = Task(network, optimizer)
loader = DataLoader(rows, batch_size=16)
trainer = pl.Trainer(accelerator="cpu", max_epochs=8, logger=False, enable_checkpointing=False, enable_progress_bar=False)
untrained = Task(copy.deepcopy(network), optimizer)
before = trainer.validate(untrained, loader, verbose=False)[0]
trainer.fit(module, loader, loader)
after = trainer.test(module, loader, verbose=False)[0]
assert after["test/loss"] < 0.8 * before["val/loss"], (before, after)
print(sorted(after), *trainer.predict(module, loader)[0].shape)
"""

PROGRAMS = {
    "classification": """
from classification import Classification as Task
network = nn.Sequential(nn.Flatten(), nn.LazyLinear(2))
images = torch.randn(64, 4, 4, 1)
rows = list(zip(images, (images.mean((1, 2, 3)) > 0).long()))
network(images.permute(0, 3, 1, 2))
""",
    "regression": """
from regression import Regression as Task
network, columns = nn.Linear(3, 1), torch.randn(64, 3)
rows = [{"columns": row, "targets": row.sum(0, keepdim=True)} for row in columns]
""",
    "language_model": """
from language_model import LanguageModel as Task

class Network(nn.Module):
    length = 8

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(11, 16), nn.Linear(16, 11))

    def forward(self, tokens, documents=None):
        return self.layers(tokens)

network, counting = Network(), (torch.arange(9) + torch.arange(64)[:, None]) % 11
empty = torch.zeros(9, dtype=torch.int32)
rows = [{"tokens": row.int(), "documents": empty, "bytes": torch.tensor(8.0)} for row in counting]
""",
}
SHOWN = {
    "classification": "['test/acc', 'test/loss'] 16 2",
    "regression": "['test/loss', 'test/mae', 'test/r2'] 16 1",
    "language_model": "['test/bits_per_byte', 'test/loss', 'test/perplexity'] 16 8 11",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_task_file_trains_alone(name: str, tmp_path: Path) -> None:
    shutil.copy(TASKS / f"{name}.py", tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM.format(program=PROGRAMS[name]))
    command = [sys.executable, "-W", "ignore", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == SHOWN[name]
