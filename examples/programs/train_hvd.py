"""Train with Horovod, as its documentation shows: the data is shared out, the optimizer averages the gradients.

python src/run.py cluster=neuron trainer.nodes=2 launch=horovodrun -- examples/programs/train_hvd.py --epochs 2
"""

import argparse

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.1)


def main() -> None:
    """Fit a line on all ranks, and print whether they end with the same weights."""
    options = parser.parse_args()
    hvd.init()
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", hvd.local_rank() % gpus) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    torch.manual_seed(hvd.rank())  # broadcast_parameters makes the weights equal
    x = torch.linspace(-1, 1, 64).unsqueeze(1)[hvd.rank() :: hvd.size()].to(device)
    model = torch.nn.Linear(1, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for _ in range(options.epochs):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), 2 * x)
        loss.backward()
        optimizer.step()
    weights = hvd.allgather(model.weight.detach().flatten(), name="weights")
    print(
        f"rank {hvd.rank()} of {hvd.size()}: spread of the weights {weights.max() - weights.min():g}",
        flush=True,
    )


if __name__ == "__main__":
    main()
