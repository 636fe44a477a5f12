"""A network with pretrained weights from a stand-in for a hub: a folder that `HUB` names."""

import os

import torch


def pretrained(outputs: int) -> torch.nn.Module:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, outputs))
    network.load_state_dict(torch.hub.load_state_dict_from_url(f"file://{os.environ['HUB']}/weights.pt"))
    return network
