"""Each process of the example programs uses one GPU of its node, with stand-in devices."""

import os

import pytest

from tools.testing.processes import run_python
from train_anywhere.files import ROOT

TORCH = """
import runpy, sys, types
import torch, torch.distributed as dist

start, rank, count = dist.init_process_group, int(sys.argv[1]), int(sys.argv[2])
used = set()
torch.cuda.is_available = lambda: count > 0
torch.cuda.device_count = lambda: count
torch.cuda.set_device = lambda device: used.add(str(device))
torch.Tensor.to = torch.nn.Module.to = lambda moved, device: used.add(str(device)) or moved
make = torch.tensor
torch.tensor = lambda data, device=None: used.add(str(device)) or make(data)
dist.init_process_group = lambda backend: start("gloo")

class Optimizer:
    def __new__(cls, optimizer, named_parameters):
        return optimizer

hvd = types.ModuleType("horovod.torch")
hvd.init = lambda: None
hvd.rank = hvd.local_rank = lambda: rank
hvd.size = hvd.local_size = lambda: 4
hvd.allreduce = hvd.allgather = lambda tensor, name: tensor
hvd.broadcast_parameters = lambda state, root_rank: None
hvd.DistributedOptimizer = Optimizer
sys.modules["horovod"], sys.modules["horovod.torch"] = types.ModuleType("horovod"), hvd
sys.modules["horovod"].torch = hvd
name, sys.argv = sys.argv[3], sys.argv[3:]
runpy.run_path(name, run_name="__main__")
print("used", sorted(used))
"""

TENSORFLOW = """
import runpy, sys
import tensorflow as tf

seen = [f"/physical_device:GPU:{n}" for n in range(int(sys.argv[2]))]
tf.config.list_physical_devices = lambda kind=None: seen
tf.config.set_visible_devices = lambda devices, kind=None: print("used", devices, kind)
runpy.run_path(sys.argv[3], run_name="__main__")
"""


def used(code: str, rank: int, seen: int, *program: str) -> str:
    """Return the GPUs that a process with this local rank has used of the visible ones."""
    variables = {"LOCAL_RANK": str(rank), "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    environ = {**os.environ, **variables, "MASTER_PORT": "0", "CUDA_VISIBLE_DEVICES": ""}
    example = f"{ROOT}/examples/programs/{program[0]}"
    done = run_python("-c", code, str(rank), str(seen), example, *program[1:], env=environ)
    assert done.returncode == 0, done.stderr
    return "".join(line for line in done.stdout.splitlines() if line.startswith("used"))


OF_TORCH = ("main.py", "main.py --ddp", "train_hvd.py", "horovod_minimal.py")
ONE = [("keras", TENSORFLOW, "tf_workers.py"), *(("lightning", TORCH, program) for program in OF_TORCH)]


@pytest.mark.parametrize("rank, seen, number", [(2, 4, 2), (3, 1, 0)])
@pytest.mark.parametrize("framework, code, program", ONE, ids=[name for *_, name in ONE])
@pytest.mark.quick(
    "tf_workers.py-2-4-2",
    "main.py-2-4-2",
    "main.py --ddp-3-1-0",
    "train_hvd.py-3-1-0",
    "horovod_minimal.py-2-4-2",
)
def test_of_a_rank(framework: str, code: str, program: str, rank: int, seen: int, number: int) -> None:
    """A process that sees all GPUs takes its rank's one. Another takes the only visible one."""
    expected = {"lightning": f"used ['cuda:{number}']", "keras": f"used /physical_device:GPU:{number} GPU"}
    assert used(code, rank, seen, *program.split()) == expected[framework]


@pytest.mark.parametrize("framework, code, program", [("lightning", TORCH, "main.py"), ("keras", TENSORFLOW, "tf_workers.py")])  # fmt: skip
def test_without_gpus_the_cpu_is_used(framework: str, code: str, program: str) -> None:
    assert used(code, 1, 0, program) in ("", "used ['cpu']")
